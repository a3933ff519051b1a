"""InferenceObjectives and InferenceModelRewrites: what says how to treat a request.

Optional kinds, in two API groups.  Where both groups have an object of the same name, the newer
group (`llm-d.ai`) wins.  Small values, kept beside the store because nothing joins them to pools
until a request comes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import msgspec

from datastore.changes import Change, Decode, Item, Listed, Lost, Seen
from datastore.holdings import Holdings
from datastore.inference import seconds
from datastore.manifests import X_GROUP, Metadata, Part, PoolRef, Resource
from datastore.model import ObjectName, TargetModel
from datastore.problems import BadManifest, Problem

LLMD_GROUP = "llm-d.ai"
OBJECTIVE = Resource(X_GROUP, "v1alpha2", "InferenceObjective", "inferenceobjectives")
OBJECTIVE_LLMD = Resource(LLMD_GROUP, "v1alpha2", "InferenceObjective", "inferenceobjectives")
REWRITE = Resource(X_GROUP, "v1alpha2", "InferenceModelRewrite", "inferencemodelrewrites")
REWRITE_LLMD = Resource(LLMD_GROUP, "v1alpha2", "InferenceModelRewrite", "inferencemodelrewrites")
POLICY_RESOURCES = (OBJECTIVE, OBJECTIVE_LLMD, REWRITE, REWRITE_LLMD)


@dataclass(frozen=True, slots=True)
class Objective:
    """How much requests that name it matter: higher is more, below zero may be shed."""

    name: ObjectName
    pool: ObjectName
    priority: int = 0
    group: str = X_GROUP


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """For these model names (none = all of them), one of these targets, drawn by weight."""

    models: tuple[str, ...]
    targets: tuple[TargetModel, ...]
    cumulative: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Rules that replace the model of a request to a pool; the first that matches counts."""

    name: ObjectName
    pool: ObjectName
    rules: tuple[RewriteRule, ...]
    created_s: int = 0
    group: str = X_GROUP


Policy = Objective | Rewrite


class _ObjectiveSpec(Part, frozen=True):
    pool_ref: PoolRef
    priority: int | None = None


class _Objective(Part, frozen=True):
    metadata: Metadata
    spec: _ObjectiveSpec


class _ModelMatch(Part, frozen=True):
    value: str
    type: str | None = None


class _Match(Part, frozen=True):
    model: _ModelMatch


class _Target(Part, frozen=True):
    model_rewrite: str
    weight: int | None = None


class _Rule(Part, frozen=True):
    targets: list[_Target]
    matches: list[_Match] | None = None


class _RewriteSpec(Part, frozen=True):
    pool_ref: PoolRef
    rules: list[_Rule] | None = None


class _Rewrite(Part, frozen=True):
    metadata: Metadata
    spec: _RewriteSpec


def policy_decoder(resource: Resource) -> Decode[Policy]:
    """Return what reads the objects of one of these resources."""
    is_objective = resource.kind == "InferenceObjective"
    struct: Any = _Objective if is_objective else _Rewrite
    typed: msgspec.json.Decoder[Any] = msgspec.json.Decoder(struct)
    read: Callable[[Any, ObjectName, str], Policy] = _objective if is_objective else _rewrite

    def decode(raw: msgspec.Raw) -> Item[Policy]:
        try:
            manifest = typed.decode(raw)
        except (ValueError, RecursionError) as error:
            problem = Problem((), f"{resource.kind} cannot be read: {error}")
            raise BadManifest((problem,)) from error
        metadata: Metadata = manifest.metadata
        name = ObjectName(metadata.namespace or "default", metadata.name)
        gone = metadata.deletion_timestamp is not None
        value = None if gone else read(manifest, name, resource.group)
        return Item(name, metadata.resource_version or "", value)

    return decode


def _objective(manifest: _Objective, name: ObjectName, group: str) -> Objective:
    pool = ObjectName(name.namespace, manifest.spec.pool_ref.name)
    return Objective(name, pool, manifest.spec.priority or 0, group)


def _rewrite(manifest: _Rewrite, name: ObjectName, group: str) -> Rewrite:
    pool = ObjectName(name.namespace, manifest.spec.pool_ref.name)
    rules = tuple(_rules(manifest.spec.rules or ()))
    return Rewrite(name, pool, rules, seconds(manifest.metadata.creation_timestamp), group)


def _rules(rules: Sequence[_Rule]) -> Iterator[RewriteRule]:
    for rule in rules:
        if not rule.targets:
            continue
        weighted = all(target.weight for target in rule.targets)
        targets = tuple(
            TargetModel(target.model_rewrite, (target.weight or 1) if weighted else 1)
            for target in rule.targets
        )
        models = tuple(match.model.value for match in rule.matches or ())
        yield RewriteRule(models, targets, tuple(accumulate(t.weight for t in targets)))


class Policies:
    """Every objective and rewrite.  Written by the watches, through `take`."""

    def __init__(self) -> None:
        self._objectives: Holdings[Objective] = Holdings(_rank)
        self._rewrites: Holdings[Rewrite] = Holdings(_rank)

    def objective(self, name: ObjectName) -> Objective | None:
        """Return the objective of that name."""
        return self._objectives.current.get(name)

    def rewrites_of(self, pool: ObjectName) -> Sequence[Rewrite]:
        """Return a pool's rewrites, oldest first (of the same age: by name)."""
        found = [one for one in self._rewrites.current.values() if one.pool == pool]
        return sorted(found, key=lambda one: (one.created_s, one.name))

    def take(self, resource: Resource, source: str, changes: Sequence[Change[Policy]]) -> None:
        """Take what a watch told."""
        is_objective = resource.kind == "InferenceObjective"
        holdings: Holdings[Any] = self._objectives if is_objective else self._rewrites
        for change in changes:
            match change:
                case Seen(value=value):
                    holdings.set(value, source)
                case Lost(name=name):
                    holdings.remove(name, source)
                case Listed(gone=gone):
                    for name in gone:
                        holdings.remove(name, source)


def _rank(policy: Policy) -> int:
    return 0 if policy.group == LLMD_GROUP else 1
