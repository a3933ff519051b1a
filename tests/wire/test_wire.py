"""What is read by hand means what the generated code says it means."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.extproc import codec, wire
from epp.extproc.codec import MalformedMessage, decode
from epp.extproc.events import Event, RequestHeaders
from protos.gen import ext_proc_pb2 as pb

names = st.text("abcdefghijklmnopqrstuvwxyz-:", min_size=1, max_size=130)
values = st.binary(max_size=300).map(
    lambda raw: bytes(0x20 + byte % 0x5F for byte in raw)  # HTTP has no control characters here
)
fields = st.lists(
    st.builds(
        pb.HeaderValue, key=names | st.sampled_from([":path", "connection", ":protocol"]),
        raw_value=values,
    ),
    max_size=12,
)  # fmt: skip
modes = st.builds(pb.ProtocolConfiguration, request_body_mode=st.integers(0, 5))


def by_generated_code(message: bytes) -> Event:
    return codec._decode(message)


def either(read: Callable[[bytes], object], message: bytes) -> object:
    try:
        return read(message)
    except MalformedMessage:
        return MalformedMessage


@given(fields, st.booleans(), st.none() | modes)
def test_request_headers_are_the_same_either_way(
    headers: list[pb.HeaderValue], end: bool, config: pb.ProtocolConfiguration | None
) -> None:
    """Every field, asked for or walked through, and what follows the headers."""
    message = pb.ProcessingRequest(
        request_headers=pb.HttpHeaders(headers=pb.HeaderMap(headers=headers), end_of_stream=end),
        protocol_config=config,
    ).SerializeToString()

    event, plain = decode(message), by_generated_code(message)

    assert isinstance(event, RequestHeaders)
    assert isinstance(plain, RequestHeaders)
    assert plain == event
    assert {name: event.headers.get(name) for name in plain.headers} == plain.headers
    assert event.headers.get("x-absent", b"?") == plain.headers.get("x-absent", b"?")


@given(st.binary(max_size=300) | st.integers(1, 300_000).map(bytes), st.booleans(), st.booleans())
def test_bodies_are_the_same_either_way(data: bytes, end: bool, response: bool) -> None:
    """Also where lengths take one byte more."""
    body = pb.HttpBody(body=data, end_of_stream=end)
    told = pb.ProcessingRequest(response_body=body) if response else None
    message = (told or pb.ProcessingRequest(request_body=body)).SerializeToString()

    assert by_generated_code(message) == decode(message)


@given(st.binary(min_size=1, max_size=40), st.integers(1, 40), st.booleans(), st.data())
def test_a_body_message_with_a_wrong_byte_is_the_same_either_way(
    data: bytes, at: int, end: bool, chosen: st.DataObject
) -> None:
    """Whatever is odd about it is left to the generated code."""
    body = pb.HttpBody(body=data, end_of_stream=end)
    message = bytearray(pb.ProcessingRequest(request_body=body).SerializeToString())
    message[at % len(message)] = chosen.draw(st.integers(0, 255))
    del message[len(message) - chosen.draw(st.integers(0, 2)) :]

    assert either(by_generated_code, bytes(message)) == either(decode, bytes(message))


def test_a_name_inside_a_value_is_no_field() -> None:
    """Neither a value that spells a name, nor a name that ends in another, is mistaken for it."""
    headers = [
        pb.HeaderValue(key="x-a", raw_value=b"\t:protocol"),
        pb.HeaderValue(key="x-connection", raw_value=b"connection"),
        pb.HeaderValue(key="abcdefghij", raw_value=b"upgrade"),
    ]
    asked = wire.Headers(pb.HeaderMap(headers=headers).SerializeToString())

    assert [asked.get(name) for name in (":protocol", "connection", "upgrade", "x-connection")] == [
        None,
        None,
        None,
        b"connection",
    ]


@pytest.mark.parametrize(
    "block", [b"", b"\x0a", b"\x0a\x02\x0a\xff", b"\x0a\x05:path\x1a", b"\xff" * 9]
)
def test_damaged_fields_are_no_fields(block: bytes) -> None:
    """The gateway's frames are whole or the connection ends; what is odd all the same is absent."""
    headers = wire.Headers(block)

    assert headers.get(":path") is None
    assert ":path" not in headers
    assert dict(headers) == {}
