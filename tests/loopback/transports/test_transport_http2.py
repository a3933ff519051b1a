"""HTTP/2 as it is on the wire: what a raw client sends, right and wrong."""

import asyncio
import contextlib

import pytest

from epp.extproc.transports.limits import Limits
from tests.fakes import raw_http2
from tests.fakes.echo import ECHO, ONCE, REFUSE, SILENT, EchoApp
from tests.fakes.raw_http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Fields,
    RawHttp2,
    frame,
    message,
)
from tests.loopback.transports.harness import Mode, Serve, eventually

ours = pytest.mark.served_by("http2")


async def _works(peer: RawHttp2) -> None:
    """A call on this connection succeeds."""
    stream = peer.open(ECHO)
    peer.data(stream, message(b"still here"), end=True)
    fields, data = await peer.response(stream)
    assert (fields["grpc-status"], data) == ("0", message(b"still here"))


@ours
async def test_5000_streams_each_ended_by_a_reset(serve: Serve, mode: Mode) -> None:
    """Envoy ends every stream with RST_STREAM, which must never look like abuse."""
    app = EchoApp()
    server = await serve(app, mode)
    async with raw_http2.connect(server.port) as peer:
        peer.authority = mode.authority
        await peer.greet()
        for _ in range(50):
            for _ in range(100):
                stream = peer.open(ECHO)
                peer.data(stream, message(b"x"))
                peer.reset(stream)
            await asyncio.sleep(0)
        await _works(peer)
    await eventually(lambda: server.stats.connections == 0)

    assert server.stats.resets_total == 5000
    assert server.stats.refused_floods_total == 0
    assert all(call.events == ["receive", "cancel"] for call in app.calls[:5000])


async def test_resets_after_the_answer(serve: Serve, mode: Mode) -> None:
    """The same on every transport, each reset after its answer, as Envoy does it."""
    server = await serve(EchoApp(), mode)
    async with raw_http2.connect(server.port) as peer:
        peer.authority = mode.authority
        await peer.greet()
        for _ in range(300):
            stream = peer.open(ECHO)
            peer.data(stream, message(b"x"))
            while (got := await peer.frame()).kind != DATA or got.stream != stream:
                pass
            peer.reset(stream)
        await _works(peer)
        await eventually(lambda: server.stats.streams == 0)


@ours
async def test_a_message_may_be_cut_anywhere(serve: Serve, mode: Mode) -> None:
    """DATA frames of one byte, and one DATA frame with many messages, carry the same calls."""
    server = await serve(EchoApp(), mode)
    messages = b"".join(message(each) for each in (b"", b"ab", b"c" * 300))
    async with raw_http2.connect(server.port) as peer:
        await peer.greet()
        one, many = peer.open(ECHO), peer.open(ECHO)
        for byte in messages:
            peer.data(one, bytes((byte,)))
        peer.data(one, b"", end=True)
        fields, data = await peer.response(one)
        assert (fields["grpc-status"], data) == ("0", messages)
        peer.data(many, messages, end=True)
        fields, data = await peer.response(many)
        assert (fields["grpc-status"], data) == ("0", messages)


async def test_bytes_may_be_cut_anywhere(serve: Serve, mode: Mode) -> None:
    """A connection whose bytes come one at a time is served like any other."""
    server = await serve(EchoApp(), mode)
    async with raw_http2.connect(server.port) as peer:
        peer.authority = mode.authority
        request = frame(HEADERS, END_HEADERS, 1, peer.block(ECHO))
        early = PREFACE + frame(SETTINGS)
        late = request + frame(DATA, 1, 1, message(b"x"))
        for byte in early + late:
            peer.write(bytes((byte,)))
            await asyncio.sleep(0)
        fields, data = await peer.response(1)
        assert (fields["grpc-status"], data) == ("0", message(b"x"))


