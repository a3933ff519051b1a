"""Our subset of ext_proc means the same as Envoy's own API, field by field, in both directions.

The oracle is the public API as another code base has generated it.  The tests walk our
descriptors, so a field that is added to the .proto is tested without a line here.
"""

from collections.abc import Callable
from typing import Any

import pytest
from betterproto2 import Message as TheirMessage
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.extproc import codec
from epp.extproc.events import (
    AnswerRequestHeaders,
    BodyMode,
    Modes,
    RequestBody,
    RequestChunk,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseChunk,
    ResponseHeaders,
    ResponseTrailers,
    Route,
)
from protos.gen import ext_proc_pb2 as pb
from tests.wire.envoy_api import (
    HeaderMap,
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
    HttpStatus,
    Metadata,
    ProcessingMode,
    ProcessingModeBodySendMode,
    StatusCode,
    v3,
)
from tests.wire.envoy_api import Struct as TheirStruct

MESSAGES: dict[str, Descriptor] = dict(pb.DESCRIPTOR.message_types_by_name)
ENUMS: dict[str, EnumDescriptor] = dict(pb.DESCRIPTOR.enum_types_by_name)

THEIRS: dict[str, Any] = {name: getattr(v3, name) for name in MESSAGES if hasattr(v3, name)} | {
    "HeaderMap": HeaderMap,
    "HeaderValue": HeaderValue,
    "HeaderValueOption": HeaderValueOption,
    "Metadata": Metadata,
    "HttpStatus": HttpStatus,
}
THEIR_ENUMS: dict[str, Any] = {
    "BodyMode": ProcessingModeBodySendMode,
    "HeaderAppendAction": HeaderValueOptionHeaderAppendAction,
}

json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def structs() -> st.SearchStrategy[Struct]:
    def build(fields: dict[str, Any]) -> Struct:
        struct = Struct()
        struct.update(fields)
        return struct

    return st.dictionaries(st.text(), json_values, max_size=3).map(build)


def values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """One value of a field, as our generated code takes it."""
    if field.message_type is not None:
        if field.message_type.full_name == Struct.DESCRIPTOR.full_name:
            return structs()
        return messages(field.message_type)
    if field.enum_type is not None:
        return st.sampled_from([value.number for value in field.enum_type.values])
    kinds: dict[int, st.SearchStrategy[Any]] = {
        FieldDescriptor.TYPE_BOOL: st.booleans(),
        FieldDescriptor.TYPE_STRING: st.text(),
        FieldDescriptor.TYPE_BYTES: st.binary(),
        FieldDescriptor.TYPE_INT32: st.sampled_from([int(code) for code in StatusCode]),
    }
    return kinds[field.type]


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def messages(descriptor: Descriptor) -> st.SearchStrategy[Message]:
    """Messages of ours with any of their fields set, and at most one of a oneof."""

    @st.composite
    def build(draw: Callable[..., Any]) -> Message:
        message: Any = getattr(pb, descriptor.name)()
        for field in descriptor.fields:
            if field.containing_oneof is None and draw(st.booleans()):
                fill(message, field, draw)
        for oneof in descriptor.oneofs:
            chosen = draw(st.none() | st.sampled_from(list(oneof.fields)))
            if chosen is not None:
                fill(message, chosen, draw)
        return message  # type: ignore[no-any-return]  # generated code is Any here

    return build()


def fill(message: Any, field: FieldDescriptor, draw: Callable[..., Any]) -> None:
    if is_map(field):
        for key in draw(st.lists(st.text(), max_size=2, unique=True)):
            value = field.message_type.fields_by_name["value"]  # type: ignore[union-attr]  # a map has one
            getattr(message, field.name)[key].CopyFrom(draw(values(value)))
    elif field.is_repeated:
        getattr(message, field.name).extend(draw(st.lists(values(field), max_size=3)))
    elif field.message_type is not None:
        getattr(message, field.name).CopyFrom(draw(values(field)))
    else:
        setattr(message, field.name, draw(values(field)))


def says_the_same(ours: Message, theirs: TheirMessage) -> bool:
    """Tell whether their message has our value in every field that ours has."""
    return all(same_field(ours, theirs, field) for field in ours.DESCRIPTOR.fields)


def same_field(ours: Message, theirs: TheirMessage, field: Any) -> bool:
    one, other = getattr(ours, field.name), getattr(theirs, field.name)
    if is_map(field):
        return sorted(one) == sorted(other) and all(same_value(one[key], other[key]) for key in one)
    if field.is_repeated:
        return len(one) == len(other) and all(map(same_value, one, other))
    if field.has_presence and not ours.HasField(field.name):
        return other is None
    return same_value(one, other)


def same_value(one: Any, other: Any) -> bool:
    if isinstance(one, Struct):
        return bool(MessageToDict(one) == plain(other))
    if isinstance(one, Message):
        return says_the_same(one, other)
    return bool(one == other)


