"""Everything that the picker knows about models, pools and backends, in one place.

One writer, the event loop; readers are plain calls on the same loop that never await in between,
so they need no lock and see one state.  A batch of events is applied whole.  An update costs the
same with ten models as with a hundred thousand.  No clock, no socket: what `Load` needs of time
comes from those who write it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from datastore.events import Deleted, Event, Kind, Replaced, Upserted
from datastore.holdings import Holdings
from datastore.model import Backend, InferenceModel, InferencePool, ObjectName, PoolView
from datastore.pools import PoolIndex

V1_GROUP = "inference.networking.k8s.io"

T = TypeVar("T", InferenceModel, InferencePool, Backend)
_NOTHING: frozenset[ObjectName] = frozenset()


@dataclass(frozen=True, slots=True)
class Changes:
    """What one batch changed; false when it changed nothing.

    `pools` are those whose own object changed, `endpoints` those whose ready endpoints did.
    """

    models: frozenset[ObjectName] = _NOTHING
    pools: frozenset[ObjectName] = _NOTHING
    endpoints: frozenset[ObjectName] = _NOTHING
    backends: frozenset[ObjectName] = _NOTHING

    def __bool__(self) -> bool:
        return bool(self.models or self.pools or self.endpoints or self.backends)


class Store:
    """The current state.  Written by `apply` only; everything that it returns is immutable.

    `revision` grows by one with each batch that changed anything.
    """

    def __init__(self) -> None:
        self.revision = 0
        self._models: Holdings[InferenceModel] = Holdings()
        self._pools: Holdings[InferencePool] = Holdings(_api_group_rank)
        self._backends: Holdings[Backend] = Holdings()
        self._index = PoolIndex()
        self._namespaces: dict[str, dict[str, InferenceModel]] = {}
        self._listed: dict[str, tuple[InferenceModel, ...]] = {}
        self._services: dict[str, set[ObjectName]] = {}

    @property
    def model_count(self) -> int:
        """The number of InferenceModels, servable or not."""
        return len(self._models.current)

    @property
    def backend_count(self) -> int:
        """The number of backends, ready or not, in a pool or not."""
        return len(self._backends.current)

    @property
    def load_count(self) -> int:
        """The number of endpoints whose load is kept."""
        return len(self._index.loads)

    def model(self, name: ObjectName) -> InferenceModel | None:
        """Return the model of that name."""
        return self._models.current.get(name)

    def namespaces(self) -> Sequence[str]:
        """Return the namespaces that have models, sorted."""
        return sorted(self._namespaces)

    def models_in(self, namespace: str) -> Sequence[InferenceModel]:
        """Return a namespace's models, sorted by name."""
        listed = self._listed.get(namespace)
        if listed is None:
            # The dict is put in order as well: next time it is nearly sorted, and sorting is cheap.
            unsorted = self._namespaces.get(namespace)
            if not unsorted:
                return ()
            models = {name: unsorted[name] for name in sorted(unsorted)}
            self._namespaces[namespace] = models
            listed = self._listed[namespace] = tuple(models.values())
        return listed

    def pool(self, name: ObjectName) -> PoolView | None:
        """Return a pool with its ready endpoints; the same object until something in it changes."""
        return self._index.view(name)

    def pool_names(self) -> Sequence[ObjectName]:
        """Return the name of every pool, sorted."""
        return sorted(self._pools.current)

    def pools(self) -> Sequence[PoolView]:
        """Return every pool, sorted by name."""
        return [view for name in self.pool_names() if (view := self._index.view(name))]

    def pools_of_service(self, namespace: str | None, service: str) -> Sequence[ObjectName]:
        """Return the pools whose picker is this Service (None = in any namespace), sorted."""
        names = self._services.get(service, ())
        return sorted(n for n in names if namespace is None or n.namespace == namespace)

    def backend(self, name: ObjectName) -> Backend | None:
        """Return the pod, or the address of an EndpointSlice, of that name."""
        return self._backends.current.get(name)

    def apply(self, events: Iterable[Event]) -> Changes:
        """Take a batch of news, in order, and return what it changed."""
        batch = _Batch()
        for event in events:
            match _kind(event):
                case Kind.MODEL:
                    self._apply_models(event, batch)
                case Kind.POOL:
                    self._apply_pools(event, batch)
                case Kind.BACKEND:
                    self._apply_backends(event, batch)
        changes = batch.changes()
        if changes:
            self.revision += 1
        return changes

    def _apply_models(self, event: Event, batch: "_Batch") -> None:
        for name, _, after in _told(self._models, event, InferenceModel):
            batch.models.add(name)
            self._listed.pop(name.namespace, None)
            models = self._namespaces.setdefault(name.namespace, {})
            if after is not None:
                models[name.name] = after
                continue
            del models[name.name]
            if not models:
                del self._namespaces[name.namespace]

    def _apply_pools(self, event: Event, batch: "_Batch") -> None:
        for name, before, after in _told(self._pools, event, InferencePool):
            batch.pools.add(name)
            self._move_service(name, before, after)
            changed = (
                self._index.remove_pool(name) if after is None else self._index.set_pool(after)
            )
            if changed:
                batch.endpoints.add(name)

    def _apply_backends(self, event: Event, batch: "_Batch") -> None:
        for name, before, after in _told(self._backends, event, Backend):
            batch.backends.add(name)
            if after is not None:
                batch.endpoints.update(self._index.set_backend(before, after))
            elif before is not None:
                batch.endpoints.update(self._index.remove_backend(before))

    def _move_service(
        self, name: ObjectName, before: InferencePool | None, after: InferencePool | None
    ) -> None:
        old = before.picker_service if before else None
        new = after.picker_service if after else None
        if old == new:
            return
        if old is not None:
            self._services[old].discard(name)
            if not self._services[old]:
                del self._services[old]
        if new is not None:
            self._services.setdefault(new, set()).add(name)


class _Batch:
    """The names that one batch has touched so far."""

    __slots__ = ("backends", "endpoints", "models", "pools")

    def __init__(self) -> None:
        self.models: set[ObjectName] = set()
        self.pools: set[ObjectName] = set()
        self.endpoints: set[ObjectName] = set()
        self.backends: set[ObjectName] = set()

    def changes(self) -> Changes:
        """Return them as a value."""
        return Changes(
            frozenset(self.models),
            frozenset(self.pools),
            frozenset(self.endpoints),
            frozenset(self.backends),
        )


_KINDS: dict[type[object], Kind] = {
    InferenceModel: Kind.MODEL,
    InferencePool: Kind.POOL,
    Backend: Kind.BACKEND,
}


def _kind(event: Event) -> Kind:
    return _KINDS[type(event.object)] if isinstance(event, Upserted) else event.kind


def _told(
    holdings: Holdings[T], event: Event, held: type[T]
) -> Sequence[tuple[ObjectName, T | None, T | None]]:
    """Give an event to the holdings of its kind; return what that changed."""
    match event:
        case Upserted(object=value, source=source):
            assert isinstance(value, held)
            return holdings.set(value, source)
        case Deleted():
            return holdings.remove(event.name, event.source)
        case Replaced():
            values = [value for value in event.objects if isinstance(value, held)]
            return holdings.replace(values, event.source)


def _api_group_rank(pool: InferencePool) -> int:
    """Let a v1 InferencePool win over an x-k8s.io one of the same name."""
    return 0 if pool.group == V1_GROUP else 1