@ours
@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ([(":method", "POST"), ("content-type", "application/json")], "415"),
        ([(":method", "POST")], "415"),
        ([(":method", "POST"), ("content-type", "application/grpc-web")], "415"),
        ([(":method", "GET"), ("content-type", "application/grpc")], "405"),
        ([(":method", "GET")], "405"),
    ],
)
@pytest.mark.parametrize("end", [True, False])
async def test_what_is_no_grpc_call_gets_an_http_status(
    serve: Serve, mode: Mode, fields: Fields, status: str, end: bool
) -> None:
    """A browser or a probe on the wrong port gets HTTP's own answer, and costs nothing more."""
    server = await serve(EchoApp(), mode, limits=Limits(linger_timeout_s=0.1))
    start = [(":scheme", "http"), (":path", "/"), (":authority", "x")]
    async with raw_http2.connect(server.port) as peer:
        await peer.greet()
        stream = peer.request(fields[:1] + start + fields[1:], end=end)
        answer, _ = await peer.response(stream)
        assert answer[":status"] == status
        if not end:
            while (got := await peer.frame()).kind != RST_STREAM:
                pass
            assert (got.stream, got.payload) == (stream, b"\0\0\0\0")
        await _works(peer)
    assert server.stats.refused_requests_total == 1


@ours
async def test_errors_without_messages_are_trailers_only(serve: Serve, mode: Mode) -> None:
    """One block of headers tells the whole answer when nothing else is to be told."""
    server = await serve(EchoApp(), mode)
    async with raw_http2.connect(server.port) as peer:
        await peer.greet()
        for path, code in (("/x/Y", "12"), (REFUSE, "8")):
            stream = peer.open(path)
            peer.data(stream, message(b"x"), end=True)
            while (got := await peer.frame()).stream != stream:
                pass
            assert (got.kind, got.flags & 1) == (HEADERS, 1)
            fields = got.fields
            assert (fields[":status"], fields["grpc-status"]) == ("200", code)
            assert fields["content-type"] == "application/grpc"


@ours
@pytest.mark.parametrize(
    ("path", "data", "code"),
    [
        (ECHO, b"\1\0\0\0\1x", "12"),
        (ECHO, b"\7\0\0\0\1x", "13"),
        (ECHO, b"\0\0\0\0\5x", "13"),
        (ECHO, b"\0\0", "13"),
        (ECHO, b"\0\xff\xff\xff\xffx", "8"),
    ],
)
async def test_what_is_no_message_ends_its_call(
    serve: Serve, mode: Mode, path: str, data: bytes, code: str
) -> None:
    """Compressed, unknown, unfinished and oversize messages: a status each, nothing else."""
    app = EchoApp()
    server = await serve(app, mode)
    async with raw_http2.connect(server.port) as peer:
        await peer.greet()
        stream = peer.open(path)
        peer.data(stream, data, end=True)
        fields, _ = await peer.response(stream)
        assert fields["grpc-status"] == code
        assert fields.get("grpc-accept-encoding", "identity") == "identity"
        await _works(peer)
    assert app.calls[0].events == ["cancel"]
    assert (server.stats.streams, server.stats.buffered_bytes) == (0, 0)


@ours
async def test_trailers_of_the_peer_are_its_end(serve: Serve, mode: Mode) -> None:
    """gRPC clients send none, HTTP/2 allows them: they end the call like END_STREAM."""
    server = await serve(EchoApp(), mode)
    async with raw_http2.connect(server.port) as peer:
        await peer.greet()
        stream = peer.open(ECHO)
        peer.data(stream, message(b"x"))
        peer.write(frame(HEADERS, END_HEADERS | 1, stream, peer.encode([("x-end", "yes")])))
        fields, data = await peer.response(stream)
        assert (fields["grpc-status"], data) == ("0", message(b"x"))


