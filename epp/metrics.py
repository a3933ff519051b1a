"""What the picker tells Prometheus: the only module that knows the client library.

Requests are counted in plain numbers (`epp.series`) and turned into metrics when somebody reads
them.  Labels come from closed sets: names of InferenceModels, their targets and pools, and the
reasons of `epp.errors`.  A name that only a client knows is counted as `unknown`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from datastore.model import Load, PoolView
from epp import errors
from epp.catalogue import CATALOGUE, TRANSPORT
from epp.exposition import Values, family, histogram
from epp.outcome import Outcome, Served
from epp.series import LAG_S, PICKER_S, Histogram, Responses, Series

UNKNOWN = "unknown"
"""The label of every model name that is no InferenceModel."""

OTHER = "other"
"""The label of series beyond `MAX_SERIES`."""

MAX_SERIES = 4_000
"""More (namespace, model, target, pool) are not told apart: a page would take seconds."""

Samples = tuple[str, Iterable[tuple[Values, float]]]
"""A metric's name and its samples."""

Histograms = tuple[str, Iterable[tuple[Values, Histogram]]]
"""The same of a histogram."""

Key = tuple[str, str, str, str]
"""Namespace, model, target and pool; the pool as `namespace/name`."""

Item = tuple[Values, Series]


class State(Protocol):
    """What of the store is measured."""

    revision: int

    @property
    def model_count(self) -> int:
        """The number of InferenceModels."""

    def pools(self) -> Sequence[PoolView]:
        """Return every pool with its ready endpoints."""


class PickerMetrics:
    """The picker's metrics.  Recorded and read on the event loop; `registry` is for others' own."""

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
        if process:
            ProcessCollector(registry=self.registry)

    def picked(self, outcome: Outcome) -> None:
        """Count one answered request."""
        series = None
        if outcome.known:  # the common case, without a call
            key = (outcome.namespace, outcome.model, outcome.target, outcome.pool)
            series = self._series.get(key)
        if series is None:
            series = self._series_of(outcome)
        series.requests += 1
        series.request_bytes.observe(outcome.body_bytes)
        self._picker_s.observe(outcome.picker_s)
        endpoint = outcome.endpoint
        if outcome.status >= 400:
            series.count_error(outcome.reason if outcome.reason in REASONS else "internal_error")
        elif endpoint:
            series.count_pick(endpoint.partition(",")[0] if "," in endpoint else endpoint)
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
            labels = (*key[:3], key[3].rpartition("/")[2])
            found = self._series.setdefault(key, Series(labels))
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

    def page(self, accept: str = "") -> tuple[Iterator[bytes], str]:
        """Return the page in slices, and its content type.

        Each slice takes a fraction of a millisecond: whoever writes the page out lets the event
        loop do other things in between.
        """
        encode, content_type = choose_encoder(accept)
        openmetrics = content_type.startswith("application/openmetrics-text")
        if self._state is not None:
            self._views = self._state.pools()
            self._pods = {
                endpoint.authority: (endpoint.backend.name, str(endpoint.port))
                for view in self._views
                for endpoint in view.endpoints
            }
            self._forget_gone_endpoints()
        # The library's part comes last: in OpenMetrics it ends with the mark of the end.
        own = (text.encode() for text in self._write(openmetrics) if text)
        return chain(own, (encode(self.registry) for _ in range(1))), content_type

    def _forget_gone_endpoints(self) -> None:
        """Keep the counts of endpoints bounded by the endpoints that there are."""
        live = self._pods
        for series in self._series.values():
            if len(series.picks) > len(live):
                series.picks = {key: kept for key, kept in series.picks.items() if key in live}

    def _write(self, openmetrics: bool) -> Iterator[str]:
        items = [(series.labels, series) for series in self._series.values()]
        for name, samples in chain(
            _requests(items),
            _picks(items, self._pods),
            _pools(self._views),
            self._own(),
            _transport(self._transports),
        ):
            yield from family(CATALOGUE[name], samples, openmetrics=openmetrics)
        for name, histograms in chain(_histograms(items), self._own_histograms()):
            yield from histogram(CATALOGUE[name], histograms, openmetrics=openmetrics)

    def _own(self) -> Iterator[Samples]:
        yield "inference_extension_info", [(self._info, 1)]
        if self._state is not None:
            yield "epp_state_revision", [((), self._state.revision)]
            yield "epp_models", [((), self._state.model_count)]
        for name, value in self._read.items():
            yield name, [((), value())]

    def _own_histograms(self) -> Iterator[Histograms]:
        yield "inference_extension_scheduler_e2e_duration_seconds", [((), self._picker_s)]
        yield "epp_loop_lag_seconds", [((), self._lag_s)]


