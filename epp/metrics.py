"""What the picker tells Prometheus: the only module that knows the client library.

Requests are counted in plain numbers (`epp.series`) and turned into metrics when somebody reads
them.  Labels come from closed sets: names of InferenceModels, their targets and pools, and the
reasons of `epp.errors`.  A name that only a client knows is counted as `unknown`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder

from datastore.model import PoolView
from epp import errors
from epp.catalogue import CATALOGUE, TRANSPORT
from epp.outcome import Outcome, Served
from epp.series import LAG_S, PICKER_S, Histogram, Responses, Series

UNKNOWN = "unknown"
"""The label of every model name that is no InferenceModel."""

OTHER = "other"
"""The label of series beyond `MAX_SERIES`."""

MAX_SERIES = 4_000
"""More (namespace, model, target, pool) are not told apart: a page would take seconds."""

Key = tuple[str, str, str, str]
"""Namespace, model, target and pool; the pool as `namespace/name`."""


class State(Protocol):
    """What of the store is measured."""

    revision: int

    @property
    def model_count(self) -> int:
        """The number of InferenceModels."""

    def pools(self) -> Sequence[PoolView]:
        """Return every pool with its ready endpoints."""


class PickerMetrics:
    """The picker's metrics.  Recorded on the event loop; `page` may be rendered on a thread."""

    def __init__(self, *, version: str, commit: str = "", process: bool = True) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._info = (commit, version)
        self._series: dict[Key, Series] = {}
        self._picker_s = Histogram(PICKER_S)
        self._lag_s = Histogram(LAG_S)
        self._state: State | None = None
        self._views: Sequence[PoolView] = ()
        self._read: dict[str, Callable[[], float]] = {}
        self._transports: list[object] = []
        self._pods: Mapping[str, tuple[str, str]] = {}
        self.registry.register(_Collector(self._collect))
        if process:
            ProcessCollector(registry=self.registry)

    def picked(self, outcome: Outcome) -> None:
        """Count one answered request."""
        series = self._series_of(outcome)
        series.requests += 1
        series.request_bytes.observe(outcome.body_bytes)
        self._picker_s.observe(outcome.picker_s)
        if outcome.status >= 400:
            series.count_error(outcome.reason if outcome.reason in REASONS else "internal_error")
        elif outcome.endpoint:
            series.count_pick(outcome.endpoint.partition(",")[0])
        if outcome.passes:
            series.running += 1

    def served(self, response: Served) -> None:
        """Count the end of a response that passed through the picker."""
        series = self._series_of(response.outcome)
        series.running = max(0, series.running - 1)  # its start may have been forgotten
        if response.complete:
            series.count_response(
                duration_s=response.duration_s,
                ttft_s=response.first_byte_s,
                response_bytes=response.body_bytes,
                input_tokens=response.input_tokens,
                output_tokens=response.output_tokens,
                cached_tokens=response.cached_tokens,
            )

    def _series_of(self, outcome: Outcome) -> Series:
        if outcome.known:
            return self.series(outcome.namespace, outcome.model, outcome.target, outcome.pool)
        target = UNKNOWN if outcome.target else ""
        return self.series(outcome.namespace, UNKNOWN, target, outcome.pool)

    def series(self, namespace: str, model: str, target: str, pool: str) -> Series:
        """Return the series of these labels; beyond `MAX_SERIES`, one for all that are new."""
        key = (namespace, model, target, pool)
        found = self._series.get(key)
        if found is None:
            if len(self._series) >= MAX_SERIES:
                key = (OTHER, OTHER, OTHER, OTHER)
            found = self._series.setdefault(key, Series())
        return found

    def forget(self, namespace: str, model: str) -> None:
        """Drop the series of a deleted InferenceModel."""
        for key in [key for key in self._series if key[:2] == (namespace, model)]:
            del self._series[key]

    def record_lag(self, lag_s: float) -> None:
        """Count how much later than asked the event loop woke a timer."""
        self._lag_s.observe(lag_s)

    def watch(self, state: State) -> None:
        """Measure this store on each page."""
        self._state = state

    def read(self, name: str, value: Callable[[], float]) -> None:
        """Ask `value` on each page for the metric `name`, which must be in the catalogue."""
        if name not in CATALOGUE:
            raise ValueError(f"{name} is not in epp/catalogue.py: describe it there")
        self._read[name] = value

    def watch_transport(self, stats: object) -> None:
        """Export these counts of a transport on each page; several are added up."""
        self._transports.append(stats)

    def page(self, accept: str = "") -> Callable[[], tuple[bytes, str]]:
        """Return what renders the page: its bytes and its content type.

        Called on the event loop, which alone may read the store; what is returned may then be
        called on a thread, so that a page of many series holds up no pick.
        """
        if self._state is not None:
            self._views = self._state.pools()
            self._pods = {
                endpoint.authority: (endpoint.backend.name, str(endpoint.port))
                for view in self._views
                for endpoint in view.endpoints
            }
            self._forget_gone_endpoints()
        encode, content_type = choose_encoder(accept)
        return lambda: (encode(self.registry), content_type)

    def _forget_gone_endpoints(self) -> None:
        """Keep the counts of endpoints bounded by the endpoints that there are."""
        live = self._pods
        for series in self._series.values():
            if len(series.picks) > len(live):
                series.picks = {key: kept for key, kept in series.picks.items() if key in live}

    def _collect(self) -> Iterator[Metric]:
        items = [
            ((n, m, t, _bare(p)), series) for (n, m, t, p), series in list(self._series.items())
        ]
        return chain(
            _requests(items),
            _picks(items, self._pods),
            _responses(items),
            _pools(self._views),
            self._own(),
            _transport(self._transports),
        )

    def _own(self) -> Iterator[Metric]:
        info = _gauge("inference_extension_info")
        info.add_metric(self._info, 1)
        yield info
        yield _histogram(
            "inference_extension_scheduler_e2e_duration_seconds", [((), self._picker_s)]
        )
        yield _histogram("epp_loop_lag_seconds", [((), self._lag_s)])
        if self._state is not None:
            yield _plain("epp_state_revision", self._state.revision)
            yield _plain("epp_models", self._state.model_count)
        for name, value in list(self._read.items()):
            yield _plain(name, value())


