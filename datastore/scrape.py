"""Asks every endpoint how busy it is, again and again, and writes the answer into its `Load`.

One task for each endpoint, in one group that follows the store: an endpoint that leaves takes its
task along.  An endpoint that does not answer is said so once, and once it has been silent for too
long its load is what we have sent it ourselves.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from ssl import SSLContext
from typing import Protocol

import aiohttp

from datastore.exposition import ENGINE_LABEL, MAX_PAGE_BYTES, Exposition, parse
from datastore.model import Endpoint, Load, PoolView, join_host_port

log = logging.getLogger(__name__)

FOLLOW_S = 1.0
"""How often the store is looked at where nobody calls `notice`."""

MIN_INTERVAL_S = 0.01

JITTER = 0.1
"""How much an interval varies, so that scrapes do not come in bursts."""


class Source(Protocol):
    """What we need of the store."""

    @property
    def revision(self) -> int:
        """A number that grows with each change."""

    def pools(self) -> Iterable[PoolView]:
        """Return every pool."""


@dataclass(frozen=True, slots=True)
class ScrapeSettings:
    """How to ask."""

    interval_s: float = 0.05
    """Between two questions to one endpoint; the reference's default."""
    timeout_s: float = 1.0
    """How long an answer may take, connection included."""
    staleness_s: float = 2.0
    """After how much silence a load is forgotten; never less than two intervals and a timeout."""
    concurrency: int = 64
    """How many questions may be open at once."""
    scheme: str = "http"
    path: str = "/metrics"
    port: int | None = None
    """The metrics' port, where it is not the endpoint's own; used for pools of one port only."""
    ssl: SSLContext | bool = False
    """How certificates are checked; False = not at all: they rarely name a pod's address."""


@dataclass(frozen=True, slots=True)
class _Target:
    """What to ask, and whom the answer is about.  A change of any of it makes a new task."""

    url: str
    authority: str
    engine: str | None
    load: Load


class ScrapeFailed(Exception):
    """An endpoint did not say how busy it is."""


Place = tuple[str, int]
"""(uid, port), as loads are kept."""


