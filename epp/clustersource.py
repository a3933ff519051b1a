"""The cluster as a source: watches that fill the store, an election, and status for people."""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

from console import Mistake
from datastore.cluster import ClusterSource, Scope
from datastore.kube import KubeClient
from datastore.kube_auth import NoCluster, Where
from datastore.reflect import Pace
from datastore.store import Changes, Store
from epp.leader import Election, Leadership
from epp.metrics import PickerMetrics
from epp.metricsauth import MetricsAuth
from epp.readiness import Readiness
from epp.settings import Settings
from epp.sources import StartError
from epp.status import StatusWriter

KNOWN = "the cluster's InferenceModels, InferencePools and Pods"
FRESH = "news of the cluster (--max-staleness)"
LEADING = "the leader's lease (--ha-enable-leader-election)"
LEASE = "epp-{pool}.inference-epp"
"""One lease for each pool that a picker is narrowed to, or one for all."""
CHECK_AGE_S = 1.0


class FromCluster:
    """Watches on every replica; status written, and with --ha-enable… requests served, by one."""

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        store: Store,
        stack: AsyncExitStack,
        *,
        on_change: Callable[[Changes], None],
        on_known: Callable[[], None],
        readiness: Readiness,
        metrics: PickerMetrics,
        rng: Random,
        pace: Pace | None = None,
    ) -> None:
        self._settings = settings
        self._where = Where(
            Path(settings.kubeconfig) if settings.kubeconfig else None, None, environ
        )
        self._store = store
        self._stack = stack
        self._on_change = on_change
        self._on_known = on_known
        self._readiness = readiness
        self._rng = rng
        self._pace = pace or Pace()
        self._loop = asyncio.get_running_loop()
        self._cluster: ClusterSource
        self._status: StatusWriter
        self._leadership: Leadership
        self._metrics_auth: MetricsAuth | None = None
        metrics.read("epp_state_age_seconds", self._age_s)
        readiness.lack(KNOWN)
        if settings.ha_enable_leader_election:
            readiness.lack(LEADING)

    async def start(self) -> None:
        """Find the API server; what it knows comes later.  Raises StartError."""
        settings = self._settings
        try:
            client = await KubeClient.connect(self._where)
        except NoCluster as error:
            fix = "give --kubeconfig, run in a pod, or serve from files with --manifests"
            raise StartError([Mistake(str(error), "--kubeconfig", fix)]) from error
        await self._stack.enter_async_context(client)
        self._metrics_auth = MetricsAuth(client)
        self._cluster = ClusterSource(
            client,
            self._store,
            scope=Scope(settings.namespaces, settings.pool_name or None),
            pace=self._pace,
            rng=self._rng,
            on_change=self._changed,
        )
        pool = settings.pool_name or "all"
        election = Election(LEASE.format(pool=pool), settings.namespaces[0], _identity())
        self._leadership = Leadership(client.api_client, election, on_change=self._led)
        self._status = StatusWriter(
            client,
            self._store,
            self._leadership,
            namespaces=settings.namespaces,
            pace=self._pace,
            rng=self._rng,
        )

    async def may_read_metrics(self, token: str) -> bool:
        """Ask the cluster whether the bearer of a token may read /metrics."""
        assert self._metrics_auth is not None, "the pages are served after the start"
        return await self._metrics_auth.allowed(token)

    def tasks(self) -> Sequence[tuple[str, Coroutine[Any, Any, None]]]:
        """Return the watches, the election and the status writer."""
        tasks = [
            ("cluster", self._cluster.run()),
            ("cluster-known", self._announce()),
            ("election", self._leadership.run()),
            ("status", self._status.run()),
        ]
        if self._settings.max_staleness_s is not None:
            tasks.append(
                ("staleness", self._end_readiness_when_stale(self._settings.max_staleness_s))
            )
        return tasks

    def _changed(self, changes: Changes) -> None:
        self._on_change(changes)
        self._status.note(changes)

    def _led(self, leading: bool) -> None:
        if self._settings.ha_enable_leader_election:
            (self._readiness.meet if leading else self._readiness.lack)(LEADING)

    async def _announce(self) -> None:
        """Become ready once everything required is known, and never run out."""
        await self._cluster.synced.wait()
        self._on_known()
        self._readiness.meet(KNOWN)
        await asyncio.Event().wait()

    async def _end_readiness_when_stale(self, max_age_s: float) -> None:
        await self._cluster.synced.wait()
        while True:
            stale = self._age_s() > max_age_s
            (self._readiness.lack if stale else self._readiness.meet)(FRESH)
            await asyncio.sleep(CHECK_AGE_S)

    def _age_s(self) -> float:
        return self._cluster.age_s(self._loop.time())


def _identity() -> str:
    return f"{socket.gethostname()}_{os.getpid()}"
