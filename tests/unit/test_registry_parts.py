"""The smaller pure parts: names, ownership, readiness, the audit's reading, traffic, the budget."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry import errors, names
from registry.audit import advance, open_record, read_episodes
from registry.memory import DeleteBudget
from registry.model import (
    Desired,
    Environment,
    Intent,
    Observed,
    Policy,
    Record,
    RecordState,
    Resource,
)
from registry.ownership import delta, has_other_authors, owned_fields
from registry.plan import plan
from registry.readiness import Progress, health, status_digest
from registry.settings import Settings, mistakes_in
from registry.tell import REASONS


@given(st.text(max_size=80), st.integers(1, 10**9).map(str))
def test_every_name_is_one_that_kubernetes_takes(name: str, intent_id: str) -> None:
    """Valid, the same each time, and itself where it is valid already."""
    made = names.resource_name(name, intent_id)
    assert names.is_resource_name(made)
    assert made == names.resource_name(name, intent_id)
    assert not names.is_resource_name(name) or made == name


@given(st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=30))
def test_two_names_never_become_one(one: str, other: str) -> None:
    assert (names.resource_name(one, "1") == names.resource_name(other, "1")) == (one == other)


def owned(manager: str, fields: dict[str, Any], **entry: str) -> dict[str, Any]:
    return {"manager": manager, "operation": "Apply", "fieldsV1": fields, **entry}


LIVE: dict[str, Any] = {
    "metadata": {
        "labels": {"a": "1"},
        "managedFields": [
            owned("us", {"f:metadata": {"f:labels": {".": {}, "f:a": {}, "f:old": {}}}}),
            owned("them", {"f:spec": {"f:replicas": {}}}, operation="Update"),
            owned("kserve", {"f:status": {}}, operation="Update", subresource="status"),
        ],
    },
    "spec": {"replicas": 3, "list": [{"name": "x"}]},
}


def test_a_delta_is_what_an_apply_would_change() -> None:
    """Other values, what is not ours yet; what is ours and gone already is no difference."""
    assert owned_fields(LIVE, "us") == (("metadata", "labels", "a"), ("metadata", "labels", "old"))
    assert delta({"metadata": {"labels": {"a": "1"}}}, LIVE, "us") == ()
    assert delta({"metadata": {"labels": {"a": "2"}}}, LIVE, "us") == ("metadata.labels.a",)
    wanted = {"metadata": {"labels": {"a": "1"}}, "spec": {"replicas": 3}}
    assert delta(wanted, LIVE, "us") == ("spec.replicas",)
    assert delta({}, LIVE, "us") == ("metadata.labels.a",)


def test_other_authors_are_not_controllers_of_the_status() -> None:
    assert has_other_authors(LIVE, "us")
    assert not has_other_authors(LIVE, "them") or has_other_authors(LIVE, "us")
    entries = [item for item in LIVE["metadata"]["managedFields"] if item["manager"] != "them"]
    assert not has_other_authors({"metadata": {"managedFields": entries}}, "us")


READY = {"conditions": [{"type": "Ready", "status": "True"}]}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, Progress.PENDING),
        (READY, Progress.READY),
        ({"conditions": [{"type": "Ready", "status": "False"}]}, Progress.PENDING),
        ({**READY, "modelStatus": {"transitionStatus": "UpToDate"}}, Progress.READY),
        ({**READY, "modelStatus": {"transitionStatus": ""}}, Progress.READY),
        ({**READY, "modelStatus": {"transitionStatus": "InProgress"}}, Progress.PENDING),
        ({**READY, "modelStatus": {"transitionStatus": "BlockedByFailedLoad"}}, Progress.FAILED),
        ({"modelStatus": {"transitionStatus": "InvalidSpec"}}, Progress.FAILED),
        (
            {**READY, "modelStatus": {"states": {"targetModelState": "FailedToLoad"}}},
            Progress.FAILED,
        ),
    ],
)
def test_what_a_status_says(status: dict[str, Any], expected: Progress) -> None:
    assert health(Resource({"metadata": {}, "status": status}), {}, None).progress is expected


def test_an_old_status_says_nothing_of_the_new_spec() -> None:
    """Only after the status moved; a write that left the spec alone has nothing to wait for."""
    digest = status_digest(READY)
    rolled = Resource({"metadata": {"generation": 2}, "status": READY})
    before = {"generationBefore": "1", "statusBefore": digest}
    assert health(rolled, before, None).progress is Progress.PENDING
    assert health(rolled, {**before, "generationBefore": "2"}, None).progress is Progress.READY
    other = {**before, "statusBefore": "other"}
    assert health(rolled, other, None).progress is Progress.READY
    assert health(rolled, other, digest).progress is Progress.PENDING
    assert health(rolled, {**before, "uidBefore": "another"}, None).progress is Progress.READY


async def test_a_copy_with_our_label_is_not_deleted() -> None:
    """What we never wrote to is nobody's to delete, whatever its labels say."""
    label = {names.INTENT_LABEL: "4"}
    copy = Resource({"metadata": {"name": "copy", "labels": label}})
    observed = Observed("demo", Environment("1", "demo"), {"rt": {}}, (copy,))
    undeployed = Desired(replace(intent(4), deployed=False))
    for desired in ([undeployed], []):
        made = plan(desired, replace(observed, missing=frozenset({"4"})), Policy(prune=True))
        assert [chain.steps for chain in made.chains] == [()]
        assert [c.reason for chain in made.chains for c in chain.conditions] == ["NotOurs"]


