"""What an API server stores: objects, their revisions, and the window of past changes.

Knows nothing of HTTP.  One revision counter for everything, as etcd has; each committed change goes
to the watchers of its resource at once, in order.
"""

import copy
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tests.fakes import kube_apply, kube_schema
from tests.fakes.kube_apply import Manager, Owners
from tests.fakes.kube_history import Change, History, Page, Pages, Watcher, line, too_large
from tests.fakes.kube_objects import (
    NAME,
    Json,
    Matches,
    Resource,
    StatusError,
    builtin_resources,
    custom_resources,
    encode,
    resources_of,
)

Key = tuple[str, str]


def timestamp() -> str:
    """Return the time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Stored:
    """One object: `raw` is what was written, `obj` what today's schema leaves of it."""

    obj: Json
    body: bytes
    owners: Owners
    raw: Json


class Storage:
    """The objects of one cluster.  Written by the server's handlers and by tests, on one loop."""

    def __init__(self, *, window: int = 20_000) -> None:
        self.revision = 1
        self.history = History(window)
        self.pages = Pages()
        self.served: dict[tuple[str, str, str], Resource] = {}
        self._objects: dict[Key, dict[Key, Stored]] = {}
        for resource in [*builtin_resources(), *custom_resources()]:
            self.serve(resource)
        for name in ("default", "kube-system"):
            self.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    # Resources

    def serve(self, resource: Resource) -> None:
        """Begin to serve a resource (a new version or schema of it replaces the old one)."""
        rules = kube_schema.unknown_rules(resource.schema or {})
        if rules:
            raise StatusError(
                422, "Invalid", f"CEL rules that this server cannot evaluate: {rules}"
            )
        self.served[resource.group, resource.version, resource.plural] = resource
        objects = self._objects.setdefault(resource.key, {})
        for key, one in objects.items():
            objects[key] = self._seen_through(resource, one)
        self.history.begin(resource.key, self.revision)

    @staticmethod
    def _seen_through(resource: Resource, one: Stored) -> Stored:
        """Return a stored object as a new schema shows it: pruned and defaulted on reading."""
        obj = copy.deepcopy(one.raw)
        kube_schema.set_defaults(obj, resource.schema or {})
        if resource.schema is not None:
            kube_schema.prune(obj, resource.schema)
        return Stored(obj, encode(obj), one.owners, one.raw)

    def stop_serving(self, group: str, plural: str) -> None:
        """Take a resource away, as the deletion of its CRD does: objects go, watches end."""
        for served in [key for key in self.served if (key[0], key[2]) == (group, plural)]:
            resource = self.served.pop(served)
            for namespace, name in list(self._objects[resource.key]):
                self.delete(resource, namespace, name)
            for watcher in self.history.watchers[resource.key]:
                watcher.end("close")

    def install(self, crd: Json) -> None:
        """Serve what a CustomResourceDefinition declares, schema included."""
        for resource in resources_of(crd):
            self.serve(resource)

    def resource_of(self, obj: Json) -> Resource:
        """Return the resource that an object's apiVersion and kind name."""
        for resource in self.served.values():
            if (resource.api_version, resource.kind) == (obj.get("apiVersion"), obj.get("kind")):
                return resource
        text = f"no matches for kind {obj.get('kind')!r} in version {obj.get('apiVersion')!r}"
        raise StatusError(404, "NotFound", text)

    # Reading

    def get(self, resource: Resource, namespace: str, name: str) -> Stored:
        """Return an object, or refuse with 404."""
        found = self._objects[resource.key].get((namespace, name))
        if found is None:
            text = f'{resource.qualified} "{name}" not found'
            raise StatusError(404, "NotFound", text)
        return found

    def objects(self, resource: Resource, namespace: str = "") -> Iterator[Stored]:
        """Yield the objects of a resource, in the order of their keys."""
        found = self._objects[resource.key]
        for key in sorted(found):
            if not namespace or key[0] == namespace:
                yield found[key]

    def page(
        self, resource: Resource, namespace: str, matches: Matches, limit: int, token: str
    ) -> Page:
        """Return one page of a list."""
        if token:
            return self.pages.next(token, limit)
        found = [one for one in self.objects(resource, namespace) if matches(one.obj)]
        bodies = [self._list_item(resource, one) for one in found]
        return self.pages.first(bodies, limit, self.revision)

    @staticmethod
    def _list_item(resource: Resource, one: Stored) -> bytes:
        if resource.custom:
            return one.body
        return encode({k: v for k, v in one.obj.items() if k not in ("kind", "apiVersion")})

    def compact(self) -> None:
        """Forget the past: old watches and continued lists are answered with 410."""
        self.history.compact(self.revision)
        self.pages.expire()

    def watch(
        self, resource: Resource, namespace: str, matches: Matches, since: int, *, initial: bool
    ) -> Watcher:
        """Open a watch from a revision, or from every object as it is now."""
        if since > self.revision:
            raise too_large(since, self.revision)
        watcher = Watcher(namespace, matches, revision=self.revision)
        if initial:
            for one in self.objects(resource, namespace):
                if matches(one.obj):
                    watcher.push(line("ADDED", one.body))
        else:
            self.history.replay(resource, watcher, since)
        self.history.watchers[resource.key].add(watcher)
        return watcher

    # Writing

    def put(self, obj: Json) -> Json:
        """Make an object so, status included, whatever there is: for tests that set a scene."""
        resource = self.resource_of(obj)
        obj = copy.deepcopy(obj)
        namespace = obj["metadata"].get("namespace", "default") if resource.namespaced else ""
        if namespace and not self._objects["", "namespaces"].get(("", namespace)):
            self.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        manager = Manager("test", "Update")
        found = self._objects[resource.key].get((namespace, obj["metadata"]["name"]))
        if found is None:
            return self.create(resource, namespace, obj, manager, keep_status=True)
        obj["metadata"].pop("resourceVersion", None)
        return self._change(resource, found, obj, manager, dry_run=False, status=None)

    def create(
        self,
        resource: Resource,
        namespace: str,
        obj: Json,
        manager: Manager,
        *,
        keep_status: bool = False,
        dry_run: bool = False,
        owners: Owners | None = None,
    ) -> Json:
        """Create an object; 409 if it is there already."""
        metadata = obj.setdefault("metadata", {})
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"] + uuid.uuid4().hex[:5]
        self._check_name(resource, namespace, metadata)
        if resource.namespaced:
            metadata["namespace"] = namespace
        name = metadata["name"]
        if (namespace, name) in self._objects[resource.key]:
            text = f'{resource.qualified} "{name}" already exists'
            raise StatusError(409, "AlreadyExists", text)
        metadata.pop("deletionTimestamp", None)
        metadata.update(uid=str(uuid.uuid4()), creationTimestamp=timestamp(), generation=1)
        if resource.status and not keep_status:
            obj.pop("status", None)
        self._admit(resource, obj, None)
        keys_of = self._keys_of(resource)
        if owners is None:
            owners = kube_apply.update({}, obj, {}, manager, keys_of)
        return self._commit(resource, None, obj, owners, dry_run)

    def replace(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        obj: Json,
        manager: Manager,
        *,
        status: bool = False,
        dry_run: bool = False,
    ) -> Json:
        """Replace an object, or only its status; 409 when it has changed meanwhile."""
        found = self.get(resource, namespace, name)
        metadata = obj.setdefault("metadata", {})
        if metadata.get("name", name) != name:
            text = "the name of the object does not match the name on the URL"
            raise StatusError(400, "BadRequest", text)
        self.check_version(resource, found, metadata)
        return self._change(resource, found, obj, manager, dry_run=dry_run, status=status)

    def apply(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        config: Json,
        manager: Manager,
        *,
        force: bool,
        dry_run: bool = False,
    ) -> tuple[Json, bool]:
        """Apply a configuration (server-side apply); return the object and whether it is new."""
        found = self._objects[resource.key].get((namespace, name))
        metadata = config.setdefault("metadata", {})
        if metadata.get("name", name) != name:
            raise StatusError(400, "BadRequest", "metadata.name does not match the URL")
        if metadata.pop("managedFields", None):
            raise StatusError(400, "BadRequest", "metadata.managedFields must be nil")
        status = manager.subresource == "status"
        _only(config, status=status, split=resource.status)
        keys_of = self._keys_of(resource)
        if found is None:
            if status:
                self.get(resource, namespace, name)
            metadata["name"] = name
            wanted = kube_apply.fields(config, keys_of)
            owners: Owners = {manager: (wanted, "")}
            obj = self.create(resource, namespace, config, manager, dry_run=dry_run, owners=owners)
            return obj, True
        self.check_version(resource, found, metadata)
        metadata.pop("resourceVersion", None)
        live = {**found.obj, "metadata": dict(found.obj["metadata"])}
        live["metadata"].pop("managedFields", None)
        obj, owners = kube_apply.apply(live, found.owners, config, manager, keys_of, force)
        return self._settle(resource, found, obj, owners, dry_run), False

    def check_version(self, resource: Resource, found: Stored, metadata: Json) -> None:
        """Refuse a write that was made against another version or another object."""
        current = found.obj["metadata"]
        for name in ("resourceVersion", "uid"):
            if metadata.get(name, current[name]) != current[name]:
                text = (
                    f'Operation cannot be fulfilled on {resource.qualified} "{current["name"]}": '
                    "the object has been modified; please apply your changes to the latest version"
                )
                raise StatusError(409, "Conflict", text)

    def delete(
        self, resource: Resource, namespace: str, name: str, options: Json | None = None
    ) -> Json:
        """Delete an object, or mark it as being deleted while it has finalizers."""
        found = self.get(resource, namespace, name)
        self.check_version(resource, found, (options or {}).get("preconditions") or {})
        metadata = found.obj["metadata"]
        if not metadata.get("finalizers"):
            return self._remove(resource, found, found.obj)
        if metadata.get("deletionTimestamp"):
            return found.obj
        generation = metadata.get("generation", 1) + 1
        marked = {**metadata, "deletionTimestamp": timestamp(), "generation": generation}
        return self._commit(resource, found, {**found.obj, "metadata": marked}, found.owners)

    def _change(
        self,
        resource: Resource,
        found: Stored,
        obj: Json,
        manager: Manager,
        *,
        dry_run: bool,
        status: bool | None,
    ) -> Json:
        old = found.obj
        if status:
            obj = {**old, "status": obj.get("status", {})}
        elif status is False and resource.status:
            obj.pop("status", None)
            if "status" in old:
                obj["status"] = old["status"]
        metadata = dict(old["metadata"] if status else obj["metadata"])
        metadata.pop("managedFields", None)
        obj = {**obj, "metadata": metadata}
        owners = kube_apply.update(old, obj, found.owners, manager, self._keys_of(resource))
        return self._settle(resource, found, obj, owners, dry_run)

    def _settle(
        self, resource: Resource, found: Stored, obj: Json, owners: Owners, dry_run: bool
    ) -> Json:
        old = found.obj
        metadata = obj["metadata"]
        for name in ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp"):
            metadata.pop(name, None)
            if name in old["metadata"]:
                metadata[name] = old["metadata"][name]
        obj.setdefault("apiVersion", resource.api_version)
        obj.setdefault("kind", resource.kind)
        self._admit(resource, obj, old)
        generation = old["metadata"].get("generation", 1)
        metadata["generation"] = generation + (_desired(obj) != _desired(old))
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            return self._remove(resource, found, obj)
        return self._commit(resource, found, obj, owners, dry_run)

    def _commit(
        self,
        resource: Resource,
        found: Stored | None,
        obj: Json,
        owners: Owners,
        dry_run: bool = False,
    ) -> Json:
        metadata = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
        obj = {**obj, "metadata": metadata}
        if found is not None and _same(found, obj, owners):
            return found.obj
        if dry_run:
            return obj
        self.revision += 1
        now = timestamp()
        owners = {manager: (paths, when or now) for manager, (paths, when) in owners.items()}
        metadata["resourceVersion"] = str(self.revision)
        metadata["managedFields"] = kube_apply.managed_fields(owners, resource.api_version)
        body = encode(obj)
        key = (metadata.get("namespace", ""), metadata["name"])
        self._objects[resource.key][key] = Stored(obj, body, owners, obj)
        old = found.obj if found else None
        self.history.announce(resource.key, Change(self.revision, obj, body, old))
        if resource.kind == "CustomResourceDefinition":
            self.install(obj)
        return obj

    def _remove(self, resource: Resource, found: Stored, obj: Json) -> Json:
        self.revision += 1
        metadata = {**obj["metadata"], "resourceVersion": str(self.revision)}
        obj = {**obj, "metadata": metadata}
        del self._objects[resource.key][metadata.get("namespace", ""), metadata["name"]]
        change = Change(self.revision, obj, encode(obj), found.obj, deleted=True)
        self.history.announce(resource.key, change)
        if resource.kind == "CustomResourceDefinition":
            self.stop_serving(obj["spec"]["group"], obj["spec"]["names"]["plural"])
        return obj

    def _check_name(self, resource: Resource, namespace: str, metadata: Json) -> None:
        name = metadata.get("name", "")
        if not NAME.fullmatch(name) or len(name) > 253:
            text = f'{resource.kind}.{resource.group} "{name}" is invalid: metadata.name: '
            text += "a lowercase RFC 1123 subdomain of at most 253 characters is required"
            raise StatusError(422, "Invalid", text)
        if not resource.namespaced:
            return
        if metadata.get("namespace", namespace) != namespace:
            text = "the namespace of the object does not match the namespace on the request"
            raise StatusError(400, "BadRequest", text)
        if ("", namespace) not in self._objects["", "namespaces"]:
            raise StatusError(404, "NotFound", f'namespaces "{namespace}" not found')

    @staticmethod
    def _admit(resource: Resource, obj: Json, old: Json | None) -> None:
        if resource.schema is None:
            return
        kube_schema.set_defaults(obj, resource.schema)
        kube_schema.prune(obj, resource.schema)
        found = kube_schema.violations(obj, resource.schema, old)
        if found:
            name = f'{resource.kind}.{resource.group} "{obj["metadata"]["name"]}"'
            causes = [
                {"reason": "FieldValueInvalid", "message": one, "field": one.partition(":")[0]}
                for one in found
            ]
            text = f"{name} is invalid: {'; '.join(found)}"
            raise StatusError(422, "Invalid", text, causes=causes)

    @staticmethod
    def _keys_of(resource: Resource) -> Callable[[tuple[str, ...]], tuple[str, ...] | None]:
        def keys_of(path: tuple[str, ...]) -> tuple[str, ...] | None:
            if resource.schema is not None and path[0] != "metadata":
                return kube_schema.list_keys(resource.schema, path)
            if resource.custom and path != ("status", "conditions"):
                return None
            return _BUILTIN_KEYS.get(path[-1])

        return keys_of


_BUILTIN_KEYS = {
    "conditions": ("type",),
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "ownerReferences": ("uid",),
}


def _only(config: Json, *, status: bool, split: bool) -> None:
    if status:
        for name in [
            name for name in config if name not in ("apiVersion", "kind", "metadata", "status")
        ]:
            del config[name]
        for name in ("labels", "annotations", "finalizers", "ownerReferences"):
            config["metadata"].pop(name, None)
    elif split:
        config.pop("status", None)


def _desired(obj: Json) -> Json:
    return {k: v for k, v in obj.items() if k not in ("metadata", "status")}


def _same(found: Stored, obj: Json, owners: Owners) -> bool:
    if {m: paths for m, (paths, _) in owners.items()} != {
        m: paths for m, (paths, _) in found.owners.items()
    }:
        return False
    metadata = dict(found.obj["metadata"])
    metadata.pop("managedFields", None)
    metadata.pop("resourceVersion", None)
    ours: dict[str, Any] = {k: v for k, v in obj["metadata"].items() if k != "resourceVersion"}
    return ours == metadata and {**obj, "metadata": None} == {**found.obj, "metadata": None}
