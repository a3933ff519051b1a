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

PASSING = frozenset({"RegistryUnavailable", "AuditUnknown", "DeletesExhausted"})
"""Conditions that pass by themselves and may concern everything: logged, and no Event."""

REASONS = frozenset(
    {
        "AuditUnknown", "BadPin", "Conflict", "DeletesExhausted", "Duplicate", "Floating",
        "IntentGone", "InvalidWeights", "ModelFailed", "ModelNameRefused", "ModelNameTaken",
        "NameTaken", "NamespaceGone", "NoArtifact", "NoFormat", "NoLocation", "NoPool",
        "NoRuntime", "NoVersion", "NotOurs", "PinNotEnforced", "PoolsDiffer", "Refused",
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
        fresh: dict[Condition, list[str]] = {}
        for key, conditions in now.items():
            before = self.told.get(key, ())
            for condition in conditions:
                if condition.reason not in {told.reason for told in before}:
                    fresh.setdefault(condition, []).append(key)
                elif condition not in before:  # a reason once, however often its words change
                    log.info("%s: %s: now: %s", self.namespace, key, condition.message)
        well = [k for k in self.told if k not in now and (covered is None or k in covered)]
        for key in well:
            del self.told[key]
        self.told.update(now)
        if well:
            log.info("%s: well again: %s", self.namespace, _listed(well))
        for condition, keys in fresh.items():
            await self._tell(condition, keys, about)

    def counts(self) -> dict[str, int]:
        """Return how many conditions hold, by reason."""
        found = dict.fromkeys(REASONS, 0)
        for conditions in self.told.values():
            for condition in conditions:
                reason = condition.reason if condition.reason in REASONS else "Unresolved"
                found[reason] += 1
        return found

    async def _tell(
        self, condition: Condition, keys: list[str], about: Mapping[str, Resource | None]
    ) -> None:
        warning = condition.reason not in NOTES
        level = logging.WARNING if warning else logging.INFO
        message = condition.message
        log.log(level, "%s: %s: %s: %s", self.namespace, _listed(keys), condition.reason, message)
        if condition.reason in PASSING:
            return
        try:
            for key in keys:
                await self._events.emit(self.namespace, about.get(key), key, condition, warning)
        except ClusterError as error:
            log.debug("%s: no event: %s", self.namespace, error)


def _listed(keys: list[str]) -> str:
    """Return a few keys and how many more there are: one cause may concern five hundred."""
    shown = ", ".join(keys[:3])
    return f"{shown} and {len(keys) - 3} more" if len(keys) > 3 else shown
