"""Whole conversations, bytes in and bytes out, as Envoy has them in each of its body modes.

Requests are encoded, and answers decoded, by Envoy's own API; answers are compared whole.
"""

import gzip
import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from datastore.store import Store
from epp.extproc import codec
from epp.extproc.calls import OK, Status
from epp.extproc.service import ExtProc, Limits, Stream
from epp.outcome import Outcome, Served
from epp.routing.router import Policy, Router
from tests.builders import a_model, a_pod, a_pool, a_store
from tests.wire.envoy_api import (
    HeaderMap,
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
    HttpStatus,
    Metadata,
    ProcessingModeBodySendMode,
    StatusCode,
    Struct,
    v3,
)

Mode = ProcessingModeBodySendMode
PATH = "/v1/chat/completions"
HERE = "10.0.0.1:8000"
BODY = b'{ "messages": ["hi"], "model" : "llama"}'
RENAMED = b'{ "messages": ["hi"], "model" : "meta/Llama-3"}'
SAME = b'{"model": "plain"}'


# --- both sides ---------------------------------------------------------------------------------


class Notebook:
    """Keeps what the service tells of its requests."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.responses: list[Served] = []

    def picked(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def served(self, response: Served) -> None:
        self.responses.append(response)


def a_world() -> Store:
    """One pool with one pod; `llama` is another name there, `plain` is the same."""
    return a_store(
        a_pool("vllm"),
        a_pod("one").at("10.0.0.1"),
        a_model("llama").to("meta/Llama-3"),
        a_model("plain"),
    )


class Envoy:
    """The filter's side of one stream."""

    def __init__(self, store: Store | None = None, *, passing: bool = False, **policy: Any) -> None:
        self.notebook = Notebook()
        service = ExtProc(
            Router(Policy(**policy), Random(1)),
            store if store is not None else a_world(),
            self.notebook,
            clock=lambda: 1.0,
            pass_response=passing,
            limits=Limits(max_body_bytes=1_000_000),
        )
        call = service.open(codec.METHOD, ((b":authority", b"epp:9002"),), lambda reply: None)
        assert call is not None
        self.service = service
        self.call: Stream = call
        self.status: Status | None = None

    def say(self, *messages: v3.ProcessingRequest) -> list[v3.ProcessingResponse]:
        """Send messages; return the answers.  After the stream has ended nothing can be sent."""
        answers = []
        for message in messages:
            assert self.status is None, "the stream has ended"
            reply = self.call.receive(bytes(message))
            if reply is not None:
                answers += [v3.ProcessingResponse.parse(data) for data in reply.messages]
                self.status = reply.status
        return answers


def config(request: int, response: int = Mode.FULL_DUPLEX_STREAMED, *, early: bool = False) -> Any:
    return v3.ProtocolConfiguration(
        request_body_mode=Mode(request),
        response_body_mode=Mode(response),
        send_body_without_waiting_for_header_response=early,
    )


def header_map(fields: dict[str, bytes]) -> HeaderMap:
    return HeaderMap([HeaderValue(key=key, raw_value=value) for key, value in fields.items()])


def headers(
    fields: dict[str, bytes] | None = None,
    *,
    end: bool = False,
    modes: Any = None,
    method: bytes = b"POST",
    path: str = PATH,
    metadata: dict[str, Any] | None = None,
) -> v3.ProcessingRequest:
    every = {":method": method, ":path": path.encode(), ":authority": b"api", **(fields or {})}
    context = None
    if metadata is not None:
        context = Metadata(filter_metadata={k: Struct.from_dict(v) for k, v in metadata.items()})
    return v3.ProcessingRequest(
        request_headers=v3.HttpHeaders(headers=header_map(every), end_of_stream=end),
        protocol_config=modes,
        metadata_context=context,
    )


def body(data: bytes, *, end: bool = False) -> v3.ProcessingRequest:
    return v3.ProcessingRequest(request_body=v3.HttpBody(body=data, end_of_stream=end))


def trailers() -> v3.ProcessingRequest:
    return v3.ProcessingRequest(request_trailers=v3.HttpTrailers(trailers=HeaderMap()))


