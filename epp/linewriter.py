"""Lines to a file descriptor, from a thread of their own, so that whoever has them never waits.

A log's reader can be slow, or stuck, and a pipe to it full.  Lines wait in a bounded buffer; when
that is full they are dropped and counted.
"""

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

GATHER_S = 0.05
"""How long a line may wait for others: a write per line would cost more than the line."""

_BATCH = 128
"""Lines encoded in one go: longer, and the event loop would wait for the interpreter's lock."""


def printable(line: str) -> str:
    """Return a line of JSON that means the same and holds nothing a terminal would obey.

    What clients say ends up in logs, and somebody looks at those in a terminal.  JSON spells out
    control characters below U+0020 only; there are more, and some turn text around.
    """
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else _spelled(char) for char in line)


def _spelled(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


class LineWriter(Generic[T]):
    """Writes what `encode` makes of the items given to `write`, in order.

    `write` may be called on any thread, `encode` runs on the writer's.  `dropped` counts items that
    found the buffer full, or the descriptor closed.
    """

    def __init__(self, fd: int, encode: Callable[[T], bytes], *, max_lines: int, name: str) -> None:
        self.dropped = 0
        self._fd = os.dup(fd)  # ours until the thread ends, whoever closes theirs meanwhile
        self._encode = encode
        self._max_lines = max_lines
        self._lines: deque[T] = deque()
        self._idle = True
        self._closing = False
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def write(self, item: T) -> None:
        """Take one item; it is written soon, or dropped and counted.  Never blocks."""
        if len(self._lines) >= self._max_lines:
            self.dropped += 1
            return
        self._lines.append(item)
        if self._idle:
            self._idle = False
            self._wake.set()

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what is left; give up after `timeout_s` if nobody reads."""
        self._closing = True
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._closing:
                self._wake.wait()
                self._wake.clear()
                self._stop.wait(GATHER_S)
                self._drain()
            self._drain()
        finally:
            os.close(self._fd)

    def _drain(self) -> None:
        while batch := self._take():
            encoded = b"".join(map(self._encode, batch))
            try:
                self._write_all(encoded)
            except OSError:
                self.dropped += len(batch)

    def _take(self) -> list[T]:
        """Take the oldest items; leave a bell to ring when there are none."""
        batch = self._pop()
        if not batch:
            self._idle = True
            # One that came just before found `_idle` unset, and has rung no bell.
            batch = self._pop()
        return batch

    def _pop(self) -> list[T]:
        lines = self._lines
        return [lines.popleft() for _ in range(min(len(lines), _BATCH))]

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:
                select.select([], [self._fd], [])
