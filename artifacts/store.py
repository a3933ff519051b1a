"""The seam between artifacts and where they are kept.

`Store` is all that locking and pulling need; `s3` and `local` keep the promise.  A store raises
only `artifacts.errors`, and hands out exactly the bytes that were asked for or raises: whoever
reads from it may write what comes without looking again.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from artifacts.manifest import Entry
from artifacts.pin import Location, Pin


class RangeIgnored(Exception):
    """The store sent the whole object although a range was asked for: read it in one piece."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version that a listing named; a delete marker is a version without bytes."""

    entry: Entry
    is_latest: bool
    is_marker: bool
    modified: datetime | None = None


class Store(Protocol):
    """A place that artifacts are read from."""

    async def stat(self, pin: Pin) -> Entry:
        """Return the object that `pin` means now; raise PinGone where there is none."""

    def versions(self, prefix: Location) -> AsyncIterator[Version]:
        """Yield every version of every key that begins with the prefix, newest first per key."""

    def read(
        self, pin: Pin, size: int, start: int, stop: int
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Yield bytes start…stop of the object of `size` bytes that `pin` means, in chunks.

        Less than that may come when the store breaks off; never other bytes, never more.
        Raise RangeIgnored where only the whole object can be had.
        """
