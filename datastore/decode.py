"""Kubernetes objects and manifests in, values out.

Two doors: `decode_json` for what an API server sends (typed from the bytes, no dictionaries in
between) and `decode_object` for what a file held.  Whatever comes in, the only exception that comes
out is `BadManifest`.  An object that can be read but not served is a value that says so
(`invalid`), since in a cluster it exists and its status must tell; `Decoded.problems` has the
details for those who may refuse it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from datastore import manifests as m
from datastore.backends import decode_endpoint_slice, decode_pod
from datastore.inference import decode_model, decode_pool_v1, decode_pool_v1alpha2
from datastore.model import Backend, InferenceModel, InferencePool, ObjectName
from datastore.problems import BadManifest, Problem
from datastore.shape import departures, unknown_fields

Value = InferenceModel | InferencePool | Backend


@dataclass(frozen=True, slots=True)
class Decoded:
    """One object, read.

    `values` is empty when the object is being deleted (`gone`).  An EndpointSlice has many
    backends, and not always the same ones: a watch says `Replaced` of them, each slice being a
    source of its own.
    `problems` say why a value is `invalid`, or what is odd about it.
    """

    resource: m.Resource
    name: ObjectName
    values: tuple[Value, ...]
    gone: bool = False
    resource_version: str = ""
    problems: tuple[Problem, ...] = ()

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that keep it from being served."""
        return tuple(p for p in self.problems if p.severity == "error")


@dataclass(frozen=True, slots=True)
class _Door:
    """How one resource is read."""

    struct: type[Any]
    decoder: "msgspec.json.Decoder[Any]"
    read: Callable[[Any, ObjectName], tuple[tuple[Value, ...], tuple[Problem, ...]]]


_DOORS: dict[m.Resource, _Door] = {
    resource: _Door(struct, msgspec.json.Decoder(struct), read)
    for resource, struct, read in (
        (m.INFERENCE_MODEL, m.ModelManifest, decode_model),
        (m.INFERENCE_POOL_V1, m.PoolManifestV1, decode_pool_v1),
        (m.INFERENCE_POOL_V1ALPHA2, m.PoolManifestV1Alpha2, decode_pool_v1alpha2),
        (m.POD, m.PodManifest, decode_pod),
        (m.ENDPOINT_SLICE, m.EndpointSliceManifest, decode_endpoint_slice),
    )
}

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_BY_NAME = {(resource.api_version, resource.kind): resource for resource in m.RESOURCES}


def resource_of(raw: object) -> m.Resource | None:
    """Return the resource that a manifest says it is, or None for one that we do not read."""
    if not isinstance(raw, Mapping):
        raise BadManifest((Problem((), "expected a Kubernetes object: a mapping"),))
    missing = [
        Problem((key,), "is missing or is not text", f"add {key}")
        for key in ("apiVersion", "kind")
        if not isinstance(raw.get(key), str)
    ]
    if missing:
        raise BadManifest(tuple(missing))
    return _BY_NAME.get((raw["apiVersion"], raw["kind"]))


def decode_object(raw: object, namespace: str = "default") -> Decoded:
    """Read a manifest; `namespace` is where it belongs when it does not say so itself."""
    resource = resource_of(raw)
    if resource is None:
        assert isinstance(raw, Mapping)
        problem = Problem(("kind",), f"{raw['kind']} of {raw['apiVersion']} is not read here")
        raise BadManifest((problem,))
    door = _DOORS[resource]
    try:
        manifest = msgspec.convert(raw, door.struct)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadManifest(_explain(raw, door.struct, error)) from error
    return _read(resource, door, manifest, namespace)


def decode_json(data: bytes | msgspec.Raw, resource: m.Resource) -> Decoded:
    """Read one object as the API server sends it."""
    door = _DOORS[resource]
    try:
        manifest = door.decoder.decode(data)
    except (ValueError, RecursionError) as error:
        raise BadManifest(_explain_json(data, door.struct, error)) from error
    return _read(resource, door, manifest, "default")


def misspelled_fields(raw: object) -> tuple[Problem, ...]:
    """Return a warning for each field of a manifest that no schema has."""
    resource = resource_of(raw)
    return tuple(unknown_fields(raw, _DOORS[resource].struct)) if resource else ()


def _read(resource: m.Resource, door: _Door, manifest: Any, namespace: str) -> Decoded:
    metadata: m.Metadata = manifest.metadata
    name = ObjectName(metadata.namespace or namespace, metadata.name)
    gone = metadata.deletion_timestamp is not None
    values, problems = ((), ()) if gone else door.read(manifest, name)
    return Decoded(
        resource,
        name,
        values,
        gone,
        metadata.resource_version or "",
        _name_problems(name) + problems,
    )


def _name_problems(name: ObjectName) -> tuple[Problem, ...]:
    """Say what the API server would: a file can hold a name that no cluster can."""
    problems = []
    if len(name.name) > 253 or not _SUBDOMAIN.fullmatch(name.name):
        problems.append(
            Problem(
                ("metadata", "name"),
                "is not a name that Kubernetes allows",
                "use lower-case letters, digits, - and . (an InferenceModel's targetModels may be"
                " named anything)",
                "InvalidName",
            )
        )
    if len(name.namespace) > 63 or not _LABEL.fullmatch(name.namespace):
        problems.append(
            Problem(
                ("metadata", "namespace"),
                "is not a name that Kubernetes allows",
                "use lower-case letters, digits and -",
                "InvalidName",
            )
        )
    return tuple(problems)


def _explain(raw: object, struct: type[Any], error: Exception) -> tuple[Problem, ...]:
    """Say every way in which the object is not what it should be."""
    try:
        found = tuple(departures(raw, struct))
    except RecursionError:
        found = ()
    return found or (Problem((), f"cannot be read: {error}"),)


def _explain_json(data: Any, struct: type[Any], error: Exception) -> tuple[Problem, ...]:
    try:
        raw = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return (Problem((), f"is not JSON: {error}"),)
    return _explain(raw, struct, error)
