"""The values of the datastore: immutable, and named as the Gateway API Inference Extension does.

Only `Load` can change: it holds the numbers that move between two manifests, and its docstring says
who writes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import msgspec


class ObjectName(msgspec.Struct, frozen=True, order=True, gc=False, cache_hash=True):
    """A namespaced name, as Kubernetes spells it: `namespace/name`.

    A struct, since every look-up makes and hashes one: several times cheaper than a dataclass.
    """

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Criticality(Enum):
    """How much a model's traffic matters when there is not enough capacity."""

    CRITICAL = "Critical"
    STANDARD = "Standard"
    SHEDDABLE = "Sheddable"


@dataclass(frozen=True, slots=True)
class TargetModel:
    """One name that a model server knows, and its share of the traffic.

    `weight` is 1…1 000 000.  `artifact_digest` (`sha256:<hex>`), when set, admits only endpoints
    that serve those bytes.
    """

    name: str
    weight: int = 1
    artifact_digest: str | None = None


@dataclass(frozen=True, slots=True)
class InferenceModel:
    """A model that clients may ask for.  Its `name.name` (metadata.name) is what they send.

    `targets` is never empty (no targetModels = the name itself, once); `cumulative[i]` is the sum
    of the weights up to and including target i, so that a draw is one bisection.
    `invalid` says why the object cannot be served although it exists (None = it can), and
    `invalid_reason` says it in one word, as the object's status condition spells it.
    """

    name: ObjectName
    pool: ObjectName
    targets: tuple[TargetModel, ...]
    cumulative: tuple[int, ...]
    criticality: Criticality = Criticality.STANDARD
    created_s: int = 0
    generation: int = 0
    uid: str = ""
    deprecated_model_name: str | None = None
    invalid: str | None = None
    invalid_reason: str | None = None


@dataclass(frozen=True, slots=True)
class InferencePool:
    """A set of model-server pods that serve the same models.

    `selector` must match a pod's labels in full; an empty one matches nothing.  `ports` (1…8) are
    the target ports: one endpoint per pod and port.  `picker_service` is the Service that
    `endpointPickerRef` (v1) or `extensionRef` (v1alpha2) names, in the pool's namespace.
    """

    name: ObjectName
    selector: tuple[tuple[str, str], ...]
    ports: tuple[int, ...]
    group: str = "inference.networking.k8s.io"
    picker_service: str | None = None
    generation: int = 0
    invalid: str | None = None


@dataclass(frozen=True, slots=True)
class Backend:
    """A pod, or one address of an EndpointSlice: what a pool's selector is matched against.

    `ports` (not empty) overrides the pool's target ports; `active_ports` (not None) narrows them.
    `artifact_digest` is what the pod's storage initializer says it fetched.
    """

    name: ObjectName
    uid: str
    address: str
    ready: bool
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[int, ...] = ()
    active_ports: tuple[int, ...] | None = None
    artifact_digest: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)


class Load:
    """How busy one endpoint is, as far as we can see without its responses.

    Written by the router (each pick) and by the scraper (each scrape), both on the event loop.
    Survives every rebuild of the pool's view.  The load is what the endpoint said in its last
    scrape (waiting + running requests) plus our picks since then.  Never scraped: our picks,
    fading with a half-life of one second.
    """

    __slots__ = ("_picks", "_picks_at", "kv_cache_utilization", "running", "scraped_at", "waiting")

    HALF_LIFE_S = 1.0

    def __init__(self) -> None:
        self.waiting = 0.0
        self.running = 0.0
        self.kv_cache_utilization = 0.0
        self.scraped_at: float | None = None
        self._picks = 0.0
        self._picks_at = 0.0

    def value(self, now: float) -> float:
        """Return the load, in requests, at `now` (monotonic seconds)."""
        if self.scraped_at is not None:
            return self.waiting + self.running + self._picks
        return self._faded(now)

    def add_pick(self, now: float) -> None:
        """Count one pick at `now` (monotonic seconds)."""
        if self.scraped_at is None:
            self._picks = self._faded(now) + 1.0
            self._picks_at = now
        else:
            self._picks += 1.0

    def set_scrape(
        self, *, waiting: float, running: float, kv_cache_utilization: float, now: float
    ) -> None:
        """Take what the endpoint said of itself at `now`; our picks so far are part of it."""
        self.waiting = waiting
        self.running = running
        self.kv_cache_utilization = kv_cache_utilization
        self.scraped_at = now
        self._picks = 0.0

    def forget_scrape(self, now: float) -> None:
        """Fall back to our own picks: the endpoint has not answered for too long."""
        self.scraped_at = None
        self._picks_at = now

    def _faded(self, now: float) -> float:
        elapsed_s = now - self._picks_at
        if elapsed_s <= 0.0 or self._picks == 0.0:
            return self._picks
        return float(self._picks * 0.5 ** (elapsed_s / self.HALF_LIFE_S))


@dataclass(frozen=True, slots=True, eq=False)
class Endpoint:
    """One address and port that a request can be sent to.

    `authority` is what goes on the wire: `ip:port`, IPv6 in brackets.
    """

    backend: ObjectName
    uid: str
    address: str
    port: int
    authority: str
    load: Load
    artifact_digest: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class PoolView:
    """A pool as a pick sees it: the pool and its ready endpoints, in the order of their authority.

    Immutable: a change of the pool or of its backends makes a new view.
    """

    pool: InferencePool
    endpoints: tuple[Endpoint, ...]


def join_host_port(address: str, port: int) -> str:
    """Return `address:port`, with an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
