"""A whole scene on loopback: API server, model registry, KServe, and the reconciler between them.

async with scene() as s:
    s.model("mnist", "v8")
    s.runtime("model-server")
    s.intend("mnist-deployment")
    await s.until(lambda: s.states("mnist-deployment") == [("v8", "RUNNING")])
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

from datastore.kube import KubeClient
from datastore.kube_auth import Where
from datastore.reflect import Pace as WatchPace
from registry.audit import read_episodes
from registry.loop import Loop
from registry.model import Policy
from registry.names import INTENT_LABEL
from registry.program import run
from registry.rest import Address
from registry.settings import Settings
from registry.wire import read_record
from tests.fakes.apiserver import ApiServer
from tests.fakes.kserve import KServe
from tests.fakes.registry import FakeRegistry, Quirks

Json = dict[str, Any]
API = "serving.kserve.io/v1beta1"
RUNTIME_API = "serving.kserve.io/v1alpha1"
FAST = WatchPace(backoff_min_s=0.05, backoff_max_s=0.2)
SETTINGS = Settings(
    enabled=True, period_s=0.2, settle_s=0.02, elect=False, host="127.0.0.1", port=0
)


@dataclass
class Scene:
    """What a story handles.  Everything here looks at the fakes directly."""

    api: ApiServer
    registry: FakeRegistry
    kserve: KServe
    settings: Settings
    where: Where
    port: int = 0
    loop: Loop | None = None
    ids: dict[str, str] = field(default_factory=dict)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _running: asyncio.Task[None] | None = None

    # The registry

    def model(self, name: str, *versions: str, **artifact: str) -> None:
        """Register a model (once) and versions of it."""
        if name not in self.ids:
            self.ids[name] = self.registry.add("registered_models", name=name)["id"]
        for version in versions:
            self.version(name, version, **artifact)

    def version(self, model: str, version: str, **artifact: str) -> None:
        """Tag a version, with an artifact."""
        self.bare_version(model, version)
        number = version.removeprefix("v")
        fields = {
            "name": f"{model}-{version}",
            "uri": f"s3://models/{model}/{version}/{model}-{number}.onnx",
            "modelFormatName": "onnx",
            "modelFormatVersion": "1",
            "storageKey": "aws-connection-models",
            "storagePath": f"{model}/{version}",
        }
        self.registry.add("model_artifacts", self.ids[f"{model}:{version}"], **(fields | artifact))

    def bare_version(self, model: str, version: str) -> None:
        """Tag a version without an artifact."""
        made = self.registry.add("model_versions", name=version, registeredModelId=self.ids[model])
        self.ids[f"{model}:{version}"] = made["id"]

    def environment(self, namespace: str = "demo") -> str:
        """Return the environment's id; make it if the reconciler has not."""
        for item in self.registry.store.children("serving_environments"):
            if item["name"] == namespace:
                return str(item["id"])
        return str(self.registry.add("serving_environments", name=namespace)["id"])

    def intend(
        self, name: str, model: str = "mnist", namespace: str = "demo", **fields: Any
    ) -> str:
        """Order a deployment; return its id."""
        made = self.registry.add(
            "inference_services",
            **{
                "name": name,
                "registeredModelId": self.ids[model],
                "servingEnvironmentId": self.environment(namespace),
                "runtime": "model-server",
                **fields,
            },
        )
        self.ids[name] = made["id"]
        return str(made["id"])

    async def deploy(self, *names: str) -> None:
        """Order version v8 of a model under these names, and wait until they run."""
        self.model("mnist", "v8")
        self.runtime()
        for name in names:
            self.intend(name)
        await self.until(lambda: all(self.states(n) == [("v8", "RUNNING")] for n in names))

    def order(self, name: str, **fields: Any) -> None:
        """Change an order."""
        self.registry.change("inference_services", self.ids[name], **fields)

    # The cluster

    def namespace(self, name: str = "demo", **metadata: Any) -> None:
        """Make a namespace that opted in; `metadata` adds to it or changes it."""
        wanted = {"name": name, "labels": {"model-registry-sync": "enabled"}, **metadata}
        self.api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": wanted})

    def runtime(self, name: str = "model-server", namespace: str = "demo", **labels: str) -> None:
        """Make a ServingRuntime."""
        metadata = {"name": name, "namespace": namespace, "labels": labels}
        self.api.put(
            {"apiVersion": RUNTIME_API, "kind": "ServingRuntime", "metadata": metadata, "spec": {}}
        )

    def remove(self, api_version: str, kind: str, name: str, namespace: str = "demo") -> None:
        """Delete an object."""
        metadata = {"name": name, "namespace": namespace}
        self.api.remove({"apiVersion": api_version, "kind": kind, "metadata": metadata})

    def resources(self, namespace: str = "demo") -> dict[str, Json]:
        """Return the InferenceServices by name."""
        return {r["metadata"]["name"]: r for r in self.api.all(API, "InferenceService", namespace)}

    def path(self, name: str) -> str | None:
        """Return the storage path that a resource serves."""
        body = self.resources().get(name)
        return body["spec"]["predictor"]["model"]["storage"]["path"] if body else None

    def events(self) -> list[str]:
        """Return the reasons of our Events."""
        return [e["reason"] for e in self.api.all("v1", "Event")]

    # The audit

    def records(self, name: str) -> list[tuple[str, str]]:
        """Return the records of an intent as (version, state)."""
        versions = {i: key.partition(":")[2] for key, i in self.ids.items() if ":" in key}
        return [
            (versions[r["modelVersionId"]], r["lastKnownState"])
            for r in self.registry.serves(self.ids[name])
        ]

    def states(self, name: str) -> list[tuple[str, str]]:
        """Return the deployments of an intent as (version, state)."""
        versions = {i: key.partition(":")[2] for key, i in self.ids.items() if ":" in key}
        records = [read_record(r) for r in self.registry.serves(self.ids[name])]
        return [(versions[e.version_id], e.state.value) for e in read_episodes(records)]

    def labelled(self, name: str) -> list[Json]:
        """Return the resources that carry an intent's label."""
        found = self.resources().values()
        return [
            body for body in found
            if body["metadata"].get("labels", {}).get(INTENT_LABEL) == self.ids[name]
        ]  # fmt: skip

    async def ask(self, path: str) -> str:
        """Return what the reconciler's own HTTP server answers."""
        url = f"http://127.0.0.1:{self.port}/{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return await response.text()

    # Time

    async def until(self, true: Callable[[], object], timeout_s: float = 30.0) -> None:
        """Wait until something holds."""
        try:
            async with asyncio.timeout(timeout_s):
                while not true():  # what is watched has no event
                    await asyncio.sleep(0.01)
        except TimeoutError:
            told = [name for name in self.ids if self.registry.serves(self.ids[name])][:5]
            audit = {name: self.states(name) for name in told}
            state = self.loop.state() if self.loop else None
            raise AssertionError(f"never came true; audit {audit}; state {state}") from None

    async def looks(self, count: int = 2, namespace: str = "demo") -> None:
        """Wait until a namespace was looked at so many times more."""
        assert self.loop is not None
        await self.until(lambda: self.loop and namespace in self.loop.keepers)
        keeper = self.loop.keepers[namespace]
        wanted = keeper.looks + count + 1  # one may have begun before the change
        await self.until(lambda: keeper.looks >= wanted)

    async def start(self) -> None:
        """Start the reconciler."""
        started = asyncio.Event()

        def on_start(port: int, loop: Loop | None) -> None:
            self.port, self.loop = port, loop
            started.set()

        self._running = asyncio.get_running_loop().create_task(
            run(self.settings, {}, Random(1), on_start=on_start, watch_pace=FAST), name="program"
        )
        await started.wait()
        if self.settings.enabled:
            await self.until(lambda: self.loop and not self.loop.state()["waitingFor"])

    async def stop(self) -> None:
        """Kill the reconciler: nothing is finished, nothing is remembered."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
            self._running = None


@asynccontextmanager
async def scene(
    *,
    quirks: Quirks | None = None,
    policy: Policy | None = None,
    start: bool = True,
    on_answer: Callable[[str, str, Json], None] | None = None,
    defaults: bool = True,
    **settings: Any,
) -> AsyncIterator[Scene]:
    """Set a scene: one namespace `demo` that opted in, everything running."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        api = await stack.enter_async_context(ApiServer(tls=False, bookmark_every_s=0.5))
        registry = await stack.enter_async_context(FakeRegistry(quirks, on_answer=on_answer))
        where = Where(kubeconfig=api.kubeconfig(folder / "kubeconfig"))
        client = await stack.enter_async_context(await KubeClient.connect(where))
        kserve = KServe(client, defaults=defaults)
        address = Address(registry.url, timeout_s=0.5)
        made = replace(
            SETTINGS,
            address=address,
            policy=policy or Policy(),
            kubeconfig=where.kubeconfig,
            **settings,
        )
        one = Scene(api, registry, kserve, made, where)
        controller = asyncio.get_running_loop().create_task(kserve.run(), name="kserve")
        try:
            one.namespace()
            if start:
                await one.start()
            yield one
        finally:
            await one.stop()
            controller.cancel()
            await asyncio.wait([controller])
