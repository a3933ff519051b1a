"""Which backends belong to which pool, kept current one backend at a time.

A backend's change touches only the pools that could select it: each pool is found by one pair of
its selector (its anchor), so neither the number of pools nor of backends is walked.  A pool's view
is assembled when it is next asked for.  Endpoint objects that a change does not concern stay the
same objects, and so does what a reader has worked out for them.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping

from datastore.model import (
    Backend,
    Endpoint,
    InferencePool,
    Load,
    ObjectName,
    PoolView,
    join_host_port,
)

Anchor = tuple[str, str, str]
"""(namespace, label key, label value)."""


Ordered = tuple[str, int, ObjectName, Endpoint]
"""An endpoint behind what it is sorted by: address, port, and its backend where two share these."""


class _Record:
    """One pool and its members' endpoints.  Written by `PoolIndex` only.

    `order` has all endpoints, sorted; `places` counts them by address and port.
    """

    __slots__ = ("anchor", "endpoints", "order", "places", "pool", "view")

    def __init__(self, pool: InferencePool) -> None:
        self.pool = pool
        self.anchor: Anchor | None = None
        self.endpoints: dict[ObjectName, tuple[Endpoint, ...]] = {}
        self.order: list[Ordered] = []
        self.places: dict[tuple[str, int], int] = {}
        self.view: PoolView | None = None

    def set(self, name: ObjectName, endpoints: tuple[Endpoint, ...]) -> None:
        """Put a backend's endpoints in the place of those that it had."""
        for endpoint in self.endpoints.pop(name, ()):
            del self.order[bisect_left(self.order, _key(endpoint))]
            place = (endpoint.address, endpoint.port)
            count = self.places.pop(place) - 1
            if count:
                self.places[place] = count
        for endpoint in endpoints:
            insort(self.order, (*_key(endpoint), endpoint))
            place = (endpoint.address, endpoint.port)
            self.places[place] = self.places.get(place, 0) + 1
        if endpoints:
            self.endpoints[name] = endpoints
        self.view = None

    def ordered(self) -> tuple[Endpoint, ...]:
        """Return the endpoints by address and port, one for each place."""
        if len(self.places) == len(self.order):
            return tuple([endpoint for _, _, _, endpoint in self.order])
        first = {(address, port): e for address, port, _, e in reversed(self.order)}
        return tuple(reversed(first.values()))


class Loads:
    """The load of every endpoint, by the backend's uid and port; outlives views and readiness.

    An entry lives as long as any backend of that uid does (a pod may be known both as a Pod and
    through an EndpointSlice).
    """

    __slots__ = ("_holders", "_loads")

    def __init__(self) -> None:
        self._holders: dict[str, int] = {}
        self._loads: dict[str, dict[int, Load]] = {}

    def hold(self, uid: str) -> None:
        """One more backend has this uid."""
        self._holders[uid] = self._holders.get(uid, 0) + 1

    def release(self, uid: str) -> None:
        """One backend of this uid is gone; with the last one its loads are forgotten."""
        count = self._holders.pop(uid) - 1
        if count:
            self._holders[uid] = count
        else:
            self._loads.pop(uid, None)

    def get(self, uid: str, port: int) -> Load:
        """Return the load of this endpoint: always the same object."""
        by_port = self._loads.setdefault(uid, {})
        load = by_port.get(port)
        if load is None:
            load = by_port[port] = Load()
        return load

    def __len__(self) -> int:
        return sum(len(by_port) for by_port in self._loads.values())


