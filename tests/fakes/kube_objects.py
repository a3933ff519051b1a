"""Kubernetes objects as an API server sees them: resources, selectors, patches, refusals.

Pure: no storage, no sockets.  `kube_storage` and `apiserver` stand on it.
"""

import copy
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
TOO_LARGE = "ResourceVersionTooLarge"


class StatusError(Exception):
    """A refusal: what an API server answers with a `Status` object."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        causes: list[Json] | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.causes = causes or []
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> Json:
        """The `Status` object of this refusal."""
        details: Json = {}
        if self.causes:
            details["causes"] = self.causes
        if self.retry_after_s is not None:
            details["retryAfterSeconds"] = self.retry_after_s
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": details,
            "code": self.code,
        }


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object that the server stores."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    status: bool = False
    custom: bool = False
    schema: Mapping[str, Any] | None = field(default=None, compare=False)

    @property
    def api_version(self) -> str:
        """The `apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """`plural.group`, as messages spell it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def key(self) -> tuple[str, str]:
        """What storage files its objects under: all versions of a kind are one."""
        return self.group, self.plural


def builtin_resources() -> list[Resource]:
    """Return what every cluster has, as far as the programs need it."""
    return [
        Resource("", "v1", "namespaces", "Namespace", namespaced=False, status=True),
        Resource("", "v1", "nodes", "Node", namespaced=False, status=True),
        Resource("", "v1", "pods", "Pod", status=True),
        Resource("", "v1", "services", "Service", status=True),
        Resource("", "v1", "secrets", "Secret"),
        Resource("", "v1", "configmaps", "ConfigMap"),
        Resource("", "v1", "serviceaccounts", "ServiceAccount"),
        Resource("", "v1", "events", "Event"),
        Resource("events.k8s.io", "v1", "events", "Event"),
        Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"),
        Resource("coordination.k8s.io", "v1", "leases", "Lease"),
        Resource(
            "apiextensions.k8s.io",
            "v1",
            "customresourcedefinitions",
            "CustomResourceDefinition",
            namespaced=False,
            status=True,
        ),
    ]


def custom_resources() -> list[Resource]:
    """Return the custom resources of the programs, without a schema: anything goes."""
    x_k8s, k8s, llmd = "inference.networking.x-k8s.io", "inference.networking.k8s.io", "llm-d.ai"
    rows = [
        (x_k8s, "v1alpha2", "inferencemodels", "InferenceModel", True),
        (x_k8s, "v1alpha2", "inferencepools", "InferencePool", True),
        (k8s, "v1", "inferencepools", "InferencePool", True),
        (x_k8s, "v1alpha2", "inferenceobjectives", "InferenceObjective", True),
        (x_k8s, "v1alpha2", "inferencemodelrewrites", "InferenceModelRewrite", True),
        (llmd, "v1alpha2", "inferenceobjectives", "InferenceObjective", True),
        (llmd, "v1alpha2", "inferencemodelrewrites", "InferenceModelRewrite", True),
        ("serving.kserve.io", "v1beta1", "inferenceservices", "InferenceService", True),
        ("serving.kserve.io", "v1alpha1", "servingruntimes", "ServingRuntime", True),
        (
            "serving.kserve.io",
            "v1alpha1",
            "clusterservingruntimes",
            "ClusterServingRuntime",
            False,
        ),
        (
            "serving.kserve.io",
            "v1alpha1",
            "clusterstoragecontainers",
            "ClusterStorageContainer",
            False,
        ),
    ]
    return [
        Resource(group, version, plural, kind, namespaced=namespaced, status=True, custom=True)
        for group, version, plural, kind, namespaced in rows
    ]


def resources_of(crd: Json) -> list[Resource]:
    """Return the served resources of a CustomResourceDefinition, storage version first."""
    spec = crd["spec"]
    versions = sorted(spec["versions"], key=lambda version: not version.get("storage", False))
    return [
        Resource(
            spec["group"],
            version["name"],
            spec["names"]["plural"],
            spec["names"]["kind"],
            namespaced=spec["scope"] == "Namespaced",
            status="status" in (version.get("subresources") or {}),
            custom=True,
            schema=(version.get("schema") or {}).get("openAPIV3Schema"),
        )
        for version in versions
        if version.get("served", True)
    ]


Matches = Callable[[Json], bool]


def selector(labels: str, fields: str, resource: Resource) -> Matches:
    """Return the test that a list's or watch's selectors put to each object."""
    tests = [_label_test(term) for term in _terms(labels)]
    tests += [_field_test(term, resource) for term in _terms(fields)]
    return lambda obj: all(test(obj) for test in tests)


def _terms(text: str) -> list[str]:
    return [term.strip() for term in re.split(r",(?![^(]*\))", text) if term.strip()]


def _label_test(term: str) -> Matches:
    if found := re.fullmatch(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)", term):
        key, wanted = found[1], {value.strip() for value in found[3].split(",")}
        if found[2] == "in":
            return lambda obj: _labels(obj).get(key) in wanted
        return lambda obj: _labels(obj).get(key) not in wanted
    if found := re.fullmatch(r"([^=!\s]+)\s*(!=|==|=)\s*(\S*)", term):
        key, value = found[1], found[3]
        if found[2] == "!=":
            return lambda obj: _labels(obj).get(key) != value
        return lambda obj: _labels(obj).get(key) == value
    if found := re.fullmatch(r"(!?)([^=!\s]+)", term):
        key, absent = found[2], bool(found[1])
        return lambda obj: (key in _labels(obj)) != absent
    raise StatusError(400, "BadRequest", f"unable to parse requirement: {term!r}")


def _labels(obj: Json) -> Json:
    return obj["metadata"].get("labels") or {}


def _field_test(term: str, resource: Resource) -> Matches:
    found = re.fullmatch(r"([^=!\s]+)\s*(!=|==|=)\s*(\S*)", term)
    if not found:
        raise StatusError(400, "BadRequest", f"invalid field selector: {term!r}")
    path, negative, wanted = found[1], found[2] == "!=", found[3]
    if resource.custom and path not in ("metadata.name", "metadata.namespace"):
        raise StatusError(400, "BadRequest", f"field label not supported: {path}")

    def test(obj: Json) -> bool:
        value: Any = obj
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return (str(value or "") == wanted) != negative

    return test


def merge_patch(target: Any, patch: Any) -> Any:
    """Return the target after a JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def json_patch(target: Json, operations: list[Json]) -> Json:
    """Return the target after a JSON patch (RFC 6902)."""
    document: Any = copy.deepcopy(target)
    for operation in operations:
        try:
            _patch_once(document, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            text = f"the server rejected our request due to an error in our request: {error}"
            raise StatusError(422, "Invalid", text) from error
    result: Json = document
    return result


def _patch_once(document: Any, operation: Json) -> None:
    op, path = operation["op"], _pointer(operation["path"])
    if op == "test":
        if _walk(document, path) != operation["value"]:
            raise ValueError(f"testing value {operation['path']} failed")
        return
    if op in ("move", "copy"):
        source = _pointer(operation["from"])
        value = copy.deepcopy(_walk(document, source))
        if op == "move":
            _remove(document, source)
        _add(document, path, value)
        return
    if op in ("remove", "replace"):
        _remove(document, path)
    if op in ("add", "replace"):
        _add(document, path, copy.deepcopy(operation["value"]))


def _pointer(text: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _walk(document: Any, path: list[str]) -> Any:
    for part in path:
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


def _remove(document: Any, path: list[str]) -> None:
    parent = _walk(document, path[:-1])
    del parent[int(path[-1]) if isinstance(parent, list) else path[-1]]


def _add(document: Any, path: list[str], value: Any) -> None:
    parent = _walk(document, path[:-1])
    if isinstance(parent, list):
        parent.insert(len(parent) if path[-1] == "-" else int(path[-1]), value)
    else:
        parent[path[-1]] = value


def encode(value: Any) -> bytes:
    """Return the value as the server sends it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
