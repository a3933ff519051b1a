"""What the picker knows right now, as a document: `/debug/state`, and what `epp get` reads.

Pure: values of the datastore in, values for JSON out.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from datastore.model import Endpoint, InferenceModel, ObjectName, PoolView


class Target(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One target of a model."""

    name: str
    weight: int
    artifact_digest: str | None = None


class Model(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An InferenceModel; `problem` says why requests for it are refused, if they are."""

    namespace: str
    name: str
    pool: str
    criticality: str
    targets: tuple[Target, ...]
    problem: str = ""


class Pool(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An InferencePool and how many of its endpoints can be picked."""

    namespace: str
    name: str
    group: str
    ports: tuple[int, ...]
    selector: dict[str, str]
    ready: int
    picker_service: str | None = None
    problem: str = ""


class Replica(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An endpoint of a pool; figures of its last scrape only where there is one."""

    namespace: str
    pool: str
    address: str
    pod: str
    load: float
    waiting: float | None = None
    running: float | None = None
    kv_cache_utilization: float | None = None
    scrape_age_seconds: float | None = None
    artifact_digest: str | None = None


class State(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything, as of one revision."""

    revision: int
    models: tuple[Model, ...] = ()
    pools: tuple[Pool, ...] = ()
    endpoints: tuple[Replica, ...] = ()


class Known(Protocol):
    """What of the store is shown."""

    revision: int

    def namespaces(self) -> Sequence[str]:
        """Return the namespaces that have models."""

    def models_in(self, namespace: str) -> Sequence[InferenceModel]:
        """Return a namespace's models."""

    def pools(self) -> Sequence[PoolView]:
        """Return every pool with its ready endpoints."""


class Taken(msgspec.Struct, frozen=True):
    """What was taken of the store, quickly, on the event loop; described elsewhere."""

    revision: int
    models: Sequence[InferenceModel]
    views: Sequence[PoolView]
    now: float


def take(known: Known, now: float) -> Taken:
    """Take the state as of `now` (monotonic seconds): immutable values, not yet looked at."""
    models = [model for namespace in known.namespaces() for model in known.models_in(namespace)]
    return Taken(known.revision, models, known.pools(), now)


def describe(taken: Taken) -> State:
    """Describe what was taken."""
    names = {view.pool.name for view in taken.views}
    return State(
        revision=taken.revision,
        models=tuple(_model(model, names) for model in taken.models),
        pools=tuple(map(_pool, taken.views)),
        endpoints=tuple(_replicas(taken.views, taken.now)),
    )


def _model(model: InferenceModel, pools: set[ObjectName]) -> Model:
    problem = model.invalid or ""
    if not problem and model.pool not in pools:
        problem = f"no InferencePool {model.pool}"
    return Model(
        namespace=model.name.namespace,
        name=model.name.name,
        pool=model.pool.name,
        criticality=model.criticality.value,
        targets=tuple(
            Target(name=t.name, weight=t.weight, artifact_digest=t.artifact_digest)
            for t in model.targets
        ),
        problem=problem,
    )


def _pool(view: PoolView) -> Pool:
    pool = view.pool
    return Pool(
        namespace=pool.name.namespace,
        name=pool.name.name,
        group=pool.group,
        ports=pool.ports,
        selector=dict(pool.selector),
        ready=len(view.endpoints),
        picker_service=pool.picker_service,
        problem=pool.invalid or ("" if view.endpoints else "no ready endpoint"),
    )


def _replicas(views: Sequence[PoolView], now: float) -> Iterable[Replica]:
    for view in views:
        for endpoint in view.endpoints:
            yield _replica(view.pool.name, endpoint, now)


def _replica(pool: ObjectName, endpoint: Endpoint, now: float) -> Replica:
    load = endpoint.load
    scraped = load.scraped_at is not None
    return Replica(
        namespace=pool.namespace,
        pool=pool.name,
        address=endpoint.authority,
        pod=endpoint.backend.name,
        load=round(load.value(now), 3),
        waiting=load.waiting if scraped else None,
        running=load.running if scraped else None,
        kv_cache_utilization=load.kv_cache_utilization if scraped else None,
        scrape_age_seconds=round(now - load.scraped_at, 3) if load.scraped_at is not None else None,
        artifact_digest=endpoint.artifact_digest,
    )