def plain(struct: TheirStruct) -> dict[str, Any]:
    """Their Struct as JSON, read by its fields rather than by their converter."""
    return {key: plain_value(value) for key, value in struct.fields.items()}


def plain_value(value: Any) -> Any:
    if value.struct_value is not None:
        return plain(value.struct_value)
    if value.list_value is not None:
        return [plain_value(item) for item in value.list_value.values]
    for kind in (value.number_value, value.string_value, value.bool_value):
        if kind is not None:
            return kind
    return None


# --- the laws -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MESSAGES)
def test_every_field_has_the_name_and_number_that_the_public_api_gives_it(name: str) -> None:
    """A field of ours exists in the public message, under the same number."""
    theirs = THEIRS[name].__dataclass_fields__
    numbers = {field.name: field.number for field in MESSAGES[name].fields}
    public = {n: theirs[n].metadata["betterproto"].number for n in numbers}

    assert public == numbers


@pytest.mark.parametrize("name", ENUMS)
def test_every_enum_is_the_public_one(name: str) -> None:
    """Our enums have all the public values, under the same names."""
    ours = {value.name: value.number for value in ENUMS[name].values}

    assert {value.name: value.value for value in THEIR_ENUMS[name]} == ours


@pytest.mark.parametrize("name", MESSAGES)
def test_what_we_write_reads_the_same_there_and_back(name: str) -> None:
    """ours -> bytes -> theirs keeps every field, and theirs -> bytes -> ours gives it back."""

    @settings(max_examples=25, deadline=None)
    @given(messages(MESSAGES[name]))
    def law(ours: Message) -> None:
        theirs = THEIRS[name].parse(ours.SerializeToString())
        again = getattr(pb, name).FromString(bytes(theirs))

        assert says_the_same(ours, theirs)
        assert again == ours

    law()


def unknown_to_us(name: str, theirs: Any) -> Any:
    """Set, in a message of theirs, fields that our subset leaves out."""
    extra = TheirStruct.from_dict({"request.path": "/x", "n": 1.5})
    match name:
        case "ProcessingRequest":
            theirs.attributes = {"envoy.filters.http.ext_proc": extra}
        case "HttpHeaders":
            theirs.attributes = {"a": extra}
        case "HttpBody" | "StreamedBodyResponse":
            theirs.end_of_stream_without_message = True
            theirs.grpc_message_compressed = True
        case "ProcessingResponse":
            theirs.mode_override = ProcessingMode()
            theirs.request_drain = True
        case "CommonResponse":
            theirs.status = v3.CommonResponseResponseStatus.CONTINUE_AND_REPLACE
            theirs.trailers = HeaderMap([HeaderValue(key="t", raw_value=b"1")])
        case "ImmediateResponse":
            theirs.grpc_status = v3.GrpcStatus(status=14)
        case "HeaderValueOption":
            theirs.append = True
            theirs.keep_empty_value = True
        case _:
            raise ValueError(f"nothing is known that {name} leaves out")
    return theirs


EXTENDED = [
    "ProcessingRequest",
    "HttpHeaders",
    "HttpBody",
    "StreamedBodyResponse",
    "ProcessingResponse",
    "CommonResponse",
    "ImmediateResponse",
    "HeaderValueOption",
]


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", EXTENDED)
def test_fields_that_we_leave_out_are_skipped(name: str) -> None:
    """A message with more fields than ours reads as if it had only ours."""

    @settings(max_examples=15, deadline=None)
    @given(messages(MESSAGES[name]))
    def law(ours: Message) -> None:
        theirs = THEIRS[name].parse(ours.SerializeToString())
        plain_bytes = bytes(theirs)
        more = bytes(unknown_to_us(name, theirs))
        read = getattr(pb, name).FromString(more)
        read.DiscardUnknownFields()

        assert len(more) > len(plain_bytes)
        assert read == ours

    law()


# --- the codec, with the oracle as peer ---------------------------------------------------------


@given(
    st.dictionaries(st.text("abc-:", min_size=1), st.binary(min_size=1), max_size=4),
    st.booleans(),
    st.sampled_from(ProcessingModeBodySendMode),
    st.sampled_from(ProcessingModeBodySendMode),
    st.booleans(),
)
def test_request_headers_as_envoy_sends_them(
    fields: dict[str, bytes],
    end: bool,
    request_mode: ProcessingModeBodySendMode,
    response_mode: ProcessingModeBodySendMode,
    early: bool,
) -> None:
    """Headers in raw_value, the end of stream and the whole protocol_config arrive as an event."""
    message = v3.ProcessingRequest(
        request_headers=v3.HttpHeaders(
            headers=HeaderMap([HeaderValue(key=k, raw_value=v) for k, v in fields.items()]),
            end_of_stream=end,
        ),
        protocol_config=v3.ProtocolConfiguration(
            request_body_mode=request_mode,
            response_body_mode=response_mode,
            send_body_without_waiting_for_header_response=early,
        ),
    )
    modes = Modes(BodyMode(int(request_mode)), BodyMode(int(response_mode)), early)

    assert codec.decode(bytes(message)) == RequestHeaders(fields, end, modes, None)


