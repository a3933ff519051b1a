"""One runnable story of the reconciler, against a registry and a cluster on loopback.

It runs from a checkout: the registry, the API server and KServe are the tests' stand-ins, which
speak the real protocols.  `--serve` leaves them running, to be tried by hand.
"""

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from console import Table, fail, say, show
from registry.report import history_rows
from registry.wire import read_record

if TYPE_CHECKING:
    from tests.fakes.registry_scene import Scene

PERIOD_S = 1.0
NAME = "mnist-deployment"
RUNTIME_API = "serving.kserve.io/v1alpha1"
INTENT_COLUMNS = ("registry", "version", "desired", "runtime")
RESOURCE_COLUMNS = ("cluster", "path", "ready", "record")


@dataclass(frozen=True, slots=True)
class Call:
    """One request of the story; `{name}` in it is an id that an earlier answer gave."""

    method: str
    path: str
    body: dict[str, Any]
    keep: str = ""


@dataclass(slots=True)
class Story:
    """The story so far.  `ids` are those that the registry gave."""

    scene: "Scene"
    session: aiohttp.ClientSession
    ids: dict[str, str] = field(default_factory=dict)
    number: int = 0

    async def tell(self, title: str, *calls: Call, until: Sequence[tuple[str, str]] = ()) -> None:
        """Make some requests, wait until the audit says so, and show everything."""
        self.number += 1
        say(f"\n{self.number}. {title}")
        for call in calls:
            await self._call(call)
        if until:
            await self.scene.until(lambda: self._told() == list(until))
        self.show()

    async def _call(self, call: Call) -> None:
        path, body = call.path.format(**self.ids), _filled(call.body, self.ids)
        root = f"{self.scene.registry.url}/api/model_registry/v1alpha3"
        say(f"   $ curl -X {call.method} $REGISTRY/{path} -d '{json.dumps(body)}'")
        async with self.session.request(call.method, f"{root}/{path}", json=body) as response:
            answer = await response.json()
            if response.status >= 300:
                fail(f"{response.status} {answer.get('message')}", where=path)
        if call.keep:
            self.ids[call.keep] = answer["id"]

    def show(self) -> None:
        """Print what the registry orders, what the cluster serves and what the audit says."""
        store = self.scene.registry.store
        versions = {item["id"]: item["name"] for item in store.children("model_versions")}
        runtimes = self.scene.api.all(RUNTIME_API, "ServingRuntime", "demo")
        known = {
            "models": [item["name"] for item in store.children("registered_models")],
            "versions": list(versions.values()),
            "environments": [item["name"] for item in store.children("serving_environments")],
            "runtimes in the cluster": [item["metadata"]["name"] for item in runtimes],
        }
        for what, names in known.items():
            say(f"   {what}: {', '.join(names) or 'none'}")
        intents = [
            (item["name"], versions.get(item.get("modelVersionId", ""), "newest"),
             item["desiredState"], item["runtime"])
            for item in store.children("inference_services")
        ]  # fmt: skip
        show(Table(INTENT_COLUMNS, intents or [("nothing ordered", None, None, None)]))
        resources = [_resource_row(body) for body in self.scene.resources().values()]
        show(Table(RESOURCE_COLUMNS, resources or [("nothing served", None, None, None)]))
        records = [read_record(item) for item in store.children("serves")]
        for _, state, version, reason, record in history_rows(records, versions):
            say(f"   audit: {state:9} {version:4} {record}  {reason}")

    def _told(self) -> list[tuple[str, str]]:
        store = self.scene.registry.store
        names = {i["id"]: f"{i['name']}" for i in store.children("model_versions")}
        self.scene.ids |= {f"mnist:{name}": i for i, name in names.items()}
        intents = store.children("inference_services")
        if not intents:
            return []
        self.scene.ids[NAME] = intents[0]["id"]
        return self.scene.states(NAME)


