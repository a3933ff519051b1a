"""What a test does to a cluster, and what it compares: the same on a fake and on a real one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from datastore import manifests as m
from datastore.decode import decode_json
from datastore.events import Upserted
from datastore.kube import KubeClient
from datastore.kube_errors import AlreadyExists, NotFound
from datastore.model import ObjectName
from datastore.store import Store
from tests.fakes.apiserver import ApiServer

Json = dict[str, Any]
WATCHED = (m.INFERENCE_MODEL, m.INFERENCE_POOL_V1, m.INFERENCE_POOL_V1ALPHA2, m.POD)
NAMESPACE = m.Resource("", "v1", "Namespace", "namespaces")


def model(name: str, pool: str = "vllm", **spec: Any) -> Json:
    return {
        "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
        "kind": "InferenceModel",
        "metadata": {"name": name},
        "spec": {"poolRef": {"name": pool}, **spec},
    }


def pool(name: str = "vllm", app: str = "vllm", *ports: int) -> Json:
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": app}},
            "targetPorts": [{"number": port} for port in ports or (8000,)],
            "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
        },
    }


def old_pool(name: str = "vllm", app: str = "vllm", port: int = 8000) -> Json:
    return {
        "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
        "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": {
            "selector": {"app": app},
            "targetPortNumber": port,
            "extensionRef": {"name": "epp"},
        },
    }


def pod(
    name: str,
    ip: str,
    app: str = "vllm",
    *,
    ready: bool = True,
    annotations: dict[str, str] | None = None,
) -> Json:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": app}, "annotations": annotations or {}},
        "spec": {
            "containers": [{"name": "server", "image": "server"}],
            "schedulerName": "nobody",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
        },
        "status": {"podIP": ip, "podIPs": [{"ip": ip}], "conditions": conditions},
    }


class World(Protocol):
    """A namespace in some cluster."""

    client: KubeClient
    namespace: str

    async def put(self, *objects: Json) -> None:
        """Make these objects so."""

    async def remove(self, *objects: Json) -> None:
        """Delete these objects."""


class FakeWorld:
    """A namespace of a fake API server."""

    def __init__(self, client: KubeClient, namespace: str, api: ApiServer) -> None:
        self.client = client
        self.namespace = namespace
        self.api = api

    async def put(self, *objects: Json) -> None:
        for obj in objects:
            self.api.put(placed({**self._kept(obj), **obj}, self.namespace))

    def _kept(self, obj: Json) -> Json:
        """Return the status that is there: whoever writes an object's spec does not touch it."""
        name = obj["metadata"]["name"]
        try:
            there = self.api.get(obj["apiVersion"], obj["kind"], name, self.namespace)
        except KeyError:
            return {}
        return {"status": there["status"]} if "status" in there else {}

    async def remove(self, *objects: Json) -> None:
        for obj in objects:
            self.api.remove(placed(obj, self.namespace))


class RealWorld:
    """A namespace of a real API server, made for one test."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.client = client
        self.namespace = namespace

    async def begin(self) -> None:
        await self.client.create(NAMESPACE, "", {"metadata": {"name": self.namespace}})

    async def end(self) -> None:
        for resource in WATCHED:
            if await self.client.exists(resource):
                for raw in await objects(self.client, resource, self.namespace):
                    name = msgspec.json.decode(raw)["metadata"]["name"]
                    await self.client.delete(resource, self.namespace, name)
        await self.client.delete(NAMESPACE, "", self.namespace)

    async def put(self, *objects: Json) -> None:
        for obj in objects:
            resource = resource_of(obj)
            name = obj["metadata"]["name"]
            body = {key: value for key, value in obj.items() if key != "status"}
            try:
                await self.client.create(resource, self.namespace, body)
            except AlreadyExists:
                if resource is not m.POD:
                    await self.client.patch(resource, self.namespace, name, body)
            if "status" in obj:
                status = {"status": obj["status"]}
                await self.client.patch(
                    resource, self.namespace, name, status, subresource="status"
                )

    async def remove(self, *objects: Json) -> None:
        for obj in objects:
            name = obj["metadata"]["name"]
            await self.client.delete(resource_of(obj), self.namespace, name)


def placed(obj: Json, namespace: str) -> Json:
    return {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}


def resource_of(obj: Json) -> m.Resource:
    named = (obj["apiVersion"], obj["kind"])
    return next(r for r in m.RESOURCES if (r.api_version, r.kind) == named)


async def objects(client: KubeClient, resource: m.Resource, namespace: str) -> list[msgspec.Raw]:
    """List what a server has of a kind; nothing if it does not know the kind."""
    found: list[msgspec.Raw] = []
    try:
        async for page in client.list_pages(resource, namespace):
            found += page.items
    except NotFound:
        return []
    return found


async def truth(client: KubeClient, namespaces: list[str]) -> Store:
    """Return a store that was filled by lists alone."""
    store = Store()
    for namespace in namespaces:
        for resource in WATCHED:
            for raw in await objects(client, resource, namespace):
                values = decode_json(raw, resource).values
                store.apply([Upserted(value, str(resource)) for value in values])
    return store


def shown(store: Store, namespaces: list[str]) -> Json:
    """Return everything that a store knows, as plain values to be compared."""
    return {
        "models": [model for ns in namespaces for model in store.models_in(ns)],
        "pools": {
            str(view.pool.name): (
                view.pool,
                [(e.authority, e.uid, dict(e.labels), e.artifact_digest) for e in view.endpoints],
            )
            for view in store.pools()
        },
        "backends": store.backend_count,
    }


def endpoints(store: Store, namespace: str, name: str = "vllm") -> list[str] | None:
    """Return where a pool's requests may go; None if there is no such pool."""
    view = store.pool(ObjectName(namespace, name))
    return None if view is None else [endpoint.authority for endpoint in view.endpoints]


async def until(condition: Callable[[], object], expected: object, limit_s: float = 30.0) -> None:
    """Wait until a condition is as expected; fail with what it is instead."""

    async def ask() -> object:
        return condition()

    await until_told(ask, expected, limit_s)


async def until_told(
    ask: Callable[[], Awaitable[object]], expected: object, limit_s: float = 30.0
) -> None:
    """Wait until the answer to a question is as expected; fail with what it is instead."""
    found: object = None
    try:
        async with asyncio.timeout(limit_s):
            while (found := await ask()) != expected:
                await asyncio.sleep(0.01)
    except TimeoutError:
        assert found == expected
