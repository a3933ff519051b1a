"""Calls, as a real gRPC client makes them."""

import asyncio
import logging

import grpc
import grpc.aio
import pytest

from epp.extproc.calls import OK, Reply
from epp.extproc.transports.limits import Limits
from tests.fakes import raw_http2
from tests.fakes.echo import (
    CANCEL_FAILS,
    COUNT,
    ECHO,
    END_FAILS,
    ONCE,
    OPEN_FAILS,
    RECEIVE_FAILS,
    REFUSAL,
    REFUSE,
    SILENT,
    EchoApp,
)
from tests.loopback.transports.harness import Connect, Mode, Serve, eventually


async def _ask(channel: grpc.aio.Channel, path: str, *messages: bytes) -> list[bytes]:
    call = channel.stream_stream(path)(iter(messages))
    return [message async for message in call]


async def _refused(channel: grpc.aio.Channel, path: str, message: bytes) -> grpc.aio.AioRpcError:
    # As one batch: a streaming call of grpc.aio that is refused while it writes makes up an
    # INTERNAL of its own.
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary(path)(message)
    return caught.value


async def test_messages_come_back_in_order(serve: Serve, connect: Connect, mode: Mode) -> None:
    """A call carries any number of messages of any size, empty ones too, both ways."""
    server = await serve(EchoApp(), mode)
    messages = [b"", b"a", b"b" * 70_000, b"", b"c" * 3_000_000, b"d"]
    options = ("grpc.max_receive_message_length", -1)

    assert messages == await _ask(connect(server, mode, options), ECHO, *messages)
    assert (server.stats.streams_total, server.stats.streams) == (1, 0)


async def test_the_application_learns_path_authority_and_metadata(
    serve: Serve, connect: Connect, mode: Mode
) -> None:
    """The binding to a pool rests on `:authority` and metadata: every transport tells them."""
    app = EchoApp()
    channel = connect(await serve(app, mode), mode)
    call = channel.stream_stream(ECHO)(
        iter([b"x"]), metadata=(("x-epp-pool", "llama"), ("x-raw-bin", b"\0\xff"))
    )

    assert [message async for message in call] == [b"x"]
    metadata = app.calls[0].metadata
    assert ECHO.encode() == metadata[b":path"]
    assert mode.authority.encode() == metadata[b":authority"]
    assert metadata[b"x-epp-pool"] == b"llama"
    assert b"x-raw-bin" in metadata


async def test_each_connection_keeps_its_own_authority(
    serve: Serve, connect: Connect, mode: Mode
) -> None:
    """Two gateways that call us by two names are never mixed up."""
    app = EchoApp()
    server = await serve(app, mode)
    names = [mode.authority, f"other-{mode.authority}"]
    channels = [connect(server, mode._replace(authority=name)) for name in names]
    for _ in range(2):
        for channel in channels:
            await _ask(channel, ECHO, b"x")

    assert names * 2 == [call.metadata[b":authority"].decode() for call in app.calls]


async def test_a_status_ends_the_call_before_the_peer_does(
    serve: Serve, connect: Connect, mode: Mode
) -> None:
    """An early OK is an OK for the client, and nothing of the call is left behind."""
    app = EchoApp()
    server = await serve(app, mode, limits=Limits(linger_timeout_s=0.1))
    channel = connect(server, mode)
    call = channel.stream_stream(ONCE)()
    await call.write(b"x")

    assert await call.read() == b"x"
    assert grpc.aio.EOF is await call.read()
    assert await call.code() == grpc.StatusCode.OK
    await eventually(lambda: server.stats.streams == 0)
    assert app.calls[0].events == ["receive"]


async def test_many_messages_in_one_reply(serve: Serve, connect: Connect, mode: Mode) -> None:
    """A reply of many messages arrives whole, and then its status."""
    channel = connect(await serve(EchoApp(), mode), mode)

    assert await _ask(channel, COUNT, b"3000") == [b"x" * 1024] * 3000


async def test_a_status_travels_with_its_message(
    serve: Serve, connect: Connect, mode: Mode
) -> None:
    """Code and message of a refusal reach the client, whatever characters the message has."""
    error = await _refused(connect(await serve(EchoApp(), mode), mode), REFUSE, b"x")

    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert REFUSAL.message == error.details()