def _reasons(root: type[errors.RequestError]) -> Iterator[str]:
    yield root.reason
    for child in root.__subclasses__():
        yield from _reasons(child)


REASONS = frozenset(_reasons(errors.RequestError))
"""Every reason that a refusal can have."""


def _requests(items: Sequence[Item]) -> Iterator[Samples]:
    yield (
        "inference_objective_request_total",
        ((key, series.requests) for key, series in items),
    )
    yield (
        "inference_objective_request_error_total",
        (
            ((*key, reason), count)
            for key, series in items
            for reason, count in list(series.errors.items())
        ),
    )
    running: dict[str, int] = {}
    for key, series in items:
        if series.responses is not None or series.running:
            running[key[1]] = running.get(key[1], 0) + series.running
    yield "inference_objective_running_requests", [((model,), n) for model, n in running.items()]


def _picks(items: Sequence[Item], pods: Mapping[str, tuple[str, str]]) -> Iterator[Samples]:
    """The picks of each endpoint, over the models and pools that share it."""
    counts: dict[tuple[str, str, str, str, str], int] = {}
    for (namespace, _, target, _), series in items:
        for endpoint, count in series.picks.items():
            pod, port = pods.get(endpoint, ("", endpoint.rpartition(":")[2]))
            labels = ("success", target, pod, namespace, port)
            counts[labels] = counts.get(labels, 0) + count
        for reason, count in series.errors.items():
            if reason in _UNPICKED:
                labels = ("failure", target, "", namespace, "")
                counts[labels] = counts.get(labels, 0) + count
    yield "inference_extension_scheduler_attempts_total", counts.items()


_UNPICKED = frozenset(
    {errors.NoReadyEndpoint.reason, errors.SubsetUnmatched.reason, errors.ArtifactMismatch.reason}
)


def _histograms(items: Sequence[Item]) -> Iterator[Histograms]:
    sizes = ((key, series.request_bytes) for key, series in items)
    yield "inference_objective_request_sizes", sizes
    seen = [(key, series.responses) for key, series in items if series.responses is not None]
    for name, part in _RESPONSE_PARTS.items():
        yield f"inference_objective_{name}", [(key, part(responses)) for key, responses in seen]


_RESPONSE_PARTS: Mapping[str, Callable[[Responses], Histogram]] = {
    "request_duration_seconds": lambda seen: seen.duration_s,
    "request_ttft_seconds": lambda seen: seen.ttft_s,
    "normalized_time_per_output_token_seconds": lambda seen: seen.per_token_s,
    "response_sizes": lambda seen: seen.bytes,
    "input_tokens": lambda seen: seen.input_tokens,
    "output_tokens": lambda seen: seen.output_tokens,
    "prompt_cached_tokens": lambda seen: seen.cached_tokens,
}


def _pools(views: Sequence[PoolView]) -> Iterator[Samples]:
    labels = [(view.pool.name.name, view.pool.name.namespace) for view in views]
    pods = [len({endpoint.backend for endpoint in view.endpoints}) for view in views]
    yield "inference_pool_ready_pods", zip(labels, pods, strict=True)
    for name, figure in _POOL_AVERAGES.items():
        averages = (_average(view, figure) for view in views)
        yield f"inference_pool_average_{name}", zip(labels, averages, strict=True)
    yield (
        "inference_pool_per_pod_queue_size",
        (
            ((*label, endpoint.backend.name, str(endpoint.port)), endpoint.load.waiting)
            for label, view in zip(labels, views, strict=True)
            for endpoint in view.endpoints
            if endpoint.load.scraped_at is not None
        ),
    )


_POOL_AVERAGES: Mapping[str, Callable[[Load], float]] = {
    "queue_size": lambda load: load.waiting,
    "running_requests": lambda load: load.running,
    "kv_cache_utilization": lambda load: load.kv_cache_utilization,
}


def _average(view: PoolView, figure: Callable[[Load], float]) -> float:
    """Return the average over the endpoints that were scraped; 0 where none was."""
    figures = [figure(e.load) for e in view.endpoints if e.load.scraped_at is not None]
    return sum(figures) / len(figures) if figures else 0.0


def _transport(sources: Sequence[object]) -> Iterator[Samples]:
    for row in TRANSPORT if sources else ():
        yield row.name, [((), sum(getattr(source, row.attribute) for source in sources))]