@ours
@pytest.mark.parametrize("value", ["", "1", "1x", "999999999S", "-1S"])
async def test_a_malformed_timeout_is_refused(serve: Serve, mode: Mode, value: str) -> None:
    """A deadline that cannot be read is not ignored."""
    app = EchoApp()
    server = await serve(app, mode)
    async with raw_http2.connect(server.port) as peer:
        await peer.greet()
        stream = peer.open(ECHO, [("grpc-timeout", value)])
        fields, _ = await peer.response(stream)
        assert fields["grpc-status"] == "13"
    assert app.calls == []


async def test_pings_are_answered_before_and_during_calls(serve: Serve, mode: Mode) -> None:
    """A keepalive of the gateway gets its answer, also on a connection without any request."""
    server = await serve(EchoApp(), mode)
    async with raw_http2.connect(server.port) as peer:
        peer.authority = mode.authority
        await peer.greet()
        for payload in (b"before 1", b"before 2"):
            peer.write(frame(PING, payload=payload))
            while (got := await peer.frame()).kind != PING:
                pass
            assert (got.flags, got.payload) == (ACK, payload)
        await _works(peer)
        peer.write(frame(PING, payload=b"and then"))
        while (got := await peer.frame()).kind != PING or got.payload != b"and then":
            pass
        assert got.flags == ACK


@ours
async def test_the_early_end_leaves_room_for_data_under_way(serve: Serve, mode: Mode) -> None:
    """What a peer sent before it heard of the end is dropped, and its window comes back."""
    server = await serve(EchoApp(), mode)
    async with raw_http2.connect(server.port) as peer:
        await peer.greet()
        await _works(peer)
        for _ in range(30):
            stream = peer.open(ONCE)
            peer.data(stream, message(b"x"))
            for _ in range(60):
                peer.data(stream, b"z" * 16_000)
            fields, _ = await peer.response(stream)
            assert fields["grpc-status"] == "0"
            peer.reset(stream)
        await _works(peer)


FLOODS = {
    "ping": frame(PING, payload=b"x" * 8) * 200,
    "settings": frame(SETTINGS) * 200,
    "empty data": b"",
    "priority": frame(PRIORITY, 0, 1, b"\0\0\0\0\1") * 200,
    "unknown": frame(0xEE) * 200,
    "continuation": b"",
    "rapid reset": b"",
    "window overflow": frame(WINDOW_UPDATE, payload=b"\x7f\xff\xff\xff") * 2,
    "zero increment": frame(WINDOW_UPDATE, payload=b"\0\0\0\0"),
    "settings of nonsense": frame(SETTINGS, payload=b"\0\4\xff\xff\xff\xff"),
    "data on stream 0": frame(DATA, 0, 0, b"x"),
    "even stream": frame(HEADERS, END_HEADERS, 2, b"\x82"),
    "oversize frame": frame(DATA, 0, 1, b"x" * 20_000),
    "bad header block": frame(HEADERS, END_HEADERS, 1_000_001, b"\xff" * 40),
    "bare continuation": frame(CONTINUATION, END_HEADERS, 1, b""),
    "garbage": b"\x00\xffgarbage" * 100,
}


def _flood(peer: RawHttp2, name: str) -> bytes:
    if name == "empty data":
        return frame(DATA, 0, peer.open(SILENT)) * 200
    if name == "continuation":
        stream, peer.next_stream = peer.next_stream, peer.next_stream + 2
        return frame(HEADERS, 0, stream, b"") + frame(CONTINUATION, 0, stream, b"") * 20
    if name == "rapid reset":
        for _ in range(100):
            peer.reset(peer.open(ECHO))
    return FLOODS[name]


