"""The registry reconciler on an API server: a fake one, or a real one with or without KServe."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import msgspec

from datastore.kube import KubeClient
from datastore.manifests import Resource as Kind
from registry.cluster import INFERENCE_SERVICE, NAMESPACE, SERVING_RUNTIME, Cluster
from registry.discover import Registries
from registry.keeper import Pace, Tools
from registry.loop import Loop
from registry.memory import DeleteBudget
from registry.metrics import Metrics
from registry.model import Policy
from registry.rest import Address
from registry.triggers import Triggers
from registry.wire import read_record
from tests.cluster.conftest import PACE
from tests.cluster.world import Json, World, until, until_told
from tests.fakes.kserve import KServe
from tests.fakes.registry import FakeRegistry

CRD = Kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions")


def crd(kind: Kind) -> Json:
    """A definition that takes anything, with a status of its own."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    names = {"kind": kind.kind, "plural": kind.plural, "singular": kind.kind.lower()}
    version = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": CRD.api_version,
        "kind": CRD.kind,
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {**names, "listKind": f"{kind.kind}List"},
            "versions": [version],
        },
    }


@asynccontextmanager
async def definitions(client: KubeClient) -> AsyncIterator[None]:
    """KServe's kinds, for as long as the block runs where the cluster has none."""
    missing = [k for k in (INFERENCE_SERVICE, SERVING_RUNTIME) if not await client.exists(k)]
    for kind in missing:
        await client.create(CRD, "", crd(kind))
        await until_told(lambda kind=kind: client.exists(kind), True, 30.0)  # type: ignore[misc]  # bound now
    yield
    for kind in missing:
        await client.delete(CRD, "", f"{kind.plural}.{kind.group}")


@asynccontextmanager
async def reconciling(world: World, registry: FakeRegistry) -> AsyncIterator[Loop]:
    """The reconciler for this world's namespace alone, and a stand-in for KServe's controller."""
    cluster, policy, rng = Cluster(world.client), Policy(), Random(1)
    label = f"epp-registry-test={world.namespace}"
    key, _, value = label.partition("=")
    await world.client.patch(NAMESPACE, "", world.namespace, {"metadata": {"labels": {key: value}}})
    async with AsyncExitStack() as stack:
        address = Address(registry.url, timeout_s=5.0)
        registries = Registries(address, policy, cluster, stack, ttl_s=0.1, limit_s=10.0)
        tools = Tools(
            registries, cluster, policy, DeleteBudget(10, 60.0), Metrics(), Pace(0.5, 0.05), rng
        )
        parts: list[Loop] = []
        triggers = Triggers(
            world.client, label, lambda ns, runtime: parts[0].nudge(ns, runtime), pace=PACE, rng=rng
        )
        parts.append(Loop(tools, triggers, None))
        kserve = KServe(world.client, namespace=world.namespace)
        running = asyncio.get_running_loop()
        tasks = [running.create_task(parts[0].run()), running.create_task(kserve.run())]
        try:
            yield parts[0]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def paths(world: World) -> dict[str, str]:
    """What each resource serves."""
    found = {}
    async for page in world.client.list_pages(INFERENCE_SERVICE, world.namespace):
        for raw in page.items:
            body = msgspec.json.decode(raw)
            storage = body["spec"]["predictor"]["model"]["storage"]
            found[body["metadata"]["name"]] = storage["path"]
    return found


async def test_a_deployment_from_order_to_end(world: World) -> None:
    """Ordered, rolled, replicas of somebody else kept, deleted by hand, ended."""
    async with definitions(world.client), FakeRegistry() as registry:
        model = registry.add("registered_models", name="mnist")["id"]

        def tag(version: str) -> None:
            made = registry.add("model_versions", name=version, registeredModelId=model)
            registry.add(
                "model_artifacts", made["id"], name=version, modelFormatName="onnx",
                storageKey="k", storagePath=f"mnist/{version}",
            )  # fmt: skip

        def states() -> list[str]:
            return [read_record(item).state.value for item in registry.serves(intent)]

        tag("v8")
        environment = registry.add("serving_environments", name=world.namespace)["id"]
        intent = registry.add(
            "inference_services", name="m0", registeredModelId=model,
            servingEnvironmentId=environment, runtime="rt",
        )["id"]  # fmt: skip
        runtime = {
            "apiVersion": SERVING_RUNTIME.api_version,
            "kind": SERVING_RUNTIME.kind,
            "metadata": {"name": "rt"},
            "spec": {"containers": [{"name": "x", "image": "y"}]},
        }
        await world.client.create(SERVING_RUNTIME, world.namespace, runtime)
        async with reconciling(world, registry):
            await until(states, ["UNKNOWN", "RUNNING"], 30.0)
            replicas = {"spec": {"predictor": {"maxReplicas": 7}}}
            await world.client.patch(INFERENCE_SERVICE, world.namespace, "m0", replicas)
            tag("v12")
            told = ["UNKNOWN", "RUNNING", "UNKNOWN", "COMPLETE", "RUNNING"]
            await until(states, told, 30.0)
            assert await paths(world) == {"m0": "mnist/v12"}
            found = await world.client.get(INFERENCE_SERVICE, world.namespace, "m0")
            assert found["spec"]["predictor"]["maxReplicas"] == 7
            await world.client.delete(INFERENCE_SERVICE, world.namespace, "m0")
            told += ["COMPLETE", "UNKNOWN", "RUNNING"]
            await until(states, told, 30.0)
            registry.change("inference_services", intent, desiredState="UNDEPLOYED")
            await until(states, [*told, "COMPLETE"], 30.0)
            assert await paths(world) == {}
        await world.client.delete(SERVING_RUNTIME, world.namespace, "rt")
