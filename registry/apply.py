"""Do what a plan says: chains side by side, the steps of a chain in order.

A step that fails ends its chain and no other; the next plan goes on from what is there.  What the
API server refuses for good is written into the audit once.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from registry.audit import CONFLICT, NAME_TAKEN, REFUSED, AdvanceRecord, OpenRecord, explained
from registry.chain import ApplyResource, Chain, DeleteResource
from registry.errors import (
    ClusterConflict,
    ClusterError,
    ClusterRefused,
    NameTaken,
    RegistryError,
)
from registry.memory import DeleteBudget, Memory
from registry.model import Condition, Json, Record, RecordState, Resource
from registry.plan import Plan
from registry.resource import KIND, with_record
from registry.traffic import KIND as MODEL_KIND
from registry.traffic import ApplyModel, DeleteModel, ModelPlan

CONCURRENCY = 8


class Audit(Protocol):
    """Where records are written."""

    async def create_record(
        self,
        intent_id: str,
        name: str,
        version_id: str,
        state: RecordState,
        properties: Mapping[str, str],
    ) -> Record:
        """Append a record; where it exists, return it."""
        ...

    async def patch_record(
        self, intent_id: str, record_id: str, state: RecordState, properties: Mapping[str, str]
    ) -> Record | None:
        """Update a record; None where the registry cannot."""
        ...


class Objects(Protocol):
    """Where objects are written."""

    async def apply(self, body: Json, *, create: bool) -> Json:
        """Apply our fields; with `create`, only where the name is free."""
        ...

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """Delete the object with this uid; one that is gone already is deleted."""
        ...


@dataclass(slots=True)
class Outcome:
    """What became of a plan.  Written by the applier, read by the loop.

    `writes` counts the steps done by kind, `failures` holds errors that a retry may cure, by
    intent, and `conditions` what there is to say about each.  `runtimes` tells whose each chain is.
    """

    writes: dict[str, int] = field(default_factory=dict)
    failures: dict[str, Exception] = field(default_factory=dict)
    conditions: dict[str, tuple[Condition, ...]] = field(default_factory=dict)
    runtimes: dict[str, str | None] = field(default_factory=dict)

    def count(self, kind: str) -> None:
        """Count one step done."""
        self.writes[kind] = self.writes.get(kind, 0) + 1

    def tell(self, key: str, *conditions: Condition) -> None:
        """Add what there is to say."""
        if conditions:
            self.conditions[key] = (*self.conditions.get(key, ()), *conditions)


class Applier:
    """Executes the plans of one namespace."""

    def __init__(
        self,
        namespace: str,
        audit: Audit,
        objects: Objects,
        memory: Memory,
        budget: DeleteBudget,
        clock: Callable[[], float],
    ) -> None:
        self._namespace = namespace
        self._audit = audit
        self._objects = objects
        self._memory = memory
        self._budget = budget
        self._clock = clock

    async def run(self, plan: Plan) -> Outcome:
        """Execute a plan."""
        outcome = Outcome()
        held = await self._run_models(plan.models, outcome)
        slots = asyncio.Semaphore(CONCURRENCY)
        async with asyncio.TaskGroup() as tasks:
            for chain in plan.chains:
                outcome.tell(chain.intent.id, *chain.conditions)
                outcome.runtimes[chain.intent.id] = chain.intent.runtime
                if chain.steps and chain.intent.id not in held:
                    name = f"chain {self._namespace}/{chain.intent.id}"
                    tasks.create_task(self._run_chain(chain, outcome, slots), name=name)
        return outcome

    async def _run_models(self, models: ModelPlan, outcome: Outcome) -> frozenset[str]:
        """Write the picker's models; return the intents whose resource must stay for now."""
        held: frozenset[str] = frozenset()
        for name, condition in models.conditions:
            outcome.tell(f"InferenceModel {name}", condition)
        for step in models.steps:
            try:
                done = await self._run_model(step, outcome)
            except ClusterError as error:
                held |= step.leaving
                outcome.failures["InferenceModel"] = error
                if isinstance(error, ClusterRefused):
                    outcome.tell(f"InferenceModel {step.name}", _condition(error))
            else:
                held |= frozenset() if done else step.leaving
        return held

    async def _run_model(self, step: ApplyModel | DeleteModel, outcome: Outcome) -> bool:
        if isinstance(step, ApplyModel):
            await self._objects.apply(step.body, create=step.create)
            outcome.count("apply_model")
            return True
        if not self._budget.take(self._clock()):
            outcome.tell(f"InferenceModel {step.name}", self._over_budget(step.name))
            return False
        await self._objects.delete(MODEL_KIND, self._namespace, step.name, step.uid)
        outcome.count("delete_model")
        return True

    async def _run_chain(self, chain: Chain, outcome: Outcome, slots: asyncio.Semaphore) -> None:
        intent_id = chain.intent.id
        opened: dict[str, Record] = {}
        async with slots:
            try:
                for step in chain.steps:
                    await self._run_step(step, opened, outcome)
            except ClusterRefused as error:
                outcome.tell(intent_id, _condition(error))
                outcome.failures[intent_id] = error
            except (RegistryError, ClusterError) as error:
                self._memory.forget_records(intent_id)
                outcome.failures[intent_id] = error
            except _Held as held:
                outcome.tell(intent_id, held.condition)

    async def _run_step(
        self,
        step: OpenRecord | AdvanceRecord | ApplyResource | DeleteResource,
        opened: dict[str, Record],
        outcome: Outcome,
    ) -> None:
        match step:
            case OpenRecord():
                opened[step.name] = await self._open(step)
                outcome.count("open_record")
            case AdvanceRecord():
                await self._advance(step, opened)
                outcome.count("advance_record")
            case ApplyResource():
                await self._apply(step, opened, outcome)
                outcome.count("create" if step.create else "apply")
            case DeleteResource():
                if not self._budget.take(self._clock()):
                    raise _Held(self._over_budget(step.name))
                await self._objects.delete(KIND, self._namespace, step.name, step.uid)
                outcome.count("delete")

    async def _open(self, step: OpenRecord) -> Record:
        record = await self._audit.create_record(
            step.intent_id, step.name, step.version_id, step.state, step.properties
        )
        self._memory.remember_record(step.intent_id, record)
        return record

    async def _advance(self, step: AdvanceRecord, opened: Mapping[str, Record]) -> None:
        first = step.first_id or (opened[step.opened].id if step.opened in opened else None)
        record = None
        if first is not None:
            record = await self._audit.patch_record(
                step.intent_id, first, step.state, step.properties
            )
        if record is None:
            record = await self._audit.create_record(
                step.intent_id, step.name, step.version_id, step.state, step.properties
            )
        self._memory.remember_record(step.intent_id, record)

    async def _apply(
        self, step: ApplyResource, opened: Mapping[str, Record], outcome: Outcome
    ) -> None:
        body = with_record(step.body, opened[step.opened].id) if step.opened else step.body
        try:
            applied = await self._objects.apply(body, create=step.create)
        except ClusterRefused as error:
            if step.on_refusal is not None:
                why = {**step.on_refusal.properties, **explained(_reason(error), str(error))}
                await self._advance(replace(step.on_refusal, properties=why), opened)
                outcome.count("advance_record")
            raise
        self._memory.remember_resource(step.intent_id, Resource(applied))

    def _over_budget(self, name: str) -> Condition:
        return Condition(
            "DeletesExhausted",
            f"{name} waits: --max-deletes {self._budget.limit} are used up in this period",
        )


class _Held(Exception):
    """A step that waits for the next period."""

    def __init__(self, condition: Condition) -> None:
        super().__init__(condition.message)
        self.condition = condition


def _condition(error: ClusterRefused) -> Condition:
    return Condition(error.reason, str(error))


def _reason(error: ClusterRefused) -> str:
    match error:
        case NameTaken():
            return NAME_TAKEN
        case ClusterConflict():
            return CONFLICT
        case _:
            return REFUSED