def response_headers(
    status: bytes = b"200", *, end: bool = False, metadata: dict[str, Any] | None = None
) -> v3.ProcessingRequest:
    context = None
    if metadata is not None:
        context = Metadata(filter_metadata={k: Struct.from_dict(v) for k, v in metadata.items()})
    return v3.ProcessingRequest(
        response_headers=v3.HttpHeaders(headers=header_map({":status": status}), end_of_stream=end),
        metadata_context=context,
    )


def response_body(data: bytes, *, end: bool = False) -> v3.ProcessingRequest:
    return v3.ProcessingRequest(response_body=v3.HttpBody(body=data, end_of_stream=end))


def response_trailers() -> v3.ProcessingRequest:
    return v3.ProcessingRequest(response_trailers=v3.HttpTrailers(trailers=HeaderMap()))


# --- what is expected ---------------------------------------------------------------------------


def setting(key: str, value: str) -> HeaderValueOption:
    return HeaderValueOption(
        header=HeaderValue(key=key, raw_value=value.encode()),
        append_action=HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
    )


def routed(
    model: str = "llama", *, removed: Sequence[str] = (), length: int | None = None
) -> v3.CommonResponse:
    """The mutation that carries a pick: the endpoint, the pool and the model, nothing else."""
    sets = [
        setting("x-gateway-destination-endpoint", HERE),
        setting("x-gateway-inference-pool", "default/vllm"),
    ]
    gone = [] if model else ["x-gateway-model-name"]
    if model:
        sets.append(setting("x-gateway-model-name", model))
    if length is not None:
        sets.append(setting("content-length", str(length)))
    gone += [
        "x-gateway-destination-endpoint-subset",
        "x-gateway-destination-endpoint-served",
        "x-gateway-model-name-rewrite",
        *removed,
    ]
    return v3.CommonResponse(
        header_mutation=v3.HeaderMutation(set_headers=sets, remove_headers=gone),
        clear_route_cache=True,
    )


def destination() -> Struct:
    struct: Struct = Struct.from_dict({"envoy.lb": {"x-gateway-destination-endpoint": HERE}})
    return struct


def picked(model: str = "llama", *, removed: Sequence[str] = ()) -> v3.ProcessingResponse:
    """The pick, in the answer to the headers."""
    return v3.ProcessingResponse(
        request_headers=v3.HeadersResponse(response=routed(model, removed=removed)),
        dynamic_metadata=destination(),
    )


def picked_at_body(
    model: str, data: bytes | None = None, *, removed: Sequence[str] = (), length: int | None = None
) -> v3.ProcessingResponse:
    """The pick, in the answer to the one body message."""
    common = routed(model, removed=removed, length=length)
    if data is not None:
        common.body_mutation = v3.BodyMutation(body=data)
    return v3.ProcessingResponse(
        request_body=v3.BodyResponse(response=common), dynamic_metadata=destination()
    )


def chunk(data: bytes, *, end: bool = False) -> v3.ProcessingResponse:
    return v3.ProcessingResponse(request_body=v3.BodyResponse(response=streamed(data, end)))


def response_chunk(data: bytes, *, end: bool = False) -> v3.ProcessingResponse:
    return v3.ProcessingResponse(response_body=v3.BodyResponse(response=streamed(data, end)))


def streamed(data: bytes, end: bool) -> v3.CommonResponse:
    return v3.CommonResponse(
        body_mutation=v3.BodyMutation(
            streamed_response=v3.StreamedBodyResponse(body=data, end_of_stream=end)
        )
    )


def replaced(data: bytes) -> v3.ProcessingResponse:
    mutation = v3.BodyMutation(body=data) if data else v3.BodyMutation(clear_body=True)
    common = v3.CommonResponse(body_mutation=mutation)
    return v3.ProcessingResponse(request_body=v3.BodyResponse(response=common))