def test_a_present_but_empty_protocol_config_is_mode_none() -> None:
    """Envoy sends `protocol_config {}` when both modes are NONE; absent means full duplex."""
    headers = v3.HttpHeaders(headers=HeaderMap())
    absent = v3.ProcessingRequest(request_headers=headers)
    empty = v3.ProcessingRequest(
        request_headers=headers, protocol_config=v3.ProtocolConfiguration()
    )

    assert codec.decode(bytes(absent)) == RequestHeaders({}, False, Modes())
    assert codec.decode(bytes(empty)) == RequestHeaders(
        {}, False, Modes(BodyMode.NONE, BodyMode.NONE)
    )


@pytest.mark.parametrize("number", [6, 7, 255, 2**31 - 1])
def test_a_body_mode_of_the_future_is_unknown(number: int) -> None:
    """A mode that a later Envoy may add is read as UNKNOWN, not as an error."""
    config = pb.ProtocolConfiguration(request_body_mode=number, response_body_mode=number)  # type: ignore[arg-type]  # numbers that no enum has yet
    message = pb.ProcessingRequest(request_headers=pb.HttpHeaders(), protocol_config=config)
    event = codec.decode(message.SerializeToString())

    assert isinstance(event, RequestHeaders)
    assert event.modes == Modes(BodyMode.UNKNOWN, BodyMode.UNKNOWN)


@given(st.binary(), st.booleans())
def test_bodies_and_trailers_as_envoy_sends_them(data: bytes, end: bool) -> None:
    """Each phase becomes its event, with the bytes and the end that it had."""
    body = v3.HttpBody(body=data, end_of_stream=end)
    trailers = v3.HttpTrailers(trailers=HeaderMap([HeaderValue(key="x", raw_value=data)]))
    told = [
        (v3.ProcessingRequest(request_body=body), RequestBody(data, end)),
        (v3.ProcessingRequest(response_body=body), ResponseBody(data, end)),
        (v3.ProcessingRequest(request_trailers=trailers), RequestTrailers()),
        (v3.ProcessingRequest(response_trailers=trailers), ResponseTrailers()),
    ]

    assert [codec.decode(bytes(message)) for message, _ in told] == [event for _, event in told]


@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize(
    "size",
    [
        0,
        1,
        50,
        100,
        118,
        119,
        120,
        121,
        122,
        123,
        124,
        125,
        126,
        127,
        128,
        16_000,
        16_369,
        16_370,
        16_371,
        16_372,
        16_373,
        16_374,
        16_375,
        16_376,
        16_377,
        16_378,
        16_379,
        16_380,
        16_381,
        16_382,
        16_383,
        16_384,
        62_000,
    ],
)
def test_a_chunk_written_by_hand_is_the_generated_one(size: int, end: bool) -> None:
    """Around each size at which a length takes a byte more; and again, from memory."""
    data = bytes(size)
    streamed = pb.StreamedBodyResponse(body=data, end_of_stream=end)
    mutation = pb.BodyMutation(streamed_response=streamed)
    answer = pb.BodyResponse(response=pb.CommonResponse(body_mutation=mutation))
    request = pb.ProcessingResponse(request_body=answer).SerializeToString()
    response = pb.ProcessingResponse(response_body=answer).SerializeToString()

    for _ in range(2):
        assert codec.encode(RequestChunk(data, end)) == request
        assert codec.encode(ResponseChunk(data, end)) == response


def test_what_the_codec_remembers_is_bounded() -> None:
    """Peers that vary what they send cost it nothing but speed, and get the right answers."""
    for number in range(5000):
        data = b"x" * number
        route = Route(f"10.0.0.1:{number}", "ns/pool", "m")
        body = pb.ProcessingResponse.FromString(codec.encode(RequestChunk(data, False)))
        headers = pb.ProcessingResponse.FromString(codec.encode(AnswerRequestHeaders(route)))
        told = MessageToDict(headers.dynamic_metadata)["envoy.lb"]

        assert body.request_body.response.body_mutation.streamed_response.body == data
        assert told == {"x-gateway-destination-endpoint": route.destination}
    for number in range(300):
        config = pb.ProtocolConfiguration(request_body_mode=number)  # type: ignore[arg-type]  # numbers that no enum has yet
        message = pb.ProcessingRequest(request_headers=pb.HttpHeaders(), protocol_config=config)
        event = codec.decode(message.SerializeToString())
        assert isinstance(event, RequestHeaders)
        assert event.modes.request is (BodyMode(number) if number < 6 else BodyMode.UNKNOWN)

    assert len(codec._routes) <= 4096
    assert len(codec._heads) <= 4096
    assert len(codec._known_modes) <= 256


