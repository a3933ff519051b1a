"""When to look: watches of ServingRuntimes, InferenceServices and namespaces, and nothing else.

An event is only a nudge; what is true is read when a namespace is looked at.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec

from datastore.changes import Change, Item, Listed, Lost, Seen
from datastore.kube import KubeClient
from datastore.manifests import Resource as Kind
from datastore.model import ObjectName
from datastore.reflect import Pace as WatchPace
from datastore.watch import Reflector, Subject
from registry.cluster import INFERENCE_SERVICE, NAMESPACE, SERVING_RUNTIME

Nudge = Callable[[str, str | None], None]


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    namespace: str = ""
    resource_version: str = ""


class _Named(msgspec.Struct):
    metadata: _Metadata


_NAMED = msgspec.json.Decoder(_Named)


class Triggers:
    """The watches.  `nudge(namespace, runtime)` is called for each change, runtime None for all.

    `namespaces` are those that opted in; `changed` is set whenever they are others.
    """

    def __init__(
        self, client: KubeClient, selector: str, nudge: Nudge, *, pace: WatchPace, rng: Random
    ) -> None:
        self.namespaces: frozenset[str] = frozenset()
        self.changed = asyncio.Event()
        self._nudge = nudge
        self._watches: tuple[Reflector[Any], ...] = tuple(
            Reflector(
                client,
                Subject(kind, labels=selector if kind is NAMESPACE else ""),
                _decode,
                self._sink(kind),
                pace=pace,
                rng=rng,
            )
            for kind in (NAMESPACE, SERVING_RUNTIME, INFERENCE_SERVICE)
        )

    @property
    def waiting_for(self) -> list[str]:
        """Say which watches have not been told everything yet, and why."""
        return [
            f"{watch.subject}: {watch.error.message if watch.error else 'not listed yet'}"
            for watch in self._watches
            if not watch.synced.is_set()
        ]

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for watch in self._watches:
                tasks.create_task(watch.run(), name=f"watch {watch.subject}")

    def _sink(self, kind: Kind) -> Callable[[Sequence[Change[ObjectName]]], None]:
        if kind is NAMESPACE:
            return self._take_namespaces
        by_runtime = kind is SERVING_RUNTIME

        def take(changes: Sequence[Change[ObjectName]]) -> None:
            for change in changes:
                for name in _names(change):
                    self._nudge(name.namespace, name.name if by_runtime else None)

        return take

    def _take_namespaces(self, changes: Sequence[Change[ObjectName]]) -> None:
        known = set(self.namespaces)
        for change in changes:
            match change:
                case Listed(values):
                    known = {name.name for name in values}
                case Seen(name, _):
                    known.add(name.name)
                    self._nudge(name.name, None)
                case Lost(name):
                    known.discard(name.name)
        if known != self.namespaces:
            self.namespaces = frozenset(known)
            self.changed.set()


def _decode(raw: msgspec.Raw) -> Item[ObjectName]:
    metadata = _NAMED.decode(raw).metadata
    name = ObjectName(metadata.namespace, metadata.name)
    return Item(name, metadata.resource_version, name)


def _names(change: Change[ObjectName]) -> Sequence[ObjectName]:
    match change:
        case Listed(values):
            return list(values)
        case Seen(name, _) | Lost(name):
            return [name]
