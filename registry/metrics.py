"""Every metric of the reconciler, declared once."""

from collections.abc import Iterable
from contextlib import suppress

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from registry.errors import REASONS as ERROR_REASONS
from registry.tell import REASONS

INTENT_STATES = ("deployed", "undeployed")
PASS_RESULTS = ("ok", "partial", *ERROR_REASONS)
_PASS_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """The metrics, in a registry of their own.  Written by the loop."""

    def __init__(self) -> None:  # long, as a table is
        self.registry = CollectorRegistry()
        self.enabled = Gauge(
            "epp_registry_enabled",
            "1 while --model-registry-enabled is set",
            registry=self.registry,
        )
        self.leader = Gauge(
            "epp_registry_leader",
            "1 while this process is the one that acts",
            registry=self.registry,
        )
        self.up = Gauge(
            "epp_registry_up", "1 while the model registry answers", registry=self.registry
        )
        self.passes = Counter(
            "epp_registry_passes",
            "Looks at a namespace, by how they ended",
            ["namespace", "result"],
            registry=self.registry,
        )
        self.pass_seconds = Histogram(
            "epp_registry_pass_seconds",
            "How long a look and its steps took",
            buckets=_PASS_BUCKETS_S,
            registry=self.registry,
        )
        self.steps = Counter(
            "epp_registry_steps",
            "Steps done: records opened and advanced, objects created, applied and deleted",
            ["step"],
            registry=self.registry,
        )
        self.failures = Counter(
            "epp_registry_step_failures",
            "Chains of steps that a failure ended, by its kind",
            ["reason"],
            registry=self.registry,
        )
        self.requests = Counter(
            "epp_registry_requests",
            "Requests sent to the model registry since the start",
            registry=self.registry,
        )
        self.conditions = Gauge(
            "epp_registry_conditions",
            "What stands in the way of an intent now, by reason",
            ["namespace", "reason"],
            registry=self.registry,
        )
        self.intents = Gauge(
            "epp_registry_intents",
            "The registry's intents by what they want",
            ["namespace", "state"],
            registry=self.registry,
        )
        self.last_success = Gauge(
            "epp_registry_last_success_timestamp_seconds",
            "When a namespace was last seen whole",
            ["namespace"],
            registry=self.registry,
        )

    def exposition(self) -> tuple[bytes, str]:
        """Return what /metrics answers, and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def forget(self, namespace: str) -> None:
        """Drop what is told of a namespace that is no longer kept."""
        known: tuple[tuple[Gauge | Counter, Iterable[str]], ...] = (
            (self.conditions, REASONS),
            (self.intents, INTENT_STATES),
            (self.passes, PASS_RESULTS),
        )
        for metric, values in known:
            for value in values:
                with suppress(KeyError):
                    metric.remove(namespace, value)
        with suppress(KeyError):
            self.last_success.remove(namespace)
