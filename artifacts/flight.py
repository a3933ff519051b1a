"""One file on its way from the store to the staging folder.

Several workers may carry spans of the same file.  The first to come prepares it (an earlier run may
have left some spans, the cache may have it all), and the last to leave checks its digest.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeVar

from artifacts.cache import Cache
from artifacts.disk import disk_errors
from artifacts.errors import VerificationFailed
from artifacts.fetch import Fetcher
from artifacts.landing import Landing, Span
from artifacts.manifest import EMPTY_SHA256, Manifest, entry_pin
from artifacts.progress import Progress
from artifacts.retry import Backoff
from artifacts.store import RangeIgnored, Store
from artifacts.workspace import Workspace

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Flight:
    """A file and what is still missing of it.  Written by the crew, on the event loop."""

    index: int
    landing: Landing
    landed: tuple[Span, ...]
    """Spans that an earlier run left in the file."""
    missing: int
    gate: asyncio.Lock = field(default_factory=asyncio.Lock)
    prepared: bool = False
    settled: bool = False
    """Whether the file is done, so that nothing of it need be fetched."""
    whole: bool = False
    """Whether the store cannot send ranges of it."""


class Crew:
    """Carries spans and keeps count.  Used by one pull's workers, on one event loop."""

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        workspace: Workspace,
        cache: Path | None,
        backoff: Backoff,
        rng: Random,
        progress: Progress,
    ) -> None:
        self.fetched_bytes = self.cached_bytes = self.resumed_bytes = 0
        self.digests: dict[int, str] = {}
        self._manifest = manifest
        self._workspace = workspace
        self._cache = Cache(cache) if cache else None
        self._progress = progress
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="pull")
        self._fetcher = Fetcher(store, backoff, rng, self._pool, self._count)
        self._open: set[Landing] = set()

    def close(self) -> None:
        """Wait for the threads, then close the files that they write to: in this order only."""
        self._pool.shutdown(wait=True)
        for landing in self._open:
            landing.close()

    async def fly(self, flight: Flight, span: Span) -> None:
        """Carry one span of a file; the last one of it ends with the file verified."""
        async with flight.gate:
            if not flight.prepared:
                await self._prepare(flight)
                flight.prepared = True
        if flight.settled:
            return
        if not flight.whole:
            await self._fetch_span(flight, span)
        flight.missing -= 1
        if flight.missing == 0:
            await self._finish(flight)

    async def _prepare(self, flight: Flight) -> None:
        landing = flight.landing
        entry = landing.entry
        if entry.size == 0:
            await self._in_thread(_make_empty, landing)
            await self._settle(flight, EMPTY_SHA256)
        elif await self._take_cached(landing):
            self.cached_bytes += entry.size
            self._progress.advance(entry.size)
            await self._settle(flight, str(entry.sha256), keep=False)
        else:
            self._open.add(landing)
            await self._in_thread(landing.open)
            await self._resume(flight)

    async def _resume(self, flight: Flight) -> None:
        for span in flight.landed:
            await self._in_thread(flight.landing.land, span)
            self.resumed_bytes += span[1] - span[0]
            self._progress.advance(span[1] - span[0])
        if flight.missing == 0:
            await self._finish(flight)

    async def _take_cached(self, landing: Landing) -> bool:
        digest, size = landing.entry.sha256, landing.entry.size
        if self._cache is None or digest is None:
            return False
        return await self._in_thread(self._cache.take, digest, size, landing.path)

    async def _fetch_span(self, flight: Flight, span: Span) -> None:
        try:
            await self._fetch(flight, span)
        except RangeIgnored:
            flight.whole = True
        else:
            await self._in_thread(flight.landing.land, span)
            self._workspace.note(flight.index, span)

    async def _fetch(self, flight: Flight, span: Span) -> None:
        entry = flight.landing.entry
        pin = entry_pin(self._manifest, entry)
        await self._fetcher.fetch(pin, entry.size, *span, flight.landing.write)

    async def _finish(self, flight: Flight) -> None:
        """Check the digest; fetch the file anew, once, where an earlier run's spans spoil it."""
        landing = flight.landing
        if flight.whole:
            await self._fetch_whole(flight)
        try:
            await self._in_thread(landing.finish)
        except VerificationFailed:
            if not flight.landed:
                raise
            await self._fetch_whole(flight)
            await self._in_thread(landing.finish)
        self._open.discard(landing)
        landing.close()
        await self._settle(flight, str(landing.sha256))

    async def _fetch_whole(self, flight: Flight) -> None:
        landing = flight.landing
        self._workspace.forget(flight.index)
        await self._in_thread(landing.restart)
        span = (0, landing.entry.size)
        await self._fetch(flight, span)
        await self._in_thread(landing.land, span)

    async def _settle(self, flight: Flight, digest: str, *, keep: bool = True) -> None:
        flight.settled = True
        self.digests[flight.index] = digest
        if keep and self._cache is not None and flight.landing.entry.size:
            await self._in_thread(self._cache.put, digest, flight.landing.path)

    def _count(self, size: int) -> None:
        self.fetched_bytes += size
        self._progress.advance(size)

    async def _in_thread(self, call: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *args)


def _make_empty(landing: Landing) -> None:
    path = landing.path
    with disk_errors(path):
        if landing.entry.is_folder:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
    landing.restart()
    landing.finish()
