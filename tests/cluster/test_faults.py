"""A cluster that fails in part, or is set up in part: what is served, and what is said."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from datastore.cluster import Scope
from datastore.kube import KubeClient
from datastore.model import ObjectName
from datastore.reflect import Pace
from tests.cluster.conftest import following
from tests.cluster.world import Json, endpoints, model, old_pool, placed, pod, pool, until
from tests.fakes.apiserver import ApiServer

DEFAULT = Scope(("default",))
X_K8S, K8S, LLMD = "inference.networking.x-k8s.io", "inference.networking.k8s.io", "llm-d.ai"


def put(api: ApiServer, *objects: Json, namespace: str = "default") -> None:
    for obj in objects:
        api.put(placed(obj, namespace))


async def test_serving_goes_on_without_the_api_server(api: ApiServer, client: KubeClient) -> None:
    """While the API server is away everything stays as it was, and the age says for how long."""
    put(api, pool(), model("llama"), pod("a", "10.0.0.1"))
    clock = asyncio.get_running_loop().time
    async with following(client, DEFAULT) as found:
        await found.source.synced.wait()
        await api.down()
        await asyncio.sleep(0.6)
        assert endpoints(found.store, "default") == ["10.0.0.1:8000"]
        assert found.store.model_count == 1
        assert found.source.age_s(clock()) > 0.5
        put(api, pod("b", "10.0.0.2"))
        await api.up()
        await until(lambda: endpoints(found.store, "default"), ["10.0.0.1:8000", "10.0.0.2:8000"])
        await until(lambda: found.source.age_s(clock()) < 0.5, True)


@pytest.mark.parametrize(("group", "make"), [(K8S, old_pool), (X_K8S, pool)])
async def test_one_group_of_pools_is_enough(
    api: ApiServer, client: KubeClient, group: str, make: Any
) -> None:
    """A cluster with InferencePools of either group is served."""
    api.uninstall("inferencepools", group)
    put(api, make(), pod("a", "10.0.0.1"))
    async with following(client, DEFAULT) as found:
        async with asyncio.timeout(30):
            await found.source.synced.wait()
        assert endpoints(found.store, "default") == ["10.0.0.1:8000"]


async def test_no_group_of_pools_blocks_and_is_said(api: ApiServer, client: KubeClient) -> None:
    """Without InferencePools of any group nothing can be served: not ready, and the CRD named."""
    for group in (K8S, X_K8S):
        api.uninstall("inferencepools", group)
    async with following(client, DEFAULT) as found:
        named = f"inferencepools.{K8S}/v1; install its CRD"
        await until(lambda: named in " ".join(found.source.waiting_for()), True)
        assert not found.source.synced.is_set()


async def test_v1_wins_over_v1alpha2(api: ApiServer, client: KubeClient) -> None:
    """A pool of the same name in both groups is the v1 one; without it the other one counts."""
    put(api, old_pool(port=1), pool("vllm", "vllm", 2), pod("a", "10.0.0.1"))
    async with following(client, DEFAULT) as found:
        await until(lambda: endpoints(found.store, "default"), ["10.0.0.1:2"])
        api.remove(placed(pool(), "default"))
        await until(lambda: endpoints(found.store, "default"), ["10.0.0.1:1"])


async def test_namespaces_do_not_mix(api: ApiServer, client: KubeClient) -> None:
    """The same names in two namespaces are two models and two pools, with their own pods."""
    for number, namespace in enumerate(("one", "two", "three"), 1):
        put(api, pool(), pod("a", f"10.0.0.{number}"), namespace=namespace)
        put(api, model("llama", targetModels=[{"name": namespace}]), namespace=namespace)
    async with following(client, Scope(("one", "two"))) as found:
        await found.source.synced.wait()
        assert endpoints(found.store, "one") == ["10.0.0.1:8000"]
        assert endpoints(found.store, "two") == ["10.0.0.2:8000"]
        assert endpoints(found.store, "three") is None
        two = found.store.model(ObjectName("two", "llama"))
        assert two is not None
        assert two.targets[0].name == "two"


def objective(group: str, priority: int) -> Json:
    return {
        "apiVersion": f"{group}/v1alpha2",
        "kind": "InferenceObjective",
        "metadata": {"name": "batch"},
        "spec": {"poolRef": {"name": "vllm"}, "priority": priority},
    }


def rewrite(name: str, target: str) -> Json:
    rule = {
        "matches": [{"model": {"value": "llama"}}],
        "targets": [{"modelRewrite": target, "weight": 3}],
    }
    return {
        "apiVersion": f"{X_K8S}/v1alpha2",
        "kind": "InferenceModelRewrite",
        "metadata": {"name": name},
        "spec": {"poolRef": {"name": "vllm"}, "rules": [rule]},
    }


async def test_policies_are_read(
    api: ApiServer, client: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the same objective in two groups the newer group's counts, and that is said once."""
    caplog.set_level(logging.INFO)
    put(api, objective(X_K8S, 1), objective(LLMD, 7), rewrite("r", "x"))
    name = ObjectName("default", "batch")
    async with following(client, DEFAULT) as found:
        policies = found.source.policies

        def priority() -> int | None:
            one = policies.objective(name)
            return one.priority if one else None

        await until(priority, 7)
        api.remove(placed(objective(LLMD, 7), "default"))
        await until(priority, 1)
        put(api, objective(LLMD, -1))
        await until(priority, -1)
        await until(lambda: len(policies.rewrites_of(ObjectName("default", "vllm"))), 1)
        (rule,) = policies.rewrites_of(ObjectName("default", "vllm"))[0].rules
        assert (rule.models, rule.targets[0].name, rule.cumulative) == (("llama",), "x", (3,))
    assert len([r for r in caplog.records if "llm-d.ai wins" in r.message]) == 1


