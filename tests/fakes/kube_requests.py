"""What a request's path, method and query mean to an API server."""

from dataclasses import dataclass

from aiohttp import web

from tests.fakes.kube_access import Attributes
from tests.fakes.kube_objects import Resource
from tests.fakes.kube_storage import Storage

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is about."""

    resource: Resource
    verb: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def attributes(self) -> Attributes:
        """What RBAC is asked."""
        resource = self.resource.plural + (f"/{self.subresource}" if self.subresource else "")
        return Attributes(self.verb, self.resource.group, resource, self.namespace)


def target_of(request: web.Request, storage: Storage) -> Target | None:
    """Return what a request is about; None = no such resource here."""
    parts = [part for part in request.path.split("/") if part]
    if parts[:1] == ["api"] and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    resource = storage.served.get((group, version, rest[0]))
    if resource is None or len(rest) > 3 or (namespace and not resource.namespaced):
        return None
    name, subresource = [*rest[1:], "", ""][:2]
    if subresource and (subresource != "status" or not resource.status):
        return None
    return Target(resource, _verb(request, bool(name)), namespace, name, subresource)


def _verb(request: web.Request, named: bool) -> str:
    if request.method == "GET":
        if request.query.get("watch") in ("true", "1"):
            return "watch"
        return "get" if named else "list"
    if request.method == "DELETE" and not named:
        return "deletecollection"
    return _VERBS.get(request.method, request.method.lower())


def discovery(path: str, storage: Storage) -> dict[str, object] | None:
    """Return a discovery document, or None if this path has none."""
    served = list(storage.served.values())
    parts = [part for part in path.split("/") if part]
    match parts:
        case ["version"]:
            return {"major": "1", "minor": "34", "gitVersion": "v1.34.0-fake"}
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"]}
        case ["apis"]:
            groups = sorted({resource.group for resource in served if resource.group})
            found = [_group(name, served) for name in groups]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}
        case ["api", version]:
            return _resources("", version, served)
        case ["apis", group]:
            return _group(group, served) if group in {r.group for r in served} else None
        case ["apis", group, version]:
            return _resources(group, version, served)
        case _:
            return None


def _group(name: str, served: list[Resource]) -> dict[str, object]:
    versions = list(dict.fromkeys(r.version for r in served if r.group == name))
    rows = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": name,
        "versions": rows,
        "preferredVersion": rows[0],
    }


def _resources(group: str, version: str, served: list[Resource]) -> dict[str, object] | None:
    found = [r for r in served if (r.group, r.version) == (group, version)]
    if not found:
        return None
    rows: list[dict[str, object]] = []
    verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    for resource in found:
        row = {"namespaced": resource.namespaced, "kind": resource.kind, "singularName": ""}
        rows.append({**row, "name": resource.plural, "verbs": verbs})
        if resource.status:
            name = f"{resource.plural}/status"
            rows.append({**row, "name": name, "verbs": ["get", "patch", "update"]})
    group_version = found[0].api_version
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": rows,
    }
