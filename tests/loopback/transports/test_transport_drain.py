"""The end of a server, and of a connection that has grown old."""

import asyncio

import grpc
import grpc.aio
import pytest

from epp.extproc.calls import OK, Reply
from epp.extproc.transports.limits import Limits
from tests.fakes import raw_http2
from tests.fakes.echo import ECHO, SILENT, EchoApp
from tests.fakes.raw_http2 import GOAWAY, message
from tests.loopback.transports.harness import Connect, Mode, Serve, eventually

ours = pytest.mark.served_by("http2")


async def test_open_calls_finish(serve: Serve, connect: Connect, mode: Mode) -> None:
    """Draining takes no new connection, lets each open call finish, and says that all did."""
    app = EchoApp()
    server = await serve(app, mode)
    channel = connect(server, mode)
    calls = [channel.stream_stream(ECHO)() for _ in range(20)]
    for call in calls:
        await call.write(b"before")
        assert await call.read() == b"before"
    drain = asyncio.ensure_future(server.drain(20))
    await asyncio.sleep(0.05)
    assert not drain.done()
    for call in calls:
        await call.write(b"after")
        assert await call.read() == b"after"
        await call.done_writing()
        assert await call.code() == grpc.StatusCode.OK

    assert await drain is True
    assert server.stats.connections == 0
    with pytest.raises(OSError, match="refused"):
        await asyncio.open_connection("127.0.0.1", server.port)


async def test_calls_that_do_not_finish_are_cut(serve: Serve, connect: Connect, mode: Mode) -> None:
    """When the time is over, the rest is cancelled, and drain says so."""
    app = EchoApp()
    server = await serve(app, mode)
    call = connect(server, mode).stream_stream(SILENT)()
    await call.write(b"x")
    await eventually(lambda: bool(app.calls and app.calls[0].events))

    assert await server.drain(0.1) is False
    await eventually(lambda: app.calls[0].events[-1] == "cancel")
    assert await call.code() != grpc.StatusCode.OK
    assert (server.stats.connections, server.stats.streams) == (0, 0)


async def test_drain_without_connections_is_immediate(serve: Serve, mode: Mode) -> None:
    """Nothing to wait for; and a second drain, or close, does no harm."""
    server = await serve(EchoApp(), mode)

    assert await server.drain(20) is True
    assert await server.drain(20) is True
    await server.close()
    await server.close()


async def test_connections_that_never_asked_do_not_hold_up(serve: Serve, mode: Mode) -> None:
    """A connection without a request is closed, greeted or not."""
    server = await serve(EchoApp(), mode)
    async with raw_http2.connect(server.port), raw_http2.connect(server.port) as greeted:
        await greeted.greet()
        await eventually(lambda: server.stats.connections == 2)

        assert await server.drain(20) is True


async def test_close_during_drain(serve: Serve, connect: Connect, mode: Mode) -> None:
    """A second signal ends at once what the first would have waited for."""
    app = EchoApp()
    server = await serve(app, mode)
    call = connect(server, mode).stream_stream(SILENT)()
    await call.write(b"x")
    await eventually(lambda: bool(app.calls and app.calls[0].events))
    drain = asyncio.ensure_future(server.drain(20))
    await asyncio.sleep(0.05)
    await server.close()
    await drain

    await eventually(lambda: app.calls[0].events[-1] == "cancel")
    assert server.stats.connections == 0


@ours
async def test_goaway_comes_twice(serve: Serve, mode: Mode) -> None:
    """First "no more, please", so that a call under way is not lost, then "this was the last"."""
    server = await serve(EchoApp(), mode)
    async with raw_http2.connect(server.port) as peer:
        await peer.greet()
        first = peer.open(ECHO)
        peer.data(first, message(b"x"))
        await eventually(lambda: server.stats.messages_received_total == 1)
        drain = asyncio.ensure_future(server.drain(20))
        while (goaway := await peer.frame()).kind != GOAWAY:
            pass
        assert goaway.payload[:4] == b"\x7f\xff\xff\xff"
        late = peer.open(ECHO)
        peer.data(late, message(b"y"), end=True)
        fields, data = await peer.response(late)
        assert (fields["grpc-status"], data) == ("0", message(b"y"))
        peer.data(first, b"", end=True)
        frames = await peer.until_closed()
        assert await drain is True
    last = [frame for frame in frames if frame.kind == GOAWAY][-1]
    assert int.from_bytes(last.payload[:4], "big") == late


async def test_an_old_connection_is_replaced(serve: Serve, connect: Connect, mode: Mode) -> None:
    """Past its age a connection gets GOAWAY: calls go on, new ones come on a new connection."""
    app = EchoApp()
    limits = Limits(max_connection_age_s=0.3, max_connection_age_grace_s=30)
    server = await serve(app, mode, limits=limits)
    channel = connect(server, mode)
    old = channel.stream_stream(ECHO)()
    await old.write(b"x")
    assert await old.read() == b"x"

    async def ask() -> None:
        assert [each async for each in channel.stream_stream(ECHO)(iter([b"y"]))] == [b"y"]

    async with asyncio.timeout(20):
        while server.stats.connections_total < 3:
            await ask()
            await asyncio.sleep(0.02)
    await old.write(b"z")
    assert await old.read() == b"z"
    await old.done_writing()
    assert await old.code() == grpc.StatusCode.OK


@ours
async def test_the_grace_of_an_old_connection_ends(
    serve: Serve, connect: Connect, mode: Mode
) -> None:
    """A call that outlives the grace too is cut."""
    app = EchoApp()
    limits = Limits(max_connection_age_s=0.1, max_connection_age_grace_s=0.2)
    server = await serve(app, mode, limits=limits)
    call = connect(server, mode).stream_stream(SILENT)()
    await call.write(b"x")
    await eventually(lambda: bool(app.calls) and app.calls[0].events[-1:] == ["cancel"])

    assert server.stats.drained_by_age_total >= 1


async def test_a_late_push_after_close(serve: Serve, connect: Connect, mode: Mode) -> None:
    """The application may push to a call whose server is gone: nothing happens."""
    app = EchoApp()
    server = await serve(app, mode)
    call = connect(server, mode).stream_stream(SILENT)()
    await call.write(b"x")
    await eventually(lambda: bool(app.calls and app.calls[0].events))
    await server.close()
    app.calls[0].push(Reply((b"late",), OK))
    await asyncio.sleep(0.01)

    assert server.stats.streams == 0
