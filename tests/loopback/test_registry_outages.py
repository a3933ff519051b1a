"""Whatever fails, nothing is deleted, nothing is doubled, and it is made good within a period."""

import copy
import re
from collections.abc import Awaitable, Callable

import pytest

from registry.model import Policy
from tests.fakes.registry import Fault
from tests.fakes.registry_scene import API, RUNTIME_API, Scene, scene


async def deployed(s: Scene, count: int = 3) -> None:
    """Bring some deployments up, with one more that is not wanted any more."""
    s.model("mnist", "v8")
    s.runtime()
    for number in range(count):
        s.intend(f"m{number}")
    await s.until(lambda: all(s.states(f"m{n}") == [("v8", "RUNNING")] for n in range(count)))


def frozen(s: Scene) -> object:
    """Return everything that an outage must not move."""
    audits = {name: s.records(name) for name in s.ids if re.fullmatch(r"m\d", name)}
    specs = {name: copy.deepcopy(body["spec"]) for name, body in s.resources().items()}
    return audits, specs


async def _down(s: Scene) -> None:
    await s.registry.down()


async def _up(s: Scene) -> None:
    await s.registry.up()


def strike(*faults: Fault) -> Callable[[Scene], Awaitable[None]]:
    async def do(s: Scene) -> None:
        s.registry.faults = [copy.copy(fault) for fault in faults]

    return do


LISTS = "inference_services"
OUTAGES = {
    "down": _down,
    "slow": strike(Fault("slow")),
    "401": strike(Fault("401")),
    "404-for-everything": strike(Fault("404")),
    "503": strike(Fault("503")),
    "half-a-page": strike(Fault("cut")),
    "short-page": strike(Fault("short")),
    "wrong-json": strike(Fault("not-a-list")),
    "login-page": strike(Fault("html")),
    "redirect": strike(Fault("302")),
    "only-the-list": strike(Fault("500", path=LISTS)),
    "only-versions": strike(Fault("404", path="versions")),
    "only-artifacts": strike(Fault("500", path="artifacts")),
}


@pytest.mark.parametrize("outage", sorted(OUTAGES))
async def test_a_registry_outage_moves_nothing(outage: str) -> None:
    """With prune on, through several periods; then an order is carried out at once."""
    policy = Policy(prune=True)
    async with scene(policy=policy) as s:
        await deployed(s)
        before = frozen(s)
        await OUTAGES[outage](s)
        await s.looks(3)
        assert frozen(s) == before
        s.registry.faults.clear()
        if s.registry._runner is None:
            await _up(s)
        s.order("m0", desiredState="UNDEPLOYED")
        await s.until(lambda: s.states("m0") == [("v8", "COMPLETE")])

        assert set(s.resources()) == {"m1", "m2"}
        assert s.states("m1") == s.states("m2") == [("v8", "RUNNING")]


@pytest.mark.parametrize("kind", ["lost", "500", "503", "slow"])
async def test_writing_the_audit_fails(kind: str) -> None:
    """A record whose answer is lost is not written twice; one that failed is written later."""
    async with scene() as s:
        s.model("mnist", "v8")
        s.runtime()
        s.registry.faults = [Fault(kind, path="serves", method="POST", left=2)]
        s.intend("m0")
        await s.until(lambda: s.states("m0") == [("v8", "RUNNING")])
        await s.looks(2)

        assert s.records("m0") == [("v8", "UNKNOWN"), ("v8", "RUNNING")]
        assert s.labelled("m0")[0]["metadata"]["generation"] <= 2


async def test_reading_the_audit_fails() -> None:
    """Without knowing its records an intent is left alone, and no other one is."""
    async with scene(start=False) as s:
        s.model("mnist", "v8")
        s.runtime()
        s.intend("m0")
        s.intend("m1")
        path = f"inference_services/{s.ids['m0']}/serves"
        s.registry.faults = [Fault("500", path=path)]
        await s.start()
        await s.until(lambda: s.states("m1") == [("v8", "RUNNING")])
        assert set(s.resources()) == {"m1"}
        s.registry.faults.clear()

        await s.until(lambda: s.states("m0") == [("v8", "RUNNING")])


async def test_one_slow_namespace_holds_up_no_other() -> None:
    """The registry hangs for one environment; the other is served."""
    async with scene() as s:
        s.model("mnist", "v8")
        s.namespace("other")
        for namespace in ("demo", "other"):
            s.runtime(namespace=namespace)
            s.environment(namespace)
        s.intend("m0", namespace="demo")
        s.registry.faults = [
            Fault("slow", path=f"serving_environments/{s.environment('demo')}/", slow_s=0.4)
        ]
        s.intend("m1", namespace="other")

        await s.until(lambda: s.states("m1") == [("v8", "RUNNING")])


async def test_the_environment_is_created_once_and_only_when_absent() -> None:
    """An error is no absence: it is created after a whole list that lacks it."""
    async with scene(start=False) as s:
        s.runtime()
        s.registry.faults = [Fault("404", path="serving_environments")]
        await s.start()
        await s.looks(2)
        assert s.registry.writes == []
        s.registry.faults.clear()
        await s.until(lambda: s.registry.store.children("serving_environments"))
        await s.looks(2)

        made = s.registry.store.children("serving_environments")
        assert [(item["name"], item["externalId"]) for item in made] == [("demo", "demo")]


