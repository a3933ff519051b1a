"""Pods and EndpointSlices: what a pool's selector can match, and whether it can take requests."""

import ipaddress
import re
from collections.abc import Iterator

import msgspec

from datastore import manifests as m
from datastore.model import Backend, ObjectName
from datastore.problems import Path, Problem

ACTIVE_PORTS_ANNOTATION = "inference.networking.k8s.io/active-ports"
ARTIFACT_DIGEST_ANNOTATION = "epp.inference/artifact-digest"
MAX_PORT = 65_535

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class _FetchReport(msgspec.Struct, frozen=True):
    """What a storage initializer leaves as its termination message."""

    digest: str | None = None


_REPORT = msgspec.json.Decoder(_FetchReport)


def decode_pod(
    manifest: m.PodManifest, name: ObjectName
) -> tuple[tuple[Backend], tuple[Problem, ...]]:
    """Return the pod; it is ready when its Ready condition is true and it has an address."""
    status = manifest.status or m.PodStatus()
    raw = status.pod_ip or next((ip.ip for ip in status.pod_ips or () if ip.ip), None) or ""
    address = canonical_address(raw)
    problems: tuple[Problem, ...] = ()
    if raw and address is None:
        problems = (Problem(("status", "podIP"), "is not an IP address"),)
    annotations = manifest.metadata.annotations or {}
    backend = Backend(
        name=name,
        uid=manifest.metadata.uid or str(name),
        address=address or "",
        ready=address is not None and _is_ready(status),
        labels=manifest.metadata.labels or {},
        active_ports=_active_ports(annotations),
        artifact_digest=_digest(annotations, status),
        annotations=annotations,
    )
    return (backend,), problems


def decode_endpoint_slice(
    manifest: m.EndpointSliceManifest, name: ObjectName
) -> tuple[tuple[Backend, ...], tuple[Problem, ...]]:
    """Return one backend for each address of the slice, named `<slice>/<address>`."""
    if manifest.address_type not in ("IPv4", "IPv6"):
        problem = Problem(
            ("addressType",), f"{manifest.address_type} is not supported", "use IPv4 or IPv6"
        )
        return (), (problem,)
    problems = list(_slice_port_problems(manifest))
    backends: dict[ObjectName, Backend] = {}
    for path, raw, endpoint in _addresses(manifest):
        address = canonical_address(raw)
        if address is None:
            problems.append(Problem(path, "is not an IP address"))
            continue
        backend = _slice_backend(manifest, name, endpoint, address)
        if backend.name in backends and not backend.ready:
            continue  # a pod that ends and its successor can share an address for a while
        backends[backend.name] = backend
    return tuple(backends.values()), tuple(problems)


def canonical_address(text: str) -> str | None:
    """Return an IP address in its one usual spelling, or None for anything else."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return None if getattr(address, "scope_id", None) else str(address)


def _addresses(
    manifest: m.EndpointSliceManifest,
) -> Iterator[tuple[Path, str, m.SliceEndpoint]]:
    for i, endpoint in enumerate(manifest.endpoints or ()):
        for j, address in enumerate(endpoint.addresses):
            yield ("endpoints", i, "addresses", j), address, endpoint


def _slice_backend(
    manifest: m.EndpointSliceManifest, name: ObjectName, endpoint: m.SliceEndpoint, address: str
) -> Backend:
    conditions = endpoint.conditions or m.EndpointConditions()
    target = endpoint.target_ref
    own_name = ObjectName(name.namespace, f"{name.name}/{address}")
    annotations = manifest.metadata.annotations or {}
    return Backend(
        name=own_name,
        uid=(target.uid if target is not None else None) or str(own_name),
        address=address,
        ready=conditions.ready is not False and not conditions.terminating,
        labels=manifest.metadata.labels or {},
        ports=tuple(
            port.port
            for port in manifest.ports or ()
            if port.port is not None
            and 1 <= port.port <= MAX_PORT
            and port.protocol in (None, "", "TCP")
        ),
        active_ports=_active_ports(annotations),
        artifact_digest=_annotated_digest(annotations),
        annotations=annotations,
    )


def _slice_port_problems(manifest: m.EndpointSliceManifest) -> Iterator[Problem]:
    for index, port in enumerate(manifest.ports or ()):
        if port.port is not None and not 1 <= port.port <= MAX_PORT:
            yield Problem(("ports", index, "port"), "is out of range", f"use 1 to {MAX_PORT}")


def _is_ready(status: m.PodStatus) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in status.conditions or ())


def _active_ports(annotations: dict[str, str]) -> tuple[int, ...] | None:
    """Return the ports that the annotation lists (None = all); unreadable ones are left out."""
    text = annotations.get(ACTIVE_PORTS_ANNOTATION)
    if text is None:
        return None
    ports = (part.strip() for part in text.split(","))
    return tuple(
        dict.fromkeys(
            int(port)
            for port in ports
            if port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= MAX_PORT
        )
    )


def _annotated_digest(annotations: dict[str, str]) -> str | None:
    digest = annotations.get(ARTIFACT_DIGEST_ANNOTATION, "")
    return digest if _DIGEST.fullmatch(digest) else None


def _digest(annotations: dict[str, str], status: m.PodStatus) -> str | None:
    """Return what the pod serves, as its annotation says, else as its init container reports."""
    found = _annotated_digest(annotations)
    if found is not None:
        return found
    for container in status.init_container_statuses or ():
        ended = container.state.terminated if container.state is not None else None
        if ended is not None and ended.message and not ended.exit_code:
            found = _reported_digest(ended.message.strip())
            if found is not None:
                return found
    return None


def _reported_digest(message: str) -> str | None:
    if _DIGEST.fullmatch(message):
        return message
    try:
        digest = _REPORT.decode(message).digest or ""
    except (ValueError, RecursionError):
        return None
    return digest if _DIGEST.fullmatch(digest) else None
