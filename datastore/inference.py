"""InferenceModel and InferencePool: from what a manifest says to what can be served.

The API server refuses most of these mistakes before we see them; a file, an older schema or a
webhook gone wrong does not.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import accumulate

from datastore import manifests as m
from datastore.model import Criticality, InferenceModel, InferencePool, ObjectName, TargetModel
from datastore.problems import Path, Problem

MAX_TARGETS = 10
MAX_TARGET_NAME = 253
MAX_WEIGHT = 1_000_000
MAX_PORTS = 8
MAX_PORT = 65_535

INVALID_WEIGHTS = "InvalidWeights"
INVALID_TARGETS = "InvalidTargets"
INVALID_CRITICALITY = "InvalidCriticality"
UNSUPPORTED_POOL_REF = "UnsupportedPoolRef"
INVALID_SELECTOR = "InvalidSelector"
INVALID_PORTS = "InvalidPorts"

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CRITICALITIES = {criticality.value: criticality for criticality in Criticality}

Problems = tuple[Problem, ...]


def decode_model(
    manifest: m.ModelManifest, name: ObjectName
) -> tuple[tuple[InferenceModel], Problems]:
    """Return the model; one that cannot be served says why."""
    spec = manifest.spec
    problems = (
        *_pool_ref_problems(spec.pool_ref),
        *_target_problems(spec.target_models or ()),
        *_criticality_problems(spec.criticality),
    )
    targets = tuple(
        TargetModel(t.name, 1 if t.weight is None else t.weight, t.artifact_digest)
        for t in spec.target_models or ()
    )
    if problems or not targets:
        targets = (TargetModel(name.name),)
    return (
        (
            InferenceModel(
                name=name,
                pool=ObjectName(name.namespace, spec.pool_ref.name),
                targets=targets,
                cumulative=tuple(accumulate(target.weight for target in targets)),
                criticality=_CRITICALITIES.get(spec.criticality or "", Criticality.STANDARD),
                created_s=seconds(manifest.metadata.creation_timestamp),
                generation=manifest.metadata.generation or 0,
                uid=manifest.metadata.uid or "",
                deprecated_model_name=spec.model_name or None,
                invalid="; ".join(map(str, problems)) or None,
                invalid_reason=problems[0].reason if problems else None,
            ),
        ),
        problems,
    )


def decode_pool_v1(
    manifest: m.PoolManifestV1, name: ObjectName
) -> tuple[tuple[InferencePool], Problems]:
    """Return the pool of `inference.networking.k8s.io/v1`."""
    spec = manifest.spec
    picker = spec.endpoint_picker_ref
    return _pool(
        manifest.metadata,
        name,
        m.V1_GROUP,
        selector=(spec.selector and spec.selector.match_labels) or {},
        selector_path=("spec", "selector", "matchLabels"),
        ports=[
            (("spec", "targetPorts", i, "number"), port.number)
            for i, port in enumerate(spec.target_ports or ())
        ],
        ports_path=("spec", "targetPorts"),
        picker=_service(picker),
    )


def decode_pool_v1alpha2(
    manifest: m.PoolManifestV1Alpha2, name: ObjectName
) -> tuple[tuple[InferencePool], Problems]:
    """Return the pool of `inference.networking.x-k8s.io/v1alpha2`."""
    spec = manifest.spec
    picker = spec.extension_ref
    port_path: Path = ("spec", "targetPortNumber")
    return _pool(
        manifest.metadata,
        name,
        m.X_GROUP,
        selector=spec.selector or {},
        selector_path=("spec", "selector"),
        ports=[] if spec.target_port_number is None else [(port_path, spec.target_port_number)],
        ports_path=port_path,
        picker=_service(picker),
    )


def _pool(
    metadata: m.Metadata,
    name: ObjectName,
    group: str,
    *,
    selector: dict[str, str],
    selector_path: Path,
    ports: Sequence[tuple[Path, int]],
    ports_path: Path,
    picker: str | None,
) -> tuple[tuple[InferencePool], Problems]:
    problems = (
        *_selector_problems(selector, selector_path),
        *_port_problems(ports, ports_path),
    )
    pool = InferencePool(
        name=name,
        selector=tuple(sorted(selector.items())),
        ports=tuple(dict.fromkeys(port for _, port in ports)),
        group=group,
        picker_service=picker,
        generation=metadata.generation or 0,
        invalid="; ".join(map(str, problems)) or None,
    )
    return (pool,), problems


def _service(ref: m.PickerRef | m.ExtensionRef | None) -> str | None:
    """Return the Service's name, or None where the reference is to something else."""
    if ref is None or ref.group or ref.kind not in (None, "", "Service"):
        return None
    return ref.name or None


