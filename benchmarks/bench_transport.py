"""What the http2 transport costs per stream, fed with real HTTP/2 from memory: no sockets.

The same streams go through three protocol objects: the least that libnghttp2 needs
(benchmarks.echo), our transport with an echo, and our transport with the whole picker.
"""

import asyncio
import gc
import os
import time
from collections.abc import Callable
from random import Random
from typing import cast

import ngh2

from benchmarks import messages, world
from benchmarks.echo import Http2Echo
from benchmarks.report import Row
from epp.accesslog import AccessLog
from epp.extproc.calls import OK, Metadata, Push, Reply
from epp.extproc.codec import METHOD
from epp.extproc.transports.http2 import Http2Connection
from epp.extproc.transports.limits import Limits, TransportStats
from epp.extproc.transports.serving import Serving
from epp.metrics import PickerMetrics
from epp.observer import RequestObserver

BATCH = 16
"""Short streams that one read brings; of those with a long response it brings one."""
ROUNDS = 2_000
SECONDS = 6.0
CHUNKS = 100

_HEADERS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", METHOD.encode()),
    (b":authority", b"epp.default.svc:9002"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)


class _EchoCall:
    """Sends each message back; a message for the end of the stream is not needed."""

    def receive(self, message: bytes) -> Reply | None:
        return Reply((message,))

    def end(self) -> Reply | None:
        return Reply((), OK)

    def cancel(self) -> None:
        pass


class _EchoApp:
    def open(self, path: str, metadata: Metadata, push: Push) -> _EchoCall:
        return _EchoCall()


class _Pipe(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))


def cost_us(protocol: asyncio.Protocol, request: list[bytes], batch: int) -> float:
    """Return the microseconds that a stream of these messages takes: the best of many reads."""
    pipe = _Pipe()
    protocol.connection_made(pipe)
    client = ngh2.Connection(ngh2.Role.CLIENT, ngh2.Configuration(auto_window_update=True))
    client.initiate_connection({ngh2.Setting.INITIAL_WINDOW_SIZE: 1 << 24})
    client.set_local_window_size(1 << 30)
    framed = [messages.framed([message]) for message in request]

    def exchange(count: int) -> float:
        for _ in range(count):
            stream_id = client.send_request(_HEADERS)
            for part in framed:
                client.send_data(stream_id, part)
            client.end_stream(stream_id)
        sent = client.data_to_send()
        begun = time.perf_counter()
        protocol.data_received(sent)
        took = time.perf_counter() - begun
        client.receive_data(b"".join(pipe.written))
        pipe.written.clear()
        closed = sum(isinstance(event, ngh2.StreamClosed) for event in client.events())
        assert closed == count, f"{closed} of {count} streams ended"
        return took

    client.receive_data(b"".join(pipe.written))
    pipe.written.clear()
    protocol.data_received(client.data_to_send())
    client.receive_data(b"".join(pipe.written))
    pipe.written.clear()
    for _ in range(20):
        exchange(1)
    gc.collect()
    gc.freeze()
    stop = time.monotonic() + SECONDS
    best = float("inf")
    for _ in range(ROUNDS):
        best = min(best, exchange(batch))
        if time.monotonic() > stop:
            break
    return best / batch * 1e6


def _serving(app: object) -> Serving:
    return Serving(
        app=cast(_EchoApp, app), limits=Limits(), stats=TransportStats(), rng=Random(7), now=0.0
    )


async def _costs(request: list[bytes], batch: int, *, pass_response: bool) -> dict[str, float]:
    sink = os.open(os.devnull, os.O_WRONLY)
    log = AccessLog(sink)
    observer = RequestObserver(PickerMetrics(version="bench", process=False), log)
    picker = world.service(world.store(), observer, pass_response=pass_response)
    protocols: dict[str, Callable[[], asyncio.Protocol]] = {
        "bare libnghttp2": lambda: Http2Echo(""),
        "our transport, an echo": lambda: Http2Connection(_serving(_EchoApp())),
        "our transport, the picker": lambda: Http2Connection(_serving(picker)),
    }
    costs = {name: cost_us(make(), request, batch) for name, make in protocols.items()}
    log.close()
    os.close(sink)
    return costs


def run() -> list[Row]:
    """Return the cost of a stream, and of one with a streamed response that passes."""
    body = messages.chat_body("model-42", 1024)
    asked = [messages.request_headers(), messages.request_body(body)]
    short = asyncio.run(_costs(asked, BATCH, pass_response=False))
    long = asyncio.run(_costs([*asked, *messages.response(CHUNKS)], 1, pass_response=True))
    rows = [Row(f"a stream, {name}", cost, "us") for name, cost in short.items()]
    rows += [
        Row(f"  a response chunk more, {name}", (cost - short[name]) / CHUNKS, "us")
        for name, cost in long.items()
    ]
    return rows
