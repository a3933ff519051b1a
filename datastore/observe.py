"""From what a watch tells to what the store takes: decoders, and events.

An object that is there and cannot be read must not leave its last good version in force: a model
or a pool becomes one that says why it is not served, a pod is no member of anything.
"""

import logging
from collections.abc import Iterator, Sequence

import msgspec

from datastore import manifests as m
from datastore.changes import Change, Decode, Item, Listed, Lost, Seen
from datastore.decode import Value, decode_json
from datastore.events import Deleted, Event, Kind, Upserted
from datastore.inference import INVALID_WEIGHTS, UNSUPPORTED_POOL_REF
from datastore.model import InferenceModel, InferencePool, ObjectName, TargetModel
from datastore.problems import BadManifest

log = logging.getLogger(__name__)

INVALID_SPEC = "InvalidSpec"
KINDS = {
    m.INFERENCE_MODEL: Kind.MODEL,
    m.INFERENCE_POOL_V1: Kind.POOL,
    m.INFERENCE_POOL_V1ALPHA2: Kind.POOL,
    m.POD: Kind.BACKEND,
}


class _Stub(msgspec.Struct):
    metadata: m.Metadata


_STUB = msgspec.json.Decoder(_Stub)


def decoder(resource: m.Resource) -> Decode[Value]:
    """Return what reads the objects of a resource."""

    def decode(raw: msgspec.Raw) -> Item[Value]:
        try:
            found = decode_json(raw, resource)
        except BadManifest as error:
            return _unreadable(raw, resource, error)
        value = found.values[0] if found.values else None
        return Item(found.name, found.resource_version, value)

    return decode


def _unreadable(raw: msgspec.Raw, resource: m.Resource, error: BadManifest) -> Item[Value]:
    """Return an object of which only the name can be read; raise where not even that can be."""
    try:
        metadata = _STUB.decode(raw).metadata
    except (ValueError, RecursionError):
        raise error from None
    name = ObjectName(metadata.namespace or "default", metadata.name)
    log.warning("%s %s cannot be read: %s", resource.kind, name, error)
    version = metadata.resource_version or ""
    if metadata.deletion_timestamp is not None:
        return Item(name, version, None)
    return Item(name, version, _invalid(resource, name, metadata, error))


def _invalid(
    resource: m.Resource, name: ObjectName, metadata: m.Metadata, error: BadManifest
) -> Value | None:
    if resource is m.INFERENCE_MODEL:
        return InferenceModel(
            name=name,
            pool=ObjectName(name.namespace, ""),
            targets=(TargetModel(name.name),),
            cumulative=(1,),
            generation=metadata.generation or 0,
            uid=metadata.uid or "",
            invalid=str(error),
            invalid_reason=_reason(error),
        )
    if KINDS[resource] is Kind.POOL:
        generation = metadata.generation or 0
        return InferencePool(name, (), (), resource.group, None, generation, str(error))
    return None


def _reason(error: BadManifest) -> str:
    if error.problems[0].reason:
        return error.problems[0].reason
    if error.path.startswith("spec.poolRef"):
        return UNSUPPORTED_POOL_REF
    return INVALID_WEIGHTS if error.path.endswith(".weight") else INVALID_SPEC


def events(changes: Sequence[Change[Value]], kind: Kind, source: str) -> Iterator[Event]:
    """Yield the store's events for what a watch of this kind told; `source` names the watch."""
    for change in changes:
        match change:
            case Seen(value=value):
                yield Upserted(value, source)
            case Lost(name=name):
                yield Deleted(kind, name, source)
            case Listed(gone=gone):
                # The rest of a `Replaced` is in the store already; naming it all again would be
                # one long block.
                for name in gone:
                    yield Deleted(kind, name, source)
