"""The picker follows: intents that share an `inferenceModel` become the targets of one.  Pure.

A target joins when its record says RUNNING, so no request is sent to a model that has not loaded,
and leaves before its resource is deleted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from registry import names
from registry.audit import read_episodes
from registry.model import Condition, Desired, Intent, Json, Observed, Policy, RecordState, Resource
from registry.ownership import delta, owned_fields

API_VERSION = "inference.networking.x-k8s.io/v1alpha2"
KIND = "InferenceModel"
POOL_GROUP = "inference.networking.k8s.io"
MAX_TARGETS = 10
MAX_WEIGHT = 1_000_000


@dataclass(frozen=True, slots=True)
class ApplyModel:
    """Step: apply an InferenceModel.  `leaving` are the intents that it no longer sends to."""

    body: Json
    create: bool
    leaving: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The InferenceModel's name."""
        return str(self.body["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class DeleteModel:
    """Step: delete this very InferenceModel."""

    name: str
    uid: str
    leaving: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """The steps for all InferenceModels of a namespace, and what there is to say, by model.

    `bodies` are all that are wanted, those that need no step included.
    """

    steps: tuple[ApplyModel | DeleteModel, ...] = ()
    conditions: tuple[tuple[str, Condition], ...] = ()
    bodies: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True)
class _Member:
    """An intent and the resource that would be its target."""

    intent: Intent
    resource: Resource | None
    running: bool


class _Doubt(Exception):
    """Why an InferenceModel is left as it is."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.condition = Condition(reason, message)


def plan_models(
    desired: Sequence[Desired],
    observed: Observed,
    policy: Policy,
    resources: Mapping[str, Sequence[Resource]],
) -> ModelPlan:
    """Return what to do about the InferenceModels of a namespace."""
    if not policy.inference_models or not observed.usable:
        return ModelPlan()
    existing = {model.name: model for model in observed.models}
    steps: list[ApplyModel | DeleteModel] = []
    conditions: list[tuple[str, Condition]] = []
    bodies: list[Json] = []
    groups = _groups(desired, observed, resources)
    for name, members in groups.items():
        try:
            body = _plan_body(name, members, existing.get(name), observed, policy)
        except _Doubt as doubt:
            conditions.append((name, doubt.condition))
            continue
        step = _plan_step(name, members, existing.get(name), body)
        steps += [step] if step is not None else []
        bodies += [body] if body is not None else []
    members = [member for group in groups.values() for member in group]
    sent = frozenset(t["name"] for body in bodies for t in body["spec"]["targetModels"])
    for name in sorted(set(existing) - set(groups)):
        if _is_stale(existing[name], members, observed, sent):
            leaving = frozenset(m.intent.id for m in members if not m.intent.deployed)
            steps.append(DeleteModel(name, existing[name].uid, leaving))
    return ModelPlan(tuple(steps), tuple(conditions), tuple(bodies))


def _is_stale(
    model: Resource, members: Sequence[_Member], observed: Observed, sent: frozenset[str]
) -> bool:
    """Whether a model is ours, and each of its targets is gone, taken out, or sent to by another.

    A target that is there and that no listed intent speaks for keeps it: nobody took it out.
    """
    if model.terminating or model.labels.get(names.MANAGED_BY) != names.FIELD_MANAGER:
        return False
    if not owned_fields(model.body, names.FIELD_MANAGER):
        return False  # a copy
    kept = {member.resource.name for member in members if member.resource and _wants(member)}
    known = {member.resource.name for member in members if member.resource}
    there = {resource.name for resource in observed.resources}
    targets = _target_names(model)
    return not (targets & there - known) and targets & kept <= sent


def _wants(member: _Member) -> bool:
    """Whether an intent wants requests; a weight that cannot be read takes nothing away."""
    return member.intent.deployed and member.intent.properties.get(names.WEIGHT_PROPERTY) != "0"


def _groups(
    desired: Sequence[Desired],
    observed: Observed,
    resources: Mapping[str, Sequence[Resource]],
) -> dict[str, list[_Member]]:
    groups: dict[str, list[_Member]] = {}
    for item in desired:
        intent = item.intent
        found = resources.get(intent.id)
        own = found[0].name if found else names.resource_name(intent.name, intent.id)
        name = intent.properties.get(names.MODEL_PROPERTY) or own
        episodes = read_episodes(observed.records.get(intent.id, ()))
        running = any(e.open and e.state is RecordState.RUNNING for e in episodes)
        groups.setdefault(name, []).append(_Member(intent, found[0] if found else None, running))
    return groups


def _plan_body(
    name: str,
    members: Sequence[_Member],
    existing: Resource | None,
    observed: Observed,
    policy: Policy,
) -> Json | None:
    """Return the model that is wanted, None where nothing is there to send to."""
    if existing is not None and existing.labels.get(names.MANAGED_BY) != names.FIELD_MANAGER:
        raise _Doubt("ModelNameTaken", f"InferenceModel {name} belongs to somebody else")
    present = _target_names(existing)
    wanted = [member for member in members if _is_target(member, present)]
    if not wanted:
        return None
    if not names.is_resource_name(name):
        raise _Doubt("ModelNameRefused", f"{name!r} cannot be the name of an InferenceModel")
    return _body(name, wanted, observed, policy)


def _plan_step(
    name: str, members: Sequence[_Member], existing: Resource | None, body: Json | None
) -> ApplyModel | DeleteModel | None:
    leaving = frozenset(m.intent.id for m in members if not m.intent.deployed)
    if body is None:
        if existing is None or existing.terminating or any(m.intent.deployed for m in members):
            return None
        return DeleteModel(name, existing.uid, leaving)
    if existing is None:
        return ApplyModel(body, create=True)
    if delta(body, existing.body, names.FIELD_MANAGER):
        return ApplyModel(body, create=False, leaving=leaving)
    return None


def _is_target(member: _Member, present: frozenset[str]) -> bool:
    resource = member.resource
    if not member.intent.deployed or resource is None or resource.terminating:
        return False
    if _weight(member.intent) == 0:
        return False
    return member.running or resource.name in present


def _body(name: str, wanted: Sequence[_Member], observed: Observed, policy: Policy) -> Json:
    if len(wanted) > MAX_TARGETS:
        raise _Doubt(
            "TooManyTargets", f"{len(wanted)} targets for {name}, {MAX_TARGETS} are allowed"
        )
    weights = [_weight(member.intent) for member in wanted]
    if any(weight is None for weight in weights) and any(weights):
        raise _Doubt("InvalidWeights", f"{name}: a weight on all of its targets or on none")
    targets = []
    for member, weight in zip(wanted, weights, strict=True):
        assert member.resource is not None
        target: Json = {"name": member.resource.name}
        if weight is not None:
            target["weight"] = weight
        digest = member.resource.annotations.get(names.PIN_ANNOTATION + "sha256")
        if digest:
            target["artifactDigest"] = digest
        targets.append(target)
    pool = _pool(name, wanted, observed, policy)
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": name,
            "namespace": observed.namespace,
            "labels": {names.MANAGED_BY: names.FIELD_MANAGER},
        },
        "spec": {
            "poolRef": {"group": POOL_GROUP, "kind": "InferencePool", "name": pool},
            "targetModels": targets,
        },
    }


def _pool(name: str, wanted: Sequence[_Member], observed: Observed, policy: Policy) -> str:
    pools = {
        observed.runtimes.get(member.intent.runtime or "", {}).get(names.POOL_LABEL) or policy.pool
        for member in wanted
    }
    if len(pools) > 1:
        raise _Doubt("PoolsDiffer", f"{name}: its runtimes name different pools")
    pool = pools.pop()
    if not pool:
        raise _Doubt(
            "NoPool", f"{name}: label the runtime with {names.POOL_LABEL}, or set --inference-pool"
        )
    return pool


def _weight(intent: Intent) -> int | None:
    text = intent.properties.get(names.WEIGHT_PROPERTY)
    if text is None:
        return None
    try:
        weight = int(float(text))
    except (ValueError, OverflowError):
        weight = -1
    if not 0 <= weight <= MAX_WEIGHT:
        raise _Doubt(
            "InvalidWeights", f"weight {text!r} of intent {intent.id} is not 0…{MAX_WEIGHT}"
        )
    return weight


def _target_names(existing: Resource | None) -> frozenset[str]:
    spec = (existing.body.get("spec") or {}) if existing else {}
    return frozenset(str(target.get("name")) for target in spec.get("targetModels") or ())
