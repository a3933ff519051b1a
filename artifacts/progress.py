"""How far a transfer has come: a bar on a terminal, plain lines without one, JSON for machines."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from rich.progress import (
    BarColumn,
    DownloadColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import (
    Progress as RichProgress,
)

from console import format_bytes, say, stderr

_LINE_EVERY_S = 10.0  # often enough to see that it lives, seldom enough for a log


class Progress(Protocol):
    """What a transfer tells: how much there is, and how much has come."""

    def start(self, objects: int, size: int) -> None:
        """Say how many objects and bytes there are."""

    def advance(self, size: int) -> None:
        """Say that so many more bytes are there."""


class Silent:
    """Progress that nobody watches."""

    def start(self, objects: int, size: int) -> None:
        """Do nothing."""

    def advance(self, size: int) -> None:
        """Do nothing."""


class Lines:
    """Progress as lines: one at the start, then one every ten seconds.

    `write` takes the event's name and its figures; written by the event loop only.
    """

    def __init__(self, write: Callable[[str, dict[str, int]], None], clock: Callable[[], float]):
        self._write = write
        self._clock = clock
        self._total = self._done = 0
        self._next = 0.0

    def start(self, objects: int, size: int) -> None:
        """Write the first line."""
        self._total, self._done = size, 0
        self._next = self._clock() + _LINE_EVERY_S
        self._write("started", {"objects": objects, "bytes": size})

    def advance(self, size: int) -> None:
        """Count, and write a line when it is time."""
        self._done += size
        now = self._clock()
        if now >= self._next:
            self._next = now + _LINE_EVERY_S
            self._write("progress", {"done_bytes": self._done, "bytes": self._total})


class _Bar:
    def __init__(self, bar: RichProgress, what: str) -> None:
        self._bar = bar
        self._task = bar.add_task(what, total=None)

    def start(self, objects: int, size: int) -> None:
        self._bar.update(self._task, total=size)

    def advance(self, size: int) -> None:
        self._bar.advance(self._task, size)


@contextmanager
def show_progress(what: str, *, as_json: bool, clock: Callable[[], float]) -> Iterator[Progress]:
    """Show a transfer on standard error for as long as the block runs."""
    if as_json:
        yield Lines(lambda event, figures: write_json(sys.stderr, event, **figures), clock)
        return
    console = stderr()
    if not console.is_terminal:
        yield Lines(lambda event, figures: say(_sentence(what, event, figures), to=console), clock)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=console, transient=True) as bar:
        yield _Bar(bar, what)


def write_json(stream: TextIO, event: str, **figures: object) -> None:
    """Write one event as one line of JSON."""
    stream.write(json.dumps({"event": event, **figures}, ensure_ascii=False) + "\n")
    stream.flush()


def _sentence(what: str, event: str, figures: dict[str, int]) -> str:
    size = format_bytes(figures["bytes"])
    if event == "started":
        return f"{what}: {figures['objects']} objects, {size}"
    return f"{what}: {format_bytes(figures['done_bytes'])} of {size}"
