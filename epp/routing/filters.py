"""Narrow a pool's endpoints to those that a request may use.  Each filter may refuse."""

from collections.abc import Sequence
from ipaddress import IPv6Address

from datastore.model import Endpoint, PoolView, TargetModel
from epp.errors import ArtifactMismatch, NoReadyEndpoint, SubsetUnmatched


def ready(view: PoolView) -> Sequence[Endpoint]:
    """Return the pool's ready endpoints.  Raises NoReadyEndpoint."""
    if not view.endpoints:
        raise NoReadyEndpoint(f"InferencePool {view.pool.name} has no ready endpoint.")
    return view.endpoints


def in_subset(endpoints: Sequence[Endpoint], subset: Sequence[str]) -> Sequence[Endpoint]:
    """Return the endpoints that the gateway's hint allows.  Raises SubsetUnmatched.

    An entry is `ip:port`, or an `ip` alone for each of its ports; IPv6 with or without brackets.
    """
    allowed = {*subset, *map(_canonical, subset)}
    matched = [e for e in endpoints if e.authority in allowed or e.address in allowed]
    if not matched:
        raise SubsetUnmatched(
            f"None of the {len(endpoints)} ready endpoints is among the"
            f" {len(subset)} that the gateway allows."
        )
    return matched


def _canonical(entry: str) -> str:
    """Return an IPv6 entry as endpoints are written, any other one as it is."""
    if entry.count(":") < 2:
        return entry
    host, bracket, port = entry.removeprefix("[").partition("]")
    try:
        address = str(IPv6Address(host))
    except ValueError:
        return entry
    if entry.startswith("[") != bool(bracket):
        return entry
    return f"[{address}]{port}" if port else address


def with_artifact(endpoints: Sequence[Endpoint], target: TargetModel) -> Sequence[Endpoint]:
    """Return the endpoints that serve the target's pinned bytes.  Raises ArtifactMismatch."""
    digest = target.artifact_digest
    if digest is None:
        return endpoints
    matched = [endpoint for endpoint in endpoints if endpoint.artifact_digest == digest]
    if not matched:
        raise ArtifactMismatch(
            f"None of the {len(endpoints)} ready endpoints serves {digest},"
            f" which target {target.name} is pinned to."
        )
    return matched
