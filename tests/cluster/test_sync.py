"""What is served follows what the cluster says: on a fake API server and on a real one."""

import asyncio
from collections.abc import Callable

import pytest

from datastore.cluster import Scope
from datastore.model import ObjectName
from tests.cluster.conftest import following
from tests.cluster.world import (
    Json,
    World,
    endpoints,
    model,
    old_pool,
    pod,
    pool,
    shown,
    truth,
    until,
)


def here(world: World, **more: str) -> Scope:
    return Scope(namespaces=(world.namespace,), **more)


async def test_what_is_there_is_known_once_synced(world: World) -> None:
    """Synced means that everything which was there before is known."""
    await world.put(pool(), model("llama"), model("qwen"))
    await world.put(pod("a", "10.0.0.1"), pod("b", "10.0.0.2"), pod("other", "10.0.0.3", "web"))
    async with following(world.client, here(world)) as found:
        async with asyncio.timeout(20):
            await found.source.synced.wait()
        names = [one.name.name for one in found.store.models_in(world.namespace)]
        assert names == ["llama", "qwen"]
        assert endpoints(found.store, world.namespace) == ["10.0.0.1:8000", "10.0.0.2:8000"]
        spaces = [world.namespace]
        assert shown(found.store, spaces) == shown(await truth(world.client, spaces), spaces)
        assert found.source.waiting_for() == []


async def test_models_come_change_and_go(world: World) -> None:
    """A model is served as soon as it exists, differently when it changes, never after its end."""
    async with following(world.client, here(world)) as found:

        def targets() -> list[str]:
            return [
                target.name
                for one in found.store.models_in(world.namespace)
                for target in one.targets
            ]

        await world.put(model("llama"))
        await until(targets, ["llama"])
        await world.put(model("llama", targetModels=[{"name": "meta/Llama"}]))
        await until(targets, ["meta/Llama"])
        await world.remove(model("llama"))
        await until(targets, [])


@pytest.mark.parametrize("make", [pool, old_pool])
async def test_an_endpoint_is_ready_and_alive(world: World, make: Callable[[], Json]) -> None:
    """An endpoint is a pod that is Ready, not going, has an address and all the labels."""
    async with following(world.client, here(world)) as found:

        def now() -> list[str] | None:
            return endpoints(found.store, world.namespace)

        await world.put(make(), pod("a", "10.0.0.1"))
        await until(now, ["10.0.0.1:8000"])
        await world.put(pod("a", "10.0.0.1", ready=False))
        await until(now, [])
        await world.put(pod("a", "10.0.0.1"), pod("six", "fd00::1"))
        await until(now, ["10.0.0.1:8000", "[fd00::1]:8000"])
        await world.remove(pod("a", "10.0.0.1"))
        await until(now, ["[fd00::1]:8000"])


async def test_ports_and_selector_take_effect_at_once(world: World) -> None:
    """One endpoint for each port; a changed selector or port needs no event of any pod."""
    async with following(world.client, here(world)) as found:

        def now() -> list[str] | None:
            return endpoints(found.store, world.namespace)

        only = {"inference.networking.k8s.io/active-ports": "8001"}
        await world.put(pool("vllm", "vllm", 8000, 8001), pod("a", "10.0.0.1"))
        await world.put(pod("b", "10.0.0.2", annotations=only), pod("c", "10.0.0.3", "web"))
        await until(now, ["10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8001"])
        await world.put(pool("vllm", "web", 9000))
        await until(now, ["10.0.0.3:9000"])
        await world.remove(pool())
        await until(now, None)


async def test_one_pool_only(world: World) -> None:
    """--pool-name narrows what is known to that pool."""
    await world.put(pool("one"), pool("two"))
    async with following(world.client, here(world, pool="two")) as found:
        async with asyncio.timeout(20):
            await found.source.synced.wait()
        assert list(found.store.pool_names()) == [ObjectName(world.namespace, "two")]


async def test_a_replaced_object_is_the_new_one(world: World) -> None:
    """Deleted and made again between two looks: the new one counts, with its new identity."""
    await world.put(pool(), model("llama"))
    async with following(world.client, here(world)) as found:
        name = ObjectName(world.namespace, "llama")
        await until(lambda: found.store.model(name) is not None, True)
        before = found.store.model(name)
        await world.remove(model("llama"))
        await world.put(model("llama", targetModels=[{"name": "x"}]))
        await until(lambda: (one := found.store.model(name)) and one.targets[0].name, "x")
        after = found.store.model(name)
        assert before is not None
        assert after is not None
        assert after.uid != before.uid