LET_HEADERS_PASS = v3.ProcessingResponse(
    request_headers=v3.HeadersResponse(response=v3.CommonResponse())
)
LET_BODY_PASS = v3.ProcessingResponse(request_body=v3.BodyResponse(response=v3.CommonResponse()))
LET_TRAILERS_PASS = v3.ProcessingResponse(request_trailers=v3.TrailersResponse())
LET_RESPONSE_HEADERS_PASS = v3.ProcessingResponse(
    response_headers=v3.HeadersResponse(response=v3.CommonResponse())
)
LET_RESPONSE_BODY_PASS = v3.ProcessingResponse(
    response_body=v3.BodyResponse(response=v3.CommonResponse())
)
LET_RESPONSE_TRAILERS_PASS = v3.ProcessingResponse(response_trailers=v3.TrailersResponse())


def check_refusal(answers: list[v3.ProcessingResponse], status: int, reason: str) -> dict[str, Any]:
    """Assert that there is one answer, a whole response of our own; return its JSON."""
    (answer,) = answers
    assert answer.immediate_response is not None
    data = answer.immediate_response.body
    assert answer == v3.ProcessingResponse(
        immediate_response=v3.ImmediateResponse(
            status=HttpStatus(code=StatusCode(status)),
            headers=v3.HeaderMutation(set_headers=[setting("content-type", "application/json")]),
            body=data,
            details=reason,
        )
    )
    read = json.loads(data)
    assert isinstance(read, dict)
    return read


# --- FULL_DUPLEX_STREAMED -----------------------------------------------------------------------

FULL_DUPLEX = config(Mode.FULL_DUPLEX_STREAMED)


@pytest.mark.parametrize("modes", [None, FULL_DUPLEX], ids=["absent", "said"])
def test_full_duplex(modes: Any) -> None:
    """Nothing is said before the end; then the pick and the body, renamed in its one value."""
    envoy = Envoy()

    assert envoy.say(headers(modes=modes), body(BODY[:10]), body(BODY[10:20])) == []
    assert envoy.say(body(BODY[20:], end=True)) == [
        picked(removed=["content-length"]),
        chunk(RENAMED, end=True),
    ]
    assert envoy.status == OK


def test_full_duplex_body_that_stays() -> None:
    """The target has the client's name: every byte is echoed and content-length is left alone."""
    envoy = Envoy()

    assert envoy.say(headers(modes=FULL_DUPLEX), body(SAME, end=True)) == [
        picked("plain"),
        chunk(SAME, end=True),
    ]
    assert envoy.status == OK


def test_full_duplex_ended_by_an_empty_chunk() -> None:
    """Envoy often tells the end apart from the last bytes."""
    envoy = Envoy()

    assert envoy.say(headers(), body(SAME)) == []
    assert envoy.say(body(b"", end=True)) == [picked("plain"), chunk(SAME, end=True)]


def test_full_duplex_ended_by_trailers() -> None:
    """No end-of-stream is set anywhere; the trailers are it, and are answered last."""
    envoy = Envoy()

    assert envoy.say(headers(), body(BODY)) == []
    assert envoy.say(trailers()) == [
        picked(removed=["content-length"]),
        chunk(RENAMED),
        LET_TRAILERS_PASS,
    ]
    assert envoy.status == OK


def test_full_duplex_with_a_second_end_of_stream() -> None:
    """Envoy has been seen to end a large body twice: the second end is swallowed."""
    envoy = Envoy(passing=True)

    assert len(envoy.say(headers(), body(SAME, end=True))) == 2
    assert envoy.say(body(b"", end=True)) == []
    assert envoy.status is None


def test_full_duplex_of_a_large_body() -> None:
    """The body leaves in messages of at most 62 000 bytes; only the last one ends it."""
    data = json.dumps({"model": "plain", "prompt": "x" * 150_000}).encode()
    pieces = [data[at : at + 16_384] for at in range(0, len(data), 16_384)]
    envoy = Envoy()

    envoy.say(headers(), *map(body, pieces[:-1]))
    assert envoy.service.buffered_bytes == sum(map(len, pieces[:-1]))
    assert envoy.say(body(pieces[-1], end=True)) == [
        picked("plain"),
        chunk(data[:62_000]),
        chunk(data[62_000:124_000]),
        chunk(data[124_000:], end=True),
    ]
    assert envoy.service.buffered_bytes == 0


