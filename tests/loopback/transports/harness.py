"""What the tests of the transports have in common."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import grpc.aio

from epp.extproc.calls import Application
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


Connect = Callable[..., grpc.aio.Channel]


async def eventually(holds: Callable[[], bool], within_s: float = 10.0) -> None:
    """Wait until something holds; the limit is for a machine that is busy with other things."""
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.005)
