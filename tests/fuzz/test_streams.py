"""Message bytes to the codec, messages in any order to a stream, frame bytes to the transport."""

import asyncio
from random import Random

import ngh2
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.world import service, store
from epp.extproc import codec
from epp.extproc.calls import Reply
from epp.extproc.transports.framing import Deframer
from epp.extproc.transports.http2 import Http2Connection
from epp.extproc.transports.limits import Limits, TransportStats
from epp.extproc.transports.serving import Serving
from epp.outcome import Outcome, Served
from protos.gen import ext_proc_pb2 as pb
from tests.fakes.echo import EchoApp
from tests.fakes.raw_http2 import PREFACE, frame, settings
from tests.fuzz.corpus import seeds

METADATA = ((b":authority", b"epp"),)


class Picks:
    """Remembers what was told."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def picked(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def served(self, response: Served) -> None:
        assert response.duration_s >= 0


class Pipe(asyncio.Transport):
    """A socket that takes everything."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert isinstance(data, bytes)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


headers = st.lists(
    st.sampled_from(
        [
            (":method", b"POST"), (":method", b"GET"), (":method", b"CONNECT"),
            (":path", b"/v1/models"),
            ("content-length", b"99999999999"), ("content-length", b"2"), ("upgrade", b"websocket"),
            ("connection", b"Upgrade"), ("content-encoding", b"gzip"), ("content-encoding", b"x"),
        ]
    ),
    max_size=5,
)  # fmt: skip
modes: st.SearchStrategy[pb.BodyMode] = st.sampled_from(pb.BodyMode.values())
chunks = st.sampled_from([b"", b'{"model":"model-1"}', b'{"model":', b'"model-1"}', b"x" * 70_000])


@st.composite
def told(draw: st.DrawFn) -> bytes:
    """One message of any phase, or bytes that are none."""
    kind = draw(st.sampled_from(["qh", "qb", "qb", "qt", "rh", "rb", "rt", "odd"]))
    end = draw(st.booleans())
    fields = pb.HeaderMap(
        headers=[pb.HeaderValue(key=key, raw_value=value) for key, value in draw(headers)]
    )
    body = pb.HttpBody(body=draw(chunks), end_of_stream=end)
    request = {
        "qh": lambda: pb.ProcessingRequest(
            request_headers=pb.HttpHeaders(headers=fields, end_of_stream=end),
            protocol_config=pb.ProtocolConfiguration(
                request_body_mode=draw(modes),
                response_body_mode=draw(modes),
                send_body_without_waiting_for_header_response=draw(st.booleans()),
            ),
        ),
        "qb": lambda: pb.ProcessingRequest(request_body=body),
        "qt": lambda: pb.ProcessingRequest(request_trailers=pb.HttpTrailers()),
        "rh": lambda: pb.ProcessingRequest(
            response_headers=pb.HttpHeaders(headers=fields, end_of_stream=end)
        ),
        "rb": lambda: pb.ProcessingRequest(response_body=body),
        "rt": lambda: pb.ProcessingRequest(response_trailers=pb.HttpTrailers()),
    }
    if kind == "odd":
        return draw(st.binary(max_size=30))
    message: bytes = request[kind]().SerializeToString()
    return message


@given(st.binary(max_size=80))
def test_bytes_are_a_message_or_malformed(message: bytes) -> None:
    check_message(message)


def test_the_corpus_of_messages() -> None:
    for message in seeds("message"):
        check_message(message)


def check_message(message: bytes) -> None:
    try:
        event = codec.decode(message)
    except codec.MalformedMessage:
        return
    fields = getattr(event, "headers", {})
    assert fields.get(":path", b"") is not None
    assert isinstance(dict(fields), dict)


@given(st.lists(told(), max_size=8), st.booleans())
def test_any_sequence_of_messages_has_at_most_one_pick(messages: list[bytes], passes: bool) -> None:
    """No exception, one answer to the request, replies that Envoy can read, nothing held after."""
    picks = Picks()
    app = service(store(), picks, pass_response=passes)
    stream = app.open(codec.METHOD, METADATA, lambda _: None)
    assert stream is not None
    immediate = ended = 0
    for message in messages:
        reply = stream.receive(message)
        if reply is None:
            continue
        immediate += _read(reply)
        ended += reply.status is not None
        if ended:
            break
    stream.cancel()

    assert immediate <= 1
    assert len(picks.outcomes) <= 1
    assert app.buffered_bytes == 0
    assert all(outcome.reason != "internal_error" for outcome in picks.outcomes)


def _read(reply: Reply) -> int:
    answers = [pb.ProcessingResponse.FromString(message) for message in reply.messages]
    assert all(answer.WhichOneof("answer") for answer in answers)
    return sum(answer.WhichOneof("answer") == "immediate_response" for answer in answers)


@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_messages_survive_any_cut(messages: list[bytes], data: st.DataObject) -> None:
    """Framed, cut anywhere and put together again, they are the same."""
    stream = b"".join(b"\0" + len(m).to_bytes(4, "big") + m for m in messages)
    deframer, at = Deframer(1000), 0
    got: list[bytes] = []
    while at < len(stream):
        step = data.draw(st.integers(1, 30))
        got += deframer.feed(stream[at : at + step])
        at += step

    assert got == messages
    assert deframer.pending == 0
    assert deframer.refusal is None


def feed(data: bytes, steps: list[int]) -> None:
    async def law() -> None:
        stats = TransportStats(connections=1)
        serving = Serving(EchoApp(), Limits(), stats, Random(7), now=0.0)
        connection, pipe = Http2Connection(serving), Pipe()
        connection.connection_made(pipe)
        at = 0
        for step in [*steps, len(data)]:
            if pipe.closed:
                break
            connection.data_received(data[at : at + step])
            at += step
        connection.connection_lost(None)
        assert (stats.streams, stats.buffered_bytes, stats.connections) == (0, 0, 0)
        assert stats.application_errors_total == 0

    asyncio.run(law())


frames = st.builds(
    frame, st.integers(0, 10), st.integers(0, 255), st.integers(0, 5), st.binary(max_size=40)
)


@st.composite
def conversations(draw: st.DrawFn) -> bytes:
    """A client's bytes: real requests, then frames of any kind, then perhaps garbage."""
    client = ngh2.Connection(ngh2.Role.CLIENT)
    client.initiate_connection({})
    for _ in range(draw(st.integers(0, 3))):
        path = draw(st.sampled_from([b"/test.Echo/Echo", b"/test.Echo/Once", b"/none/none"]))
        fields = [
            (b":method", draw(st.sampled_from([b"POST", b"GET"]))), (b":scheme", b"http"),
            (b":path", path), (b":authority", b"test"), (b"content-type", b"application/grpc"),
        ]  # fmt: skip
        stream_id = client.send_request(fields)
        client.send_data(stream_id, draw(st.sampled_from([b"\0\0\0\0\1x", b"\1\0\0\0\0", b"\0\0"])))
        if draw(st.booleans()):
            client.end_stream(stream_id)
    return client.data_to_send() + b"".join(draw(st.lists(frames, max_size=4)))


@given(
    conversations() | st.binary(max_size=60).map(lambda b: PREFACE + settings({}) + b),
    st.lists(st.integers(1, 50), max_size=6),
)
def test_any_frames_leave_nothing_behind(data: bytes, steps: list[int]) -> None:
    """No exception escapes, and when the connection is gone nothing of it is counted any more."""
    feed(data, steps)


def test_the_corpus_of_frames() -> None:
    for data in seeds("frames"):
        feed(data, [])
