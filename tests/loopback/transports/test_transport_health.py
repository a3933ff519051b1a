"""The health service, asked by grpcio's own client of it."""

import asyncio

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from epp.extproc.health import SERVICE, Health, HealthService
from epp.extproc.paths import Services
from tests.fakes.echo import ECHO, EchoApp
from tests.loopback.transports.harness import Connect, Mode, Serve, eventually

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
EXT_PROC = "envoy.service.ext_proc.v3.ExternalProcessor"
FOLLOWERS = ["", "readiness", EXT_PROC, "inference-extension"]


def _ask(service: str) -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=service)


async def test_names_follow_readiness(serve: Serve, connect: Connect, mode: Mode) -> None:
    """Liveness is always SERVING; the other names say what readiness says."""
    health = Health()
    server = await serve(HealthService(health), mode)
    stub = health_pb2_grpc.HealthStub(connect(server, mode))
    for ready, status in ((False, NOT_SERVING), (True, SERVING)):
        health.set_ready(ready)
        for service in FOLLOWERS:
            assert (await stub.Check(_ask(service))).status == status
        assert (await stub.Check(_ask("liveness"))).status == SERVING
        listed = (await stub.List(health_pb2.HealthListRequest())).statuses
        assert {name: got.status for name, got in listed.items()} == {
            "liveness": SERVING,
            **dict.fromkeys(FOLLOWERS, status),
        }


async def test_unknown_names(serve: Serve, connect: Connect, mode: Mode) -> None:
    """NOT_FOUND for Check, SERVICE_UNKNOWN for Watch, as the protocol has it."""
    stub = health_pb2_grpc.HealthStub(connect(await serve(HealthService(Health()), mode), mode))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Check(_ask("nobody"))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    watch = stub.Watch(_ask("nobody"))
    assert (await watch.read()).status == UNKNOWN
    watch.cancel()


async def test_watchers_are_told_of_each_change(serve: Serve, connect: Connect, mode: Mode) -> None:
    """Each watcher hears each change once, and nothing else; one that has left is forgotten."""
    health = Health()
    server = await serve(HealthService(health), mode)
    stub = health_pb2_grpc.HealthStub(connect(server, mode))
    live, ready, gone = (stub.Watch(_ask(name)) for name in ("liveness", "readiness", ""))
    assert [(await each.read()).status for each in (live, ready, gone)] == [
        SERVING,
        NOT_SERVING,
        NOT_SERVING,
    ]
    gone.cancel()
    await eventually(lambda: len(health.watchers) == 2)
    for status in (SERVING, NOT_SERVING, SERVING):
        health.set_ready(status == SERVING)
        health.set_ready(status == SERVING)
        assert (await ready.read()).status == status
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await live.read()
    await eventually(lambda: len(health.watchers) == 1)


async def test_health_beside_another_service(serve: Serve, connect: Connect, mode: Mode) -> None:
    """On the ext_proc port both are served, by path."""
    health = Health(ready=True)
    services = Services({SERVICE: HealthService(health), "test.Echo": EchoApp()})
    channel = connect(await serve(services, mode), mode)
    assert (await health_pb2_grpc.HealthStub(channel).Check(_ask(""))).status == SERVING
    assert [each async for each in channel.stream_stream(ECHO)(iter([b"x"]))] == [b"x"]
    for path in (f"/{SERVICE}/Nothing", "/Check", "//Check", f"/{SERVICE}/Check/"):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(path)(b"")
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("method", ["Check", "Watch", "List"])
async def test_nonsense_is_an_invalid_argument(
    serve: Serve, connect: Connect, mode: Mode, method: str
) -> None:
    """A message that is none, and no message at all."""
    channel = connect(await serve(HealthService(Health()), mode), mode)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary(f"/{SERVICE}/{method}")(b"\x0a\xff")
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    call = channel.stream_stream(f"/{SERVICE}/{method}")()
    await call.done_writing()
    assert await call.code() == grpc.StatusCode.INVALID_ARGUMENT
