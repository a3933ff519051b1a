"""The plan's table and its laws: repeatable, convergent after any crash, no delete in doubt."""

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from registry import names
from registry.memory import DeleteBudget, Memory
from registry.model import Policy
from tests.unit.registry_world import World


def world(*, patchable: bool = False, policy: Policy | None = None) -> World:
    made = World(policy or Policy(), patchable)
    made.tag("3")
    made.intend("4", "mnist-deployment")
    return made


async def test_deployed_and_absent_is_created() -> None:
    """DEPLOYED, absent: a record, the resource labelled with it, RUNNING once ready."""
    one = world()
    await one.step()

    body = one.objects["mnist-deployment"]
    assert body["spec"]["predictor"]["model"] == {
        "modelFormat": {"name": "onnx"},
        "runtime": "rt",
        "storage": {"key": "k", "path": "p/3"},
    }
    assert one.audit("4") == [("mnist-deployment/1-v3", "UNKNOWN")]
    assert body["metadata"]["labels"][names.RECORD_LABEL] == one.records["4"][0].id
    one.serve()
    await one.step()
    assert one.states("4") == [("3", "RUNNING")]


async def test_undeployed_and_present_is_deleted_then_closed() -> None:
    """UNDEPLOYED, present: COMPLETE only once the resource is gone."""
    one = world()
    await one.settle()
    one.objects["mnist-deployment"]["metadata"]["finalizers"] = ["slow"]
    one.intend("4", "mnist-deployment", deployed=False)
    await one.step()
    await one.step()
    assert one.states("4") == [("3", "RUNNING")]
    one.serve()
    await one.settle()

    assert one.objects == {}
    assert one.states("4") == [("3", "COMPLETE")]


async def test_a_new_version_rolls() -> None:
    """A newer version: old record COMPLETE, new one RUNNING only on a status that moved."""
    one = world()
    await one.settle()
    one.tag("5")
    await one.step()
    await one.step()
    assert one.states("4") == [("3", "COMPLETE"), ("5", "UNKNOWN")]
    one.serve()
    await one.settle()

    assert one.states("4") == [("3", "COMPLETE"), ("5", "RUNNING")]
    storage = one.objects["mnist-deployment"]["spec"]["predictor"]["model"]["storage"]
    assert storage["path"] == "p/5"


async def test_a_version_without_artifact_changes_nothing() -> None:
    """No live artifact: the version before stays, no record is opened, a condition tells."""
    one = world()
    await one.settle()
    before = one.state()
    one.tag("5", artifact=False)
    for _ in range(3):
        outcome = await one.step()
        assert [c.reason for c in outcome.conditions["4"]] == ["NoArtifact"]

    assert one.state() == before


async def test_deleted_by_hand_is_a_new_episode() -> None:
    """The old record is closed and the resource comes again with a new one."""
    one = world()
    await one.settle()
    one.objects.clear()
    await one.settle()

    assert one.states("4") == [("3", "COMPLETE"), ("3", "RUNNING")]


async def test_deleted_by_hand_while_loading() -> None:
    """A resource that we saw and that is gone is no crash of ours."""
    one = world()
    await one.step()
    await one.step()
    one.objects.clear()
    await one.settle()

    assert one.states("4") == [("3", "COMPLETE"), ("3", "RUNNING")]


async def test_a_foreign_resource_is_never_adopted() -> None:
    """One FAILED record, however many passes; when the name is free the same episode goes on."""
    one = world()
    one.foreign("mnist-deployment")
    theirs = copy.deepcopy(one.objects)
    for _ in range(4):
        outcome = await one.step()
        assert [c.reason for c in outcome.conditions["4"]] == ["NameTaken"]
    assert one.objects == theirs
    assert one.audit("4") == [("mnist-deployment/1-v3", "FAILED")]
    one.objects.clear()
    await one.settle()

    assert one.states("4") == [("3", "RUNNING")]


async def test_what_the_api_server_refuses_is_recorded_once() -> None:
    """A refused create: one FAILED record, tried again without another."""
    one = world()
    one.refuse = "exceeded quota"
    for _ in range(4):
        outcome = await one.step()
        assert "4" in outcome.failures
    assert one.states("4") == [("3", "FAILED")]
    assert len(one.audit("4")) == 2
    one.refuse = ""
    await one.settle()

    assert one.states("4") == [("3", "RUNNING")]


async def test_a_refused_roll_leaves_the_old_record_open() -> None:
    """COMPLETE is for a version that was replaced: a refused one fails beside it."""
    one = world()
    await one.settle()
    one.tag("5")
    one.refuse = "quota"
    await one.step()
    await one.step()

    assert one.states("4") == [("3", "RUNNING"), ("5", "FAILED")]
    assert len(one.audit("4")) == 4


async def test_two_intents_with_one_name() -> None:
    """The older one has the name, the other fails once; with the older gone it takes over."""
    one = world()
    one.intend("9", "mnist-deployment")
    for _ in range(3):
        await one.step()
        one.serve()
    assert one.states("4") == [("3", "RUNNING")]
    assert one.audit("9") == [("mnist-deployment/1-v3", "FAILED")]
    one.intend("4", "mnist-deployment", deployed=False)
    await one.settle()

    assert one.states("9") == [("3", "RUNNING")]
    assert one.objects["mnist-deployment"]["metadata"]["labels"][names.INTENT_LABEL] == "9"


