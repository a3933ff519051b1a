"""/metrics: the reference's names, labels from closed sets, and counting that costs nothing."""

import math
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from datastore.model import Endpoint, InferencePool, Load, ObjectName, PoolView
from epp import errors
from epp.catalogue import CATALOGUE, TRANSPORT
from epp.extproc.transports.limits import TransportStats
from epp.metrics import MAX_SERIES, OTHER, REASONS, UNKNOWN, PickerMetrics
from epp.outcome import Outcome, Served
from epp.series import PICKER_S, Histogram

GOLDEN = Path(__file__).parent / "golden_metrics.txt"

# What the reference's dashboard asks of a picker: metric, labels it is grouped by.
QUERIES = [
    ("inference_pool_average_kv_cache_utilization", {"name"}),
    ("inference_pool_average_queue_size", {"name"}),
    ("inference_pool_per_pod_queue_size", {"name", "model_server_pod"}),
    ("inference_objective_request_duration_seconds_bucket", {"le"}),
    ("inference_objective_request_total", {"model_name", "target_model_name"}),
    ("inference_objective_request_error_total", {"error_code", "model_name", "target_model_name"}),
    ("inference_objective_request_sizes_bucket", {"le"}),
    ("inference_objective_response_sizes_bucket", {"le"}),
    ("inference_objective_input_tokens_bucket", {"le"}),
    ("inference_objective_output_tokens_bucket", {"le"}),
]


class State:
    """A store with one pool of two pods, one of them scraped."""

    def __init__(self, *views: PoolView) -> None:
        self.revision = 7
        self.model_count = 3
        self.views = views

    def pools(self) -> Sequence[PoolView]:
        return self.views


def endpoint(pod: str, address: str, *, waiting: float | None = None) -> Endpoint:
    load = Load()
    if waiting is not None:
        load.set_scrape(waiting=waiting, running=2.0, kv_cache_utilization=0.25, now=1.0)
    name = ObjectName("prod", pod)
    return Endpoint(name, pod, address, 8000, f"{address}:8000", load)


def view(*endpoints: Endpoint) -> PoolView:
    pool = InferencePool(ObjectName("prod", "gpus"), (("app", "vllm"),), (8000,))
    return PoolView(pool, endpoints)


def picked(address: str = "10.0.0.1", **changes: Any) -> Outcome:
    values: dict[str, Any] = {
        "request_id": "r-1", "namespace": "prod", "model": "llama", "target": "llama-v1",
        "pool": "prod/gpus", "endpoint": f"{address}:8000", "revision": 7, "picker_s": 3e-5,
        "body_bytes": 1000,
    }  # fmt: skip
    return Outcome(**{**values, **changes})


def refused(reason: str, **changes: Any) -> Outcome:
    values = {"reason": reason, "status": 404, "target": "", "endpoint": ""}
    return picked(**{**values, **changes})


def served(outcome: Outcome | None = None, **changes: Any) -> Served:
    values: dict[str, Any] = {
        "outcome": outcome or picked(passes=True), "endpoint": "10.0.0.1:8000", "status": 200,
        "first_byte_s": 0.1, "duration_s": 1.0, "body_bytes": 5000, "complete": True,
    }  # fmt: skip
    return Served(**{**values, **changes})


def filled() -> PickerMetrics:
    """Every metric with data, from figures that are easy to follow by hand."""
    metrics = PickerMetrics(version="1.2.3", commit="abc", process=False)
    one, two = endpoint("vllm-0", "10.0.0.1", waiting=4.0), endpoint("vllm-1", "10.0.0.2")
    metrics.watch(State(view(one, two)))
    metrics.watch_transport(TransportStats(connections=2, connections_total=9))
    metrics.picked(picked(passes=True))
    metrics.picked(picked("10.0.0.2", passes=True))
    metrics.served(served())
    metrics.picked(picked(passes=True))
    metrics.served(
        served(duration_s=2.0, first_byte_s=None, body_bytes=700, input_tokens=20,
               output_tokens=100, cached_tokens=16)
    )  # fmt: skip
    metrics.picked(refused("model_not_found", model="secret", known=False))
    metrics.picked(refused("no_ready_endpoint", target="llama-v1", status=503))
    metrics.record_lag(0.0004)
    for name in ("epp_state_age_seconds", "epp_manifest_errors_total", "epp_manifests_broken",
                 "epp_access_log_dropped_total"):  # fmt: skip
        metrics.read(name, lambda: 1.0)
    return metrics


def page(metrics: PickerMetrics) -> str:
    slices, _ = metrics.page()
    return b"".join(slices).decode()


