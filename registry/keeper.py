"""One namespace, kept: when it is due, one look, one plan, its steps; then wait again.

Level-triggered: an event only says that it is time to look.  What is due is kept by runtime (None
for all of them), and so is the back-off, so one runtime that fails is tried again by itself.
"""

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random

from registry.apply import Applier, Outcome
from registry.cluster import Cluster
from registry.discover import Registries
from registry.errors import ClusterError, RegistryError
from registry.memory import DeleteBudget, Memory
from registry.metrics import INTENT_STATES, Metrics
from registry.model import Policy, Resource
from registry.observe import Look, Observer
from registry.plan import Plan, plan
from registry.tell import Teller

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a namespace is looked at."""

    period_s: float = 60.0
    """Look this often without an event; 0 = only on events and after failures."""
    settle_s: float = 1.0
    """Let events that come together be one look."""
    backoff_min_s: float = 1.0
    """The first pause after a failure; each further one is twice as long."""
    backoff_max_s: float = 60.0
    """The longest pause after a failure; with a period, that."""

    def pause_s(self, failures: int) -> float:
        """Return how long to wait after so many failures in a row."""
        longest = self.period_s or self.backoff_max_s
        return min(longest, self.backoff_min_s * 2.0 ** min(failures - 1, 20))


@dataclass(frozen=True, slots=True)
class Tools:
    """What every keeper works with."""

    registries: Registries
    cluster: Cluster
    policy: Policy
    budget: DeleteBudget
    metrics: Metrics
    pace: Pace
    rng: Random


class Keeper:
    """Keeps one namespace.  Everything in it is written by its own task, and by `nudge`."""

    def __init__(self, namespace: str, tools: Tools) -> None:
        self.namespace = namespace
        self.memory = Memory()
        self.teller = Teller(namespace, tools.cluster)
        self.last_error = ""
        self.is_answered = True
        self.succeeded_at: float | None = None
        self.looks = 0
        self.looking = False
        self._tools = tools
        self._due: dict[str | None, float] = {}
        self._failures: dict[str | None, int] = {}
        self._woken = asyncio.Event()

    def nudge(self, runtime: str | None = None) -> None:
        """Something changed: look soon."""
        at = _now() + self._tools.pace.settle_s
        self._due[runtime] = min(at, self._due.get(runtime, at))
        self._woken.set()

    async def run(self) -> None:
        """Look whenever it is due, until cancelled."""
        self._due[None] = _now()
        while True:
            due = await self._wait()
            if due:
                await self.look(None if None in due else frozenset(filter(None, due)))

    async def look(self, only: frozenset[str] | None = None) -> Outcome | None:
        """Look once and do what follows; None where nothing could be known."""
        began = _now()
        self.looks += 1
        self.looking = True
        try:
            outcome = await self._look(only)
        except (RegistryError, ClusterError) as error:
            self._failed(error, only)
            return None
        finally:
            self.looking = False
            self._tools.metrics.pass_seconds.observe(_now() - began)
        self._succeeded(outcome, only)
        return outcome

    async def _look(self, only: frozenset[str] | None) -> Outcome:
        tools = self._tools
        registry = await tools.registries.of(self.namespace)
        observer = Observer(registry.client, tools.cluster, registry.resolver, tools.policy)
        look = await observer.look(self.namespace, self.memory)
        observed = look.observed
        if observed.environment is None:
            if observed.usable and observed.runtimes:
                self.memory.environment = await registry.client.create_environment(self.namespace)
                log.info("%s: environment created in the registry", self.namespace)
                self.nudge()
            return Outcome()
        made = plan(look.desired, observed, tools.policy, only)
        if only is None:
            self.memory.remember_pass(observed, look.known)
        applier = Applier(
            self.namespace, registry.client, tools.cluster, self.memory, tools.budget, _now
        )
        outcome = await applier.run(made)
        await self._tell(look, made, outcome, only)
        return outcome

    async def _tell(
        self, look: Look, made: Plan, outcome: Outcome, only: frozenset[str] | None
    ) -> None:
        about: dict[str, Resource | None] = {c.intent.id: c.resource for c in made.chains}
        covered = None if only is None else frozenset(about)
        await self.teller.tell(outcome.conditions, about, covered)
        metrics = self._tools.metrics
        for reason, count in self.teller.counts().items():
            metrics.conditions.labels(self.namespace, reason).set(count)
        for state, wanted in zip(INTENT_STATES, (True, False), strict=True):
            count = sum(item.intent.deployed is wanted for item in look.desired)
            metrics.intents.labels(self.namespace, state).set(count)

    def _succeeded(self, outcome: Outcome, only: frozenset[str] | None) -> None:
        metrics = self._tools.metrics
        for step, count in outcome.writes.items():
            metrics.steps.labels(step).inc(count)
            log.info("%s: %s: %d", self.namespace, step, count)
        for key, error in outcome.failures.items():
            reason = getattr(error, "reason", "error")
            metrics.failures.labels(reason).inc()
            log.debug("%s: %s: %s", self.namespace, key, error)
        result = "partial" if outcome.failures else "ok"
        metrics.passes.labels(self.namespace, result).inc()
        self.last_error = "; ".join(sorted({str(e) for e in outcome.failures.values()})[:3])
        self.is_answered = True
        self.succeeded_at = datetime.now(UTC).timestamp()
        metrics.last_success.labels(self.namespace).set(self.succeeded_at)
        self._schedule_after(outcome, only)

    def _schedule_after(self, outcome: Outcome, only: frozenset[str] | None) -> None:
        """Try again the runtimes that had a failure, each by its own back-off."""
        failed = {outcome.runtimes.get(key) for key in outcome.failures}
        for key in list(self._failures):
            if key not in failed and (only is None or key in only):
                del self._failures[key]
        for runtime in failed:
            self._schedule(runtime, failed=True)
        if only is None:
            self._schedule(None, failed=False)

    def _failed(self, error: Exception, only: frozenset[str] | None) -> None:
        reason = getattr(error, "reason", "error")
        self._tools.metrics.passes.labels(self.namespace, reason).inc()
        text = f"{reason}: {error}"
        if text != self.last_error:  # said once, however long it lasts
            log.warning("%s: nothing is changed: %s", self.namespace, text)
        self.last_error = text
        self.is_answered = not isinstance(error, RegistryError)
        for key in [None] if only is None else list(only):
            self._schedule(key, failed=True)

    def _schedule(self, key: str | None, *, failed: bool) -> None:
        pace, now = self._tools.pace, _now()
        if failed:
            count = self._failures[key] = self._failures.get(key, 0) + 1
            self._set_due(key, now + pace.pause_s(count) * (0.5 + 0.5 * self._tools.rng.random()))
        elif key is None and pace.period_s:
            self._set_due(key, now + pace.period_s)

    def _set_due(self, key: str | None, at: float) -> None:
        self._due[key] = min(at, self._due.get(key, at))

    async def _wait(self) -> set[str | None]:
        """Return what is due, as soon as something is."""
        self._woken.clear()
        now = _now()
        due = {key for key, at in self._due.items() if at <= now}
        if due:
            for key in due:
                del self._due[key]
            return due
        try:
            async with asyncio.timeout_at(min(self._due.values(), default=None)):
                await self._woken.wait()
        except TimeoutError:
            pass
        return set()


def _now() -> float:
    return asyncio.get_running_loop().time()
