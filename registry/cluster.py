"""The cluster as the reconciler needs it: read whole, write only what is ours.

The one module that knows the Kubernetes client.  Its errors become ours here: what a retry may
cure is a `ClusterError`, what the API server will always refuse a `ClusterRefused`.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import msgspec

from datastore.kube import KubeClient
from datastore.kube_errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
    ResourceMissing,
)
from datastore.manifests import INFERENCE_MODEL
from datastore.manifests import Resource as Kind
from registry.errors import ClusterConflict, ClusterError, ClusterRefused, NameTaken
from registry.model import Condition, Json, Resource
from registry.names import FIELD_MANAGER
from registry.ownership import has_other_authors

INFERENCE_SERVICE = Kind("serving.kserve.io", "v1beta1", "InferenceService", "inferenceservices")
SERVING_RUNTIME = Kind("serving.kserve.io", "v1alpha1", "ServingRuntime", "servingruntimes")
NAMESPACE = Kind("", "v1", "Namespace", "namespaces")
SERVICE = Kind("", "v1", "Service", "services")
EVENT = Kind("", "v1", "Event", "events")

_KINDS = {kind.kind: kind for kind in (INFERENCE_SERVICE, INFERENCE_MODEL)}


class Cluster:
    """One cluster, through one client."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client

    async def resources(self, namespace: str) -> tuple[Resource, ...]:
        """Return every InferenceService of a namespace."""
        return await self._list(INFERENCE_SERVICE, namespace)

    async def models(self, namespace: str) -> tuple[Resource, ...]:
        """Return every InferenceModel of a namespace."""
        return await self._list(INFERENCE_MODEL, namespace)

    async def runtimes(self, namespace: str) -> dict[str, dict[str, str]]:
        """Return the labels of every ServingRuntime of a namespace, by name."""
        found = await self._list(SERVING_RUNTIME, namespace)
        return {item.name: dict(item.labels) for item in found if not item.terminating}

    async def services(self, namespace: str, labels: str) -> tuple[Resource, ...]:
        """Return the Services with these labels; an empty namespace means all."""
        return await self._list(SERVICE, namespace, labels)

    async def namespaces(self, labels: str) -> tuple[Resource, ...]:
        """Return the namespaces with these labels."""
        return await self._list(NAMESPACE, "", labels)

    async def namespace_usable(self, namespace: str) -> bool:
        """Whether anything can be created in a namespace."""
        with _translated():
            try:
                found = await self.client.get(NAMESPACE, "", namespace)
            except ResourceMissing:
                raise
            except NotFound:
                return False
        return not found["metadata"].get("deletionTimestamp")

    async def apply(self, body: Json, *, create: bool) -> Json:
        """Apply our fields, never by force; with `create`, only where the name is free.

        An apply cannot say "only if absent".  So one that met somebody else's object, made since we
        looked, is taken back: with none of our fields in it, that object is as it was.
        """
        kind, metadata = _KINDS[body["kind"]], body["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        with _translated(create=create):
            applied = await self.client.apply(kind, namespace, name, body, manager=FIELD_MANAGER)
            if create and has_other_authors(applied, FIELD_MANAGER):
                empty: Json = {"metadata": {"name": name, "namespace": namespace}}
                await self.client.apply(kind, namespace, name, empty, manager=FIELD_MANAGER)
                raise NameTaken(f"{name} in {namespace} belongs to somebody else")
        return applied

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """Delete the object with this uid; one that is gone already is deleted."""
        with _translated():
            try:
                await self.client.delete(_KINDS[kind], namespace, name, uid=uid)
            except ResourceMissing:
                raise
            except (NotFound, Conflict):
                return

    async def emit(
        self, namespace: str, about: Resource | None, key: str, condition: Condition, warning: bool
    ) -> None:
        """Tell people, once: the event's name follows from what it says."""
        with _translated():
            try:
                body = _event(namespace, about, key, condition, warning)
                await self.client.create(EVENT, namespace, body)
            except AlreadyExists:
                return

    async def _list(self, kind: Kind, namespace: str, labels: str = "") -> tuple[Resource, ...]:
        found = []
        with _translated():
            async for page in self.client.list_pages(kind, namespace, labels=labels):
                found += [Resource(msgspec.json.decode(item)) for item in page.items]
        return tuple(found)


@contextmanager
def _translated(*, create: bool = False) -> Iterator[None]:
    try:
        yield
    except ResourceMissing as error:
        raise ClusterError(error.message) from error
    except Conflict as error:
        if create:
            raise NameTaken(error.message) from error
        raise ClusterConflict(error.message) from error
    except (Invalid, Forbidden) as error:
        raise ClusterRefused(error.message) from error
    except KubeError as error:
        raise ClusterError(error.message) from error


def _event(
    namespace: str, about: Resource | None, key: str, condition: Condition, warning: bool
) -> Json:
    if about is None:
        kind, name, uid, version = "Namespace", namespace, "", "v1"
    else:
        kind, name, uid = (
            str(about.body.get("kind") or INFERENCE_SERVICE.kind),
            about.name,
            about.uid,
        )
        version = str(about.body.get("apiVersion") or INFERENCE_SERVICE.api_version)
    said = "\0".join((key, uid, condition.reason, condition.message))
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{name}.{hashlib.sha256(said.encode()).hexdigest()[:16]}",
            "namespace": namespace,
        },
        "involvedObject": {
            "apiVersion": version,
            "kind": kind,
            "name": name,
            "namespace": namespace,
            **({"uid": uid} if uid else {}),
        },
        "reason": condition.reason,
        "message": condition.message[:1000],
        "type": "Warning" if warning else "Normal",
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