def sample(text: str, name: str, /, **labels: str) -> float:
    for family in text_string_to_metric_families(text):
        for found in family.samples:
            if found.name == name and labels.items() <= found.labels.items():
                return float(found.value)
    raise AssertionError(f"no {name} {labels}")


def test_the_page_is_the_golden_one() -> None:
    """Names, labels, help and buckets change on purpose only: write the page anew, and look."""
    assert GOLDEN.read_text() == page(filled())


def test_the_page_parses_and_every_metric_is_in_the_catalogue() -> None:
    text = page(filled())
    exposed = set()
    for family in text_string_to_metric_families(text):
        suffix = "_total" if family.type == "counter" else ""
        exposed.add(family.name + suffix)

    assert exposed == set(CATALOGUE)


def test_clients_words_are_no_labels() -> None:
    """However many names clients invent, there is one series for them, and none says a name."""
    metrics = PickerMetrics(version="1", process=False)
    for number in range(500):
        name = f"guess-{number}"
        metrics.picked(refused("model_not_found", model=name, known=False))
        passed = picked(model=name, target=name, known=False, passes=True)
        metrics.picked(passed)
        metrics.served(served(passed))
    text = page(metrics)

    assert "guess" not in text
    assert sample(text, "inference_objective_request_error_total", model_name=UNKNOWN) == 500
    assert sample(text, "inference_objective_running_requests", model_name=UNKNOWN) == 0
    assert sample(text, "inference_objective_request_total", target_model_name=UNKNOWN) == 500


def test_a_listing_is_a_request_and_no_pick() -> None:
    metrics = PickerMetrics(version="1", process=False)
    metrics.picked(picked(model="", target="", pool="", endpoint="", reason="listed"))
    text = page(metrics)

    assert sample(text, "inference_objective_request_total", model_name="") == 1
    assert 'status="' not in text
    assert 'error_code="' not in text


def test_only_the_first_of_several_endpoints_was_picked() -> None:
    metrics = PickerMetrics(version="1", process=False)
    metrics.picked(picked(endpoint="[fd00::1]:8001,10.0.0.2:8002"))

    assert sample(page(metrics), "inference_extension_scheduler_attempts_total", port="8001") == 1
    assert 'port="8002"' not in page(metrics)


def test_a_response_cut_short_is_over_and_not_measured() -> None:
    """It runs no longer; its duration would say how long a client waited before it left."""
    metrics = PickerMetrics(version="1", process=False)
    metrics.picked(picked(passes=True))
    metrics.picked(picked(passes=True))
    metrics.served(served(complete=False))
    text = page(metrics)

    assert sample(text, "inference_objective_running_requests", model_name="llama") == 1
    assert "duration_seconds_count{" not in text


def test_reasons_are_a_closed_set() -> None:
    """A reason that is none of `epp.errors` is counted as our own bug."""
    metrics = PickerMetrics(version="1", process=False)
    metrics.picked(refused("anything"))

    assert 'error_code="internal_error"' in page(metrics)
    assert "anything" not in page(metrics)
    assert errors.SubsetUnmatched.reason in REASONS
    assert len(REASONS) >= 15


def test_series_are_bounded() -> None:
    """Beyond the bound, new series are one series, and known ones are still told apart."""
    metrics = PickerMetrics(version="1", process=False)
    for number in range(MAX_SERIES):
        metrics.series("prod", f"m{number}", "llama-v1", "prod/gpus")
    for model in ("late", "later", "m0"):
        metrics.picked(picked(model=model))

    assert metrics.series(OTHER, OTHER, OTHER, OTHER).requests == 2
    assert metrics.series("prod", "m0", "llama-v1", "prod/gpus").requests == 1


def test_a_deleted_model_s_series_go() -> None:
    metrics = PickerMetrics(version="1", process=False)
    metrics.picked(picked())
    metrics.picked(picked(model="stays"))
    metrics.forget("prod", "llama")

    assert 'model_name="llama"' not in page(metrics)
    assert 'model_name="stays"' in page(metrics)


def test_the_same_name_in_two_namespaces_is_two_series() -> None:
    metrics = PickerMetrics(version="1", process=False)
    metrics.picked(picked())
    metrics.picked(picked(namespace="dev"))
    text = page(metrics)

    assert sample(text, "inference_objective_request_total", namespace="prod") == 1
    assert sample(text, "inference_objective_request_total", namespace="dev") == 1


