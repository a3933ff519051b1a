"""Every bound of the request path is hit once, and the others never notice."""

import asyncio

import pytest

from epp.extproc.calls import Reply
from epp.extproc.transports.limits import Limits
from tests.fakes import raw_http2
from tests.fakes.echo import COUNT, ECHO, SILENT, EchoApp
from tests.fakes.raw_http2 import (
    ACK,
    DATA,
    GOAWAY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    RawHttp2,
    frame,
    message,
)
from tests.loopback.transports.harness import Mode, Serve, eventually

ours = pytest.mark.served_by("http2")
INITIAL_WINDOW = 4
CALM = "11"


async def _works(peer: RawHttp2) -> None:
    stream = peer.open(ECHO)
    peer.data(stream, message(b"x"), end=True)
    fields, data = await peer.response(stream)
    assert (fields["grpc-status"], data) == ("0", message(b"x"))


def _open_window(peer: RawHttp2, stream: int, size: int) -> None:
    peer.write(frame(WINDOW_UPDATE, 0, stream, size.to_bytes(4, "big")))


@ours
async def test_too_much_unsent_output_resets_its_stream(serve: Serve, mode: Mode) -> None:
    """A peer that asks for more than it takes loses the stream, not the connection."""
    server = await serve(EchoApp(), mode, limits=Limits(max_stream_output_bytes=1_000_000))
    async with raw_http2.connect(server.port) as peer:
        await peer.greet({INITIAL_WINDOW: 100})
        stream = peer.open(COUNT)
        peer.data(stream, message(b"5000"), end=True)
        fields, _ = await peer.response(stream)
        assert fields["reset"] == CALM
        await _works(peer)
    assert server.stats.refused_stalls_total == 1
    assert server.stats.buffered_bytes == 0


@ours
async def test_output_that_stays_resets_its_stream(serve: Serve, mode: Mode) -> None:
    """A little output that is never taken is given up after `send_timeout_s`."""
    app = EchoApp()
    server = await serve(app, mode, limits=Limits(send_timeout_s=0.2))
    async with raw_http2.connect(server.port) as peer:
        await peer.greet({INITIAL_WINDOW: 10})
        ended, still_open = peer.open(COUNT), peer.open(ECHO)
        peer.data(ended, message(b"1"), end=True)
        peer.data(still_open, message(b"z" * 50))
        for stream in (ended, still_open):
            fields, _ = await peer.response(stream)
            assert fields["reset"] == CALM
        await eventually(lambda: server.stats.streams == 0)
    assert app.calls[1].events[-1] == "cancel"
    assert server.stats.buffered_bytes == 0


@ours
async def test_a_slow_reader_that_reads_is_served(serve: Serve, mode: Mode) -> None:
    """Progress, however slow, is no stall."""
    server = await serve(EchoApp(), mode, limits=Limits(send_timeout_s=0.3))
    async with raw_http2.connect(server.port) as peer:
        await peer.greet({INITIAL_WINDOW: 100})
        stream = peer.open(COUNT)
        peer.data(stream, message(b"1"), end=True)
        response = asyncio.ensure_future(peer.response(stream))
        for _ in range(10):
            await asyncio.sleep(0.1)
            _open_window(peer, stream, 93)
        fields, data = await response
        assert (fields["grpc-status"], len(data)) == ("0", 1029)


@ours
async def test_unread_output_stops_the_input(serve: Serve, mode: Mode) -> None:
    """Where output piles up, input is not acknowledged; once it has gone, all of it is."""
    limits = Limits(pause_output_bytes=10_000, stream_window_bytes=200_000)
    server = await serve(EchoApp(), mode, limits=limits)
    async with raw_http2.connect(server.port) as peer:
        await peer.greet({INITIAL_WINDOW: 0})
        stream = peer.open(ECHO)
        while (got := await peer.frame()).kind != SETTINGS or got.flags & ACK:
            pass  # the second one, with the larger window
        for count in range(1, 14):  # one by one: what one read brings is always taken whole
            peer.data(stream, message(b"y" * 15_000))
            await eventually(lambda count=count: server.stats.messages_received_total == count)  # type: ignore[misc]  # bound now
        peer.write(frame(raw_http2.PING, payload=b"x" * 8))
        granted, received = 0, 0
        while (got := await peer.frame()).kind != raw_http2.PING:
            if (got.kind, got.stream) == (WINDOW_UPDATE, stream):
                granted += int.from_bytes(got.payload, "big")
        assert granted <= 2 * 15_005
        _open_window(peer, stream, 1_000_000)
        _open_window(peer, 0, 1_000_000)
        while received < 13 * 15_005 or not granted:
            got = await peer.frame()
            if (got.kind, got.stream) == (WINDOW_UPDATE, stream):
                granted += int.from_bytes(got.payload, "big")
            received += len(got.payload) if got.kind == DATA else 0
        assert granted >= 100_000
        await eventually(lambda: server.stats.buffered_bytes == 0)


