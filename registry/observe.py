"""One look at a namespace and at what the registry wants there.

The registry's list is whole or the look fails: nothing is ever concluded from half of it.  A model,
a version or an audit that cannot be read concerns the intents that need it and no others.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from registry import names
from registry.chain import AUDIT_UNKNOWN
from registry.client import RegistryClient
from registry.cluster import Cluster
from registry.errors import RegistryError, RegistryNotFound
from registry.memory import Memory
from registry.model import Condition, Desired, Environment, Intent, Observed, Policy
from registry.resolve import CONCURRENCY, Resolver, desired_of

AUDIT_LIMIT_S = 30.0
"""Reading the records of a namespace goes on at the next look after this."""


@dataclass(frozen=True, slots=True)
class Look:
    """What is wanted and what is there.  `known` are all intents that the registry lists."""

    desired: tuple[Desired, ...]
    observed: Observed
    known: frozenset[str]


class Observer:
    """Looks at namespaces, through one registry and one cluster."""

    def __init__(
        self, registry: RegistryClient, cluster: Cluster, resolver: Resolver, policy: Policy
    ) -> None:
        self._registry = registry
        self._cluster = cluster
        self._resolver = resolver
        self._policy = policy

    async def look(self, namespace: str, memory: Memory) -> Look:
        """Return one namespace as it is now; what is remembered of it is brought up to date."""
        environment = await self._environment(namespace, memory)
        intents = await self._intents(environment, memory)
        # The cluster is read after the registry: what we created meanwhile is then in sight.
        observed = await self._observe(namespace, environment, memory)
        await self._confirm(namespace, intents, observed, memory)
        ours = [intent for intent in intents if not names.is_reverse_name(intent.name)]
        wanted = [i for i in ours if i.deployed and i.runtime in observed.runtimes]
        resolved = await self._resolver.resolve(wanted)
        unread = await self._read_records(ours, memory)
        desired = desired_of(intents, resolved)
        for index, item in enumerate(desired):
            if item.intent.id in unread:
                desired[index] = replace(item, serving=unread[item.intent.id])
        known = frozenset(intent.id for intent in intents)
        observed = replace(
            observed, records={intent.id: memory.records.get(intent.id, ()) for intent in ours}
        )
        return Look(tuple(desired), observed, known)

    async def _environment(self, namespace: str, memory: Memory) -> Environment | None:
        if memory.environment is None:
            memory.environment = await self._registry.environment(namespace)
        return memory.environment

    async def _intents(self, environment: Environment | None, memory: Memory) -> list[Intent]:
        if environment is None:
            return []
        try:
            return await self._registry.intents(environment.id)
        except RegistryNotFound:
            memory.environment = None  # look it up again: it may be another registry's id
            raise

    async def _confirm(
        self, namespace: str, intents: Sequence[Intent], observed: Observed, memory: Memory
    ) -> None:
        """Make sure that a list which lacks something is of the environment that exists.

        Asked for an environment that it does not know, a registry may answer with an empty list.
        """
        listed = {intent.id for intent in intents}
        labelled = {item.labels.get(names.INTENT_LABEL, "") for item in observed.resources} - {""}
        if observed.environment is None or (listed and labelled <= listed):
            return
        if await self._registry.environment(namespace) != observed.environment:
            memory.environment = None
            raise RegistryNotFound(f"environment {namespace} is not the one it was; looking again")

    async def _observe(
        self, namespace: str, environment: Environment | None, memory: Memory
    ) -> Observed:
        usable = await self._cluster.namespace_usable(namespace)
        wants_models = self._policy.inference_models and usable
        return Observed(
            namespace=namespace,
            environment=environment,
            runtimes=await self._cluster.runtimes(namespace) if usable else {},
            resources=await self._cluster.resources(namespace),
            models=await self._cluster.models(namespace) if wants_models else (),
            usable=usable,
            seen=dict(memory.seen),
            written=dict(memory.written),
            missing=memory.missing,
        )

    async def _read_records(
        self, intents: Sequence[Intent], memory: Memory
    ) -> dict[str, Condition]:
        """Read the records that are not remembered; return why some could not be."""
        slots = asyncio.Semaphore(CONCURRENCY)
        until = asyncio.get_running_loop().time() + AUDIT_LIMIT_S
        unread: dict[str, Condition] = {}

        async def read(intent_id: str) -> None:
            try:
                async with asyncio.timeout_at(until), slots:
                    memory.records[intent_id] = tuple(await self._registry.records(intent_id))
            except RegistryError as error:
                unread[intent_id] = Condition(AUDIT_UNKNOWN, f"{error.reason}: {error}")
            except TimeoutError:
                unread[intent_id] = Condition(AUDIT_UNKNOWN, "no time left to read its records")

        async with asyncio.TaskGroup() as tasks:
            for intent in intents:
                if intent.id not in memory.records:
                    tasks.create_task(read(intent.id), name=f"records {intent.id}")
        return unread