def test_picks_of_gone_endpoints_are_forgotten() -> None:
    """A pod that comes and goes each minute must not grow the page for ever."""
    metrics = PickerMetrics(version="1", process=False)
    metrics.watch(State(view(endpoint("vllm-0", "10.0.0.1"))))
    for number in range(100):
        metrics.picked(picked(f"10.0.1.{number}", endpoint=f"10.0.1.{number}:{number}"))
    metrics.picked(picked())
    text = page(metrics)

    assert 'port="99"' not in text
    assert sample(text, "inference_extension_scheduler_attempts_total", pod_name="vllm-0") == 1


def test_unscraped_pods_are_in_no_average() -> None:
    text = page(filled())

    assert sample(text, "inference_pool_ready_pods", name="gpus") == 2
    assert sample(text, "inference_pool_average_queue_size", name="gpus") == 4
    assert 'model_server_pod="vllm-1"' not in text


def test_an_empty_pool_is_zero_and_present() -> None:
    metrics = PickerMetrics(version="1", process=False)
    metrics.watch(State(view()))

    assert sample(page(metrics), "inference_pool_ready_pods", name="gpus") == 0


def test_open_metrics_is_spoken_when_asked_for() -> None:
    slices, content_type = filled().page("application/openmetrics-text; version=1.0.0")
    text = b"".join(slices).decode()

    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")
    read = openmetrics.text_string_to_metric_families
    names = {family.name for family in read(text)}  # type: ignore[no-untyped-call]  # not annotated there
    assert names == {name.removesuffix("_total") for name in CATALOGUE}


def test_a_long_page_comes_in_slices() -> None:
    """Between two of them the event loop has its turn."""
    metrics = PickerMetrics(version="1", process=False)
    for number in range(1000):
        metrics.picked(picked(model=f"m{number}"))
    slices, _ = metrics.page()

    assert max(part.count(b"\n") for part in slices) < 600


def test_numbers_that_are_none_are_written_as_prometheus_does() -> None:
    """A model server that reports NaN must not break the page for the others."""
    metrics = PickerMetrics(version="1", process=False)
    metrics.watch(State(view(endpoint("vllm-0", "10.0.0.1", waiting=float("nan")))))
    metrics.read("epp_state_age_seconds", lambda: float("inf"))
    text = page(metrics)

    assert math.isnan(sample(text, "inference_pool_average_queue_size"))
    assert math.isinf(sample(text, "epp_state_age_seconds"))


@given(st.text())
def test_every_label_value_survives_the_page(value: str) -> None:
    metrics = PickerMetrics(version="1", process=False)
    metrics.picked(picked(target=value))
    text = page(metrics)

    expected = value.encode("utf-8", "replace").decode("utf-8")
    found = sample(text, "inference_objective_request_total", target_model_name=expected)
    assert found == 1


def test_every_count_of_a_transport_is_described() -> None:
    """A count that is added to a transport is described in the catalogue too."""
    assert {row.attribute for row in TRANSPORT} == {f.name for f in fields(TransportStats)}


def test_several_transports_are_added_up() -> None:
    metrics = PickerMetrics(version="1", process=False)
    metrics.watch_transport(TransportStats(streams=3, streams_total=10))
    metrics.watch_transport(TransportStats(streams=1, streams_total=5))
    text = page(metrics)

    assert sample(text, "epp_transport_open_streams") == 4
    assert sample(text, "epp_transport_streams_total") == 15


def test_families_have_names_of_their_own() -> None:
    """OpenMetrics knows `x` and `x_total` as one family: a gauge and a counter cannot share it."""
    families = [name.removesuffix("_total") for name in CATALOGUE]

    assert len(families) == len(set(families))


def test_only_catalogued_metrics_can_be_read() -> None:
    with pytest.raises(ValueError, match="describe it there"):
        PickerMetrics(version="1", process=False).read("epp_new_thing", lambda: 0.0)


@given(st.lists(st.floats(0, 1)))
def test_histograms_count_every_number_once(values: list[float]) -> None:
    """Each bound counts what is not above it; infinity counts all."""
    histogram = Histogram(PICKER_S)
    for value in values:
        histogram.observe(value)

    expected = [sum(value <= bound for value in values) for bound in PICKER_S]
    assert histogram.cumulative() == [*expected, len(values)]
    assert histogram.total == pytest.approx(sum(values))


def labels_of(text: str, name: str) -> set[str]:
    found: set[str] = set()
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            if one.name == name:
                found |= one.labels.keys()
    return found


@pytest.mark.parametrize(("name", "labels"), QUERIES)
def test_the_reference_s_dashboard_finds_data(name: str, labels: set[str]) -> None:
    assert labels <= labels_of(page(filled()), name)