def test_full_duplex_gzip_renamed() -> None:
    """A new body is no longer encoded: both headers that described the old one go."""
    envoy = Envoy()
    first = headers({"content-encoding": b"gzip", "content-length": b"60"})

    assert envoy.say(first, body(gzip.compress(BODY), end=True)) == [
        picked(removed=["content-encoding", "content-length"]),
        chunk(RENAMED, end=True),
    ]


def test_full_duplex_gzip_unchanged() -> None:
    """The compressed bytes go on as they came."""
    envoy = Envoy()
    data = gzip.compress(SAME)

    assert envoy.say(headers({"content-encoding": b"gzip"}), body(data, end=True)) == [
        picked("plain"),
        chunk(data, end=True),
    ]


# --- BUFFERED -----------------------------------------------------------------------------------


def test_buffered() -> None:
    """The pick and the new body are in one answer, with the exact new length."""
    envoy = Envoy()

    assert envoy.say(headers(modes=config(Mode.BUFFERED))) == [LET_HEADERS_PASS]
    assert envoy.say(body(BODY, end=True)) == [
        picked_at_body("llama", RENAMED, length=len(RENAMED))
    ]
    assert envoy.status == OK


def test_buffered_unchanged() -> None:
    """No body mutation and no length."""
    envoy = Envoy()
    envoy.say(headers(modes=config(Mode.BUFFERED)))

    assert envoy.say(body(SAME, end=True)) == [picked_at_body("plain")]


def test_buffered_gzip_renamed() -> None:
    """The header that told the encoding goes with it."""
    envoy = Envoy()
    envoy.say(headers({"content-encoding": b"gzip"}, modes=config(Mode.BUFFERED)))

    assert envoy.say(body(gzip.compress(BODY), end=True)) == [
        picked_at_body("llama", RENAMED, removed=["content-encoding"], length=len(RENAMED))
    ]


def test_buffered_with_trailers() -> None:
    """The body message has no end of stream; the trailers that follow are let through."""
    envoy = Envoy(passing=True)
    envoy.say(headers(modes=config(Mode.BUFFERED)))

    assert envoy.say(body(SAME)) == [picked_at_body("plain")]
    assert envoy.say(trailers()) == [LET_TRAILERS_PASS]


def test_buffered_refused() -> None:
    """A refusal comes in place of the answer to the body."""
    envoy = Envoy()
    envoy.say(headers(modes=config(Mode.BUFFERED)))
    read = check_refusal(envoy.say(body(b'{"model":"gone"}', end=True)), 404, "model_not_found")

    assert read["error"]["code"] == "model_not_found"
    assert envoy.status == OK


# --- BUFFERED_PARTIAL ---------------------------------------------------------------------------

PARTIAL = config(Mode.BUFFERED_PARTIAL)


def test_partial_that_holds_the_whole_body() -> None:
    """As BUFFERED, except that Envoy has removed content-length."""
    envoy = Envoy()

    assert envoy.say(headers(modes=PARTIAL)) == [LET_HEADERS_PASS]
    assert envoy.say(body(BODY, end=True)) == [picked_at_body("llama", RENAMED)]
    assert envoy.status == OK


def test_partial_over_the_limit() -> None:
    """The beginning names the model: it is renamed in place, and the rest follows unseen."""
    envoy = Envoy()
    envoy.say(headers(modes=PARTIAL))

    assert envoy.say(body(b'{"model":"llama","prompt":"once upon')) == [
        picked_at_body("llama", b'{"model":"meta/Llama-3","prompt":"once upon')
    ]
    assert envoy.status == OK


def test_partial_whose_beginning_does_not_name_the_model() -> None:
    """413, with what to change."""
    envoy = Envoy()
    envoy.say(headers(modes=PARTIAL))
    read = check_refusal(envoy.say(body(b'{"prompt":"once upon')), 413, "body_too_large")

    assert "FULL_DUPLEX_STREAMED" in read["error"]["message"]


def test_partial_whole_but_ended_by_trailers() -> None:
    """Without an end of stream it looks cut; it is not, and is read whole."""
    envoy = Envoy(passing=True)
    envoy.say(headers(modes=PARTIAL))

    assert envoy.say(body(BODY)) == [picked_at_body("llama", RENAMED)]
    assert envoy.say(trailers()) == [LET_TRAILERS_PASS]


