"""The reconciler as a program: what it keeps, who leads, what it shows, and being killed."""

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest

from datastore.kube import KubeClient
from registry.election import Election, Terms
from tests.fakes.registry import Fault, Quirks
from tests.fakes.registry_scene import Scene, scene


async def test_only_namespaces_that_opted_in() -> None:
    """Without the label nothing happens; taking it away stops and leaves everything."""
    async with scene() as s:
        s.namespace("other", labels={})
        await s.deploy("m0")
        s.runtime(namespace="other")
        s.intend("m1", namespace="other")
        await s.looks(2)
        assert s.resources("other") == {}
        s.namespace("other")
        await s.until(lambda: s.states("m1") == [("v8", "RUNNING")])
        s.namespace("other", labels={})
        await s.until(lambda: s.loop and "other" not in s.loop.keepers)

        assert set(s.resources("other")) == {"m1"}
        assert s.states("m1") == [("v8", "RUNNING")]


async def test_off_is_visible() -> None:
    """Without --model-registry-enabled nothing is read, and /readyz and the metrics say so."""
    async with scene(start=False) as s:
        s.settings = replace(s.settings, enabled=False)
        await s.start()

        assert '"enabled": false' in await s.ask("readyz")
        assert "epp_registry_enabled 0.0" in await s.ask("metrics")
        assert s.registry.log == []


async def test_on_is_visible() -> None:
    """/readyz tells each namespace's last success and conditions."""
    async with scene() as s:
        await s.deploy("m0")

        assert '"enabled": true' in await s.ask("readyz")
        text = await s.ask("metrics")
        assert "epp_registry_enabled 1.0" in text
        assert 'epp_registry_intents{namespace="demo",state="deployed"} 1.0' in text


async def test_the_token_is_read_again(tmp_path: Path) -> None:
    """A rotated token is used at the next request."""
    token = tmp_path / "token"
    token.write_text("old\n")
    async with scene(start=False) as s:
        s.registry.token = "old"
        address = replace(s.settings.address, token_file=token)
        s.settings = replace(s.settings, address=address)
        await s.start()
        await s.deploy("m0")
        s.registry.token = "new"
        await s.looks(2)
        assert s.loop is not None
        assert "unauthorized" in s.loop.keepers["demo"].last_error
        token.write_text("new")
        s.version("mnist", "v12")

        await s.until(lambda: s.states("m0") == [("v8", "COMPLETE"), ("v12", "RUNNING")])


async def test_one_leads_and_another_takes_over() -> None:
    """Two candidates: one leads at a time; the second begins when the first stops renewing."""
    async with scene(start=False) as s, await KubeClient.connect(s.where) as client:
        leading: list[str] = []

        async def lead(name: str) -> None:
            leading.append(name)
            try:
                await asyncio.Event().wait()
            finally:
                leading.remove(name)

        def candidate(name: str) -> asyncio.Task[None]:
            election = Election(client, Terms("demo", "lease", name, 0.9), Random(1))
            run = election.run(lambda: lead(name))
            return asyncio.get_running_loop().create_task(run)

        first = candidate("a")
        await s.until(lambda: leading == ["a"])
        second = candidate("b")
        await asyncio.sleep(0.4)
        assert leading == ["a"]
        first.cancel()
        await s.until(lambda: leading == ["b"])
        failure = s.api.faults.fail(500, plural="leases")
        await s.until(lambda: leading == [])
        s.api.faults.failures.remove(failure)
        await s.until(lambda: leading == ["b"])
        second.cancel()
        await asyncio.wait([first, second])


def _is_time_to_kill(s: Scene, kill_after: int) -> bool:
    applied = sum(n for key, n in s.api.requests.items() if key[0] == "patch")
    done = s.states("m0") == [("v8", "RUNNING")]
    return done or len(s.registry.writes) + applied >= kill_after


@pytest.mark.parametrize("patchable", [False, True], ids=["append", "patch"])
async def test_killed_at_every_write(patchable: bool) -> None:
    """Killed after the k-th write to either side, for each k, and started again: the same audit."""
    for kill_after in range(1, 6):
        async with scene(start=False, quirks=Quirks(patch_serves=patchable)) as s:
            s.model("mnist", "v8")
            s.runtime()
            s.environment()
            s.intend("m0")
            await s.start()
            enough = partial(_is_time_to_kill, s, kill_after)
            await s.until(enough)
            await s.stop()
            s.version("mnist", "v12")
            await s.start()
            await s.until(lambda: s.states("m0")[-1:] == [("v12", "RUNNING")])
            states = [state for state in s.states("m0") if state[1] != "COMPLETE"]

            assert states == [("v12", "RUNNING")]
            assert len(s.labelled("m0")) == 1
            names = [record["name"] for record in s.registry.serves(s.ids["m0"])]
            assert len(names) == len(set(names))


async def test_a_refusal_of_the_api_server_is_recorded_once() -> None:
    """A webhook says no: one FAILED record however often it is tried; then it goes on."""
    async with scene() as s:
        s.model("mnist", "v8")
        s.runtime()
        failure = s.api.faults.fail(422, verb="patch", plural="inferenceservices")
        s.intend("m0")
        await s.until(lambda: s.states("m0") == [("v8", "FAILED")])
        await s.looks(3)
        assert s.records("m0") == [("v8", "UNKNOWN"), ("v8", "FAILED")]
        s.api.faults.failures.remove(failure)

        await s.until(lambda: s.states("m0") == [("v8", "RUNNING")])


async def test_health_of_the_registry_is_told() -> None:
    """/readyz/health of the registry is a metric."""
    async with scene() as s:
        await s.deploy("m0")
        s.registry.faults = [Fault("503")]
        assert s.loop is not None
        [registry] = s.loop._tools.registries.open

        assert await registry.client.is_healthy() is False
