"""What `epp-registry plan` and `history` print: rows from values.  Pure."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from registry.audit import MESSAGE, NAME_TAKEN, REASON, AdvanceRecord, OpenRecord
from registry.chain import AUDIT_UNKNOWN, REGISTRY_SILENT, ApplyResource, DeleteResource
from registry.model import Desired, Intent, Json, Observed, Policy, Record, Serving
from registry.plan import Plan, id_order
from registry.resource import wanted_resource
from registry.traffic import ApplyModel, DeleteModel

PLAN_COLUMNS = ("namespace", "intent", "step", "object", "detail")
HISTORY_COLUMNS = ("time", "state", "version", "reason", "record")

NOT_OURS = frozenset({NAME_TAKEN, "RegistryReplaced"})
UNKNOWN = frozenset({AUDIT_UNKNOWN, REGISTRY_SILENT})

Step = OpenRecord | AdvanceRecord | ApplyResource | DeleteResource | ApplyModel | DeleteModel


def plan_rows(namespace: str, made: Plan) -> list[tuple[str, ...]]:
    """Return a row for each step and for each thing that stands in the way of one."""
    rows: list[tuple[str, ...]] = []
    rows += [(namespace, "-", *_step(step)) for step in made.models.steps]
    for name, condition in made.models.conditions:
        rows.append((namespace, "-", "none", name, f"{condition.reason}: {condition.message}"))
    for chain in made.chains:
        who = chain.intent.name or chain.intent.id
        rows += [(namespace, who, *_step(step)) for step in chain.steps]
        for condition in chain.conditions:
            there = chain.resource.name if chain.resource else "-"
            rows.append((namespace, who, "note", there, f"{condition.reason}: {condition.message}"))
    return rows


def wanted_objects(
    desired: Sequence[Desired], observed: Observed, policy: Policy, made: Plan
) -> list[Json]:
    """Return what `run` would bring about, whole, for a repository of manifests.

    The plan says what that is: what another controller made and names that are taken are not in it.
    """
    servings = {item.intent.id: item.serving for item in desired}
    objects = []
    for chain in made.chains:
        serving = servings.get(chain.intent.id)
        reasons = {condition.reason for condition in chain.conditions}
        if chain.intent.deployed and isinstance(serving, Serving) and not reasons & NOT_OURS:
            objects.append(
                wanted_resource(
                    observed.namespace, chain.intent, serving, policy, existing=chain.resource
                )
            )
    return objects + list(made.models.bodies)


def unknown(made: Plan) -> str:
    """Return why the plan is not the whole truth, empty where it is."""
    for chain in made.chains:
        for condition in chain.conditions:
            if condition.reason in UNKNOWN:
                return f"intent {chain.intent.name or chain.intent.id}: {condition.message}"
    return ""


def history_rows(records: Sequence[Record], versions: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Return the audit of an intent, the oldest line first."""
    return [
        (
            moment(record.created_ms),
            record.state.value,
            versions.get(record.version_id, f"id {record.version_id}"),
            ": ".join(filter(None, (record.properties.get(REASON), record.properties.get(MESSAGE))))
            or "-",
            record.name,
        )
        for record in sorted(records, key=lambda record: (record.created_ms, id_order(record.id)))
    ]


def intents_named(name: str, intents: Sequence[Intent]) -> list[Intent]:
    """Return the intents with this name, or with this id."""
    return [i for i in intents if i.name == name] or [i for i in intents if i.id == name]


def moment(created_ms: int) -> str:
    """Return a time as people read it."""
    return datetime.fromtimestamp(created_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _step(step: Step) -> tuple[str, str, str]:
    match step:
        case OpenRecord():
            return "record", step.name, step.state.value
        case AdvanceRecord():
            why = step.properties.get(REASON, "")
            return "record", step.opened, f"{step.state.value} {why}".strip()
        case ApplyResource():
            if step.create:
                return "create", step.body["metadata"]["name"], ""
            return "apply", step.body["metadata"]["name"], ", ".join(step.changes)
        case DeleteResource():
            return "delete", step.name, step.why
        case ApplyModel():
            verb = "create" if step.create else "apply"
            targets = [target["name"] for target in step.body["spec"]["targetModels"]]
            return verb, f"InferenceModel {step.body['metadata']['name']}", ", ".join(targets)
        case DeleteModel():
            return "delete", f"InferenceModel {step.name}", ""
