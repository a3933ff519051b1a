"""What a watch knows, and what each line of it changes: the core of a reflector, without I/O.

An object is known by its name and resourceVersion.  What comes twice or late changes nothing; what
a list no longer names is gone; the place up to which everything is known only moves forward.
"""

import logging
from dataclasses import dataclass
from typing import Generic

import msgspec

from datastore.changes import Change, Decode, Item, Listed, Lost, Seen, T
from datastore.kube_errors import Call, Unavailable, refusal
from datastore.manifests import Resource
from datastore.model import ObjectName
from datastore.problems import BadManifest
from datastore.reflect import newer

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


@dataclass(slots=True)
class Counters:
    """What a watch has done so far.  Written by its reflector and its ledger."""

    lists: int = 0
    events: int = 0
    stale: int = 0


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


class Ledger(Generic[T]):
    """What one watch knows.  Written by its reflector; `place` empty = list anew."""

    def __init__(self, subject: Subject, decode: Decode[T]) -> None:
        self.counters = Counters()
        self.known: dict[ObjectName, Item[T]] = {}
        self.place = ""
        self._subject = subject
        self._decode = decode
        self._buried: dict[ObjectName, str] = {}

    def event(self, line: bytes, found: dict[ObjectName, Item[T]] | None) -> Change[T] | None:
        """Take one line of a watch."""
        if not line:
            return None
        try:
            event = _EVENT.decode(line)
        except (ValueError, RecursionError) as error:
            raise Unavailable(f"watch {self._subject}: an unreadable line: {error}") from error
        self.counters.events += 1
        match event.type:
            case "BOOKMARK":
                return self._bookmark(event.object, found)
            case "ERROR":
                call = Call("watch", self._subject.resource, self._subject.namespace)
                raise refusal(_CODE.decode(event.object).code, event.object, call)
            case "DELETED":
                return self._deleted(event.object, found)
            case _ if found is not None and not self.place:
                return self.listed(event.object, found)
            case _:
                return self._changed(event.object)

    def _bookmark(
        self, raw: msgspec.Raw, found: dict[ObjectName, Item[T]] | None
    ) -> Change[T] | None:
        metadata = _MARK.decode(raw).metadata
        if found is None or self.place:
            self._advance(metadata.resourceVersion)
            return None
        if (metadata.annotations or {}).get(INITIAL_END) != "true":
            return None
        self.counters.lists += 1
        return self.swap(found, metadata.resourceVersion)

    def listed(self, raw: msgspec.Raw, found: dict[ObjectName, Item[T]]) -> Change[T] | None:
        """Take one object of a list: told at once if it is news, so that the end is cheap."""
        item = self._read(raw)
        if item is None:
            return None
        before = found.get(item.name)
        if before is not None and not newer(item.version, before.version):
            self.counters.stale += 1
            return None
        known = self.known.get(item.name)
        if known is not None and known.version == item.version:
            found[item.name] = known
            return None
        found[item.name] = self.known[item.name] = item
        return Lost(item.name) if item.value is None else Seen(item.name, item.value)

    def _changed(self, raw: msgspec.Raw) -> Change[T] | None:
        item = self._read(raw)
        if item is None or self._is_stale(item):
            return None
        self._advance(item.version)
        self._buried.pop(item.name, None)
        self.known[item.name] = item
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
        self.known.pop(item.name, None)
        if len(self._buried) >= _TOMBSTONES:
            self._buried.clear()
        self._buried[item.name] = item.version
        return Lost(item.name)

    def _read(self, raw: msgspec.Raw) -> Item[T] | None:
        try:
            return self._decode(raw)
        except BadManifest as error:
            log.warning("%s: an object is skipped: %s", self._subject, error)
            return None

    def _is_stale(self, item: Item[T]) -> bool:
        """Tell whether an event is a repetition, or older than what we know of the object."""
        known = self.known.get(item.name)
        version = known.version if known is not None else self._buried.get(item.name, "")
        if not version or newer(item.version, version):
            return False
        self.counters.stale += 1
        return True

    def _advance(self, version: str) -> None:
        """Move our place forward; an event out of order does not move it back."""
        if version and self.place and newer(version, self.place):
            self.place = version

    def swap(self, found: dict[ObjectName, Item[T]], version: str) -> Listed[T]:
        """The list is complete: it is what is known from now on."""
        if not version:
            raise Unavailable(f"list {self._subject}: the list has no resourceVersion")
        gone = [name for name in self.known if name not in found]
        self.known, self._buried = found, {}
        self.place = version
        return Listed(found, gone)

    def forget(self) -> Listed[T]:
        """The kind is gone, and its objects with it."""
        gone = tuple(self.known)
        self.known, self._buried = {}, {}
        self.place = ""
        return Listed({}, gone)