async def test_a_similar_name_is_not_the_environment() -> None:
    """Finding by name is LIKE: `my_ns` must not get the environment of `myXns`."""
    async with scene(start=False) as s:
        s.namespace("my-ns")
        s.registry.add("serving_environments", name="my%ns")
        s.runtime(namespace="my-ns")
        await s.start()
        await s.until(
            lambda: (
                {e["name"] for e in s.registry.store.children("serving_environments")}
                >= {"my%ns", "my-ns"}
            )
        )


async def test_the_api_server_goes_down() -> None:
    """Nothing happens to registry or audit; afterwards the pending order is carried out."""
    async with scene() as s:
        await deployed(s)
        before = frozen(s)
        await s.api.down()
        s.version("mnist", "v12")
        await s.looks(3)
        assert frozen(s) == before
        await s.api.up(s.api.port)

        told = [("v8", "COMPLETE"), ("v12", "RUNNING")]
        await s.until(lambda: all(s.states(f"m{n}") == told for n in range(3)))
        assert len(s.records("m0")) == 5


async def test_deleted_by_hand() -> None:
    """The old record is closed, and it comes again with a new one."""
    async with scene() as s:
        await deployed(s, 1)
        s.remove(API, "InferenceService", "m0")

        told = [("v8", "COMPLETE"), ("v8", "RUNNING")]
        await s.until(lambda: s.states("m0") == told)
        await s.looks(2)
        assert s.states("m0") == told


async def test_stuck_terminating() -> None:
    """While it will not go, the record stays open and nothing else is tried; then it is closed."""
    async with scene() as s:
        await deployed(s, 1)
        s.kserve.stuck.add("m0")
        s.order("m0", desiredState="UNDEPLOYED")
        await s.until(lambda: s.resources()["m0"]["metadata"].get("deletionTimestamp"))
        await s.looks(3)
        assert s.states("m0") == [("v8", "RUNNING")]
        deletes = [key for key in s.api.requests if key[0] == "delete"]
        assert sum(s.api.requests[key] for key in deletes) == 1
        s.order("m0", desiredState="DEPLOYED")
        await s.looks(2)
        assert len(s.labelled("m0")) == 1
        s.kserve.stuck.clear()
        s.kserve.again("demo", "m0")

        await s.until(lambda: s.states("m0") == [("v8", "COMPLETE"), ("v8", "RUNNING")])


async def test_the_runtime_is_deleted() -> None:
    """Its resources are left, and it is said once."""
    async with scene() as s:
        await deployed(s, 2)
        before = frozen(s)
        s.remove(RUNTIME_API, "ServingRuntime", "model-server")
        await s.until(lambda: s.events().count("RuntimeGone") == 2)
        s.version("mnist", "v12")
        await s.looks(3)
        assert frozen(s) == before
        assert s.events().count("RuntimeGone") == 2
        s.runtime()

        told = [("v8", "COMPLETE"), ("v12", "RUNNING")]
        await s.until(lambda: s.states("m0") == s.states("m1") == told)


async def test_moved_to_another_runtime() -> None:
    """The same resource, the other runtime; to one that is not there it does not move."""
    async with scene() as s:
        await deployed(s, 1)
        s.order("m0", runtime="nowhere")
        await s.until(lambda: "RuntimeGone" in s.events())
        s.runtime("second")
        s.order("m0", runtime="second")

        def moved() -> bool:
            [body] = s.labelled("m0")
            return bool(body["spec"]["predictor"]["model"]["runtime"] == "second")

        await s.until(moved)
        assert s.states("m0") == [("v8", "RUNNING")]


async def test_the_namespace_is_deleted() -> None:
    """Its records are closed, nothing is created, and the others go on."""
    async with scene() as s:
        await deployed(s, 1)
        s.namespace(finalizers=["kubernetes"])
        s.remove("v1", "Namespace", "demo")
        s.remove(API, "InferenceService", "m0")
        await s.until(lambda: s.states("m0") == [("v8", "COMPLETE")])
        s.remove(RUNTIME_API, "ServingRuntime", "model-server")
        await s.looks(2)
        assert s.resources() == {}
        s.namespace(finalizers=[])
        await s.until(lambda: s.loop and not s.loop.keepers)

        assert s.states("m0") == [("v8", "COMPLETE")]


async def test_an_event_is_lost() -> None:
    """With silent watches everything still happens, a period later."""
    async with scene() as s:
        await deployed(s, 1)
        s.api.silence_watches()
        s.remove(API, "InferenceService", "m0")
        s.kserve.again("demo", "m0")

        await s.until(lambda: len(s.labelled("m0")) == 1 and len(s.states("m0")) == 2)


async def test_events_alone_are_enough() -> None:
    """With the period off, a change in the cluster is seen at once."""
    async with scene(period_s=0.0) as s:
        s.model("mnist", "v8")
        s.environment()
        s.intend("m0")
        s.runtime()
        await s.until(lambda: s.states("m0") == [("v8", "RUNNING")])
        s.remove(API, "InferenceService", "m0")

        await s.until(lambda: s.states("m0") == [("v8", "COMPLETE"), ("v8", "RUNNING")])