# --- STREAMED -----------------------------------------------------------------------------------


def test_streamed_with_early_body() -> None:
    """The headers wait for the body; each body message is answered, the new bytes in them."""
    envoy = Envoy()
    first = headers(modes=config(Mode.STREAMED, early=True))

    assert envoy.say(first, body(BODY[:20])) == []
    half = -(-len(RENAMED) // 2)
    assert envoy.say(body(BODY[20:], end=True)) == [
        picked(removed=["content-length"]),
        replaced(RENAMED[:half]),
        replaced(RENAMED[half:]),
    ]
    assert envoy.status == OK


def test_streamed_with_early_body_that_stays() -> None:
    """Each message is let through as it is."""
    envoy = Envoy()
    first = headers(modes=config(Mode.STREAMED, early=True))

    assert envoy.say(first, body(SAME[:5]), body(SAME[5:], end=True)) == [
        picked("plain"),
        LET_BODY_PASS,
        LET_BODY_PASS,
    ]


def test_streamed_without_early_body() -> None:
    """No body comes before the headers are answered: a pick without a model, then a relay."""
    envoy = Envoy()

    assert envoy.say(headers(modes=config(Mode.STREAMED, Mode.STREAMED))) == [picked("")]
    assert envoy.say(body(BODY[:5])) == [LET_BODY_PASS]
    assert envoy.say(body(BODY[5:], end=True)) == [LET_BODY_PASS]
    assert envoy.status == OK


# --- modes that hide the body -------------------------------------------------------------------


@pytest.mark.parametrize("modes", [config(Mode.NONE, Mode.NONE), v3.ProtocolConfiguration()])
def test_none_with_one_pool(modes: Any) -> None:
    """There is one pool that it can be: a pick without a model, and the stream is over."""
    envoy = Envoy()

    assert envoy.say(headers(modes=modes)) == [picked("")]
    assert envoy.status == OK


@pytest.mark.parametrize(
    ("mode", "name"),
    [(Mode.NONE, "NONE"), (Mode.STREAMED, "STREAMED"), (Mode.GRPC, "GRPC")],
)
def test_a_hidden_body_with_two_pools(mode: int, name: str) -> None:
    """500 that names the mode and the setting to change."""
    store = a_store(a_pool("vllm"), a_pool("other"), a_pod("one"), a_model("llama"))
    envoy = Envoy(store)
    read = check_refusal(
        envoy.say(headers(modes=config(mode))),
        500,
        "unsupported_body_mode",
    )

    assert name in read["error"]["message"]
    assert "request_body_mode" in read["error"]["message"]
    assert envoy.status == OK


def test_a_mode_of_the_future() -> None:
    """A number that no mode has yet is taken as one that hides the body."""
    envoy = Envoy()
    raw = bytes(headers()) + b"\x5a\x02\x08\x63"  # protocol_config {request_body_mode: 99}
    reply = envoy.call.receive(raw)
    assert reply is not None

    assert [v3.ProcessingResponse.parse(m) for m in reply.messages] == [picked("")]
    assert envoy.say(body(b"x", end=True)) == [LET_BODY_PASS]
    assert envoy.status == OK


# --- without a body, upgrades -------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(Mode), ids=lambda m: m.name)
def test_a_request_without_a_body(mode: Any) -> None:
    """Picked at the headers, in every mode; the stream is closed at once."""
    envoy = Envoy()

    assert envoy.say(headers(end=True, method=b"GET", path="/metrics?x=1", modes=config(mode))) == [
        picked("")
    ]
    assert envoy.status == OK


UPGRADES: list[dict[str, bytes]] = [
    {":method": b"GET", "connection": b"Upgrade", "upgrade": b"websocket"},
    {":method": b"CONNECT"},
]


@pytest.mark.parametrize("fields", UPGRADES, ids=["websocket", "CONNECT"])
def test_an_upgrade_in_full_duplex(fields: dict[str, bytes]) -> None:
    """Answered at the headers; what follows is no body, and passes as it comes."""
    envoy = Envoy()

    assert envoy.say(headers(fields)) == [picked("")]
    assert envoy.say(body(b"\x81\x05hello")) == [chunk(b"\x81\x05hello")]
    assert envoy.say(body(b"", end=True)) == [chunk(b"", end=True)]
    assert envoy.status is None
    assert envoy.say(response_body(b"bye", end=True)) == [response_chunk(b"bye", end=True)]
    assert envoy.status == OK


@pytest.mark.parametrize("fields", UPGRADES, ids=["websocket", "CONNECT"])
def test_an_upgrade_ended_by_trailers(fields: dict[str, bytes]) -> None:
    """They end the request as an end of stream does."""
    envoy = Envoy()
    envoy.say(headers(fields), body(b"x"))

    assert envoy.say(trailers()) == [LET_TRAILERS_PASS]
    assert envoy.status is None
    assert envoy.say(response_body(b"bye", end=True)) == [response_chunk(b"bye", end=True)]
    assert envoy.status == OK


@pytest.mark.parametrize("mode", [Mode.NONE, Mode.BUFFERED, Mode.BUFFERED_PARTIAL])
def test_an_upgrade_whose_bytes_are_not_shown(mode: int) -> None:
    """There is nothing to wait for: the stream is closed with the pick."""
    envoy = Envoy()

    assert envoy.say(headers(UPGRADES[0], modes=config(mode))) == [picked("")]
    assert envoy.status == OK


# --- answers of our own -------------------------------------------------------------------------


def test_the_list_of_models() -> None:
    """GET /v1/models is answered by the picker, with 200."""
    envoy = Envoy()
    (answer,) = envoy.say(headers(end=True, method=b"GET", path="/v1/models"))
    assert answer.immediate_response is not None
    assert answer.immediate_response.status == HttpStatus(code=StatusCode(200))
    read = json.loads(answer.immediate_response.body)

    assert read["object"] == "list"
    assert [model["id"] for model in read["data"]] == ["llama", "plain"]
    assert envoy.status == OK


def test_frames_after_an_answer_are_swallowed() -> None:
    """A refusal ends the stream; a transport that had more frames in flight drops them."""
    envoy = Envoy()
    first = headers({"content-length": b"2000000"})
    check_refusal(envoy.say(first), 413, "body_too_large")
    assert envoy.status == OK

    for late in (body(BODY), body(b"", end=True), trailers(), response_headers()):
        assert envoy.call.receive(bytes(late)) is None


# --- the gateway's hint -------------------------------------------------------------------------


@pytest.mark.parametrize("hint", [["10.0.0.9:8000", HERE], f"10.0.0.9:8000,{HERE}", "10.0.0.1"])
def test_a_subset_that_matches(hint: Any) -> None:
    """A list or a comma string; a port is compared when given."""
    envoy = Envoy()
    metadata = {"envoy.lb.subset_hint": {"x-gateway-destination-endpoint-subset": hint}}

    assert envoy.say(headers(end=True, path="/x", metadata=metadata)) == [picked("")]


@pytest.mark.parametrize("hint", [[], "", ["10.0.0.1:9"], "10.0.0.2"])
def test_a_subset_that_does_not(hint: Any) -> None:
    """503: the gateway may use none of what it asked for."""
    envoy = Envoy()
    metadata = {"envoy.lb.subset_hint": {"x-gateway-destination-endpoint-subset": hint}}

    check_refusal(
        envoy.say(headers(end=True, path="/x", metadata=metadata)),
        503,
        "subset_unmatched",
    )


# --- the response -------------------------------------------------------------------------------


def test_a_response_in_full_duplex_passes() -> None:
    """Every byte is echoed, the end closes the stream, and how it went is told."""
    envoy = Envoy(passing=True)
    envoy.say(headers(), body(SAME, end=True))
    served = {"envoy.lb": {"x-gateway-destination-endpoint-served": "10.0.0.7:8000"}}

    assert envoy.say(response_headers(metadata=served)) == [LET_RESPONSE_HEADERS_PASS]
    assert envoy.say(response_body(b"data: 1\n\n")) == [response_chunk(b"data: 1\n\n")]
    assert envoy.say(response_body(b"x" * 70_000, end=True)) == [
        response_chunk(b"x" * 62_000),
        response_chunk(b"x" * 8_000, end=True),
    ]
    assert envoy.status == OK
    (told,) = envoy.notebook.responses
    assert (told.endpoint, told.status, told.body_bytes) == ("10.0.0.7:8000", 200, 70_009)
    assert told.complete


def test_a_response_in_full_duplex_with_trailers() -> None:
    """No end of stream before them."""
    envoy = Envoy(passing=True)
    envoy.say(headers(), body(SAME, end=True), response_headers(), response_body(b"x"))

    assert envoy.say(response_trailers()) == [LET_RESPONSE_TRAILERS_PASS]
    assert envoy.status == OK


@pytest.mark.parametrize("mode", [Mode.STREAMED, Mode.BUFFERED, Mode.BUFFERED_PARTIAL, Mode.GRPC])
def test_a_response_in_other_modes_passes(mode: int) -> None:
    """Each body message is let through; a streamed answer would be an error there."""
    envoy = Envoy(passing=True)
    envoy.say(headers(modes=config(Mode.FULL_DUPLEX_STREAMED, mode)), body(SAME, end=True))

    assert envoy.say(response_headers(), response_body(b"x"), response_body(b"", end=True)) == [
        LET_RESPONSE_HEADERS_PASS,
        LET_RESPONSE_BODY_PASS,
        LET_RESPONSE_BODY_PASS,
    ]
    assert envoy.status == OK


def test_a_stream_that_begins_with_its_response() -> None:
    """Where the filter does not send requests, the configuration comes with the response."""
    first = response_headers()
    first.protocol_config = config(Mode.NONE, Mode.BUFFERED)
    envoy = Envoy(passing=True)

    assert envoy.say(first, response_body(b"x", end=True)) == [
        LET_RESPONSE_HEADERS_PASS,
        LET_RESPONSE_BODY_PASS,
    ]
    assert envoy.status == OK


def test_a_response_without_a_body() -> None:
    """Its headers are its end; where the mode hides the body, they are ours."""
    empty = Envoy(passing=True)
    empty.say(headers(), body(SAME, end=True))
    hidden = Envoy(passing=True)
    hidden.say(headers(modes=config(4, Mode.NONE)), body(SAME, end=True))

    assert empty.say(response_headers(b"204", end=True)) == [LET_RESPONSE_HEADERS_PASS]
    assert hidden.say(response_headers()) == [LET_RESPONSE_HEADERS_PASS]
    assert (empty.status, hidden.status) == (OK, OK)


def test_a_local_reply_before_the_request_is_complete() -> None:
    """Some Envoys tell us of their own replies: let them pass."""
    envoy = Envoy()
    envoy.say(headers(), body(BODY))

    assert envoy.say(response_headers(b"408", end=True)) == [LET_RESPONSE_HEADERS_PASS]
    assert envoy.status == OK
    assert envoy.service.buffered_bytes == 0


# --- a peer that is not Envoy -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        ([b"\xff\xff"], "not a ProcessingRequest"),
        ([b""], "no known phase"),
        ([bytes(headers()), bytes(headers())], "RequestHeaders while BODY"),
    ],
)
def test_nonsense_ends_the_call_with_an_error(messages: list[bytes], what: str) -> None:
    """INVALID_ARGUMENT, with what is wrong; nothing is answered and nothing kept."""
    envoy = Envoy()
    replies = [envoy.call.receive(message) for message in messages]
    last = replies[-1]
    assert last is not None
    assert last.status is not None

    assert last.messages == ()
    assert last.status.code == 3
    assert what in last.status.message
    assert envoy.service.buffered_bytes == 0


def test_a_request_that_begins_with_its_body() -> None:
    """request_header_mode is not SEND: 500 that names the setting."""
    envoy = Envoy()
    read = check_refusal(envoy.say(body(BODY, end=True)), 500, "unsupported_body_mode")

    assert "request_header_mode" in read["error"]["message"]
