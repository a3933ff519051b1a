"""Every law of the request path holds for each transport, on the event loop of production."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import grpc.aio
import pytest
import uvloop

from epp.extproc.calls import Application
from epp.extproc.transports.select import listen
from epp.extproc.transports.server import Server
from tests.loopback.transports.harness import MODES, Connect, Mode, Serve


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