async def tell_story(story: Story) -> None:  # long, because a story is told in one go
    """Tell it from the first model to an outage."""
    await story.tell(
        "A model is registered, and its version v8 with an artifact.",
        Call("POST", "registered_models", {"name": "MNIST"}, "model"),
        Call("POST", "model_versions", {"name": "v8", "registeredModelId": "{model}"}, "v8"),
        Call("POST", "model_versions/{v8}/artifacts", artifact("v8")),
    )
    story.scene.runtime("model-server")
    await story.scene.until(lambda: story.scene.registry.store.children("serving_environments"))
    story.ids["environment"] = story.scene.environment("demo")
    await story.tell("A ServingRuntime appears: the registry gets an environment for it.")
    intent = {
        "name": NAME,
        "registeredModelId": "{model}",
        "servingEnvironmentId": "{environment}",
        "runtime": "model-server",
        "desiredState": "DEPLOYED",
    }
    await story.tell(
        "It is ordered, without a version: the newest is served.",
        Call("POST", "inference_services", intent, "intent"),
        until=[("v8", "RUNNING")],
    )
    await story.tell(
        "Version v12 is tagged: it rolls.",
        Call("POST", "model_versions", {"name": "v12", "registeredModelId": "{model}"}, "v12"),
        Call("POST", "model_versions/{v12}/artifacts", artifact("v12")),
        until=[("v8", "COMPLETE"), ("v12", "RUNNING")],
    )
    order = "inference_services/{intent}"
    await story.tell(
        "It is not wanted any more.",
        Call("PATCH", order, {"desiredState": "UNDEPLOYED"}),
        until=[("v8", "COMPLETE"), ("v12", "COMPLETE")],
    )
    told = [("v8", "COMPLETE"), ("v12", "COMPLETE"), ("v8", "RUNNING")]
    await story.tell(
        "It is wanted again, and v8 exactly.",
        Call("PATCH", order, {"desiredState": "DEPLOYED", "modelVersionId": "{v8}"}),
        until=told,
    )
    await story.scene.registry.down()
    await story.scene.looks(3)
    await story.tell("The registry is down: nothing moves.", until=told)
    await story.scene.registry.up()
    await story.scene.looks(2)
    await story.tell("It is back: nothing has moved.", until=told)


def artifact(version: str) -> dict[str, str]:
    """Return the artifact of a version of MNIST."""
    number = version.removeprefix("v")
    return {
        "name": f"mnist-{number}",
        "artifactType": "model-artifact",
        "uri": f"s3://models/mnist/{version}/mnist-{number}.onnx",
        "modelFormatName": "onnx",
        "modelFormatVersion": "1",
        "storageKey": "aws-connection-models",
        "storagePath": f"mnist/{version}",
    }


async def run(serve: bool) -> None:
    """Set the scene and tell the story, or leave the scene to whoever wants to try it."""
    from tests.fakes.registry_scene import scene

    async with scene(period_s=PERIOD_S) as one, aiohttp.ClientSession() as session:
        if not serve:
            await tell_story(Story(one, session))
            return
        say(f"export REGISTRY={one.registry.url}/api/model_registry/v1alpha3")
        say(f"export MODEL_REGISTRY_URL={one.registry.url}")
        say(f"export KUBE={one.api.url} KUBE_TOKEN={one.api.token}")
        say(f"export KUBECONFIG={one.settings.kubeconfig}")
        say(f"export READYZ=http://127.0.0.1:{one.port}/readyz")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main() -> None:
    """Tell the story."""
    if not (Path(__file__).parents[1] / "tests" / "fakes").is_dir():
        fail("the demo needs the tests' stand-ins", fix="Run it from a checkout of the project")
    parser = argparse.ArgumentParser(prog="python -m registry.demo", description=__doc__)
    parser.add_argument("--serve", action="store_true", help="leave everything running")
    parser.add_argument("--verbose", action="store_true", help="show the reconciler's log")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO if options.verbose else logging.CRITICAL)
    try:
        asyncio.run(run(options.serve))
    except KeyboardInterrupt:
        say("stopped")


def _filled(body: dict[str, Any], ids: dict[str, str]) -> dict[str, Any]:
    return {key: value.format(**ids) for key, value in body.items()}


def _resource_row(body: dict[str, Any]) -> tuple[str, ...]:
    conditions = body.get("status", {}).get("conditions", [])
    ready = next((c["status"] for c in conditions if c["type"] == "Ready"), "-")
    model = body["spec"]["predictor"]["model"]
    labels = body["metadata"]["labels"]
    return body["metadata"]["name"], model["storage"]["path"], ready, labels["model-registry-sm-id"]


if __name__ == "__main__":
    main()