class _Collector:
    """Lets the registry call a method."""

    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self.collect = collect


def _bare(pool: str) -> str:
    return pool.rpartition("/")[2]


def _reasons(root: type[errors.RequestError]) -> Iterator[str]:
    yield root.reason
    for child in root.__subclasses__():
        yield from _reasons(child)


REASONS = frozenset(_reasons(errors.RequestError))
"""Every reason that a refusal can have."""


def _requests(items: Sequence[tuple[Key, Series]]) -> Iterator[Metric]:
    total = _counter("inference_objective_request_total")
    failed = _counter("inference_objective_request_error_total")
    running = _gauge("inference_objective_running_requests")
    now: dict[str, int] = {}
    for key, series in items:
        total.add_metric(key, series.requests)
        for reason, count in list(series.errors.items()):
            failed.add_metric((*key, reason), count)
        if series.responses is not None or series.running:
            now[key[1]] = now.get(key[1], 0) + series.running
    for model, count in now.items():
        running.add_metric((model,), count)
    yield from (total, failed, running)
    sizes = [(key, series.request_bytes) for key, series in items]
    yield _histogram("inference_objective_request_sizes", sizes)


def _picks(
    items: Sequence[tuple[Key, Series]], pods: Mapping[str, tuple[str, str]]
) -> Iterator[Metric]:
    """The picks of each endpoint, over the models and pools that share it."""
    counts: dict[tuple[str, str, str, str, str], int] = {}
    for (namespace, _, target, _), series in items:
        for endpoint, count in list(series.picks.items()):
            pod, port = pods.get(endpoint, ("", endpoint.rpartition(":")[2]))
            labels = ("success", target, pod, namespace, port)
            counts[labels] = counts.get(labels, 0) + count
        for reason, count in list(series.errors.items()):
            if reason in _UNPICKED:
                labels = ("failure", target, "", namespace, "")
                counts[labels] = counts.get(labels, 0) + count
    attempts = _counter("inference_extension_scheduler_attempts_total")
    for labels, count in counts.items():
        attempts.add_metric(labels, count)
    yield attempts