async def test_a_deleted_runtime_leaves_its_resources() -> None:
    """Nothing is written without the runtime, except what UNDEPLOYED asks for."""
    one = world()
    await one.settle()
    before = one.state()
    one.runtimes = {}
    one.tag("5")
    outcome = await one.step()
    assert [c.reason for c in outcome.conditions["4"]] == ["RuntimeGone"]
    assert one.state() == before
    one.intend("4", "mnist-deployment", deployed=False)
    await one.settle()

    assert one.states("4") == [("3", "COMPLETE")]


async def test_an_intent_moves_to_another_runtime() -> None:
    """The same resource and the same record, the other runtime."""
    one = world()
    await one.settle()
    one.runtimes = {"rt": {}, "other": {}}
    one.intend("4", "mnist-deployment", runtime="other")
    await one.settle()

    assert one.states("4") == [("3", "RUNNING")]
    assert one.objects["mnist-deployment"]["spec"]["predictor"]["model"]["runtime"] == "other"


@pytest.mark.parametrize("name", ["x/0a1b2c3d-1111-2222-3333-444455556666", "mine"])
async def test_what_the_reverse_controller_made_is_left_alone(name: str) -> None:
    """Its records are named `<isvc>/<uid>`, or a resource carries their id."""
    one = world()
    one.intend("4", name)
    one.foreign("isvc")
    one.objects["isvc"]["metadata"]["labels"] = (
        {"modelregistry.kubeflow.org/inference-service-id": "4"} if name == "mine" else {}
    )
    before = one.state()

    assert one.plan().chains == ()
    assert one.state() == before


async def test_owned_fields_only() -> None:
    """Replicas, resources and other people's labels are no difference."""
    one = world()
    await one.settle()
    body = one.objects["mnist-deployment"]
    body["spec"]["predictor"]["minReplicas"] = 3
    body["spec"]["predictor"]["model"]["resources"] = {"limits": {"cpu": "1"}}
    body["metadata"]["labels"]["team"] = "vision"

    assert one.plan().empty
    body["spec"]["predictor"]["model"]["runtime"] = "edited"
    [chain] = one.plan().chains
    assert [step.changes for step in chain.steps if hasattr(step, "changes")] == [
        ("spec.predictor.model.runtime",)
    ]


@pytest.mark.parametrize(
    ("wanted", "there"), [("RawDeployment", "Standard"), ("Knative", "Serverless")]
)
async def test_both_spellings_of_a_mode_are_one(wanted: str, there: str) -> None:
    """KServe renamed its modes: the other spelling is no difference."""
    one = world(policy=Policy(deployment_mode=wanted))
    await one.settle()
    one.objects["mnist-deployment"]["metadata"]["annotations"][names.DEPLOYMENT_MODE] = there

    assert one.plan().empty


async def test_a_failed_load_is_recorded_and_heals() -> None:
    """FAILED with KServe's reason; RUNNING again when it loads."""
    one = world()
    await one.step()
    one.objects["mnist-deployment"]["status"] = {
        "conditions": [{"type": "Ready", "status": "False"}],
        "modelStatus": {
            "transitionStatus": "BlockedByFailedLoad",
            "lastFailureInfo": {"reason": "ModelLoadFailed", "message": "no such key"},
        },
    }
    await one.step()
    await one.step()
    assert one.states("4") == [("3", "FAILED")]
    assert one.records["4"][-1].properties["reason"] == "ModelLoadFailed"
    await one.settle()

    assert one.states("4") == [("3", "RUNNING")]
    assert len(one.audit("4")) == 3


async def test_prune_wants_two_full_lists_and_an_older_registry() -> None:
    """A vanished intent's resource goes only with --prune, and not on the first list."""
    one = world()
    await one.settle()
    del one.intents["4"]
    for _ in range(3):
        await one.step()
    assert "mnist-deployment" in one.objects
    one.policy = replace(one.policy, prune=True)
    one.memory = Memory()
    await one.step()
    assert "mnist-deployment" in one.objects
    await one.step()

    assert one.objects == {}


async def test_a_replaced_registry_prunes_nothing() -> None:
    """An environment younger than the resource did not ask for it."""
    one = world(policy=Policy(prune=True))
    await one.settle()
    one.objects["mnist-deployment"]["metadata"]["creationTimestamp"] = "1969-12-01T00:00:00Z"
    one.intents.clear()
    await one.step()
    outcome = await one.step()

    assert "mnist-deployment" in one.objects
    assert [c.reason for c in outcome.conditions["4"]] == ["RegistryReplaced"]


