"""What a resource's status says of the version that we wrote: serving, failed, or not yet.

KServe copies generations of other objects into `status.observedGeneration`, so that number proves
nothing.  What does: our write changed the spec (`metadata.generation` moved) and the status is no
longer the one from before it.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from registry.audit import GENERATION_BEFORE, STATUS_BEFORE, UID_BEFORE
from registry.model import Json, Resource


class Progress(Enum):
    """How far a resource is."""

    PENDING = "pending"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Health:
    """A resource's progress, and why it failed where it did."""

    progress: Progress
    reason: str = ""
    message: str = ""


PENDING = Health(Progress.PENDING)
_FAILED_TRANSITIONS = frozenset({"BlockedByFailedLoad", "InvalidSpec"})


def status_digest(status: Json) -> str:
    """Return what tells one status from another; empty for none."""
    if not status:
        return ""
    text = json.dumps(status, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def before_write(resource: Resource | None) -> dict[str, str]:
    """Return what a record keeps of the resource as it is before our write."""
    if resource is None:
        return {}
    digest = status_digest(resource.status)
    kept = {UID_BEFORE: resource.uid, GENERATION_BEFORE: str(resource.generation)}
    return {**kept, STATUS_BEFORE: digest} if digest else kept


def health(resource: Resource, before: Mapping[str, str], written: str | None) -> Health:
    """Return how far the resource is with what we wrote.

    `before` are the record's properties, `written` the digest of the status that came back with
    our write, where this process still knows it.
    """
    if not _moved(resource, before, written):
        return PENDING
    model = resource.status.get("modelStatus") or {}
    transition = model.get("transitionStatus") or "UpToDate"
    failure = model.get("lastFailureInfo") or {}
    target = (model.get("states") or {}).get("targetModelState")
    if transition in _FAILED_TRANSITIONS or target == "FailedToLoad":
        reason = str(failure.get("reason") or transition)
        return Health(Progress.FAILED, reason, str(failure.get("message") or ""))
    if transition == "UpToDate" and _is_ready(resource.status.get("conditions") or ()):
        return Health(Progress.READY)
    return PENDING


def _moved(resource: Resource, before: Mapping[str, str], written: str | None) -> bool:
    if GENERATION_BEFORE not in before:
        return True  # there was no resource: any status is newer than our write
    if before.get(UID_BEFORE, resource.uid) != resource.uid:
        return True  # that was another one, which is gone
    if before[GENERATION_BEFORE] == str(resource.generation):
        return True  # our write changed labels only: there is nothing to wait for
    digest = status_digest(resource.status)
    return digest not in (before.get(STATUS_BEFORE, ""), written)


def _is_ready(conditions: Iterable[Json]) -> bool:
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)
