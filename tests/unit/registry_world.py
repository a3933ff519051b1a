"""A registry and a cluster as plain dicts: every write one call, and each a place to crash.

The rules are the real ones where plans depend on them: names of records are unique, an apply owns
its fields, a finalizer keeps an object.  Nothing awaits, so a run is deterministic.
"""

import copy
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from registry import names
from registry.apply import Applier, Outcome
from registry.audit import read_episodes
from registry.choice import choose_artifact, choose_version
from registry.errors import ClusterRefused, NameTaken
from registry.memory import DeleteBudget, Memory
from registry.model import (
    Artifact,
    Condition,
    Desired,
    Environment,
    Intent,
    Json,
    Observed,
    Policy,
    Record,
    RecordState,
    Resource,
    Version,
)
from registry.plan import Plan, plan


class Crash(BaseException):
    """The process dies here."""


@dataclass
class World:
    """One namespace, `demo`, one model, and everything that may happen to them."""

    policy: Policy = field(default_factory=Policy)
    patchable: bool = False
    intents: dict[str, Intent] = field(default_factory=dict)
    versions: list[Version] = field(default_factory=list)
    artifacts: dict[str, list[Artifact]] = field(default_factory=dict)
    records: dict[str, list[Record]] = field(default_factory=dict)
    objects: dict[str, Json] = field(default_factory=dict)
    models: dict[str, Json] = field(default_factory=dict)
    runtimes: dict[str, Mapping[str, str]] = field(default_factory=lambda: {"rt": {}})
    usable: bool = True
    refuse: str = ""
    memory: Memory = field(default_factory=Memory)
    budget: DeleteBudget = field(default_factory=lambda: DeleteBudget(100, 60.0))
    writes: int = 0
    crash_after: int | None = None
    now: float = 0.0
    ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    # What a test does

    def intend(self, intent_id: str, name: str, **fields: object) -> None:
        """Set an intent."""
        intent = Intent(intent_id, name, "7", deployed=True, runtime="rt")
        self.intents[intent_id] = replace(intent, **fields)  # type: ignore[arg-type]  # test data

    def tag(self, version_id: str, *, artifact: bool = True) -> None:
        """Add a version, with an artifact."""
        self.versions.append(Version(version_id, f"v{version_id}", int(version_id)))
        found = Artifact(
            f"1{version_id}", format_name="onnx", storage_key="k", storage_path=f"p/{version_id}"
        )
        self.artifacts[version_id] = [found] if artifact else []

    def foreign(self, name: str) -> None:
        """Somebody else's resource."""
        self.objects[name] = {
            "metadata": {"name": name, "uid": f"u{next(self.ids)}", "generation": 1},
            "spec": {"predictor": {"sklearn": {}}},
        }

    def serve(self) -> None:
        """KServe comes by: each resource becomes ready with its present spec."""
        for name, body in list(self.objects.items()):
            if body["metadata"].get("deletionTimestamp"):
                del self.objects[name]
                continue
            body["status"] = {
                "conditions": [{"type": "Ready", "status": "True"}],
                "url": f"http://{name}/{body['metadata']['generation']}",
            }

    # What the reconciler does

    def look(self) -> tuple[list[Desired], Observed]:
        """Return what is desired and observed."""
        desired = []
        for intent in self.intents.values():
            version = choose_version(intent, self.versions)
            if isinstance(version, Condition):
                desired.append(Desired(intent, version))
                continue
            found = choose_artifact(version, self.artifacts.get(version, []), self.policy)
            desired.append(Desired(intent, found))
        observed = Observed(
            "demo",
            Environment("1", "demo"),
            self.runtimes,
            tuple(Resource(copy.deepcopy(body)) for body in self.objects.values()),
            tuple(Resource(copy.deepcopy(body)) for body in self.models.values()),
            {intent_id: tuple(found) for intent_id, found in self.records.items()},
            self.usable,
            dict(self.memory.seen),
            dict(self.memory.written),
            self.memory.missing,
        )
        return desired, observed

    def plan(self) -> Plan:
        """Return the next plan."""
        desired, observed = self.look()
        made = plan(desired, observed, self.policy)
        self.memory.remember_pass(observed, frozenset(self.intents))
        return made

    async def step(self) -> Outcome:
        """One pass."""
        applier = Applier("demo", self, self, self.memory, self.budget, lambda: self.now)
        self.now += 60.0
        return await applier.run(self.plan())

    async def crashing_step(self, crash_after: int | None) -> None:
        """One pass in a process that dies after so many writes, and with it what it remembered."""
        self.writes, self.crash_after = 0, crash_after
        try:
            await self.step()
        except* Crash:
            self.memory = Memory()
        finally:
            self.crash_after = None

    async def settle(self, limit: int = 12) -> None:
        """Pass, and let KServe work, until nothing is left to do."""
        for _ in range(limit):
            await self.step()
            self.serve()
            if self.plan().empty:
                return
        raise AssertionError(f"does not settle: {self.plan()}")

    # The audit and the objects, as the applier writes them

    async def create_record(
        self,
        intent_id: str,
        name: str,
        version_id: str,
        state: RecordState,
        properties: Mapping[str, str],
    ) -> Record:
        mine = self.records.setdefault(intent_id, [])
        if found := next((item for item in mine if item.name == name), None):
            return found
        record = Record(str(next(self.ids)), name, version_id, state, 0, dict(properties))
        mine.append(record)
        self._wrote()
        return record

    async def patch_record(
        self, intent_id: str, record_id: str, state: RecordState, properties: Mapping[str, str]
    ) -> Record | None:
        if not self.patchable:
            return None
        mine = self.records[intent_id]
        index = next(i for i, item in enumerate(mine) if item.id == record_id)
        mine[index] = replace(mine[index], state=state, properties=dict(properties))
        self._wrote()
        return mine[index]

    async def apply(self, body: Json, *, create: bool) -> Json:
        if self.refuse:
            raise ClusterRefused(self.refuse)
        store = self.models if body["kind"] == "InferenceModel" else self.objects
        name = body["metadata"]["name"]
        live = store.get(name)
        if create and live is not None:
            raise NameTaken(f"{name} exists")
        metadata: Json = {"uid": f"u{next(self.ids)}", "generation": 0}
        base: Json = copy.deepcopy(live) if live else {"metadata": metadata}
        spec_before = base.get("spec")
        base["spec"] = copy.deepcopy(body["spec"])
        base["kind"] = body["kind"]
        base["metadata"] |= {k: v for k, v in body["metadata"].items() if k != "namespace"}
        base["metadata"]["managedFields"] = [
            {
                "manager": names.FIELD_MANAGER,
                "operation": "Apply",
                "fieldsV1": _fields({"metadata": body["metadata"], "spec": body["spec"]}),
            }
        ]
        if base["spec"] != spec_before:
            base["metadata"]["generation"] += 1
        store[name] = base
        self._wrote()
        return copy.deepcopy(base)

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        store = self.models if kind == "InferenceModel" else self.objects
        live = store.get(name)
        if live is None or live["metadata"]["uid"] != uid:
            return
        if live["metadata"].get("finalizers"):
            live["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        else:
            del store[name]
        self._wrote()

    def _wrote(self) -> None:
        self.writes += 1
        if self.crash_after is not None and self.writes >= self.crash_after:
            raise Crash

    # What a test asks

    def audit(self, intent_id: str) -> list[tuple[str, str]]:
        """Return the records as (name, state)."""
        return [(record.name, record.state.value) for record in self.records.get(intent_id, [])]

    def resources(self, intent_id: str) -> list[Json]:
        """Return the resources of an intent."""
        return [
            body
            for body in self.objects.values()
            if body["metadata"].get("labels", {}).get(names.INTENT_LABEL) == intent_id
        ]

    def states(self, intent_id: str) -> list[tuple[str, str]]:
        """Return the episodes as (version, state)."""
        return [
            (episode.version_id, episode.state.value)
            for episode in read_episodes(self.records.get(intent_id, []))
        ]

    def state(self) -> object:
        """Return everything that must be equal, however often the process died: no ids."""
        record_names = {r.id: r.name for found in self.records.values() for r in found}
        objects = {}
        for name, body in self.objects.items():
            labels = dict(body["metadata"].get("labels", {}))
            label = labels.pop(names.RECORD_LABEL, None)
            objects[name] = (body["spec"], labels, record_names.get(label or ""))
        audits = {intent_id: self.audit(intent_id) for intent_id in self.records}
        models = {name: body["spec"] for name, body in self.models.items()}
        return objects, audits, models


def _fields(value: Json) -> Json:
    return {
        f"f:{key}": _fields(item) if isinstance(item, dict) else {} for key, item in value.items()
    }


__all__ = ["Crash", "World"]
