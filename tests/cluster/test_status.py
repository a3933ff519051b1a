"""What people are told about their InferenceModels, by the leader alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import msgspec

from datastore import manifests as m
from datastore.cluster import ClusterSource, Scope
from datastore.kube import KubeClient
from datastore.store import Store
from epp.leader import Election, Leadership
from epp.status import EVENT, StatusWriter
from tests.cluster.conftest import PACE
from tests.cluster.world import Json, World, model, objects, pool, until, until_told
from tests.fakes.apiserver import ApiServer

VERSION = m.INFERENCE_MODEL.api_version


class Replica:
    """One picker, as far as status goes."""

    def __init__(self, client: KubeClient, namespace: str, identity: str, lease_s: int) -> None:
        self.store = Store()
        election = Election("epp-test", namespace, identity, lease_s, lease_s * 0.7, 1.0)
        self.leadership = Leadership(client.api_client, election)
        spaces = (namespace,)
        self.writer = StatusWriter(
            client, self.store, self.leadership, namespaces=spaces, pace=PACE, rng=Random(2)
        )
        self.source = ClusterSource(
            client,
            self.store,
            scope=Scope(spaces),
            pace=PACE,
            rng=Random(1),
            on_change=self.writer.note,
        )


@asynccontextmanager
async def running(
    client: KubeClient, namespace: str, identity: str, lease_s: int = 15
) -> AsyncIterator[Replica]:
    replica = Replica(client, namespace, identity, lease_s)
    async with asyncio.TaskGroup() as tasks:
        started = [
            tasks.create_task(part.run())
            for part in (replica.leadership, replica.source, replica.writer)
        ]
        yield replica
        for task in started:
            task.cancel()


async def status_of(world: World, name: str) -> Json:
    found = await world.client.get(m.INFERENCE_MODEL, world.namespace, name)
    conditions = found.get("status", {}).get("conditions", [])
    return conditions[0] if conditions else {}


async def until_status(world: World, name: str, **wanted: Any) -> Json:
    """Wait until a model's condition says this."""
    found: Json = {}
    try:
        async with asyncio.timeout(30):
            while True:
                found = await status_of(world, name)
                if wanted.items() <= found.items():
                    return found
                await asyncio.sleep(0.02)
    except TimeoutError:
        assert found == wanted
        raise


async def events_of(world: World) -> list[tuple[str, str, str]]:
    raws = await objects(world.client, EVENT, world.namespace)
    found = [msgspec.json.decode(raw) for raw in raws]
    return sorted(
        (one["involvedObject"]["name"], one["type"], one["reason"])
        for one in found
        if one.get("source", {}).get("component") == "epp"
    )


async def test_the_condition_follows_the_pool(world: World) -> None:
    """PoolNotFound until the pool exists, Accepted then; an event tells the first, once."""
    await world.put(model("llama"))
    async with running(world.client, world.namespace, "one") as replica:
        first = await until_status(world, "llama", reason="PoolNotFound", status="False")
        assert "vllm" in first["message"]
        await world.put(pool())
        second = await until_status(world, "llama", reason="Accepted", status="True")
        assert second["observedGeneration"] == 1
        await asyncio.sleep(1.1)  # times are told in whole seconds: a new one would show
        await world.put(model("llama", criticality="Critical"))
        third = await until_status(world, "llama", observedGeneration=2)
        assert third["lastTransitionTime"] == second["lastTransitionTime"]
        assert replica.writer.writes == 3
        told = [("llama", "Warning", "PoolNotFound")]
        await until_told(lambda: events_of(world), told)


async def test_an_ignored_name_is_said(world: World) -> None:
    """spec.modelName is kept by the CRD and has no effect; the status says so."""
    await world.put(pool(), model("llama", modelName="meta/Llama"))
    async with running(world.client, world.namespace, "one"):
        found = await until_status(world, "llama", reason="ModelNameIgnored", status="True")
        assert "meta/Llama" in found["message"]


async def test_a_right_status_is_not_written(world: World) -> None:
    """A new leader finds everything as it should be, and writes nothing."""
    await world.put(pool(), model("llama"))
    async with running(world.client, world.namespace, "one"):
        await until_status(world, "llama", reason="Accepted")
    async with running(world.client, world.namespace, "two") as second:
        async with asyncio.timeout(30):
            await second.leadership.won.wait()
        await world.put(model("qwen"))
        await until_status(world, "qwen", reason="Accepted")
        assert second.writer.writes == 1


async def test_one_leads_and_the_other_follows(world: World) -> None:
    """Of two replicas one writes; when it goes it gives the lease back, and the other goes on."""
    await world.put(pool())
    async with running(world.client, world.namespace, "two-to-be") as second:
        async with asyncio.timeout(30):
            await second.leadership.won.wait()
        async with running(world.client, world.namespace, "other") as other:
            await world.put(model("llama"))
            await until_status(world, "llama", reason="Accepted")
            assert not other.leadership.is_leader
            assert other.store.model_count == 1
            assert (other.writer.writes, second.writer.writes) == (0, 1)


async def test_a_leader_that_cannot_renew_stops(api: ApiServer, client: KubeClient) -> None:
    """Cut off from the API server a leader stands down in time; afterwards somebody leads again."""
    async with running(client, "default", "one", 3) as replica:
        async with asyncio.timeout(30):
            await replica.leadership.won.wait()
        await api.down()
        async with asyncio.timeout(30):
            await replica.leadership.lost.wait()
        await api.up()
        async with asyncio.timeout(20):
            await replica.leadership.won.wait()


async def test_writes_survive_faults(api: ApiServer, client: KubeClient) -> None:
    """A refused write is tried again; a permission that is missing is said and not hammered."""
    api.put({**pool(), "metadata": {"name": "vllm", "namespace": "default"}})
    api.faults.fail(500, verb="patch", times=3)
    async with running(client, "default", "one") as replica:
        api.put(model("llama"))
        await until(lambda: "status" in api.get(VERSION, "InferenceModel", "llama"), True)
        assert replica.writer.writes == 4
        api.faults.fail(403, verb="patch")
        api.put(model("qwen"))
        await asyncio.sleep(0.5)
        assert replica.writer.writes <= 6
