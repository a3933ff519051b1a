"""Whatever goes wrong, and in whatever order: in the end what is known is what there is."""

import asyncio
import os
from collections.abc import Iterator
from random import Random

import pytest

from datastore.cluster import Scope
from datastore.decode import decode_json
from datastore.events import Upserted
from datastore.kube import KubeClient
from datastore.reflect import Pace
from datastore.store import Store
from tests.cluster.conftest import Following, following
from tests.cluster.world import (
    WATCHED,
    Json,
    model,
    old_pool,
    placed,
    pod,
    pool,
    shown,
    until,
)
from tests.fakes.apiserver import ApiServer
from tests.fakes.kube_faults import WatchList
from tests.fakes.kube_objects import StatusError, encode

PACE = Pace(backoff_max_s=3.0, idle_s=3.0, watch_list_s=1.0, page_limit=7)
SPACES = ["default", "second"]
LATE_S = 2.0
HEAL_S = 8.0
LOADED = 4.0
"""How much longer it may take in `make test`, whose machine has other things to do."""


class Chaos:
    """Random changes, random faults, all from one seed."""

    def __init__(self, api: ApiServer, seed: int) -> None:
        self.api = api
        self.rng = Random(seed)
        self.touched: dict[str, dict[str, int]] = {}

    def change(self) -> None:
        """Change something in the cluster."""
        rng = self.rng
        number = rng.randrange(12)
        app = rng.choice(("vllm", "vllm", "web"))
        obj = rng.choice(
            (
                model(f"m{number}", rng.choice(("vllm", "old"))),
                model(f"m{number}", targetModels=[{"name": f"t{rng.randrange(99)}"}]),
                pod(f"p{number}", f"10.0.0.{number}", app, ready=rng.random() < 0.7),
                pod(f"p{number}", f"10.0.0.{number}", app, ready=rng.random() < 0.7),
                pool("vllm", app, rng.choice((8000, 8001))),
                old_pool("old", app),
                old_pool("vllm", app, 7),
            )
        )
        obj = placed(obj, rng.choice(SPACES))
        before = self.api.storage.revision
        self._write(obj)
        if self.api.storage.revision > before:
            metadata = obj["metadata"]
            touched = self.touched.setdefault(f"{metadata['namespace']}/{metadata['name']}", {})
            touched[obj["apiVersion"]] = self.api.storage.revision

    def told_at(self, name: str) -> Iterator[float | None]:
        """Yield when each last change of the objects of this name was delivered, if it was."""
        for revision in self.touched[name].values():
            yield self.api.storage.history.delivered.get(revision)

    def _write(self, obj: Json) -> None:
        rng = self.rng
        if rng.random() < 0.003:
            obj["metadata"]["annotations"] = {"large": "x" * 3_000_000}
        if rng.random() < 0.8:
            self.api.put(obj)
            return
        try:
            self.api.remove(obj)
        except StatusError:
            self.api.put(obj)

    async def fault(self) -> None:
        """Break something, for a while or at once."""
        plural = self.rng.choice(("", "pods", "inferencemodels", "inferencepools"))
        kind = self.rng.choice((self.end_watches, self.refuse, self.garble, self.slow_down))
        if self.rng.random() < 0.1:
            await self.go_away()
        else:
            kind(plural)

    async def go_away(self) -> None:
        await self.api.down()
        await asyncio.sleep(self.rng.uniform(0, 1))
        await self.api.up()

    def end_watches(self, plural: str) -> None:
        api = self.api
        if self.rng.random() < 0.3:
            api.compact()
        how = (api.cut_watches, api.close_watches, api.expire_watches, api.silence_watches)
        self.rng.choice(how)(plural)

    def refuse(self, plural: str) -> None:
        status = self.rng.choice((401, 403, 410, 429, 500, 503))
        verb = self.rng.choice(("", "list", "watch"))
        self.api.faults.fail(status, verb=verb, plural=plural, times=self.rng.randint(1, 4))

    def garble(self, plural: str) -> None:
        faults = self.api.faults
        faults.duplicate, faults.reorder = self.rng.random() / 2, self.rng.random() / 2
        faults.cut_lists = self.rng.randint(0, 3)
        faults.watch_list = self.rng.choice(list(WatchList))
        faults.gone_as_event = self.rng.random() < 0.5
        self.api.cut_watches(plural)

    def slow_down(self, plural: str) -> None:
        self.api.faults.list_delay_s = self.rng.uniform(0, 0.3)
        self.api.faults.silent = self.rng.random() < 0.3
        self.api.close_watches(plural)


def truth(api: ApiServer) -> Store:
    """Return what the server has, read from its memory."""
    store = Store()
    for resource in WATCHED:
        for obj in api.all(resource.api_version, resource.kind):
            values = decode_json(encode(obj), resource).values
            store.apply([Upserted(value, str(resource)) for value in values])
    return store


def overdue(chaos: Chaos, found: Following, now: float, late_s: float) -> Iterator[str]:
    """Yield each endpoint that should have been gone for too long."""
    right = {
        (str(view.pool.name), endpoint.authority)
        for view in truth(chaos.api).pools()
        for endpoint in view.endpoints
    }
    for view in found.store.pools():
        for endpoint in view.endpoints:
            names = {str(view.pool.name), str(endpoint.backend)}
            if (str(view.pool.name), endpoint.authority) in right:
                continue
            told = [when for name in names for when in chaos.told_at(name)]
            if all(when is not None and now - when > late_s for when in told):
                ages = [round(now - when, 1) for when in told if when is not None]
                states = [(str(w.subject), w.state.value, w.error) for w in found.source.watches]
                yield f"{view.pool.name} {endpoint.authority}, told {ages} s ago, {states}"


async def rage(
    api: ApiServer, client: KubeClient, seed: int, seconds: float, patience: float = 1.0
) -> None:
    chaos = Chaos(api, seed)
    clock = asyncio.get_running_loop().time
    async with following(client, Scope(tuple(SPACES)), PACE) as found:
        end = clock() + seconds
        next_fault = clock()
        while clock() < end:
            for _ in range(3):
                chaos.change()
            if clock() >= next_fault:
                await chaos.fault()
                next_fault = clock() + chaos.rng.uniform(0.05, 0.6)
            assert list(overdue(chaos, found, clock(), LATE_S * patience)) == []
            await asyncio.sleep(0.02)
        treatment = api.faults.watch_list
        api.faults.clear()
        api.faults.watch_list = treatment
        expected = shown(truth(api), SPACES)
        await until(lambda: shown(found.store, SPACES), expected, HEAL_S * patience)


@pytest.mark.parametrize("seed", [1, 2])
async def test_after_the_last_fault_all_is_known(
    api: ApiServer, client: KubeClient, seed: int
) -> None:
    """Soon after the last fault the store equals the server's state, by value."""
    await rage(api, client, seed, 4.0, LOADED)


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_half_an_hour_of_faults(api: ApiServer, client: KubeClient) -> None:
    """For as long as CHAOS_S says, or half an hour: within 8 s of the last fault all is known."""
    seconds = float(os.environ.get("CHAOS_S", "1800"))  # noqa: TID251 - a test's own knob
    await rage(api, client, 7, seconds)
