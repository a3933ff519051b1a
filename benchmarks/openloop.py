"""ext_proc streams on a schedule, whatever the server does: latency counts from when each was due.

A client that waits for answers before it asks again hides every stall of the server.
"""

import asyncio
import gc
import os
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar, cast

import ngh2
import uvloop

from benchmarks.messages import framed
from benchmarks.servers import CLIENT_CORE
from epp.extproc.codec import METHOD

T = TypeVar("T")

_TICK_S = 0.0005
_WINDOW = 1 << 30

HEADERS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", METHOD.encode()),
    (b":authority", b"epp.default.svc:9002"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)


class Client(asyncio.Protocol):
    """One connection.  `latencies` are the seconds from due to the last byte of each stream."""

    def __init__(self, messages: Sequence[bytes], *, reset: bool = False) -> None:
        self.latencies: list[float] = []
        self.failed = 0
        self._parts = [framed([message]) for message in messages]
        self._due: dict[int, float] = {}
        self._reset = reset
        self._h2 = ngh2.Connection(ngh2.Role.CLIENT, ngh2.Configuration(auto_window_update=True))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello."""
        self._transport = cast(asyncio.Transport, transport)
        self._h2.initiate_connection({ngh2.Setting.INITIAL_WINDOW_SIZE: 1 << 24})
        self._h2.set_local_window_size(_WINDOW)
        self._flush()

    def ask(self, due: float) -> None:
        """Open a stream that was due then; with `reset` it is not ended but reset once answered."""
        stream_id = self._h2.send_request(HEADERS)
        for part in self._parts:
            self._h2.send_data(stream_id, part)
        if not self._reset:
            self._h2.end_stream(stream_id)
        self._due[stream_id] = due

    def open_idle(self) -> None:
        """Open a stream and send its first message only."""
        self._h2.send_data(self._h2.send_request(HEADERS), self._parts[0])

    @property
    def open_streams(self) -> int:
        """How many are not answered yet."""
        return len(self._due)

    def data_received(self, data: bytes) -> None:
        """Note which streams are answered."""
        self._h2.receive_data(data)
        now = time.monotonic()
        for event in self._h2.events():
            if isinstance(event, ngh2.TrailersReceived):
                due = self._due.pop(event.stream_id, None)
                if due is not None:
                    self.latencies.append(now - due)
                    if self._reset:
                        self._h2.reset_stream(event.stream_id, ngh2.ErrorCode.NO_ERROR)
            elif isinstance(event, ngh2.StreamClosed):
                self.failed += self._due.pop(event.stream_id, None) is not None
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """What was open has failed."""
        self.failed += len(self._due)
        self._due.clear()

    def _flush(self) -> None:
        while data := self._h2.data_to_send():
            self._transport.write(data)

    flush = _flush


async def connect(port: int, messages: Sequence[bytes], *, reset: bool = False) -> Client:
    """Return a connected client."""
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(
        lambda: Client(messages, reset=reset), "127.0.0.1", port
    )
    await asyncio.sleep(0.05)  # the server's SETTINGS
    return client


async def offer(client: Client, per_s: float, seconds: float) -> list[float]:
    """Send streams at a fixed rate, wait for the last, return this run's latencies, sorted."""
    first = len(client.latencies)
    begun = time.monotonic()
    sent, total = 0, int(per_s * seconds)
    while sent < total:
        due = min(total, int((time.monotonic() - begun) * per_s) + 1)
        while sent < due:
            client.ask(begun + sent / per_s)
            sent += 1
        client.flush()
        await asyncio.sleep(_TICK_S)
    end = time.monotonic() + 10
    while client.open_streams and time.monotonic() < end:  # noqa: ASYNC110 - with a deadline
        await asyncio.sleep(0.01)
    return sorted(client.latencies[first:])


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which that share of a sorted sequence lies."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def settle() -> None:
    """Keep the client's own collector out of the figures."""
    gc.collect()
    gc.freeze()
    gc.disable()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run the client on uvloop and on its own core, with its collector off."""
    settle()
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {CLIENT_CORE})
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    finally:
        os.sched_setaffinity(0, cores)
        gc.enable()