async def test_a_peer_that_reads_nothing_is_cut(serve: Serve, mode: Mode) -> None:
    """Its socket full, it is no longer read from; after `send_timeout_s` it is disconnected."""
    server = await serve(EchoApp(), mode, limits=Limits(send_timeout_s=0.3))
    async with (
        raw_http2.connect(server.port) as greedy,
        raw_http2.connect(server.port) as bystander,
    ):
        bystander.authority = greedy.authority = mode.authority
        await bystander.greet()
        await greedy.greet({INITIAL_WINDOW: 2**31 - 1})
        await _works(greedy)
        _open_window(greedy, 0, 2**31 - 1 - 65535)
        greedy.writer.transport.pause_reading()  # type: ignore[attr-defined] # it is a Transport
        for _ in range(6):
            greedy.data(greedy.open(COUNT), message(b"9000"), end=True)
        await _works(bystander)
        await eventually(lambda: server.stats.connections == 1)
        await _works(bystander)
    assert server.stats.refused_stalls_total >= 1
    await eventually(lambda: server.stats.buffered_bytes == 0)


@ours
async def test_pushes_to_a_peer_that_reads_nothing_are_bounded(serve: Serve, mode: Mode) -> None:
    """The application may push on and on: the stream is given up, not the memory."""
    app = EchoApp()
    server = await serve(app, mode, limits=Limits(max_stream_output_bytes=300_000))
    async with raw_http2.connect(server.port) as peer:
        await peer.greet({INITIAL_WINDOW: 100})
        peer.data(peer.open(SILENT), message(b"x"))
        await eventually(lambda: bool(app.calls and app.calls[0].events))
        most = 0
        for _ in range(100):
            app.calls[0].push(Reply((b"p" * 50_000,)))
            await asyncio.sleep(0)
            most = max(most, server.stats.buffered_bytes)
        await eventually(lambda: app.calls[0].events[-1] == "cancel")
        assert most < 500_000
    assert server.stats.buffered_bytes == 0


@ours
async def test_unfinished_messages_are_bounded(serve: Serve, mode: Mode) -> None:
    """Over all connections together; who would hold more is refused, what is held can finish."""
    limit = 300_000
    server = await serve(EchoApp(), mode, limits=Limits(max_buffered_bytes=limit))
    async with raw_http2.connect(server.port) as first, raw_http2.connect(server.port) as second:
        for peer in (first, second):
            await peer.greet({INITIAL_WINDOW: 1_000_000})
            await _works(peer)
            _open_window(peer, 0, 1_000_000)
        begun = message(b"m" * 120_000)
        held = [(peer, peer.open(ECHO)) for peer in (first, second)]
        for peer, stream in held:
            for at in range(0, 112_000, 16_000):
                peer.data(stream, begun[at : at + 16_000])
        await eventually(lambda: server.stats.buffered_bytes == 224_000)
        over = first.open(ECHO)
        for at in range(0, 96_000, 16_000):
            first.data(over, begun[at : at + 16_000])
        fields, _ = await first.response(over)
        assert fields["grpc-status"] == "8"
        assert server.stats.buffered_bytes <= limit
        for peer, stream in held:
            peer.data(stream, begun[112_000:], end=True)
        first.reset(over)
        for peer, stream in held:
            fields, data = await peer.response(stream)
            assert (fields["grpc-status"], data) == ("0", begun)
    assert server.stats.refused_messages_total == 1
    assert server.stats.buffered_bytes == 0


