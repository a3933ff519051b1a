"""Five hundred deployments in one environment: what a period costs when nothing changes."""

import asyncio
import logging
from dataclasses import replace
from time import process_time

import pytest

from registry.keeper import Keeper
from tests.fakes.registry_scene import Scene, scene

log = logging.getLogger(__name__)

COUNT = 500
MODELS = 5


async def _prepared(s: Scene) -> Keeper:
    for number in range(MODELS):
        s.model(f"model{number}", "v1", "v2")
    for number in range(COUNT):
        s.intend(f"m{number}", model=f"model{number % MODELS}")
    s.runtime()
    s.kserve.paused = True
    await s.start()
    records = s.registry.store.kinds["serves"]
    await s.until(lambda: len(records) == len(s.resources()) == COUNT, 90)
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    for body in s.resources().values():  # a controller of its own would be most of this test
        s.api.put({**body, "status": ready})
    await s.until(lambda: len(records) == 2 * COUNT, 90)
    assert s.loop is not None
    return s.loop.keepers["demo"]


@pytest.mark.timeout(120)
async def test_a_period_without_a_change() -> None:
    """Pages, and one GET for each distinct model and each distinct version; at most 5 s.

    The keeper's own period is off: this test says when to look.
    """
    async with scene(start=False, period_s=0.0, settle_s=0.7) as s:
        s.settings = replace(s.settings, address=replace(s.settings.address, timeout_s=10.0))
        keeper = await _prepared(s)
        await asyncio.sleep(1.0)  # the last events arrive
        await s.until(lambda: not keeper.looking and not keeper._due)
        keeper._tools.registries.open[0].resolver._shelf.sweep(float("inf"))
        s.registry.log.clear()
        began, cpu = asyncio.get_running_loop().time(), process_time()
        outcome = await keeper.look()
        took_s = asyncio.get_running_loop().time() - began
        cpu_s = process_time() - cpu  # both fakes included; steady on a busy machine

        pages = -(-COUNT // 100)
        asked = sum(n for (_, path), n in s.registry.requests.items() if "/readyz/" not in path)
        log.info("%d deployments: %d requests, %.2f s, CPU %.2f s", COUNT, asked, took_s, cpu_s)
        assert outcome is not None
        assert outcome.writes == {}
        assert asked == pages + MODELS + MODELS
        assert cpu_s < 5.0
        assert len(s.resources()) == COUNT
