"""KServe's controller as far as an InferenceService's status shows it, over the real protocol.

It moves status as the real one does: a new spec is InProgress first, Ready stays True through an
update, `observedGeneration` is some other object's generation, a finalizer delays a delete.
`failing` names resources that do not load (with the reason), `stuck` those whose finalizer stays.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from datastore.changes import Change, Item, Listed, Lost, Seen
from datastore.kube import KubeClient
from datastore.kube_errors import Conflict, NotFound
from datastore.manifests import Resource
from datastore.model import ObjectName
from datastore.reflect import Pace
from datastore.watch import Reflector, Subject

Json = dict[str, Any]
KIND = Resource("serving.kserve.io", "v1beta1", "InferenceService", "inferenceservices")
FINALIZER = "inferenceservice.finalizers"


class KServe:
    """One controller.  `failing`, `stuck` and `paused` are for tests to change."""

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str = "",
        load_s: float = 0.0,
        defaults: bool = True,
    ) -> None:
        self.failing: dict[str, str] = {}
        self.stuck: set[str] = set()
        self.paused = False
        self.rollouts: Counter[str] = Counter()
        self._client = client
        self._namespace = namespace
        self._load_s = load_s
        self._defaults = defaults
        self._handled: dict[str, tuple[int, str]] = {}
        self._queue: asyncio.Queue[ObjectName] = asyncio.Queue()

    async def run(self) -> None:
        """Control until cancelled."""
        watch: Reflector[ObjectName] = Reflector(
            self._client,
            Subject(KIND, self._namespace),
            _decode,
            self._take,
            pace=Pace(backoff_min_s=0.05, backoff_max_s=0.2),
            rng=Random(1),
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch.run(), name="kserve watch")
            for number in range(8):
                tasks.create_task(self._work(), name=f"kserve worker {number}")

    def again(self, namespace: str, name: str) -> None:
        """Look at a resource again: a test has changed what happens to it."""
        self._queue.put_nowait(ObjectName(namespace, name))

    def _take(self, changes: Sequence[Change[ObjectName]]) -> None:
        for change in changes:
            match change:
                case Listed(values):
                    for name in values:
                        self._queue.put_nowait(name)
                case Seen(name, _):
                    self._queue.put_nowait(name)
                case Lost(_):
                    pass

    async def _work(self) -> None:
        while True:
            name = await self._queue.get()
            try:
                if not self.paused:
                    await self._reconcile(name)
            except NotFound:
                continue
            except Conflict:
                self._queue.put_nowait(name)

    async def _reconcile(self, name: ObjectName) -> None:
        body = await self._client.get(KIND, name.namespace, name.name)
        metadata = body["metadata"]
        if metadata.get("deletionTimestamp"):
            if name.name not in self.stuck and FINALIZER in metadata.get("finalizers", []):
                await self._patch(name, {"metadata": {"finalizers": None}})
            return
        if FINALIZER not in metadata.get("finalizers", []):
            await self._patch(name, self._admitted(body))
            return
        now = (metadata["generation"], self.failing.get(name.name, ""))
        if self._handled.get(metadata["uid"]) == now:
            return
        is_update = metadata["uid"] in self._handled
        self._handled[metadata["uid"]] = now
        self.rollouts[name.name] += 1
        await self._status(name, "InProgress", ready="True" if is_update else "Unknown")
        await asyncio.sleep(self._load_s)
        if now[1]:
            await self._status(name, "BlockedByFailedLoad", ready="False", failure=now[1])
        else:
            await self._status(name, "UpToDate", ready="True")

    def _admitted(self, body: Json) -> Json:
        """Return what KServe adds to a new object: its finalizer and, as a webhook, defaults."""
        patch: Json = {"metadata": {"finalizers": [FINALIZER]}}
        if self._defaults and "model" in body["spec"]["predictor"]:
            defaults = {"minReplicas": 1, "model": {"protocolVersion": "v2", "name": ""}}
            patch["spec"] = {"predictor": defaults}
        return patch

    async def _patch(self, name: ObjectName, patch: Json) -> None:
        await self._client.patch(KIND, name.namespace, name.name, patch)

    async def _status(
        self, name: ObjectName, transition: str, *, ready: str, failure: str = ""
    ) -> None:
        loaded = {"InProgress": "Loading", "UpToDate": "Loaded"}.get(transition, "FailedToLoad")
        count = self.rollouts[name.name]
        model: Json = {
            "transitionStatus": transition,
            "states": {"activeModelState": "Loaded" if count > 1 else loaded,
                       "targetModelState": loaded},
            "lastFailureInfo": {"reason": failure, "message": "cannot load"} if failure else None,
        }  # fmt: skip
        status = {
            "observedGeneration": 40 + count,
            "conditions": [
                {"type": "PredictorReady", "status": ready},
                {"type": "Ready", "status": ready, "lastTransitionTime": f"rollout {count}"},
            ],
            "modelStatus": model,
            "url": f"http://{name.name}.{name.namespace}.example",
        }
        await self._client.patch(
            KIND, name.namespace, name.name, {"status": status}, subresource="status"
        )


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    namespace: str
    resource_version: str


class _Object(msgspec.Struct):
    metadata: _Metadata


def _decode(raw: msgspec.Raw) -> Item[ObjectName]:
    metadata = msgspec.json.decode(raw, type=_Object).metadata
    name = ObjectName(metadata.namespace, metadata.name)
    return Item(name, metadata.resource_version, name)