@ours
@pytest.mark.parametrize("name", FLOODS)
async def test_an_attack_ends_its_own_connection_only(serve: Serve, mode: Mode, name: str) -> None:
    """Whoever floods, or breaks HTTP/2, loses the connection; all others notice nothing."""
    limits = Limits(control_frames=(1000, 1), unanswered_resets=(1000, 1))
    server = await serve(EchoApp(), mode, limits=limits)
    async with (
        raw_http2.connect(server.port) as attacker,
        raw_http2.connect(server.port) as bystander,
    ):
        await bystander.greet()
        await _works(bystander)
        await attacker.greet()
        await _works(attacker)
        reading = asyncio.ensure_future(attacker.until_closed())
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                attacker.write(_flood(attacker, name))
                await attacker.writer.drain()
                await asyncio.sleep(0.001)
                if reading.done():
                    break
        async with asyncio.timeout(10):
            await reading
        await _works(bystander)
        await eventually(lambda: server.stats.connections == 1)
    assert server.stats.protocol_errors_total + server.stats.refused_floods_total == 1
    assert server.stats.buffered_bytes == 0


async def test_garbage_instead_of_a_preface(serve: Serve, mode: Mode) -> None:
    """HTTP/1, TLS and noise on a plaintext port: the connection goes, the others stay."""
    server = await serve(EchoApp(), mode)
    async with raw_http2.connect(server.port) as bystander:
        bystander.authority = mode.authority
        await bystander.greet()
        await _works(bystander)
        for garbage in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\1" * 90, b"\0" * 999):
            async with raw_http2.connect(server.port) as peer:
                peer.write(garbage)
                async with asyncio.timeout(10):
                    await peer.reader.read()
        await _works(bystander)
        await eventually(lambda: server.stats.connections == 1)


@ours
async def test_a_refused_authority_ends_its_stream_only(serve: Serve, mode: Mode) -> None:
    """On a connection that http2 serves, a later request with `|` is reset, and counted."""
    server = await serve(EchoApp(), mode)
    async with raw_http2.connect(server.port) as peer:
        await peer.greet()
        await _works(peer)
        peer.authority = "outbound|9002||svc"
        fields, _ = await peer.response(peer.open(ECHO))
        assert fields == {"reset": "1"}
        peer.authority = "svc"
        await _works(peer)
    assert server.stats.refused_requests_total == 1


@ours
async def test_oversize_headers_end_their_stream(serve: Serve, mode: Mode) -> None:
    """A list of headers over the limit is refused, and the connection goes on."""
    server = await serve(EchoApp(), mode, limits=Limits(max_header_list_bytes=4096))
    async with raw_http2.connect(server.port) as peer:
        await peer.greet()
        await _works(peer)
        fields, _ = await peer.response(peer.open(ECHO, [("x-long", "y" * 5000)]))
        assert fields["grpc-status"] == "8"
        await _works(peer)


@ours
async def test_a_peer_that_ignores_the_limit_on_streams(serve: Serve, mode: Mode) -> None:
    """It was told the limit and acknowledged it: the connection ends, and no other."""
    server = await serve(EchoApp(), mode, limits=Limits(max_concurrent_streams=5))
    async with raw_http2.connect(server.port) as peer:
        await peer.greet()
        await _works(peer)
        for _ in range(6):
            peer.open(SILENT)
        async with asyncio.timeout(10):
            frames = await peer.until_closed()
    assert frames[-1].kind == GOAWAY
    await eventually(lambda: server.stats.streams == 0 and server.stats.connections == 0)


async def test_a_peer_that_says_goodbye(serve: Serve, mode: Mode) -> None:
    """GOAWAY of the peer: its open calls are served to the end, then the connection closes."""
    server = await serve(EchoApp(), mode)
    async with raw_http2.connect(server.port) as peer:
        peer.authority = mode.authority
        await peer.greet()
        stream = peer.open(ECHO)
        peer.data(stream, message(b"x"))
        peer.write(frame(GOAWAY, payload=b"\0" * 8))
        peer.data(stream, message(b"y"), end=True)
        fields, data = await peer.response(stream)
        assert (fields["grpc-status"], data) == ("0", message(b"x") + message(b"y"))
        if mode.served_by == "http2":
            async with asyncio.timeout(10):
                await peer.until_closed()