def test_the_stem_of_a_records_name_is_bounded() -> None:
    assert names.record_stem("m", "4") == "m"
    assert names.record_stem("", "4") == "4"
    long = names.record_stem("x" * 300, "4")
    assert len(long) < 130
    assert long != names.record_stem("x" * 301, "4")


def record(identifier: str, name: str, version: str, state: str) -> Record:
    return Record(identifier, name, version, RecordState(state))


def test_the_audit_is_read_as_episodes() -> None:
    """Series by their number; records of others, and such whose version lies, are passed over."""
    found = read_episodes(
        [
            record("1", "a/b/1-v3", "3", "UNKNOWN"),
            record("3", "a/b/1-v3/1-running", "3", "RUNNING"),
            record("4", "a/b/2-v5", "5", "UNKNOWN"),
            record("5", "a/b/1-v3/10-complete", "3", "COMPLETE"),
            record("6", "a/b/1-v3/9-failed", "3", "FAILED"),
            record("7", "a/7f0c", "3", "RUNNING"),
            record("8", "a/b/3-v9", "5", "RUNNING"),
        ]
    )
    assert [(e.number, e.version_id, e.state.value, e.length) for e in found] == [
        (1, "3", "COMPLETE", 4),
        (2, "5", "UNKNOWN", 1),
    ]
    assert open_record("9", "a/b", "5", found, {}).name == "a/b/3-v5"


def test_a_series_is_never_patched() -> None:
    """Once transitions were appended, the first record is no place for the state."""
    [single] = read_episodes([record("1", "a/1-v3", "3", "UNKNOWN")])
    assert advance("9", single, RecordState.RUNNING).first_id == "1"
    series = replace(single, length=2)
    assert advance("9", series, RecordState.FAILED).first_id is None


def test_the_budget_slides() -> None:
    budget = DeleteBudget(2, 60.0)
    assert [budget.take(at) for at in (0.0, 10.0, 20.0, 59.0, 60.0, 65.0, 70.0)] == [
        True, True, False, False, True, False, True,
    ]  # fmt: skip


def traffic(*intents: Intent, running: bool = True, pool: str | None = "pool") -> Any:
    """Plan the InferenceModels of some intents, each with its resource."""
    state = RecordState.RUNNING if running else RecordState.UNKNOWN
    resources = tuple(
        Resource({"metadata": {"name": i.name, "labels": {names.INTENT_LABEL: i.id}}})
        for i in intents
    )
    records = {i.id: (Record("1", f"{i.name}/1-v3", "3", state),) for i in intents}
    observed = Observed("demo", Environment("1", "demo"), {"rt": {}}, resources, records=records)
    policy = Policy(inference_models=True, pool=pool)
    return plan([Desired(i) for i in intents], observed, policy).models


def intent(number: int, **properties: str) -> Intent:
    return Intent(str(number), f"m{number}", "1", True, runtime="rt", properties=properties)


def test_an_intent_by_itself_is_a_model_of_its_name() -> None:
    [step] = traffic(intent(1)).steps
    assert step.body["metadata"]["name"] == "m1"
    assert step.body["spec"]["targetModels"] == [{"name": "m1"}]
    assert step.body["spec"]["poolRef"]["name"] == "pool"


@pytest.mark.parametrize(
    ("intents", "pool", "reason"),
    [
        ([intent(1)], None, "NoPool"),
        (
            [intent(1, inferenceModel="x", weight="5"), intent(2, inferenceModel="x")],
            "p",
            "InvalidWeights",
        ),
        ([intent(1, inferenceModel="x", weight="-1")], "p", "InvalidWeights"),
        ([intent(1, inferenceModel="x", weight="many")], "p", "InvalidWeights"),
        ([intent(1, inferenceModel="x", weight="1000001")], "p", "InvalidWeights"),
        ([intent(1, inferenceModel="Not A Name")], "p", "ModelNameRefused"),
        ([intent(n, inferenceModel="x") for n in range(1, 12)], "p", "TooManyTargets"),
    ],
)
def test_a_doubt_leaves_the_model_as_it_is(
    intents: list[Intent], pool: str | None, reason: str
) -> None:
    found = traffic(*intents, pool=pool)
    assert found.steps == ()
    assert [condition.reason for _, condition in found.conditions] == [reason]
    assert reason in REASONS


def test_weight_zero_and_what_does_not_run_yet_are_no_targets() -> None:
    assert traffic(intent(1, inferenceModel="x", weight="0")).steps == ()
    assert traffic(intent(1), running=False).steps == ()


def test_every_mistake_in_the_settings_is_told() -> None:
    wrong = replace(
        Settings(), period_s=-1.0, max_deletes=-1, policy=Policy(deployment_mode="Mesh")
    )
    wrong = replace(wrong, address=replace(wrong.address, url="registry:8080"))
    assert [flag for flag, _ in mistakes_in(wrong)] == [
        "--model-registry-url", "--deployment-mode", "--model-registry-period", "--max-deletes",
    ]  # fmt: skip


def test_the_reasons_are_all_of_them() -> None:
    """The closed sets that metrics are labelled with are complete."""
    kinds = [one for one in vars(errors).values() if isinstance(one, type)]
    told = {
        one.reason for one in kinds if issubclass(one, errors.RegistryError | errors.ClusterError)
    }

    assert told == set(errors.REASONS)
