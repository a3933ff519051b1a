"""A watch that does not lie, does not stall and needs no restart.

Nested generators, one worry each: `KubeClient.watch` cuts a stream into lines; `_watch` and
`_list` turn lines and pages into changes, a slice at a time; `_session` is one connection's life
from its first list to its end; `_forever` waits and begins again.  What is done after which failure
is decided in `reflect`, without I/O.

It refuses to know what the objects mean: a decoder is given, and changes go to a sink.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from typing import Generic

import msgspec

from datastore.changes import Change, Decode, Item, Listed, Lost, Seen, Sink, T
from datastore.kube import KubeClient
from datastore.kube_errors import (
    Call,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    ResourceMissing,
    Unavailable,
    refusal,
)
from datastore.manifests import Resource
from datastore.model import ObjectName
from datastore.problems import BadManifest
from datastore.reflect import Pace, Progress, Step, after, is_quiet, newer

log = logging.getLogger(__name__)

INITIAL_END = "k8s.io/initial-events-end"
_TOMBSTONES = 10_000


@dataclass(frozen=True, slots=True)
class Subject:
    """What to watch.  An empty namespace means all of them."""

    resource: Resource
    namespace: str = ""
    labels: str = ""
    fields: str = ""

    def __str__(self) -> str:
        resource = self.resource
        group = f".{resource.group}" if resource.group else ""
        return f"{resource.plural}{group}/{resource.version} in {self.namespace or 'any namespace'}"


class State(Enum):
    """What a watch knows."""

    PENDING = "pending"
    SYNCED = "synced"
    MISSING = "missing"
    FORBIDDEN = "forbidden"


@dataclass(slots=True)
class Counters:
    """What a watch has done so far.  Written by its reflector, read by metrics."""

    lists: int = 0
    watches: int = 0
    events: int = 0
    stale: int = 0
    skipped: int = 0
    failures: int = 0


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _MarkMeta(msgspec.Struct):
    resourceVersion: str = ""  # noqa: N815 - as the API spells it
    annotations: dict[str, str] | None = None


class _Mark(msgspec.Struct):
    metadata: _MarkMeta


class _Code(msgspec.Struct):
    code: int = 500


_EVENT = msgspec.json.Decoder(_Event)
_MARK = msgspec.json.Decoder(_Mark)
_CODE = msgspec.json.Decoder(_Code)


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
        self.counters = Counters()
        self.error: KubeError | None = None
        self._client = client
        self._decode = decode
        self._sink = sink
        self._pace = pace
        self._rng = rng
        self._on_state = on_state
        self._is_optional = is_optional
        self._turn = turn or asyncio.Lock()
        self._progress = Progress(watch_list=pace.watch_list)
        self._known: dict[ObjectName, Item[T]] = {}
        self._buried: dict[ObjectName, str] = {}
        self._connected_at: float | None = None
        self._heard_at: float | None = None

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
                self._progress, error, self._lived_s(now), self._pace, now, self._rng
            )
            self._report(error, pause_s)
            if self._is_abandoned(now):
                yield self._forget_all()
            await asyncio.sleep(pause_s)

    def _report(self, error: KubeError | None, pause_s: float) -> None:
        is_usual = self._is_optional and isinstance(error, ResourceMissing)
        quiet = is_usual or is_quiet(error, self.error)
        if error is not None:
            self.counters.failures += 1
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
        return bool(since is not None and now - since >= self._pace.missing_grace_s and self._known)

    def _forget_all(self) -> Sequence[Change[T]]:
        """The kind is gone, and its objects with it."""
        log.warning("%s: the kind is no longer there, nor are its objects", self.subject)
        self._progress = replace(self._progress, version="")
        gone = tuple(self._known)
        self._known, self._buried = {}, {}
        return [Listed({}, gone)]

    async def _session(self) -> AsyncGenerator[Sequence[Change[T]], None]:
        """One connection's life: list if our place is lost, then watch."""
        step = self._progress.step
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
                slices = self._slices(self._listed(raw, found) for raw in page.items)
                async with aclosing(slices):
                    async for batch in slices:
                        yield batch
        yield self._swap(found, version)

    async def _watch(self, *, initial: bool) -> AsyncGenerator[Sequence[Change[T]], None]:
        """A watch, told in slices; with `initial` it begins with everything there is."""
        self.counters.watches += 1
        found: dict[ObjectName, Item[T]] | None = {} if initial else None
        deadline = _now() + self._pace.watch_list_s
        async with aclosing(self._lines(initial=initial)) as chunks:
            while True:
                lines = await self._next(chunks, deadline if found is not None else None)
                if lines is None:
                    return
                self._heard()
                if self._progress.version and not self.is_current:
                    self.error = None
                    self._set_state(State.SYNCED)
                slices = self._slices(self._event(line, found) for line in lines)
                async with aclosing(slices):
                    async for batch in slices:
                        yield batch
                if self._progress.version:
                    found = None

    def _lines(self, *, initial: bool) -> AsyncGenerator[list[bytes], None]:
        pace, subject = self._pace, self.subject
        seconds = self._rng.uniform(pace.watch_min_s, pace.watch_max_s)
        query = {"allowWatchBookmarks": "true", "timeoutSeconds": str(max(1, round(seconds)))}
        if initial:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        if self._progress.version:
            query["resourceVersion"] = self._progress.version
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

    def _event(self, line: bytes, found: dict[ObjectName, Item[T]] | None) -> Change[T] | None:
        """Take one line of a watch."""
        if not line:
            return None
        try:
            event = _EVENT.decode(line)
        except (ValueError, RecursionError) as error:
            raise Unavailable(f"watch {self.subject}: an unreadable line: {error}") from error
        self.counters.events += 1
        match event.type:
            case "BOOKMARK":
                return self._bookmark(event.object, found)
            case "ERROR":
                call = Call("watch", self.subject.resource, self.subject.namespace)
                raise refusal(_CODE.decode(event.object).code, event.object, call)
            case "DELETED":
                return self._deleted(event.object, found)
            case _ if found is not None and not self._progress.version:
                return self._listed(event.object, found)
            case _:
                return self._changed(event.object)

    def _bookmark(
        self, raw: msgspec.Raw, found: dict[ObjectName, Item[T]] | None
    ) -> Change[T] | None:
        metadata = _MARK.decode(raw).metadata
        if found is None or self._progress.version:
            self._advance(metadata.resourceVersion)
            return None
        if (metadata.annotations or {}).get(INITIAL_END) != "true":
            return None
        self.counters.lists += 1
        return self._swap(found, metadata.resourceVersion)[0]

    def _listed(self, raw: msgspec.Raw, found: dict[ObjectName, Item[T]]) -> Change[T] | None:
        """Take one object of a list: told at once if it is news, so that the end is cheap."""
        item = self._read(raw)
        if item is None:
            return None
        before = found.get(item.name)
        if before is not None and not newer(item.version, before.version):
            self.counters.stale += 1
            return None
        known = self._known.get(item.name)
        if known is not None and known.version == item.version:
            found[item.name] = known
            return None
        found[item.name] = self._known[item.name] = item
        return Lost(item.name) if item.value is None else Seen(item.name, item.value)

    def _changed(self, raw: msgspec.Raw) -> Change[T] | None:
        item = self._read(raw)
        if item is None or self._is_stale(item):
            return None
        self._advance(item.version)
        self._buried.pop(item.name, None)
        self._known[item.name] = item
        return Lost(item.name) if item.value is None else Seen(item.name, item.value)

    def _deleted(
        self, raw: msgspec.Raw, found: dict[ObjectName, Item[T]] | None
    ) -> Change[T] | None:
        item = self._read(raw)
        if item is None or self._is_stale(item):
            return None
        if found is not None:
            found.pop(item.name, None)
        self._advance(item.version)
        self._known.pop(item.name, None)
        if len(self._buried) >= _TOMBSTONES:
            self._buried.clear()
        self._buried[item.name] = item.version
        return Lost(item.name)

    def _read(self, raw: msgspec.Raw) -> Item[T] | None:
        try:
            return self._decode(raw)
        except BadManifest as error:
            self.counters.skipped += 1
            log.warning("%s: an object is skipped: %s", self.subject, error)
            return None

    def _is_stale(self, item: Item[T]) -> bool:
        """Tell whether an event is a repetition, or older than what we know of the object."""
        known = self._known.get(item.name)
        version = known.version if known is not None else self._buried.get(item.name, "")
        if not version or newer(item.version, version):
            return False
        self.counters.stale += 1
        return True

    def _advance(self, version: str) -> None:
        """Move our place forward; an event out of order does not move it back."""
        place = self._progress.version
        if version and place and newer(version, place):
            self._progress = replace(self._progress, version=version)

    def _swap(self, found: dict[ObjectName, Item[T]], version: str) -> Sequence[Change[T]]:
        """The list is complete: it is what is known from now on."""
        if not version:
            raise Unavailable(f"list {self.subject}: the list has no resourceVersion")
        gone = [name for name in self._known if name not in found]
        self._known, self._buried = found, {}
        self._progress = replace(self._progress, version=version, missing_since=None)
        self.error = None
        self._heard_at = _now()
        self.synced.set()
        self._set_state(State.SYNCED)
        return [Listed(found, gone)]

    def _heard(self) -> None:
        now = _now()
        if self._connected_at is None:
            self._connected_at = now
        if self._progress.version or self.synced.is_set():
            self._heard_at = now

    def _set_state(self, state: State) -> None:
        if state is not self.state:
            self.state = state
            self._on_state()


def _now() -> float:
    return asyncio.get_running_loop().time()