HINT = "x-gateway-destination-endpoint-subset"


@pytest.mark.parametrize(
    ("metadata", "subset"),
    [
        (None, None),
        ({}, None),
        ({"envoy.lb.subset_hint": {}}, None),
        ({"envoy.lb.subset_hint": {"other": ["10.0.0.1:1"]}}, None),
        ({"envoy.lb": {HINT: ["10.0.0.1:1"]}}, None),
        ({"envoy.lb.subset_hint": {HINT: []}}, ()),
        ({"envoy.lb.subset_hint": {HINT: ""}}, ()),
        ({"envoy.lb.subset_hint": {HINT: " , ,"}}, ()),
        ({"envoy.lb.subset_hint": {HINT: 7.0}}, ()),
        ({"envoy.lb.subset_hint": {HINT: None}}, ()),
        ({"envoy.lb.subset_hint": {HINT: {"a": "b"}}}, ()),
        ({"envoy.lb.subset_hint": {HINT: [1.0, None, "", " a "]}}, ("a",)),
        ({"envoy.lb.subset_hint": {HINT: ["10.0.0.1:1", "[::1]:2"]}}, ("10.0.0.1:1", "[::1]:2")),
        ({"envoy.lb.subset_hint": {HINT: "10.0.0.1:1, [::1]:2,"}}, ("10.0.0.1:1", "[::1]:2")),
    ],
)
def test_the_subset_hint(
    metadata: dict[str, dict[str, Any]] | None, subset: tuple[str, ...] | None
) -> None:
    """A list or a comma string; a key that is there and names nothing allows nothing."""
    message = v3.ProcessingRequest(
        request_headers=v3.HttpHeaders(headers=HeaderMap()),
        metadata_context=None
        if metadata is None
        else Metadata(
            filter_metadata={name: TheirStruct.from_dict(m) for name, m in metadata.items()}
        ),
    )

    assert codec.decode(bytes(message)) == RequestHeaders({}, False, Modes(), subset)


@pytest.mark.parametrize(
    ("metadata", "served"),
    [
        (None, None),
        ({}, None),
        ({"envoy.lb": {"other": "10.0.0.1:1"}}, None),
        ({"envoy.lb": {"x-gateway-destination-endpoint-served": "10.0.0.1:1"}}, "10.0.0.1:1"),
        ({"envoy.lb": {"x-gateway-destination-endpoint-served": 5.0}}, ""),
    ],
)
def test_the_served_endpoint(
    metadata: dict[str, dict[str, Any]] | None, served: str | None
) -> None:
    """What the gateway says of the response's endpoint is read from envoy.lb."""
    message = v3.ProcessingRequest(
        response_headers=v3.HttpHeaders(headers=HeaderMap(), end_of_stream=True),
        metadata_context=None
        if metadata is None
        else Metadata(
            filter_metadata={name: TheirStruct.from_dict(m) for name, m in metadata.items()}
        ),
    )

    assert codec.decode(bytes(message)) == ResponseHeaders({}, True, served)


def test_header_fields_that_repeat_are_joined_and_value_stands_in_for_raw_value() -> None:
    """RFC 9110, 5.3: a list may be spread over fields; some gateways fill `value`."""
    fields = [
        HeaderValue(key="accept", raw_value=b"a"),
        HeaderValue(key="accept", value="b"),
        HeaderValue(key="empty"),
    ]
    message = v3.ProcessingRequest(request_headers=v3.HttpHeaders(headers=HeaderMap(fields)))

    assert codec.decode(bytes(message)) == RequestHeaders(
        {"accept": b"a, b", "empty": b""}, False, Modes()
    )


@pytest.mark.parametrize(
    "message",
    [
        b"\xff",
        b"\x12",
        b"\x12\x05abc",
        bytes(v3.ProcessingRequest()),
        bytes(v3.ProcessingRequest(observability_mode=True)),
        b"\x0a\x00",
    ],
)
def test_what_is_no_message_of_the_protocol_is_refused(message: bytes) -> None:
    """Damaged bytes, and messages of no known phase, raise MalformedMessage and nothing else."""
    with pytest.raises(codec.MalformedMessage):
        codec.decode(message)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_malformed(message: bytes) -> None:
    """No other exception comes out of decode."""
    try:
        codec.decode(message)
    except codec.MalformedMessage:
        return


def test_every_message_has_its_counterpart() -> None:
    """Nothing of the .proto is left out of the laws above."""
    assert set(MESSAGES) == set(THEIRS)
    assert set(ENUMS) == set(THEIR_ENUMS)
