"""What `epp-registry plan` and `history` print: rows from values.  Pure."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from registry.audit import MESSAGE, REASON, AdvanceRecord, OpenRecord
from registry.chain import ApplyResource, DeleteResource
from registry.model import Desired, Intent, Json, Observed, Policy, Record, Serving
from registry.names import is_reverse_name
from registry.plan import Plan, id_order
from registry.resource import wanted_resource
from registry.traffic import ApplyModel, DeleteModel

PLAN_COLUMNS = ("namespace", "intent", "step", "object", "detail")
HISTORY_COLUMNS = ("time", "state", "version", "reason", "record")

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


def wanted_objects(desired: Sequence[Desired], observed: Observed, policy: Policy) -> list[Json]:
    """Return the resource of every intent that is to be served, for a repository of manifests."""
    there = {r.labels.get("model-registry-is-id"): r for r in observed.resources}
    return [
        wanted_resource(
            observed.namespace,
            item.intent,
            item.serving,
            policy,
            existing=there.get(item.intent.id),
        )
        for item in desired
        if item.intent.deployed
        and isinstance(item.serving, Serving)
        and not is_reverse_name(item.intent.name)
    ]


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
