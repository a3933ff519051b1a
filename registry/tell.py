"""Tell people what there is to know: once, in the log and as an Event, and as long as it holds in
the metrics and on /readyz.
"""

import logging
from collections.abc import Mapping
from typing import Protocol

from registry.errors import ClusterError
from registry.model import Condition, Resource

log = logging.getLogger(__name__)

NOTES = frozenset({"SeveralArtifacts", "Terminating"})
"""Conditions that are worth knowing and nothing to repair."""

REASONS = frozenset(
    {
        "AuditUnknown", "BadPin", "Conflict", "DeletesExhausted", "Duplicate", "Floating",
        "IntentGone", "InvalidWeights", "ModelFailed", "ModelNameRefused", "ModelNameTaken",
        "NameTaken", "NamespaceGone", "NoArtifact", "NoFormat", "NoLocation", "NoPool",
        "NoRuntime", "NoVersion", "PinNotEnforced", "PoolsDiffer", "Refused",
        "RegistryReplaced", "RegistryUnavailable", "RuntimeGone", "ServiceAccountRefused",
        "SeveralArtifacts", "Terminating", "TooManyTargets", "Unresolved",
    }
)  # fmt: skip
"""Every reason there is: the label values of the metric."""

Told = Mapping[str, tuple[Condition, ...]]


class Events(Protocol):
    """Where Events are written."""

    async def emit(
        self, namespace: str, about: Resource | None, key: str, condition: Condition, warning: bool
    ) -> None:
        """Write an Event; the same one again is no second one."""
        ...


class Teller:
    """What was told of one namespace.  Written by its pass."""

    def __init__(self, namespace: str, events: Events) -> None:
        self.namespace = namespace
        self.told: dict[str, tuple[Condition, ...]] = {}
        self._events = events

    async def tell(
        self, now: Told, about: Mapping[str, Resource | None], covered: frozenset[str] | None
    ) -> None:
        """Tell what is new.  `covered`: the keys that this pass looked at, None for all."""
        for key, conditions in now.items():
            for condition in conditions:
                if condition not in self.told.get(key, ()):
                    await self._tell(key, condition, about.get(key))
        for key in list(self.told):
            if key not in now and (covered is None or key in covered):
                log.info("%s: %s: well again", self.namespace, key)
                del self.told[key]
        self.told.update(now)

    def counts(self) -> dict[str, int]:
        """Return how many conditions hold, by reason."""
        found = dict.fromkeys(REASONS, 0)
        for conditions in self.told.values():
            for condition in conditions:
                reason = condition.reason if condition.reason in REASONS else "Unresolved"
                found[reason] += 1
        return found

    async def _tell(self, key: str, condition: Condition, about: Resource | None) -> None:
        warning = condition.reason not in NOTES
        level = logging.WARNING if warning else logging.INFO
        message = condition.message
        log.log(level, "%s: %s: %s: %s", self.namespace, key, condition.reason, message)
        try:
            await self._events.emit(self.namespace, about, key, condition, warning)
        except ClusterError as error:
            log.debug("%s: no event for %s: %s", self.namespace, key, error)
