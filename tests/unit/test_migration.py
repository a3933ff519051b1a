"""Old InferenceModels become new ones, or it is said why not."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from epp.migration import Choices, Json, Plan, plan, propose


def old(name: str, model_name: str | None = None, pool: str = "vllm", **spec: Any) -> Json:
    if model_name is not None:
        spec["modelName"] = model_name
    return {
        "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
        "kind": "InferenceModel",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"poolRef": {"name": pool}, **spec},
    }


def aged(obj: Json, day: int) -> Json:
    created = f"2026-01-{day:02}T00:00:00Z"
    return {**obj, "metadata": {**obj["metadata"], "creationTimestamp": created}}


def shown(found: Plan) -> list[tuple[str, str]]:
    return [
        (
            "delete" if step.after is None else "change" if step.before else "make",
            step.name,
        )
        for step in found.steps
    ]


def test_a_name_that_can_be_spelled_becomes_the_objects_name() -> None:
    """What clients ask for stays what they ask for; the old object goes last."""
    found = plan([old("llama-object", "llama", criticality="Critical")], Choices())
    assert shown(found) == [("make", "llama"), ("delete", "llama-object")]
    after = found.steps[0].after
    assert after is not None
    assert after["spec"] == {
        "poolRef": {"name": "vllm"},
        "criticality": "Critical",
        "modelName": "llama",
    }


def test_what_is_right_is_left_alone() -> None:
    """New objects, and old ones whose two names agree, need nothing."""
    assert plan([old("llama", "llama"), old("qwen")], Choices()) == Plan((), ())
    found = plan([old("llama", "llama")], Choices(drop_model_name=True))
    assert shown(found) == [("change", "llama")]


def test_an_impossible_name_is_reported_with_a_proposal() -> None:
    """A name with a slash is nobody's metadata.name: nothing happens to it without a decision."""
    models = [old("llama", "meta-llama/Llama-3.1-8B")]
    found = plan(models, Choices())
    assert found.steps == ()
    assert "meta-llama-llama-3.1-8b" in found.findings[0].way_out
    accepted = plan(models, Choices(accept_proposals=True))
    assert shown(accepted) == [("make", "meta-llama-llama-3.1-8b"), ("delete", "llama")]
    after = accepted.steps[0].after
    assert after is not None
    assert after["spec"]["targetModels"] == [{"name": "meta-llama/Llama-3.1-8B"}]
    named = plan(models, Choices(renames={"meta-llama/Llama-3.1-8B": "llama-8b"}))
    assert shown(named) == [("make", "llama-8b"), ("delete", "llama")]


def test_targets_stay_as_they_are() -> None:
    """A split is carried over, weights and all."""
    targets = [{"name": "a", "weight": 1}, {"name": "b", "weight": 9}]
    found = plan([old("x", "llama", targetModels=targets)], Choices(drop_model_name=True))
    after = found.steps[0].after
    assert after is not None
    assert after["spec"] == {"poolRef": {"name": "vllm"}, "targetModels": targets}


def test_of_duplicates_the_oldest_is_carried_over() -> None:
    """The others never served, or served another pool: they are reported and stay."""
    models = [
        aged(old("new", "llama"), 2),
        aged(old("first", "llama"), 1),
        aged(old("elsewhere", "llama", "other"), 3),
    ]
    found = plan(models, Choices())
    assert shown(found) == [("make", "llama"), ("delete", "first")]
    assert [(one.name, "never served" in one.problem) for one in found.findings] == [
        ("new", True),
        ("elsewhere", False),
    ]


def test_names_can_be_swapped() -> None:
    """Two objects that carry each other's name are both changed, none is deleted."""
    found = plan([old("llama", "qwen"), old("qwen", "llama")], Choices())
    assert shown(found) == [("change", "llama"), ("change", "qwen")]


def test_a_taken_name_is_not_taken_away() -> None:
    """An object that stays keeps its name, whoever wants it."""
    found = plan([old("llama"), old("x", "llama")], Choices())
    assert found.steps == ()
    stuck = plan([old("a", "Not/Possible"), old("b", "a"), old("c", "b")], Choices())
    assert stuck.steps == ()
    assert {one.name for one in stuck.findings} == {"a", "b", "c"}
    two = [old("x", "A/b"), old("y", "a/B")]
    clash = plan(two, Choices(accept_proposals=True))
    assert [one.name for one in clash.findings] == ["y"]


def test_namespaces_are_apart() -> None:
    """The same name in two namespaces is no duplicate."""
    other = old("x", "llama")
    other["metadata"]["namespace"] = "second"
    found = plan([old("x", "llama"), other], Choices())
    assert {step.namespace for step in found.steps} == {"default", "second"}
    assert found.findings == ()


def test_what_the_server_added_is_not_carried_over() -> None:
    """A new object has no uid, no status, no managed fields and no last-applied annotation."""
    model = old("x", "llama")
    model["metadata"] |= {
        "uid": "1",
        "resourceVersion": "2",
        "managedFields": [],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "mine": "1"},
        "labels": {"a": "b"},
    }
    model["status"] = {"conditions": []}
    after = plan([model], Choices()).steps[0].after
    assert after is not None
    assert after["metadata"] == {
        "name": "llama",
        "namespace": "default",
        "labels": {"a": "b"},
        "annotations": {"mine": "1"},
    }
    assert "status" not in after


names = st.sampled_from(["a", "b", "c", "A/b", "a-b", "d"])


@given(
    st.dictionaries(st.sampled_from("abcde"), st.tuples(names, st.sampled_from("pq"))),
    st.booleans(),
)
def test_nothing_is_lost(given_: dict[str, tuple[str, str]], accept: bool) -> None:
    """Every object is carried over, or reported and left; a second run does nothing."""
    models = [old(name, wanted, pool) for name, (wanted, pool) in given_.items()]
    found = plan(models, Choices(accept_proposals=accept))
    reported = {finding.name for finding in found.findings}
    world = {model["metadata"]["name"]: model for model in models}
    for step in found.steps:
        assert step.name not in reported
        if step.after is None:
            del world[step.name]
        else:
            world[step.name] = step.after
    assert len(world) == len(models)
    for model in models:
        name = model["metadata"]["name"]
        if name in reported:
            assert world[name] == model
        else:
            wanted = model["spec"]["modelName"]
            assert world[propose(wanted)]["spec"]["poolRef"] == model["spec"]["poolRef"]
    if not reported:
        assert plan(list(world.values()), Choices()) == Plan((), ())


@given(st.text(max_size=300))
def test_a_proposal_can_be_a_name(text: str) -> None:
    """Whatever the name, the proposal is one that Kubernetes takes, or none; it is its own."""
    found = propose(text)
    assert not found or propose(found) == found
    assert len(found) <= 253
