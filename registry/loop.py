"""The reconciler at work: watches that nudge, one keeper for each namespace, one leader among many.

Every namespace has its own task, so a slow call for one holds up no other.
"""

import asyncio
import logging

from registry.election import Election
from registry.errors import ClusterError
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
            keeper = self.keepers[namespace] = Keeper(namespace, self._tools)
            task = tasks.create_task(keeper.run(), name=f"keeper {namespace}")
            self._tasks[namespace] = task
            log.info("%s: kept in step with the registry", namespace)
        for namespace in sorted(set(self.keepers) - wanted):
            await self._leave(namespace)

    async def _leave(self, namespace: str) -> None:
        """Stop keeping a namespace; of one that is gone, the audit is closed first."""
        keeper, task = self.keepers.pop(namespace), self._tasks.pop(namespace)
        task.cancel()
        await asyncio.wait([task])
        try:
            if not await self._tools.cluster.namespace_usable(namespace):
                await keeper.look()
        except ClusterError as error:
            log.warning("%s: not known whether it is gone: %s", namespace, error)
        self._tools.metrics.forget(namespace)
        log.info("%s: no longer kept; what is there stays", namespace)

    async def _probe(self) -> None:
        """Keep the metrics that nobody else moves."""
        metrics, counted = self._tools.metrics, 0
        while True:
            up, requests = True, 0
            for registry in self._tools.registries.open:
                up = up and await registry.client.is_healthy() is not False
                requests += registry.client.rest.requests
            last = [keeper.last_error for keeper in self.keepers.values()]
            metrics.up.set(up and not any(text.startswith("unavailable") for text in last))
            metrics.requests.inc(requests - counted)
            counted = requests
            await asyncio.sleep(PROBE_S)
