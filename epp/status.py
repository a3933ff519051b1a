"""Tells people what happened to their InferenceModels: conditions and events.

Only the elected leader writes.  It watches the conditions that are there, and writes where they are
not what they should be: a write for each change, none for a change that changes nothing.
"""

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random

import msgspec

from datastore import manifests as m
from datastore.changes import Change, Item, Listed, Lost, Seen
from datastore.kube import Json, KubeClient
from datastore.kube_errors import Conflict, Forbidden, KubeError, NotFound
from datastore.model import InferenceModel, ObjectName
from datastore.problems import BadManifest, Problem
from datastore.reflect import Pace, backoff, newer
from datastore.store import Changes, Store
from datastore.watch import Reflector, Subject
from epp.conditions import ACCEPTED, Condition, accepted, is_refusal
from epp.leader import Leadership

log = logging.getLogger(__name__)

MANAGER = "epp"
EVENT = m.Resource("", "v1", "Event", "events")


class _Condition(msgspec.Struct, rename="camel"):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    observed_generation: int = 0
    last_transition_time: str = ""


class _Status(msgspec.Struct):
    conditions: list[_Condition] | None = None


class _Model(msgspec.Struct):
    metadata: m.Metadata
    status: _Status | None = None


_MODEL = msgspec.json.Decoder(_Model)


class Observed(msgspec.Struct, frozen=True):
    """What an InferenceModel's status says, as of a resourceVersion."""

    condition: Condition | None
    version: str


def read_status(raw: msgspec.Raw) -> Item[Observed]:
    """Read the `Accepted` condition of an InferenceModel."""
    try:
        model = _MODEL.decode(raw)
    except (ValueError, RecursionError) as error:
        raise BadManifest((Problem(("status",), f"cannot be read: {error}"),)) from error
    metadata = model.metadata
    found = [c for c in (model.status or _Status()).conditions or () if c.type == ACCEPTED]
    condition = None
    if found:
        one = found[0]
        condition = Condition(
            one.status == "True",
            one.reason,
            one.message,
            one.observed_generation,
            one.last_transition_time,
        )
    name = ObjectName(metadata.namespace or "default", metadata.name)
    version = metadata.resource_version or ""
    return Item(name, version, Observed(condition, version))


class StatusWriter:
    """Writes conditions while we lead.  `note` is told of every change of the store."""

    def __init__(
        self,
        client: KubeClient,
        store: Store,
        leadership: Leadership,
        *,
        namespaces: Sequence[str],
        pace: Pace,
        rng: Random,
    ) -> None:
        self.writes = 0
        self._client = client
        self._store = store
        self._leadership = leadership
        self._namespaces = namespaces
        self._pace = pace
        self._rng = rng
        self._observed: dict[ObjectName, Observed] = {}
        self._due: dict[ObjectName, None] = {}
        self._wake = asyncio.Event()

    def note(self, changes: Changes) -> None:
        """Look again at the models that these changes concern."""
        if not self._leadership.is_leader:
            return
        self._look_at(changes.models)
        for pool in changes.pools:
            models = self._store.models_in(pool.namespace)
            self._look_at([model.name for model in models if model.pool == pool])

    async def run(self) -> None:
        """Write while we lead, wait while we do not; until cancelled."""
        while True:
            await self._leadership.won.wait()
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(self._watch(ns).run(), name=f"status of {ns}")
                    for ns in self._namespaces
                ]
                running.append(tasks.create_task(self._write_all(), name="status"))
                await self._leadership.lost.wait()
                for task in running:
                    task.cancel()
            self._observed.clear()
            self._due.clear()

    def _watch(self, namespace: str) -> Reflector[Observed]:
        subject = Subject(m.INFERENCE_MODEL, namespace)
        return Reflector(
            self._client,
            subject,
            read_status,
            self._take,
            pace=self._pace,
            rng=self._rng,
        )

    def _take(self, changes: Sequence[Change[Observed]]) -> None:
        for change in changes:
            match change:
                case Seen(name=name, value=value):
                    known = self._observed.get(name)
                    # What we wrote ourselves may be known before the watch tells of earlier times.
                    if known is None or newer(value.version, known.version):
                        self._observed[name] = value
                        self._look_at([name])
                case Lost(name=name):
                    self._observed.pop(name, None)
                case Listed(gone=gone):
                    for name in gone:
                        self._observed.pop(name, None)

    def _look_at(self, names: "Sequence[ObjectName] | frozenset[ObjectName]") -> None:
        if names:
            self._due.update(dict.fromkeys(names))
            self._wake.set()

    async def _write_all(self) -> None:
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._due:
                name = next(iter(self._due))
                del self._due[name]
                if await self._write_one(name):
                    failures = 0
                    continue
                self._due[name] = None
                await asyncio.sleep(backoff(failures, self._pace, self._rng))
                failures += 1

    async def _write_one(self, name: ObjectName) -> bool:
        """Write a model's condition if it is not right; tell whether that is done with."""
        model, observed = self._store.model(name), self._observed.get(name)
        if model is None or observed is None:
            return True  # not seen by both watches yet, or gone: the later one brings it here again
        view = self._store.pool(model.pool)
        pool = view.pool if view is not None else None
        wanted = accepted(model, pool, observed.condition, _timestamp())
        if wanted is None:
            return True
        try:
            self._observed[name] = Observed(wanted, await self._apply(model, wanted))
        except (NotFound, Conflict):
            return True  # deleted, or re-created, meanwhile: the watch tells
        except KubeError as error:
            log.warning("the status of %s is not written: %s", name, error.message)
            return isinstance(error, Forbidden)
        if is_refusal(observed.condition, wanted):
            await self._announce(model, wanted)
        return True

    async def _announce(self, model: InferenceModel, wanted: Condition) -> None:
        try:
            await self._client.create(EVENT, model.name.namespace, _event(model, wanted))
        except KubeError as error:
            log.warning("no event for %s: %s", model.name, error.message)

    async def _apply(self, model: InferenceModel, wanted: Condition) -> str:
        """Write a condition; return the resourceVersion that it made."""
        self.writes += 1
        condition = {
            "type": ACCEPTED,
            "status": "True" if wanted.is_true else "False",
            "reason": wanted.reason,
            "message": wanted.message[:32_768],
            "observedGeneration": wanted.generation,
            "lastTransitionTime": wanted.since,
        }
        same_object = {"uid": model.uid} if model.uid else {}
        written = await self._client.apply(
            m.INFERENCE_MODEL,
            model.name.namespace,
            model.name.name,
            {"metadata": same_object, "status": {"conditions": [condition]}},
            manager=MANAGER,
            force=True,
            subresource="status",
        )
        return str(written["metadata"]["resourceVersion"])


def _event(model: InferenceModel, wanted: Condition) -> Json:
    now = _timestamp()
    namespace, name = model.name.namespace, model.name.name
    reference = {
        "apiVersion": m.INFERENCE_MODEL.api_version,
        "kind": m.INFERENCE_MODEL.kind,
        "namespace": namespace,
        "name": name,
        "uid": model.uid,
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "generateName": f"{model.name.name[:240]}.",
            "namespace": model.name.namespace,
        },
        "involvedObject": reference,
        "type": "Warning",
        "reason": wanted.reason,
        "message": wanted.message[:1024],
        "source": {"component": MANAGER},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def _timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