async def test_a_call_without_a_message_ends(serve: Serve, mode: Mode) -> None:
    """Who opens a call and says nothing is told UNAVAILABLE in time."""
    app = EchoApp()
    server = await serve(app, mode, limits=Limits(first_message_timeout_s=0.2))
    async with raw_http2.connect(server.port) as peer:
        peer.authority = mode.authority
        await peer.greet()
        fields, _ = await peer.response(peer.open(ECHO))
        assert fields["grpc-status"] == "14"
        await _works(peer)
    assert app.calls[0].events == ["cancel"]
    assert server.stats.refused_idle_total == 1


@ours
async def test_a_message_begun_has_to_be_finished(serve: Serve, mode: Mode) -> None:
    """A message that trickles in does not hold memory for as long as its sender likes."""
    server = await serve(EchoApp(), mode, limits=Limits(first_message_timeout_s=0.3))
    async with raw_http2.connect(server.port) as peer:
        await peer.greet()
        stream = peer.open(ECHO)
        peer.data(stream, message(b"whole"))
        peer.data(stream, b"\0\0\0\0\5")
        fields, data = await peer.response(stream)
        assert (fields["grpc-status"], data) == ("14", message(b"whole"))
    assert server.stats.buffered_bytes == 0


async def test_an_idle_call_ends(serve: Serve, mode: Mode) -> None:
    """A call that nothing happens on is reaped; one that is used lives on."""
    app = EchoApp()
    server = await serve(app, mode, limits=Limits(stream_idle_timeout_s=0.3))
    async with raw_http2.connect(server.port) as peer:
        peer.authority = mode.authority
        await peer.greet()
        stream = peer.open(ECHO)
        for _ in range(8):
            peer.data(stream, message(b"x"))
            await asyncio.sleep(0.1)
        assert app.calls[0].events == ["receive"] * 8
        fields, _ = await peer.response(stream)
        assert fields["grpc-status"] == "14"


async def test_one_connection_too_many(serve: Serve, mode: Mode) -> None:
    """It is closed at once; when another has gone, there is room again."""
    server = await serve(EchoApp(), mode, limits=Limits(max_connections=2))
    async with raw_http2.connect(server.port) as first:
        async with raw_http2.connect(server.port):
            await eventually(lambda: server.stats.connections == 2)
            async with raw_http2.connect(server.port) as third:
                assert await third.reader.read() == b""
        first.authority = mode.authority
        await first.greet()
        await _works(first)
        await eventually(lambda: server.stats.connections == 1)
        async with raw_http2.connect(server.port) as again:
            again.authority = mode.authority
            await again.greet()
            await _works(again)
    assert server.stats.refused_connections_total == 1


@pytest.mark.parametrize("said", ["nothing", "preface", "settings"])
async def test_a_connection_that_never_asks(serve: Serve, mode: Mode, said: str) -> None:
    """Without a request in time, the connection ends."""
    limits = Limits(handshake_timeout_s=0.2, first_headers_timeout_s=0.3)
    server = await serve(EchoApp(), mode, limits=limits)
    async with raw_http2.connect(server.port) as peer:
        if said == "preface":
            peer.write(raw_http2.PREFACE)
        if said == "settings":
            await peer.greet()
        async with asyncio.timeout(10):
            await peer.reader.read()
    await eventually(lambda: server.stats.connections == 0)
    assert server.stats.refused_handshakes_total == 1


@ours
async def test_an_idle_connection_is_drained(serve: Serve, mode: Mode) -> None:
    """A connection without calls says GOAWAY and closes."""
    server = await serve(EchoApp(), mode, limits=Limits(connection_idle_timeout_s=0.2))
    async with raw_http2.connect(server.port) as peer:
        await peer.greet()
        await _works(peer)
        async with asyncio.timeout(10):
            frames = await peer.until_closed()
    assert GOAWAY in [each.kind for each in frames]


@ours
async def test_a_call_that_we_ended_does_not_stay(serve: Serve, mode: Mode) -> None:
    """A peer that never ends its side of a stream has it reset after a while."""
    server = await serve(EchoApp(), mode, limits=Limits(linger_timeout_s=0.1))
    async with raw_http2.connect(server.port) as peer:
        await peer.greet()
        stream = peer.open(COUNT)
        peer.data(stream, message(b"1"))
        fields, _ = await peer.response(stream)
        assert fields["grpc-status"] == "0"
        while (got := await peer.frame()).kind != RST_STREAM:
            pass
        assert (got.stream, got.payload) == (stream, b"\0\0\0\0")