async def test_optional_kinds_never_block(api: ApiServer, client: KubeClient) -> None:
    """Without the CRDs of objectives and rewrites, or without the right to them, all is well."""
    for group in (X_K8S, LLMD):
        api.uninstall("inferenceobjectives", group)
    api.faults.fail(403, plural="inferencemodelrewrites")
    async with following(client, DEFAULT) as found, asyncio.timeout(30):
        await found.source.synced.wait()


async def test_bad_objects_are_not_served(api: ApiServer, client: KubeClient) -> None:
    """What the schema lets through and cannot be served says so; its last good version is gone."""
    api.uninstall("inferencemodels", X_K8S)
    loose = next(r for r in ApiServer().storage.served.values() if r.kind == "InferenceModel")
    api.storage.serve(loose)
    put(api, pool(), model("llama"))
    async with following(client, DEFAULT) as found:

        def reason() -> str | None:
            one = found.store.model(ObjectName("default", "llama"))
            return one.invalid_reason if one else "gone"

        await until(reason, None)
        mixed = [{"name": "a", "weight": 1}, {"name": "b"}]
        for spec, expected in (
            ({"targetModels": mixed}, "InvalidWeights"),
            ({"targetModels": [{"name": "a", "weight": "1"}]}, "InvalidWeights"),
            ({"poolRef": {"name": "vllm", "kind": "Service"}}, "UnsupportedPoolRef"),
            ({"poolRef": "vllm"}, "UnsupportedPoolRef"),
            ({"targetModels": {"a": 1}}, "InvalidSpec"),
        ):
            put(api, model("llama", **spec) if "poolRef" not in spec else named(spec))
            await until(reason, expected)
        put(api, model("llama"))
        await until(reason, None)


def named(spec: Any) -> Json:
    return {**model("llama"), "spec": spec}


async def test_a_model_that_is_being_deleted_is_gone(api: ApiServer, client: KubeClient) -> None:
    """A deletionTimestamp is enough: a finalizer keeps the object, not the service."""
    held = model("llama")
    held["metadata"]["finalizers"] = ["test/hold"]
    put(api, held)
    async with following(client, DEFAULT) as found:
        await until(lambda: found.store.model_count, 1)
        api.remove(placed(held, "default"))
        await until(lambda: found.store.model_count, 0)
    assert api.get(f"{X_K8S}/v1alpha2", "InferenceModel", "llama")["metadata"]["deletionTimestamp"]


async def test_a_terminating_pod_is_no_endpoint(api: ApiServer, client: KubeClient) -> None:
    """A pod with a deletionTimestamp gets no new requests although it is still Ready."""
    held = pod("a", "10.0.0.1")
    held["metadata"]["finalizers"] = ["test/hold"]
    put(api, pool(), held)
    async with following(client, DEFAULT) as found:
        await until(lambda: endpoints(found.store, "default"), ["10.0.0.1:8000"])
        api.remove(placed(held, "default"))
        await until(lambda: endpoints(found.store, "default"), [])


async def test_our_own_namespace_is_the_default(
    api: ApiServer, client: KubeClient, tmp_path: Path
) -> None:
    """Without --watch-namespace the namespace of our service account is served."""
    put(api, model("llama"))
    async with following(client, Scope(), Pace()) as found:
        await found.source.synced.wait()
        assert found.source.namespaces == ("default",)
        assert found.store.model_count == 1