class PoolIndex:
    """Pools, backends and what joins them.  Written by the store only."""

    __slots__ = ("_anchored", "_backends", "_records", "loads")

    def __init__(self) -> None:
        self.loads = Loads()
        self._records: dict[ObjectName, _Record] = {}
        self._backends: dict[str, dict[ObjectName, Backend]] = {}
        self._anchored: dict[Anchor, dict[ObjectName, _Record]] = {}

    def view(self, name: ObjectName) -> PoolView | None:
        """Return the pool with its ready endpoints; the same object until one of them changes."""
        record = self._records.get(name)
        if record is None:
            return None
        if record.view is None:
            record.view = PoolView(record.pool, record.ordered())
        return record.view

    def set_pool(self, pool: InferencePool) -> bool:
        """Take a new or changed pool; return whether its endpoints changed."""
        record = self._records.get(pool.name)
        if record is None:
            record = self._records[pool.name] = _Record(pool)
            self._anchor(record)
        elif record.pool.selector != pool.selector:
            self._unanchor(record)
            record.pool = pool
            self._anchor(record)
        record.pool = pool
        record.view = None
        backends = self._backends.get(pool.name.namespace, {})
        changed = [self._place(record, name, backend) for name, backend in backends.items()]
        return any(changed)

    def remove_pool(self, name: ObjectName) -> bool:
        """Forget a pool; return whether it had endpoints."""
        record = self._records.pop(name)
        self._unanchor(record)
        return bool(record.endpoints)

    def set_backend(self, before: Backend | None, after: Backend) -> list[ObjectName]:
        """Take a new or changed backend; return the pools whose endpoints changed."""
        self._backends.setdefault(after.name.namespace, {})[after.name] = after
        self.loads.hold(after.uid)
        records = self._candidates(after)
        if before is not None:
            records |= self._candidates(before)
            self.loads.release(before.uid)
        return [n for n, record in records.items() if self._place(record, after.name, after)]

    def remove_backend(self, before: Backend) -> list[ObjectName]:
        """Forget a backend; return the pools whose endpoints changed."""
        namespace = before.name.namespace
        del self._backends[namespace][before.name]
        if not self._backends[namespace]:
            del self._backends[namespace]
        self.loads.release(before.uid)
        records = self._candidates(before)
        return [n for n, record in records.items() if self._place(record, before.name, None)]

    def _candidates(self, backend: Backend) -> dict[ObjectName, _Record]:
        """Return every pool whose anchor is among the backend's labels."""
        namespace = backend.name.namespace
        found: dict[ObjectName, _Record] = {}
        for key, value in backend.labels.items():
            records = self._anchored.get((namespace, key, value))
            if records:
                found.update(records)
        return found

    def _anchor(self, record: _Record) -> None:
        """Choose the pair of the selector that the fewest other pools stand on."""
        pool = record.pool
        anchors = [(pool.name.namespace, key, value) for key, value in pool.selector]
        if anchors:
            record.anchor = min(anchors, key=lambda a: len(self._anchored.get(a, ())))
            self._anchored.setdefault(record.anchor, {})[pool.name] = record

    def _unanchor(self, record: _Record) -> None:
        if record.anchor is None:
            return
        records = self._anchored[record.anchor]
        del records[record.pool.name]
        if not records:
            del self._anchored[record.anchor]
        record.anchor = None

    def _place(self, record: _Record, name: ObjectName, backend: Backend | None) -> bool:
        """Bring one backend's endpoints in one pool up to date; return whether they changed."""
        before = record.endpoints.get(name, ())
        after: tuple[Endpoint, ...] = ()
        if backend is not None and backend.ready and _selects(record.pool, backend.labels):
            after = self._endpoints(record.pool, backend, before)
        if after == before:
            return False
        record.set(name, after)
        return True

    def _endpoints(
        self, pool: InferencePool, backend: Backend, before: tuple[Endpoint, ...]
    ) -> tuple[Endpoint, ...]:
        """Return one endpoint for each port, those of `before` where nothing about them changed."""
        active = backend.active_ports
        old = {endpoint.port: endpoint for endpoint in before}
        return tuple(
            endpoint
            if (endpoint := old.get(port)) is not None and _is_current(endpoint, backend)
            else Endpoint(
                backend=backend.name,
                uid=backend.uid,
                address=backend.address,
                port=port,
                authority=join_host_port(backend.address, port),
                load=self.loads.get(backend.uid, port),
                artifact_digest=backend.artifact_digest,
                labels=backend.labels,
            )
            for port in dict.fromkeys(backend.ports or pool.ports)
            if active is None or port in active
        )


def _selects(pool: InferencePool, labels: Mapping[str, str]) -> bool:
    """Tell whether the pool's whole selector matches; an empty or invalid one matches nothing."""
    if pool.invalid is not None or not pool.selector:
        return False
    for key, value in pool.selector:  # noqa: SIM110 - on each change of a pod; all() is 3x slower
        if labels.get(key) != value:
            return False
    return True


def _is_current(endpoint: Endpoint, backend: Backend) -> bool:
    return (
        endpoint.uid == backend.uid
        and endpoint.address == backend.address
        and endpoint.artifact_digest == backend.artifact_digest
        and endpoint.labels == backend.labels
    )


def _key(endpoint: Endpoint) -> tuple[str, int, ObjectName]:
    return endpoint.address, endpoint.port, endpoint.backend
