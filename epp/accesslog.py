"""One line of JSON per request on standard output, written by nobody who has work to do.

The event loop puts outcomes into a bounded buffer; a thread of its own encodes and writes them.
Where the reader of standard output is too slow, lines are dropped and counted: a pick never waits
for a log.
"""

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from epp.outcome import Outcome

MAX_LINES = 65_536
"""About 20 s of a busy picker, 30 MB."""

GATHER_S = 0.05
"""How long a line may wait for others: a write per request would cost more than the request."""

MAX_NAME = 256
"""Longer names are cut: a request id is a client's word."""

_BATCH = 512


class Line(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a line of the access log says."""

    time: str
    request_id: str
    namespace: str
    model: str
    target: str
    pool: str
    endpoint: str
    choice: str
    reason: str
    status: int
    state_revision: int
    picker_ms: float
    bytes: int


def line(outcome: Outcome, at_s: float) -> Line:
    """Return the line of a request that was answered at `at_s` (Unix time)."""
    return Line(
        time=timestamp(at_s),
        request_id=_cut(outcome.request_id),
        namespace=outcome.namespace,
        model=_cut(outcome.model),
        target=outcome.target,
        pool=outcome.pool,
        endpoint=outcome.endpoint,
        choice=outcome.choice,
        reason=outcome.reason,
        status=outcome.status,
        state_revision=outcome.revision,
        picker_ms=round(outcome.picker_s * 1000, 4),
        bytes=outcome.body_bytes,
    )


def timestamp(at_s: float) -> str:
    """Return Unix time as RFC 3339, in UTC, with milliseconds."""
    at = datetime.fromtimestamp(at_s, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class AccessLog:
    """The access log of a process.  `write` is called by the event loop, all else by its thread.

    `dropped` counts lines that found the buffer full, or standard output closed.
    """

    def __init__(
        self,
        fd: int = 1,
        *,
        wall: Callable[[], float] = time.time,  # noqa: TID251  # this shell stamps the lines
        max_lines: int = MAX_LINES,
    ) -> None:
        self.dropped = 0
        self._fd = fd
        self._wall = wall
        self._max_lines = max_lines
        self._lines: deque[tuple[float, Outcome]] = deque()
        self._idle = True
        self._closing = False
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._encoder = msgspec.json.Encoder()
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
        self._thread.start()

    def write(self, outcome: Outcome) -> None:
        """Take one outcome; it is written soon, or dropped and counted.  Never blocks."""
        if len(self._lines) >= self._max_lines:
            self.dropped += 1
            return
        self._lines.append((self._wall(), outcome))
        if self._idle:
            self._idle = False
            self._wake.set()

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what is left; give up after `timeout_s` if nobody reads standard output."""
        self._closing = True
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait()
            self._wake.clear()
            self._stop.wait(GATHER_S)
            self._drain()
        self._drain()

    def _drain(self) -> None:
        while batch := self._take():
            encoded = b"".join(map(self._encode, batch))
            try:
                self._write_all(encoded)
            except OSError:
                self.dropped += len(batch)

    def _take(self) -> list[tuple[float, Outcome]]:
        """Take the oldest lines; leave a bell to ring when there are none."""
        batch = self._pop()
        if not batch:
            self._idle = True
            # A line that came just before found `_idle` unset, and has rung no bell.
            batch = self._pop()
        return batch

    def _pop(self) -> list[tuple[float, Outcome]]:
        lines = self._lines
        return [lines.popleft() for _ in range(min(len(lines), _BATCH))]

    def _encode(self, stamped: tuple[float, Outcome]) -> bytes:
        at_s, outcome = stamped
        said = line(outcome, at_s)
        try:
            return self._encoder.encode(said) + b"\n"
        except UnicodeEncodeError:
            # A header need not be UTF-8; its odd bytes are spelled out.
            plain = {
                name: value.encode("ascii", "backslashreplace").decode("ascii")
                for name in said.__struct_fields__
                if isinstance(value := getattr(said, name), str)
            }
            return self._encoder.encode(msgspec.structs.replace(said, **plain)) + b"\n"

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:
                select.select([], [self._fd], [])


def _cut(name: str) -> str:
    return name if len(name) <= MAX_NAME else name[:MAX_NAME] + "…"
