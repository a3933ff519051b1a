"""Every watch that the picker needs, for every namespace that it serves.

Pods are watched by namespace, not by selector: any change of a pool's selector or ports then takes
effect at once, from what is already known, and fifty pools cost one watch.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from datastore import manifests as m
from datastore.changes import Change
from datastore.decode import Value
from datastore.kube import KubeClient
from datastore.observe import KINDS, decoder, events
from datastore.policies import (
    LLMD_GROUP,
    POLICY_RESOURCES,
    Policies,
    Policy,
    policy_decoder,
)
from datastore.reflect import Pace
from datastore.store import Changes, Store
from datastore.watch import Reflector, State, Subject

log = logging.getLogger(__name__)

POOLS = (m.INFERENCE_POOL_V1, m.INFERENCE_POOL_V1ALPHA2)
REQUIRED = (m.INFERENCE_MODEL, m.POD)


@dataclass(frozen=True, slots=True)
class Scope:
    """What part of a cluster is served.

    `namespaces`: empty = our own.  `pool` narrows to the pools of that name.  `pod_labels` (a label
    selector) narrows the pods that are watched where a namespace holds many others.
    """

    namespaces: tuple[str, ...] = ()
    pool: str | None = None
    pod_labels: str = ""


class ClusterSource:
    """Keeps a store as the cluster is.  `synced` is set once everything required is known.

    Required in each namespace: InferenceModels, pods, and InferencePools of at least one group; of
    the other group the answer must be in, be it that it does not exist.
    """

    def __init__(
        self,
        client: KubeClient,
        store: Store,
        *,
        scope: Scope,
        pace: Pace,
        rng: Random,
        policies: Policies | None = None,
        on_change: Callable[[Changes], None] = lambda changes: None,
    ) -> None:
        self.synced = asyncio.Event()
        self.policies = Policies() if policies is None else policies
        self.namespaces = tuple(dict.fromkeys(scope.namespaces)) or (client.namespace,)
        self._client = client
        self._store = store
        self._scope = scope
        self._pace = pace
        self._rng = rng
        self._on_change = on_change
        self._both_groups_said = False
        self._turn = asyncio.Lock()
        self._required = {ns: self._for_store(ns) for ns in self.namespaces}
        self._optional = [w for ns in self.namespaces for w in self._for_policies(ns)]

    @property
    def watches(self) -> Sequence[Reflector[Any]]:
        """Every watch, required or not."""
        return [*self._required_watches(), *self._optional]

    def age_s(self, now: float) -> float:
        """Return for how long the least recently heard required source has said nothing."""
        told = (w.age_s(now) for w in self._required_watches() if w.state not in _ABSENT)
        return max(told, default=float("inf"))

    def waiting_for(self) -> list[str]:
        """Say what keeps us from being synced, and why; empty when nothing does."""
        found = []
        for watches in self._required.values():
            for watch in _blocking(watches):
                why = watch.error.message if watch.error else "not listed yet"
                found.append(f"{watch.subject}: {why}")
        return found

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for watch in self.watches:
                tasks.create_task(watch.run(), name=f"watch {watch.subject}")

    def _required_watches(self) -> Iterator[Reflector[Value]]:
        for watches in self._required.values():
            yield from watches

    def _for_store(self, namespace: str) -> list[Reflector[Value]]:
        return [self._store_watch(namespace, resource) for resource in (*REQUIRED, *POOLS)]

    def _store_watch(self, namespace: str, resource: m.Resource) -> Reflector[Value]:
        scope = self._scope
        labels = scope.pod_labels if resource is m.POD else ""
        fields = f"metadata.name={scope.pool}" if scope.pool and resource in POOLS else ""
        subject = Subject(resource, namespace, labels, fields)
        return Reflector(
            self._client,
            subject,
            decoder(resource),
            partial(self._apply, resource, str(subject)),
            pace=self._pace,
            rng=self._rng,
            on_state=self._reconsider,
            turn=self._turn,
        )

    def _for_policies(self, namespace: str) -> Iterator[Reflector[Policy]]:
        for resource in POLICY_RESOURCES:
            subject = Subject(resource, namespace)
            yield Reflector(
                self._client,
                subject,
                policy_decoder(resource),
                partial(self.policies.take, resource, str(subject)),
                pace=self._pace,
                rng=self._rng,
                on_state=self._compare_groups,
                is_optional=True,
                turn=self._turn,
            )

    def _apply(self, resource: m.Resource, source: str, told: Sequence[Change[Value]]) -> None:
        changes = self._store.apply(events(told, KINDS[resource], source))
        if changes:
            self._on_change(changes)

    def _reconsider(self) -> None:
        if self.synced.is_set() or any(_blocking(w) for w in self._required.values()):
            return
        log.info("the cluster is known: %s", ", ".join(self.namespaces))
        self.synced.set()

    def _compare_groups(self) -> None:
        if self._both_groups_said:
            return
        present = {
            (w.subject.resource.kind, w.subject.resource.group)
            for w in self._optional
            if w.state is State.SYNCED
        }
        kinds = {kind for kind, _ in present}
        both = sorted(k for k in kinds if len([1 for kind, _ in present if kind == k]) > 1)
        if both:
            self._both_groups_said = True
            log.info("%s: two API groups are installed, %s wins", ", ".join(both), LLMD_GROUP)


_ABSENT = (State.MISSING, State.FORBIDDEN)


def _blocking(watches: Sequence[Reflector[Value]]) -> list[Reflector[Value]]:
    """Return the watches of one namespace that are not yet as they must be."""
    pools = [w for w in watches if w.subject.resource in POOLS]
    found = [w for w in watches if w not in pools and not w.synced.is_set()]
    pending = [w for w in pools if not w.synced.is_set() and w.state not in _ABSENT]
    if any(w.synced.is_set() for w in pools):
        return found + pending
    return found + [w for w in pools if not w.synced.is_set()]