async def test_deletes_are_bounded() -> None:
    """Not more than --max-deletes in a period; the rest follows in the next."""
    one = world()
    for number in range(20, 25):
        one.intend(str(number), f"m{number}")
    await one.settle()
    for intent_id in list(one.intents):
        one.intend(intent_id, one.intents[intent_id].name, deployed=False)
    one.budget = DeleteBudget(2, 60.0)
    await one.step()
    assert len(one.objects) == 4
    one.now -= 60.0
    outcome = await one.step()
    assert len(one.objects) == 4
    assert "DeletesExhausted" in {c.reason for found in outcome.conditions.values() for c in found}
    await one.step()

    assert len(one.objects) == 2


SCENES = ("create", "roll", "undeploy", "redeploy", "by-hand", "refused", "pinned")


async def _scene(name: str, patchable: bool) -> World:
    """Return a world in which the next pass has something to do."""
    one = world(patchable=patchable)
    if name in ("create", "refused"):
        one.refuse = "quota" if name == "refused" else ""
        return one
    await one.settle()
    match name:
        case "roll":
            one.tag("5")
        case "undeploy":
            one.intend("4", "mnist-deployment", deployed=False)
        case "redeploy":
            one.intend("4", "mnist-deployment", deployed=False)
            await one.settle()
            one.intend("4", "mnist-deployment")
        case "by-hand":
            one.objects.clear()
        case "pinned":
            one.tag("5")
            await one.settle()
            one.intend("4", "mnist-deployment", version_id="3")
        case other:
            raise AssertionError(other)
    return one


@pytest.mark.parametrize("patchable", [False, True], ids=["append", "patch"])
@pytest.mark.parametrize("name", SCENES)
async def test_a_crash_after_any_write_converges(name: str, patchable: bool) -> None:
    """Crash after the k-th write, for every k, and rerun: the end state of the uncrashed run."""
    smooth = await _scene(name, patchable)
    await smooth.crashing_step(None)
    written = smooth.writes
    smooth.refuse = ""
    await smooth.settle()
    for crash_after in range(1, written + 1):
        one = await _scene(name, patchable)
        await one.crashing_step(crash_after)
        await one.crashing_step(1)  # and once more, on the way back
        one.refuse = ""
        await one.settle()

        assert one.state() == smooth.state(), crash_after
    assert written > 0


def is_foreign(one: World) -> bool:
    """Whether somebody else has the name that our intent wants."""
    body = one.objects.get("mnist-deployment")
    return body is not None and "labels" not in body["metadata"]


def add_foreign(one: World) -> None:
    """Let somebody else take the name, if it is free."""
    if not one.objects:
        one.foreign("mnist-deployment")


def tag(one: World, *, artifact: bool) -> None:
    """Tag the next version."""
    newest = max(int(version.id) for version in one.versions)
    one.tag(str(newest + 1), artifact=artifact)


def intend(one: World, **fields: object) -> None:
    """Change the intent."""
    one.intents["4"] = replace(one.intents["4"], **fields)  # type: ignore[arg-type]  # test data


ACTIONS: dict[str, Callable[[World], object]] = {
    "deploy": lambda one: intend(one, deployed=True),
    "undeploy": lambda one: intend(one, deployed=False),
    "tag": lambda one: tag(one, artifact=True),
    "tag-bare": lambda one: tag(one, artifact=False),
    "pin": lambda one: intend(one, version_id="3"),
    "by-hand": lambda one: one.objects.pop("mnist-deployment", None),
    "foreign": add_foreign,
    "unforeign": lambda one: is_foreign(one) and one.objects.pop("mnist-deployment"),
    "serve": lambda one: one.serve(),
    "no-runtime": lambda one: setattr(one, "runtimes", {}),
    "runtime": lambda one: setattr(one, "runtimes", {"rt": {}}),
    "refuse": lambda one: setattr(one, "refuse", "quota"),
    "accept": lambda one: setattr(one, "refuse", ""),
    "second": lambda one: one.intend("9", "mnist-deployment"),
    "second-off": lambda one: one.intend("9", "mnist-deployment", deployed=False),
}


@settings(max_examples=100, deadline=None)
@example(
    steps=[("serve", None), ("serve", None), ("tag", None), ("pin", 1), ("by-hand", None)],
    patchable=False,
)
@example(steps=[("accept", None), ("tag", 1), ("tag-bare", None)], patchable=False)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(sorted(ACTIONS)), st.one_of(st.none(), st.integers(1, 4))),
        max_size=14,
    ),
    patchable=st.booleans(),
)
async def test_whatever_happens_it_converges(
    steps: list[tuple[str, int | None]], patchable: bool
) -> None:
    """Any story, with a crash anywhere, ends as asked, with at most one open record."""
    one = world(patchable=patchable)
    for action, crash_after in steps:
        ACTIONS[action](one)
        await one.crashing_step(crash_after)
    one.refuse, one.runtimes = "", {"rt": {}}
    await one.settle()

    for intent_id, intent in one.intents.items():
        found = one.resources(intent_id)
        still_open = [state for _, state in one.states(intent_id) if state != "COMPLETE"]
        assert len(found) <= 1
        assert len(still_open) <= 1
        if not intent.deployed:
            assert (found, still_open) == ([], [])
        elif found:
            assert still_open == ["RUNNING"]
        else:
            blocked = is_foreign(one) or len(one.intents) > 1
            assert blocked or not one.artifacts[one.versions[-1].id]