_UNPICKED = frozenset(
    {errors.NoReadyEndpoint.reason, errors.SubsetUnmatched.reason, errors.ArtifactMismatch.reason}
)


def _responses(items: Sequence[tuple[Key, Series]]) -> Iterator[Metric]:
    seen = [(key, series.responses) for key, series in items if series.responses is not None]
    parts: Mapping[str, Callable[[Responses], Histogram]] = {
        "request_duration_seconds": lambda r: r.duration_s,
        "request_ttft_seconds": lambda r: r.ttft_s,
        "normalized_time_per_output_token_seconds": lambda r: r.per_token_s,
        "response_sizes": lambda r: r.bytes,
        "input_tokens": lambda r: r.input_tokens,
        "output_tokens": lambda r: r.output_tokens,
        "prompt_cached_tokens": lambda r: r.cached_tokens,
    }
    for name, part in parts.items():
        yield _histogram(f"inference_objective_{name}", [(key, part(r)) for key, r in seen])


def _pools(views: Sequence[PoolView]) -> Iterator[Metric]:
    ready = _gauge("inference_pool_ready_pods")
    queue = _gauge("inference_pool_average_queue_size")
    running = _gauge("inference_pool_average_running_requests")
    cache = _gauge("inference_pool_average_kv_cache_utilization")
    waiting = _gauge("inference_pool_per_pod_queue_size")
    for view in views:
        name = view.pool.name
        labels = (name.name, name.namespace)
        loads = [endpoint.load for endpoint in view.endpoints]
        scraped = [load for load in loads if load.scraped_at is not None]
        ready.add_metric(labels, len({endpoint.backend for endpoint in view.endpoints}))
        count = len(scraped) or 1
        queue.add_metric(labels, sum(load.waiting for load in scraped) / count)
        running.add_metric(labels, sum(load.running for load in scraped) / count)
        cache.add_metric(labels, sum(load.kv_cache_utilization for load in scraped) / count)
        for endpoint in view.endpoints:
            if endpoint.load.scraped_at is not None:
                pod = (*labels, endpoint.backend.name, str(endpoint.port))
                waiting.add_metric(pod, endpoint.load.waiting)
    yield from (ready, queue, running, cache, waiting)


def _transport(sources: Sequence[object]) -> Iterator[Metric]:
    for row in TRANSPORT if sources else ():
        yield _plain(row.name, sum(getattr(source, row.attribute) for source in sources))


def _counter(name: str) -> CounterMetricFamily:
    row = CATALOGUE[name]
    return CounterMetricFamily(name, row.about, labels=row.labels)


def _gauge(name: str) -> GaugeMetricFamily:
    row = CATALOGUE[name]
    return GaugeMetricFamily(name, row.about, labels=row.labels)


def _plain(name: str, value: float) -> Metric:
    row = CATALOGUE[name]
    family = CounterMetricFamily if row.type == "counter" else GaugeMetricFamily
    return family(name, row.about, value)


def _histogram(name: str, rows: Iterable[tuple[Sequence[str], Histogram]]) -> HistogramMetricFamily:
    row = CATALOGUE[name]
    family = HistogramMetricFamily(name, row.about, labels=row.labels)
    for labels, histogram in rows:
        bounds = [*map(repr, histogram.bounds), "+Inf"]
        buckets = list(zip(bounds, histogram.cumulative(), strict=True))
        family.add_metric(labels, buckets, histogram.total)
    return family
