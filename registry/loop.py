"""The reconciler at work: watches that nudge, one keeper for each namespace, one leader among many.

Every namespace has its own task, so a slow call for one holds up no other.
"""

import asyncio
import logging

from registry.election import Election
from registry.errors import ClusterError, RegistryNotConfigured
from registry.keeper import Keeper, Tools
from registry.model import Json
from registry.triggers import Triggers

log = logging.getLogger(__name__)

PROBE_S = 15.0


class Loop:
    """Runs keepers.  `keepers` is written here only; `nudge` is called by the watches."""

    def __init__(self, tools: Tools, triggers: Triggers, election: Election | None) -> None:
        self.keepers: dict[str, Keeper] = {}
        self._tools = tools
        self._triggers = triggers
        self._election = election
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def leading(self) -> bool:
        """Whether this process acts."""
        return self._election is None or self._election.leading

    def nudge(self, namespace: str, runtime: str | None) -> None:
        """Something changed in a namespace."""
        keeper = self.keepers.get(namespace)
        if keeper is not None:
            keeper.nudge(runtime)

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._triggers.run(), name="triggers")
                tasks.create_task(self._probe(), name="probe")
                if self._election is None:
                    tasks.create_task(self._lead(), name="lead")
                else:
                    tasks.create_task(self._election.run(self._lead), name="election")
        finally:
            if self._election is not None:
                await self._election.release()

    def state(self) -> Json:
        """Return what /readyz shows."""
        return {
            "leading": self.leading,
            "waitingFor": self._triggers.waiting_for,
            "namespaces": {
                name: {
                    "lastSuccess": keeper.succeeded_at,
                    "error": keeper.last_error,
                    "conditions": {
                        key: [f"{c.reason}: {c.message}" for c in conditions]
                        for key, conditions in sorted(keeper.teller.told.items())
                    },
                }
                for name, keeper in sorted(self.keepers.items())
            },
        }

    async def _lead(self) -> None:
        """Keep the namespaces that opted in, for as long as we lead."""
        self._tools.metrics.leader.set(1)
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._triggers.changed.clear()
                    await self._adjust(tasks)
                    await self._triggers.changed.wait()
        finally:
            self._tools.metrics.leader.set(0)
            self.keepers.clear()
            self._tasks.clear()

    async def _adjust(self, tasks: asyncio.TaskGroup) -> None:
        wanted = self._triggers.namespaces
        for namespace in sorted(wanted - set(self.keepers)):
            await self._stop(namespace)  # it may be leaving still
            keeper = self.keepers[namespace] = Keeper(namespace, self._tools)
            task = tasks.create_task(keeper.run(), name=f"keeper {namespace}")
            self._tasks[namespace] = task
            log.info("%s: kept in step with the registry", namespace)
        for namespace in sorted(set(self.keepers) - wanted):
            keeper = self.keepers.pop(namespace)
            await self._stop(namespace)
            leaving = self._leave(keeper)
            self._tasks[namespace] = tasks.create_task(leaving, name=f"leave {namespace}")

    async def _stop(self, namespace: str) -> None:
        task = self._tasks.pop(namespace, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _leave(self, keeper: Keeper) -> None:
        """Of a namespace that is gone, close the audit first, however long the registry is away."""
        failures = 0
        while not await self._has_left(keeper):
            failures += 1
            await asyncio.sleep(self._tools.pace.pause_s(failures))
        self._tools.metrics.forget(keeper.namespace)
        self._tasks.pop(keeper.namespace, None)
        log.info("%s: no longer kept; what is there stays", keeper.namespace)

    async def _has_left(self, keeper: Keeper) -> bool:
        try:
            if await self._tools.cluster.namespace_usable(keeper.namespace):
                return True
        except ClusterError as error:
            log.warning("%s: not known whether it is gone: %s", keeper.namespace, error)
            return False
        outcome = await keeper.look()
        if outcome is None:
            return keeper.last_error.startswith(RegistryNotConfigured.reason)  # gone with it
        return not outcome.failures

    async def is_registry_up(self) -> bool:
        """Whether every registry says that it is well, and no namespace was refused an answer."""
        for registry in self._tools.registries.open:
            if await registry.client.is_healthy() is False:
                return False
        return all(keeper.is_answered for keeper in self.keepers.values())

    async def _probe(self) -> None:
        """Keep the metrics that nobody else moves."""
        metrics, counted = self._tools.metrics, 0
        while True:
            metrics.up.set(await self.is_registry_up())
            requests = sum(r.client.rest.requests for r in self._tools.registries.open)
            metrics.requests.inc(requests - counted)
            counted = requests
            await asyncio.sleep(PROBE_S)
