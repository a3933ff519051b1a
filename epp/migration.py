"""From InferenceModels that carry spec.modelName to those whose name is metadata.name.

Pure: objects in, a plan out.  A name that clients send and Kubernetes can spell becomes the
object's name.  One that it cannot spell is not decided here: it is reported, with a proposal.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

GROUP = "inference.networking.x-k8s.io"
API_VERSION = f"{GROUP}/v1alpha2"
REPLACED = "epp.inference/replaced-model-name"
"""An annotation: clients were told to ask for metadata.name instead of this spec.modelName."""
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@dataclass(frozen=True, slots=True)
class Step:
    """One object that changes: `before` None = it is made, `after` None = it is deleted."""

    namespace: str
    name: str
    before: Json | None
    after: Json | None


@dataclass(frozen=True, slots=True)
class Finding:
    """An object that cannot be carried over as it is, why, and what to do."""

    namespace: str
    name: str
    problem: str
    way_out: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done: first what makes or changes objects, then what deletes them."""

    steps: tuple[Step, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Choices:
    """What a person has decided.

    `renames` gives a spelling for a model name; `accept_proposals` takes ours for all others.
    `drop_model_name` gives up the way back to an older controller, which needs spec.modelName.
    """

    renames: Mapping[str, str] = field(default_factory=dict)
    accept_proposals: bool = False
    drop_model_name: bool = False


def is_model(obj: Any) -> bool:
    """Tell whether this is an InferenceModel, of whatever version."""
    return (
        isinstance(obj, dict)
        and obj.get("kind") == "InferenceModel"
        and str(obj.get("apiVersion", "")).startswith(f"{GROUP}/")
        and isinstance(obj.get("metadata"), dict)
        and isinstance(obj["metadata"].get("name"), str)
    )


def plan(models: Sequence[Json], choices: Choices, namespace: str = "default") -> Plan:
    """Plan the migration of these objects, which are all there are in their namespaces."""
    spaces: dict[str, list[Json]] = {}
    for model in models:
        spaces.setdefault(model["metadata"].get("namespace") or namespace, []).append(model)
    found = [_Space(name, objects, choices).plan() for name, objects in sorted(spaces.items())]
    steps = [step for one in found for step in one.steps]
    return Plan(
        tuple(sorted(steps, key=lambda step: step.after is None)),
        tuple(finding for one in found for finding in one.findings),
    )


class _Space:
    """One namespace on its way."""

    def __init__(self, namespace: str, models: Sequence[Json], choices: Choices) -> None:
        self._namespace = namespace
        self._models = sorted(models, key=lambda one: (_wanted(one) != _name(one), _age(one)))
        self._choices = choices
        self._findings: list[Finding] = []
        self._after: dict[str, Json] = {}
        self._source: dict[str, Json] = {}
        self._kept: set[str] = set()

    def plan(self) -> Plan:
        """Name every object: those that are right already first, then the oldest; see what changes.

        The old controller served the oldest of several objects with one name.
        """
        served: dict[str, Json] = {}
        for model in self._models:
            wanted = _wanted(model)
            if wanted in served:
                self._keep_duplicate(model, served[wanted])
                continue
            served[wanted] = model
            self._move(model, wanted)
        while stuck := [n for n in sorted(self._kept) if n in self._after]:
            for name in stuck:
                self._after.pop(name)
                text = f"{name} is what it would be called, and that object cannot be moved away"
                self._keep(self._source.pop(name), text, f"settle {name} first")
        return Plan(tuple(self._steps()), tuple(self._findings))

    def _move(self, model: Json, wanted: str) -> None:
        if wanted == _name(model):
            self._place(model, wanted)
            return
        spelled = self._choices.renames.get(wanted, wanted)
        proposal = propose(spelled)
        if spelled != proposal:
            if not self._choices.accept_proposals or not proposal:
                self._keep(model, f"no object can be named {wanted!r}", _impossible(proposal))
                return
            spelled = proposal
        if spelled in self._after:
            text = f"{wanted!r} would be {spelled}, and that name is taken by another model"
            self._keep(model, text, f"choose another name: --rename '{wanted}=NAME'")
            return
        self._place(model, spelled)

    def _place(self, model: Json, name: str) -> None:
        self._after[name] = self._renamed(model, name)
        self._source[name] = model

    def _keep_duplicate(self, model: Json, first: Json) -> None:
        pools = {_pool(model), _pool(first)}
        older, wanted = _name(first), _wanted(model)
        if len(pools) == 1:
            text = (
                f"{wanted!r} is the name of {older} too, which comes first: this one never served"
            )
            way_out = "delete it, or give it a name of its own: spec.modelName, or --rename"
        else:
            text = f"{wanted!r} is the name of {older} too, in another pool"
            way_out = (
                "a name is unique in its namespace now: move one of the two pools with its models "
                "to another namespace, or let clients of one ask for another name"
            )
        self._keep(model, text, way_out)

    def _keep(self, model: Json, problem: str, way_out: str) -> None:
        name = _name(model)
        self._kept.add(name)
        self._findings.append(Finding(self._namespace, name, problem, way_out))

    def _renamed(self, model: Json, name: str) -> Json:
        metadata = model["metadata"]
        annotations = dict(metadata.get("annotations") or {})
        annotations.pop(LAST_APPLIED, None)
        kept: Json = {"name": name}
        if "namespace" in metadata:
            kept["namespace"] = metadata["namespace"]
        if metadata.get("labels"):
            kept["labels"] = metadata["labels"]
        if _wanted(model) != name and not self._choices.drop_model_name:
            annotations[REPLACED] = _wanted(model)
        if annotations:
            kept["annotations"] = annotations
        spec = dict(model["spec"]) if isinstance(model.get("spec"), dict) else {}
        old = spec.get("modelName")
        if self._choices.drop_model_name:
            spec.pop("modelName", None)
        if old and old != name and not spec.get("targetModels"):
            spec["targetModels"] = [{"name": old}]
        return {"apiVersion": API_VERSION, "kind": "InferenceModel", "metadata": kept, "spec": spec}

    def _steps(self) -> Iterator[Step]:
        before = {_name(model): model for model in self._models}
        for name, after in sorted(self._after.items()):
            old = before.get(name)
            if name in self._kept:
                continue
            if old is None or _comparable(old) != _comparable(after):
                yield Step(self._namespace, name, old, after)
        for name, old in sorted(before.items()):
            if name not in self._after and name not in self._kept:
                yield Step(self._namespace, name, old, None)


def propose(name: str) -> str:
    """Return the nearest name that Kubernetes can spell; the same one if it can already."""
    text = re.sub(r"[^a-z0-9.-]+", "-", name.lower())
    text = re.sub(r"\.+", ".", re.sub(r"-*\.-*", ".", text)).strip("-.")
    text = text[:253].rstrip("-.")
    return text if _NAME.fullmatch(text) else ""


def _impossible(proposal: str) -> str:
    example = proposal or "NAME"
    return (
        f"let clients ask for {example} and keep the old name as the target: --accept-proposals, "
        f"or --rename 'OLD={example}' with a name of your own"
    )


def _name(model: Json) -> str:
    name: str = model["metadata"]["name"]
    return name


def _wanted(model: Json) -> str:
    """Return what clients ask for at present."""
    spec = model.get("spec")
    name = spec.get("modelName") if isinstance(spec, dict) else None
    replaced = (model["metadata"].get("annotations") or {}).get(REPLACED)
    return name if isinstance(name, str) and name not in ("", replaced) else _name(model)


def _pool(model: Json) -> str:
    spec = model.get("spec")
    ref = spec.get("poolRef") if isinstance(spec, dict) else None
    return str(ref.get("name", "")) if isinstance(ref, dict) else ""


def _age(model: Json) -> tuple[str, str]:
    metadata = model["metadata"]
    return str(metadata.get("creationTimestamp") or "9999"), metadata["name"]


def _comparable(model: Json) -> Any:
    metadata = model["metadata"]
    return model.get("spec"), metadata.get("labels"), model.get("apiVersion")
