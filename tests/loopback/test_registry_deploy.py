"""deploy/registry says what the program does: its rights, its flags, its metrics."""

import json
import re
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from datastore.kube import KubeClient
from registry.cli import app
from registry.cluster import Cluster
from registry.discover import LABELS, Registries, service_url
from registry.errors import RegistryNotConfigured
from registry.metrics import Metrics
from registry.model import Policy, Resource
from tests.fakes.registry_scene import Scene, scene

FOLDER = Path(__file__).parents[2] / "deploy" / "registry"


def objects(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text("utf-8")))


def allowed() -> set[tuple[str, str]]:
    """Every (verb, resource) of the roles."""
    return {
        (verb, resource)
        for one in objects("rbac.yaml")
        for rule in one.get("rules", ())
        for verb in rule["verbs"]
        for resource in rule["resources"]
    }


async def _everything(s: Scene) -> None:
    """Let the reconciler do all that it ever does."""
    s.api.put(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": "mr",
                "namespace": "demo",
                "labels": {"component": "model-registry"},
            },
            "spec": {"ports": [{"name": "http-api", "port": 8080}]},
        }
    )
    s.model("mnist", "v8")
    s.runtime()
    s.intend("m0")
    await s.until(lambda: s.states("m0") == [("v8", "RUNNING")])
    s.intend("m1", runtime="nowhere")
    models = ("inference.networking.x-k8s.io/v1alpha2", "InferenceModel")
    await s.until(lambda: s.api.all(*models) and s.events())
    s.order("m0", desiredState="UNDEPLOYED")
    await s.until(lambda: not s.api.all(*models) and not s.resources())


async def test_the_roles_are_what_is_needed() -> None:
    """Every right is used, and nothing is done without one."""
    policy = Policy(inference_models=True, pool="pool")
    async with scene(policy=policy, start=False, elect=True, lease_namespace="demo") as s:
        await s.start()
        await _everything(s)
        assert s.loop is not None
        await s.loop._tools.cluster.services("demo", LABELS)
        await s.stop()
        kserve = {("get", "inferenceservices"), ("patch", "inferenceservices/status")}
        used = {key for key, count in s.api.requests.items() if count} - kserve
        implied = {  # an apply that creates; a watch that has to list first
            ("create", "inferenceservices"), ("create", "inferencemodels"),
            ("list", "namespaces"), ("list", "servingruntimes"),
        }  # fmt: skip

        assert used | implied == allowed()


def test_the_flags_of_the_deployment_exist() -> None:
    """Its arguments are read as the program reads them, those in comments too."""
    [deployment] = objects("deployment.yaml")
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    text = (FOLDER / "deployment.yaml").read_text("utf-8")
    more = re.findall(r"# - (--\S+)", text)
    command: Any = typer.main.get_command(app)
    context = command.commands["run"].make_context("run", [*container["args"][1:], *more])

    assert context.params["enabled"] is True
    assert {"http"} == {port["name"] for port in container["ports"]}


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    """Each metric that a panel names is one of ours."""
    text = (FOLDER / "dashboard.json").read_text("utf-8")
    json.loads(text)
    asked = set(re.findall(r"epp_registry_\w+", text))
    ours = {
        sample
        for metric in Metrics().registry.collect()
        for sample in (metric.name, f"{metric.name}_total", f"{metric.name}_bucket")
    }

    assert asked
    assert asked - ours == set()


PORTS = [{"name": "grpc-api", "port": 9090}, {"name": "http-api", "port": 8080}]


def service(name: str, namespace: str, ports: list[dict[str, object]]) -> Resource:
    metadata = {"name": name, "namespace": namespace}
    return Resource({"metadata": metadata, "spec": {"ports": ports}})


def test_the_registry_is_found_by_its_label() -> None:
    """One Service with a port for HTTP; none or two cannot be guessed from."""
    one = service("mr", "models", [*PORTS])
    assert service_url("demo", [one]) == "http://mr.models.svc:8080"
    assert service_url("demo", [service("mr", "demo", PORTS[1:])]) == "http://mr.demo.svc:8080"
    with pytest.raises(RegistryNotConfigured, match="no Service"):
        service_url("demo", [])
    with pytest.raises(RegistryNotConfigured, match="several"):
        service_url("demo", [one, one])
    with pytest.raises(RegistryNotConfigured, match="no port"):
        service_url("demo", [service("mr", "demo", [{"name": "a"}, {"name": "b"}])])


async def test_the_namespaces_own_registry_goes_first() -> None:
    """A Service in the namespace is asked, not the one elsewhere; neither: nothing is changed."""
    async with scene(start=False) as s:
        s.settings = replace(s.settings, address=replace(s.settings.address, url=""))
        s.runtime()
        await s.start()
        assert s.loop is not None
        keeper = s.loop.keepers["demo"]
        await s.until(lambda: "not_configured" in keeper.last_error)
        await s.stop()  # or it would look the Services' names up
        for namespace in ("other", "demo"):
            labels = {"component": "model-registry"}
            metadata = {"name": "mr", "namespace": namespace, "labels": labels}
            s.api.put(
                {"apiVersion": "v1", "kind": "Service", "metadata": metadata,
                 "spec": {"ports": PORTS}}
            )  # fmt: skip
        async with await KubeClient.connect(s.where) as client, AsyncExitStack() as stack:
            address = s.settings.address
            made = Registries(address, Policy(), Cluster(client), stack, ttl_s=1.0, limit_s=1.0)
            found = await made.of("demo")

        assert found.client.rest.address.url == "http://mr.demo.svc:8080"