def _pool_ref_problems(ref: m.PoolRef) -> Iterator[Problem]:
    path: Path = ("spec", "poolRef")
    if ref.kind not in (None, "", "InferencePool"):
        yield Problem(
            (*path, "kind"),
            f"{ref.kind} is not supported",
            "use InferencePool",
            UNSUPPORTED_POOL_REF,
        )
    if ref.group not in (None, "", m.X_GROUP, m.V1_GROUP):
        yield Problem(
            (*path, "group"),
            f"{ref.group} is not supported",
            f"use {m.V1_GROUP} or {m.X_GROUP}",
            UNSUPPORTED_POOL_REF,
        )
    if not ref.name:
        yield Problem((*path, "name"), "is empty", "name an InferencePool", UNSUPPORTED_POOL_REF)


def _target_problems(targets: Sequence[m.Target]) -> Iterator[Problem]:
    path: Path = ("spec", "targetModels")
    if len(targets) > MAX_TARGETS:
        yield Problem(
            path, f"{len(targets)} targets, at most {MAX_TARGETS} are allowed", "", INVALID_TARGETS
        )
    weighted = [target for target in targets if target.weight is not None]
    if weighted and len(weighted) < len(targets):
        first = next(i for i, target in enumerate(targets) if target.weight is None)
        yield Problem(
            (*path, first, "weight"),
            "is missing, and another target has one",
            "give every target a weight, or none",
            INVALID_WEIGHTS,
        )
    for index, target in enumerate(targets):
        yield from _one_target_problems(target, (*path, index))


def _one_target_problems(target: m.Target, path: Path) -> Iterator[Problem]:
    if not target.name:
        yield Problem((*path, "name"), "is empty", "name the model", INVALID_TARGETS)
    elif len(target.name) > MAX_TARGET_NAME:
        yield Problem(
            (*path, "name"), f"is longer than {MAX_TARGET_NAME} characters", "", INVALID_TARGETS
        )
    elif not target.name.isprintable():
        yield Problem(
            (*path, "name"), "holds a character that cannot be printed", "", INVALID_TARGETS
        )
    if target.weight is not None and not 1 <= target.weight <= MAX_WEIGHT:
        yield Problem(
            (*path, "weight"),
            "is out of range",
            f"use 1 to {MAX_WEIGHT}; to send it nothing, remove the target",
            INVALID_WEIGHTS,
        )
    if target.artifact_digest is not None and not _DIGEST.fullmatch(target.artifact_digest):
        yield Problem(
            (*path, "artifactDigest"),
            "is not a digest",
            "write sha256: and 64 hexadecimal digits in lower case",
            INVALID_TARGETS,
        )


def _criticality_problems(criticality: str | None) -> Iterator[Problem]:
    if criticality is not None and criticality not in _CRITICALITIES:
        yield Problem(
            ("spec", "criticality"),
            "is not known",
            f"use one of {', '.join(_CRITICALITIES)}",
            INVALID_CRITICALITY,
        )


def _selector_problems(selector: dict[str, str], path: Path) -> Iterator[Problem]:
    if not selector:
        yield Problem(
            path,
            "is empty, so the pool has no members",
            "name the labels of the model servers",
            INVALID_SELECTOR,
        )


def _port_problems(ports: Sequence[tuple[Path, int]], path: Path) -> Iterator[Problem]:
    if not ports:
        yield Problem(path, "is missing", "name the model servers' port", INVALID_PORTS)
    if len(ports) > MAX_PORTS:
        yield Problem(
            path, f"{len(ports)} ports, at most {MAX_PORTS} are allowed", "", INVALID_PORTS
        )
    seen: set[int] = set()
    for where, port in ports:
        if not 1 <= port <= MAX_PORT:
            yield Problem(where, "is out of range", f"use 1 to {MAX_PORT}", INVALID_PORTS)
        elif port in seen:
            yield Problem(where, f"{port} is there twice", "remove one", INVALID_PORTS)
        seen.add(port)


def seconds(timestamp: str | None) -> int:
    """Return an RFC 3339 time in seconds since 1970; what cannot be read is 0."""
    try:
        moment = datetime.fromisoformat(timestamp or "1970-01-01T00:00:00Z")
        return max(0, int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()))
    except (ValueError, OverflowError):
        return 0