@pytest.mark.parametrize("path", ["/test.Echo/Nothing", "/test.Other/Echo", "/x"])
async def test_unknown_methods_are_unimplemented(
    serve: Serve, connect: Connect, mode: Mode, path: str
) -> None:
    """A method that nobody serves is UNIMPLEMENTED, and the connection goes on."""
    channel = connect(await serve(EchoApp(), mode), mode)
    error = await _refused(channel, path, b"x")

    assert error.code() == grpc.StatusCode.UNIMPLEMENTED
    assert await _ask(channel, ECHO, b"y") == [b"y"]


@pytest.mark.parametrize("path", [OPEN_FAILS, RECEIVE_FAILS, END_FAILS])
async def test_a_bug_ends_its_call_only(
    serve: Serve,
    connect: Connect,
    mode: Mode,
    path: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An exception of the application is INTERNAL for its call, a traceback for us, no more."""
    app = EchoApp()
    server = await serve(app, mode)
    channel = connect(server, mode)
    other = channel.stream_stream(ECHO)()
    await other.write(b"before")
    assert await other.read() == b"before"
    error = await _refused(channel, path, b"x")

    assert error.code() == grpc.StatusCode.INTERNAL
    assert "ZeroDivisionError" in caplog.text
    assert "ZeroDivisionError" not in (error.details() or "")
    assert server.stats.application_errors_total == 1
    await other.write(b"after")
    assert await other.read() == b"after"
    other.cancel()
    if path == RECEIVE_FAILS:
        await eventually(lambda: app.calls[1].events == ["receive", "cancel"])


async def test_a_cancelled_call_is_told_once(serve: Serve, connect: Connect, mode: Mode) -> None:
    """RST_STREAM is the normal end: `cancel`, once, and nothing else ever again."""
    app = EchoApp()
    server = await serve(app, mode)
    call = connect(server, mode).stream_stream(ECHO)()
    await call.write(b"x")
    assert await call.read() == b"x"
    call.cancel()
    await eventually(lambda: server.stats.streams == 0)
    app.calls[0].push(Reply((b"late",), OK))
    await asyncio.sleep(0.01)

    if mode.served_by == "http2":
        assert app.calls[0].events == ["receive", "cancel"]
        assert server.stats.resets_total == 1
    else:  # grpcio may take a reset for the peer's end, which is over all the same
        assert app.calls[0].events in (["receive", "cancel"], ["receive", "end"])


async def test_a_bug_in_cancel_hurts_nobody(
    serve: Serve, connect: Connect, mode: Mode, caplog: pytest.LogCaptureFixture
) -> None:
    """Even `cancel` may fail: it is logged, and the other calls go on."""
    app = EchoApp()
    server = await serve(app, mode)
    channel = connect(server, mode)
    call = channel.stream_stream(CANCEL_FAILS)()
    await call.write(b"x")
    await eventually(lambda: bool(app.calls and app.calls[0].events))
    call.cancel()
    await eventually(lambda: server.stats.application_errors_total == 1)

    assert "ZeroDivisionError" in caplog.text
    assert await _ask(channel, ECHO, b"y") == [b"y"]


async def test_a_lost_connection_cancels_its_calls(serve: Serve, mode: Mode) -> None:
    """All calls of a connection that goes away are cancelled."""
    app = EchoApp()
    server = await serve(app, mode)
    async with raw_http2.connect(server.port) as peer:
        peer.authority = mode.authority
        await peer.greet()
        for _ in range(5):
            peer.data(peer.open(SILENT), raw_http2.message(b"x"))
        await eventually(lambda: server.stats.messages_received_total == 5)
    await eventually(lambda: server.stats.streams == 0 and server.stats.connections == 0)

    await eventually(lambda: [call.events[-1] for call in app.calls] == ["cancel"] * 5)


async def test_pushes_reach_the_client(serve: Serve, connect: Connect, mode: Mode) -> None:
    """What the application pushes arrives, in order, before and after the peer's end."""
    app = EchoApp()
    server = await serve(app, mode)
    call = connect(server, mode).stream_stream(SILENT)()
    await call.write(b"x")
    await eventually(lambda: bool(app.calls and app.calls[0].events))
    push = app.calls[0].push
    push(Reply((b"1", b"2")))
    push(Reply((b"3",)))
    assert [await call.read() for _ in range(3)] == [b"1", b"2", b"3"]
    await call.done_writing()
    await eventually(lambda: "end" in app.calls[0].events)
    push(Reply((b"4",)))
    assert await call.read() == b"4"
    push(Reply((b"5",), OK))
    push(Reply((b"never",)))

    assert await call.read() == b"5"
    assert grpc.aio.EOF is await call.read()
    assert await call.code() == grpc.StatusCode.OK
    assert app.calls[0].events == ["receive", "end"]


async def test_a_push_can_end_the_call(serve: Serve, connect: Connect, mode: Mode) -> None:
    """A pushed status ends a call whose peer still could send."""
    app = EchoApp()
    server = await serve(app, mode)
    call = connect(server, mode).stream_stream(SILENT)()
    await call.write(b"x")
    await eventually(lambda: bool(app.calls and app.calls[0].events))
    app.calls[0].push(Reply((b"bye",), REFUSAL))

    assert await call.read() == b"bye"
    assert await call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    await eventually(lambda: server.stats.streams == 0)
    assert app.calls[0].events == ["receive"]


async def test_a_push_during_open_comes_first(serve: Serve, connect: Connect, mode: Mode) -> None:
    """The application may push before it has returned its call."""
    app = EchoApp(on_open=lambda call: call.push(Reply((b"hello",))))
    channel = connect(await serve(app, mode), mode)

    assert await _ask(channel, ECHO, b"x") == [b"hello", b"x"]


async def test_the_deadline_of_a_call_is_kept(serve: Serve, connect: Connect, mode: Mode) -> None:
    """When `grpc-timeout` has passed, the call is over and the application knows it."""
    app = EchoApp()
    server = await serve(app, mode)
    call = connect(server, mode).stream_stream(SILENT)(timeout=0.2)
    await call.write(b"x")

    assert await call.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await eventually(lambda: app.calls[0].events[-1] == "cancel")
    assert server.stats.streams == 0


async def test_too_large_a_message_is_refused(serve: Serve, connect: Connect, mode: Mode) -> None:
    """A message over the limit ends its call with RESOURCE_EXHAUSTED; one at the limit does not."""
    app = EchoApp()
    server = await serve(app, mode, limits=Limits(max_message_bytes=100_000))
    channel = connect(server, mode)
    assert await _ask(channel, ECHO, b"x" * 100_000) == [b"x" * 100_000]
    error = await _refused(channel, ECHO, b"x" * 100_001)

    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    await eventually(lambda: bool(app.calls[-1].events) and app.calls[-1].events[-1] == "cancel")
    assert server.stats.buffered_bytes == 0


async def test_calls_beyond_the_limit_are_refused(
    serve: Serve, connect: Connect, mode: Mode
) -> None:
    """One call more than all connections may have open is RESOURCE_EXHAUSTED, at once."""
    server = await serve(EchoApp(), mode, limits=Limits(max_streams=3))
    calls = [connect(server, mode).stream_stream(ECHO)() for _ in range(3)]
    for call in calls:
        await call.write(b"x")
        assert await call.read() == b"x"
    channel = connect(server, mode)
    error = await _refused(channel, ECHO, b"x")

    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert server.stats.refused_streams_total == 1
    calls[0].cancel()
    await eventually(lambda: server.stats.streams == 2)
    assert await _ask(channel, ECHO, b"x") == [b"x"]


async def test_many_calls_at_once(serve: Serve, connect: Connect, mode: Mode) -> None:
    """Calls on one connection do not disturb each other."""
    server = await serve(EchoApp(), mode)
    channel = connect(server, mode)

    async def ask(number: int) -> None:
        messages = [b"%d-%d" % (number, each) * 50 for each in range(5)]
        assert messages == await _ask(channel, ECHO, *messages)

    async with asyncio.TaskGroup() as tasks:
        for number in range(200):
            tasks.create_task(ask(number))
    assert (server.stats.streams, server.stats.buffered_bytes) == (0, 0)
    assert server.stats.connections == 1


async def test_a_port_serves_ipv4_and_ipv6(serve: Serve, mode: Mode) -> None:
    """Without a host, the port is open on every address of both families."""
    server = await serve(EchoApp(), mode, host="")
    for host in ("127.0.0.1", "[::1]"):
        async with grpc.aio.insecure_channel(f"{host}:{server.port}") as channel:
            assert await _ask(channel, ECHO, b"x") == [b"x"]


async def test_nothing_of_a_message_is_logged(
    serve: Serve, connect: Connect, mode: Mode, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages hold people's prompts: no log line of a transport repeats them."""
    caplog.set_level(logging.DEBUG, "epp")
    channel = connect(await serve(EchoApp(), mode), mode)
    for path in (RECEIVE_FAILS, END_FAILS, REFUSE):
        await _refused(channel, path, b"my secret prompt")

    assert "secret" not in caplog.text
