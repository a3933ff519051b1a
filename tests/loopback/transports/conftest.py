"""Every law of the request path holds for each transport, on the event loop of production."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple, Protocol

import grpc.aio
import pytest
import uvloop

from epp.extproc.calls import Application
from epp.extproc.transports.select import listen
from epp.extproc.transports.server import Server

ISTIO = "outbound|9002||picker.models.svc.cluster.local"


class Mode(NamedTuple):
    """A transport, and the authority that the client calls it by."""

    transport: str
    authority: str
    served_by: str


MODES = {
    "http2": Mode("http2", "picker.models:9002", "http2"),
    "grpcio": Mode("grpcio", "picker.models:9002", "grpcio"),
    "auto": Mode("auto", "picker.models:9002", "http2"),
    "auto-istio": Mode("auto", ISTIO, "grpcio"),
}


class Serve(Protocol):
    """Serves an application; ends with the test."""

    async def __call__(self, app: Application, mode: Mode, **options: Any) -> Server: ...


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "mode" not in metafunc.fixturenames:
        return
    pinned = metafunc.config.getoption("--transport")
    names = [name for name in MODES if pinned in ("auto", name)]
    only = metafunc.definition.get_closest_marker("served_by")
    if only is not None:
        names = [name for name in names if MODES[name].served_by in only.args]
    metafunc.parametrize("mode", [MODES[name] for name in names], ids=names)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "served_by(name): only for modes served by this transport")


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    servers: list[Server] = []

    async def start(app: Application, mode: Mode, **options: Any) -> Server:
        options.setdefault("host", "127.0.0.1")
        server = await listen(app, transport=mode.transport, **options)
        servers.append(server)
        return server

    yield start
    for server in servers:
        await server.close()


Connect = Callable[..., grpc.aio.Channel]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    channels: list[grpc.aio.Channel] = []

    def to(server: Server, mode: Mode, *more: tuple[str, Any]) -> grpc.aio.Channel:
        options = [
            ("grpc.default_authority", mode.authority),
            ("grpc.use_local_subchannel_pool", 1),
            *more,
        ]
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=options)
        channels.append(channel)
        return channel

    yield to
    for channel in channels:
        await channel.close()


async def eventually(holds: Callable[[], bool], within_s: float = 10.0) -> None:
    """Wait until something holds; the limit is for a machine that is busy with other things."""
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.005)