class Scraper:
    """Keeps the loads of a store's endpoints current.  All on the event loop.

    `scrape_count` and `failure_count` only grow; `failing_count` is the number of endpoints whose
    last scrape failed.
    """

    def __init__(
        self,
        store: Source,
        settings: ScrapeSettings,
        *,
        rng: Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scrape_count = 0
        self.failure_count = 0
        self._store = store
        self._settings = settings
        self._staleness_s = max(settings.staleness_s, 2 * settings.interval_s + settings.timeout_s)
        self._rng = rng
        self._clock = clock
        self._tasks: dict[Place, tuple[_Target, asyncio.Task[None]]] = {}
        self._latest: dict[Place, Exposition] = {}
        self._failing: set[Place] = set()
        self._noticed = asyncio.Event()
        self._slots = asyncio.Semaphore(settings.concurrency)

    @property
    def endpoint_count(self) -> int:
        """The number of endpoints that are scraped."""
        return len(self._tasks)

    @property
    def failing_count(self) -> int:
        """The number of endpoints whose last scrape failed."""
        return len(self._failing)

    def latest(self, endpoint: Endpoint) -> Exposition | None:
        """Return what the endpoint last said, if it is not failing."""
        return self._latest.get((endpoint.uid, endpoint.port))

    def notice(self) -> None:
        """Look at the store now: its endpoints may have changed."""
        self._noticed.set()

    async def run(self) -> None:
        """Scrape for ever."""
        settings = self._settings
        connector = aiohttp.TCPConnector(limit=settings.concurrency, ssl=settings.ssl)
        async with (
            aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=settings.timeout_s),
                headers={"accept": "text/plain", "accept-encoding": "identity"},
            ) as session,
            asyncio.TaskGroup() as group,
        ):
            revision = None
            while True:
                self._noticed.clear()
                if revision != self._store.revision:
                    revision = self._store.revision
                    self._follow(session, group)
                await self._wait()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(FOLLOW_S):
                await self._noticed.wait()
        except TimeoutError:
            return

    def _follow(self, session: aiohttp.ClientSession, group: asyncio.TaskGroup) -> None:
        """Begin with endpoints that are new or different, and end with those that are gone."""
        wanted = dict(_targets(self._store.pools(), self._settings))
        for place, (target, task) in list(self._tasks.items()):
            if wanted.get(place) != target:
                task.cancel()
                target.load.forget_scrape(self._clock())  # nobody refreshes it from now on
                del self._tasks[place]
                self._failing.discard(place)
                self._latest.pop(place, None)
        for place, target in wanted.items():
            if place not in self._tasks:
                task = group.create_task(
                    self._keep_asking(session, place, target), name=f"scrape {target.authority}"
                )
                self._tasks[place] = (target, task)

    async def _keep_asking(
        self, session: aiohttp.ClientSession, place: Place, target: _Target
    ) -> None:
        interval_s = max(self._settings.interval_s, MIN_INTERVAL_S)
        await asyncio.sleep(self._rng.random() * min(interval_s, FOLLOW_S))
        while True:
            try:
                async with self._slots:
                    page = await _fetch(session, target.url)
                self._take(place, target, parse(page, target.engine))
            except (ScrapeFailed, aiohttp.ClientError, OSError) as error:
                self._fail(place, target, error)
            await asyncio.sleep(interval_s * self._rng.uniform(1 - JITTER, 1 + JITTER))

    def _take(self, place: Place, target: _Target, said: Exposition) -> None:
        """Write an answer into the load; what it did not say stays as it was."""
        if said.is_empty:
            raise ScrapeFailed("no metric of a known engine on the page")
        load = target.load
        load.set_scrape(
            waiting=load.waiting if said.waiting is None else said.waiting,
            running=load.running if said.running is None else said.running,
            kv_cache_utilization=(
                load.kv_cache_utilization
                if said.kv_cache_utilization is None
                else said.kv_cache_utilization
            ),
            now=self._clock(),
        )
        self.scrape_count += 1
        self._latest[place] = said
        if place in self._failing:
            self._failing.discard(place)
            log.info("metrics of %s: answered again", target.authority)

    def _fail(self, place: Place, target: _Target, error: Exception) -> None:
        """Count a silence; past the limit, forget what the endpoint once said."""
        self.failure_count += 1
        if place not in self._failing:
            self._failing.add(place)
            reason = str(error) or type(error).__name__
            log.warning("metrics of %s: %s", target.authority, reason)
        now = self._clock()
        scraped_at = target.load.scraped_at
        if scraped_at is not None and now - scraped_at > self._staleness_s:
            target.load.forget_scrape(now)
            self._latest.pop(place, None)


async def _fetch(session: aiohttp.ClientSession, url: str) -> bytes:
    """Return the page, cut at the limit."""
    async with session.get(url, allow_redirects=False) as response:
        if response.status != 200:
            raise ScrapeFailed(f"status {response.status}")
        page = bytearray()
        async for chunk in response.content.iter_any():
            page += chunk
            if len(page) >= MAX_PAGE_BYTES:
                response.close()
                break
        return bytes(page)


def _targets(
    views: Iterable[PoolView], settings: ScrapeSettings
) -> Iterable[tuple[Place, _Target]]:
    """Yield what to ask for each endpoint; the same endpoint in two pools is asked once."""
    for view in views:
        own_port = settings.port is None or len(view.pool.ports) != 1
        for endpoint in view.endpoints:
            port = endpoint.port if own_port or settings.port is None else settings.port
            place = join_host_port(endpoint.address, port)
            yield (
                (endpoint.uid, endpoint.port),
                _Target(
                    f"{settings.scheme}://{place}{settings.path}",
                    endpoint.authority,
                    endpoint.labels.get(ENGINE_LABEL),
                    endpoint.load,
                ),
            )
