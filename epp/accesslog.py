"""One line of JSON per request on standard output, written by nobody who has work to do.

The event loop hands outcomes to a writer that encodes them on its own thread: a pick never waits
for a log.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache

import msgspec

from epp.linewriter import LineWriter, printable
from epp.outcome import Outcome

MAX_LINES = 65_536
"""About 20 s of a busy picker, 30 MB."""

MAX_NAME = 256
"""Longer names are cut: a request id is a client's word."""


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
    whole, micros = divmod(round(at_s * 1e6), 1_000_000)
    return f"{_second(whole)}.{micros // 1000:03d}Z"


@lru_cache(maxsize=16)
def _second(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class AccessLog:
    """The access log of a process; `dropped` counts lines that could not be written."""

    def __init__(
        self,
        fd: int = 1,
        *,
        wall: Callable[[], float] = time.time,  # noqa: TID251  # this shell stamps the lines
        max_lines: int = MAX_LINES,
    ) -> None:
        self._wall = wall
        self._encoder = msgspec.json.Encoder()
        self._lines = LineWriter(fd, self._encode, max_lines=max_lines, name="access-log")

    @property
    def dropped(self) -> int:
        """How many lines found the buffer full, or standard output closed."""
        return self._lines.dropped

    def write(self, outcome: Outcome) -> None:
        """Take one outcome; it is written soon, or dropped and counted.  Never blocks."""
        self._lines.write((self._wall(), outcome))

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what is left; give up after `timeout_s` if nobody reads standard output."""
        self._lines.close(timeout_s)

    def _encode(self, stamped: tuple[float, Outcome]) -> bytes:
        at_s, outcome = stamped
        said = line(outcome, at_s)
        try:
            encoded = self._encoder.encode(said)
        except UnicodeEncodeError:
            # A header need not be UTF-8; its odd bytes are spelled out.
            plain = {
                name: value.encode("ascii", "backslashreplace").decode("ascii")
                for name in said.__struct_fields__
                if isinstance(value := getattr(said, name), str)
            }
            encoded = self._encoder.encode(msgspec.structs.replace(said, **plain))
        if encoded.isascii() and b"\x7f" not in encoded:
            return encoded + b"\n"
        return printable(encoded.decode()).encode() + b"\n"


def _cut(name: str) -> str:
    return name if len(name) <= MAX_NAME else name[:MAX_NAME] + "…"
