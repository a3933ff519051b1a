"""A watch that does not lie, does not stall and needs no restart.

Nested generators, one worry each: `KubeClient.watch` cuts a stream into lines; `_watch` and
`_list` turn lines and pages into changes, a slice at a time; `_session` is one connection's life
from its first list to its end; `_forever` waits and begins again.  What a line changes is worked
out in `ledger`, what is done after which failure in `reflect`: both without I/O.

It refuses to know what the objects mean: a decoder is given, and changes go to a sink.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from enum import Enum
from random import Random
from typing import Generic

from datastore.changes import Change, Decode, Item, Sink, T
from datastore.kube import KubeClient
from datastore.kube_errors import Forbidden, Gone, Invalid, KubeError, ResourceMissing
from datastore.ledger import Counters, Ledger, Subject
from datastore.model import ObjectName
from datastore.reflect import Pace, Progress, Step, after, is_quiet

__all__ = ["Reflector", "State", "Subject"]

log = logging.getLogger(__name__)


class State(Enum):
    """What a watch knows."""

    PENDING = "pending"
    SYNCED = "synced"
    MISSING = "missing"
    FORBIDDEN = "forbidden"


class Reflector(Generic[T]):
    """Keeps a sink told of what an API server has of one kind.

    `synced` is set after the first complete list, and stays set.  `state` says what is known now;
    `on_state` is called when it changes.  Of the watches that share a `turn` one works at a time.
    """

    def __init__(
        self,
        client: KubeClient,
        subject: Subject,
        decode: Decode[T],
        sink: Sink[T],
        *,
        pace: Pace,
        rng: Random,
        on_state: Callable[[], None] = lambda: None,
        is_optional: bool = False,
        turn: asyncio.Lock | None = None,
    ) -> None:
        self.subject = subject
        self.state = State.PENDING
        self.synced = asyncio.Event()
        self.error: KubeError | None = None
        self._client = client
        self._ledger = Ledger(subject, decode)
        self._sink = sink
        self._pace = pace
        self._rng = rng
        self._on_state = on_state
        self._is_optional = is_optional
        self._turn = turn or asyncio.Lock()
        self._progress = Progress(watch_list=pace.watch_list)
        self._connected_at: float | None = None
        self._heard_at: float | None = None

    @property
    def counters(self) -> Counters:
        """What this watch has done so far."""
        return self._ledger.counters

    @property
    def _here(self) -> Progress:
        return replace(self._progress, version=self._ledger.place)

    @property
    def is_current(self) -> bool:
        """Tell whether a watch is open (or was when last heard of), with nothing wrong since."""
        return self.state is State.SYNCED and self.error is None

    def age_s(self, now: float) -> float:
        """Return how long ago the API server last said anything; infinite before the first sync."""
        return float("inf") if self._heard_at is None else now - self._heard_at

    async def run(self) -> None:
        """Watch until cancelled."""
        async with aclosing(self._forever()) as batches:
            async for batch in batches:
                if batch:
                    self._sink(batch)

    async def _forever(self) -> AsyncGenerator[Sequence[Change[T]], None]:
        """Connections, one after the other, with pauses."""
        while True:
            self._connected_at = None
            error: KubeError | None = None
            try:
                async with aclosing(self._session()) as batches:
                    async for batch in batches:
                        yield batch
            except KubeError as raised:
                error = raised
            now = _now()
            self._progress, pause_s = after(
                self._here, error, self._lived_s(now), self._pace, now, self._rng
            )
            self._ledger.place = self._progress.version
            self._report(error, pause_s)
            if self._is_abandoned(now):
                log.warning("%s: the kind is no longer there, nor are its objects", self.subject)
                yield [self._ledger.forget()]
            await asyncio.sleep(pause_s)

    def _report(self, error: KubeError | None, pause_s: float) -> None:
        is_usual = self._is_optional and isinstance(error, ResourceMissing)
        quiet = is_usual or is_quiet(error, self.error)
        if error is not None:
            level = logging.DEBUG if quiet else logging.WARNING
            log.log(level, "%s; trying again in %.1f s", error.message, pause_s)
        if isinstance(error, ResourceMissing):
            self._set_state(State.MISSING)
        elif isinstance(error, Forbidden):
            self._set_state(State.FORBIDDEN)
        if error is not None and not isinstance(error, Gone):
            self.error = error

    def _lived_s(self, now: float) -> float:
        return 0.0 if self._connected_at is None else now - self._connected_at

    def _is_abandoned(self, now: float) -> bool:
        since = self._progress.missing_since
        return bool(
            since is not None and now - since >= self._pace.missing_grace_s and self._ledger.known
        )

    async def _session(self) -> AsyncGenerator[Sequence[Change[T]], None]:
        """One connection's life: list if our place is lost, then watch."""
        step = self._here.step
        if step is Step.LIST:
            async with aclosing(self._list()) as batches:
                async for batch in batches:
                    yield batch
        async with aclosing(self._watch(initial=step is Step.WATCH_LIST)) as batches:
            async for batch in batches:
                yield batch

    async def _list(self) -> AsyncGenerator[Sequence[Change[T]], None]:
        """A paged list, told in slices; what it does not name is gone at its end."""
        self.counters.lists += 1
        found: dict[ObjectName, Item[T]] = {}
        subject, version = self.subject, ""
        pages = self._client.list_pages(
            subject.resource,
            subject.namespace,
            labels=subject.labels,
            fields=subject.fields,
            limit=self._pace.page_limit,
        )
        async with aclosing(pages):
            async for page in pages:
                self._heard()
                version = page.version or version
                slices = self._slices(self._ledger.listed(raw, found) for raw in page.items)
                async with aclosing(slices):
                    async for batch in slices:
                        yield batch
        yield [self._ledger.swap(found, version)]
        self._note_place()

    async def _watch(self, *, initial: bool) -> AsyncGenerator[Sequence[Change[T]], None]:
        """A watch, told in slices; with `initial` it begins with everything there is."""
        found: dict[ObjectName, Item[T]] | None = {} if initial else None
        deadline = _now() + self._pace.watch_list_s
        async with aclosing(self._lines(initial=initial)) as chunks:
            while True:
                lines = await self._next(chunks, deadline if found is not None else None)
                if lines is None:
                    return
                self._heard()
                slices = self._slices(self._ledger.event(line, found) for line in lines)
                async with aclosing(slices):
                    async for batch in slices:
                        yield batch
                if self._ledger.place:
                    self._note_place()
                    found = None

    def _lines(self, *, initial: bool) -> AsyncGenerator[list[bytes], None]:
        pace, subject = self._pace, self.subject
        seconds = self._rng.uniform(pace.watch_min_s, pace.watch_max_s)
        query = {"allowWatchBookmarks": "true", "timeoutSeconds": str(max(1, round(seconds)))}
        if initial:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        if self._ledger.place:
            query["resourceVersion"] = self._ledger.place
        return self._client.watch(
            subject.resource,
            subject.namespace,
            labels=subject.labels,
            fields=subject.fields,
            query=query,
            idle_s=pace.idle_s,
        )

    async def _next(
        self, chunks: AsyncGenerator[list[bytes], None], deadline: float | None
    ) -> list[bytes] | None:
        """Return the next lines, None at the end; Invalid if a list does not end in time."""
        try:
            async with asyncio.timeout_at(deadline):
                return await anext(chunks, None)
        except TimeoutError as error:
            text = f"watch {self.subject}: the server did not say where the list ends"
            raise Invalid(f"{text} (sendInitialEvents)") from error

    async def _slices(
        self, changes: Iterator[Change[T] | None]
    ) -> AsyncGenerator[Sequence[Change[T]], None]:
        """Cut changes into batches, none of which takes much longer than a slice to read.

        The turn is held while a batch is read and applied, and given up after everybody else has
        run: of all watches that share it, one works in each round of the loop.
        """
        more = True
        while more:
            async with self._turn:
                batch: list[Change[T]] = []
                try:
                    more = self._slice(changes, batch)
                finally:
                    # What came before a refusal has happened.
                    yield batch
                await asyncio.sleep(0)

    def _slice(self, changes: Iterator[Change[T] | None], batch: list[Change[T]]) -> bool:
        """Read changes into a batch for as long as a slice lasts; tell whether more may come."""
        deadline = _now() + self._pace.slice_s
        for change in changes:
            if change is not None:
                batch.append(change)
            if _now() >= deadline:
                return True
        return False

    def _heard(self) -> None:
        now = _now()
        if self._connected_at is None:
            self._connected_at = now
        if self._ledger.place or self.synced.is_set():
            self._heard_at = now

    def _note_place(self) -> None:
        """All is known, and a watch goes on from there."""
        if self.is_current:
            return
        self._heard_at = _now()
        self.error = None
        self.synced.set()
        self._set_state(State.SYNCED)

    def _set_state(self, state: State) -> None:
        if state is not self.state:
            self.state = state
            self._on_state()


def _now() -> float:
    return asyncio.get_running_loop().time()
