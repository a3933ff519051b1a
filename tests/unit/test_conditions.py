"""What an InferenceModel's status says, and when it is written."""

from dataclasses import replace

import pytest

from datastore.model import InferenceModel, InferencePool, ObjectName
from epp.conditions import Condition, accepted, is_refusal
from tests.builders import a_model

POOL = InferencePool(ObjectName("default", "vllm"), (("app", "vllm"),), (8000,))
MODEL = replace(a_model("llama").value, generation=3)
RIGHT = Condition(True, "Accepted", "requests for this model are served", 3, "then")


@pytest.mark.parametrize(
    ("model", "pool", "is_true", "reason", "word"),
    [
        (MODEL, POOL, True, "Accepted", "served"),
        (MODEL, None, False, "PoolNotFound", "vllm"),
        (MODEL, replace(POOL, invalid="no selector"), False, "PoolInvalid", "no selector"),
        (
            replace(MODEL, invalid="bad", invalid_reason="InvalidWeights"),
            POOL,
            False,
            "InvalidWeights",
            "bad",
        ),
        (
            replace(MODEL, invalid="bad", invalid_reason="UnsupportedPoolRef"),
            None,
            False,
            "UnsupportedPoolRef",
            "bad",
        ),
        (replace(MODEL, invalid="bad"), POOL, False, "InvalidSpec", "bad"),
        (replace(MODEL, deprecated_model_name="old"), POOL, True, "ModelNameIgnored", "old"),
        (replace(MODEL, deprecated_model_name="llama"), POOL, True, "Accepted", "served"),
    ],
)
def test_reasons(
    model: InferenceModel, pool: InferencePool | None, is_true: bool, reason: str, word: str
) -> None:
    """Each way in which a model can be served or not has its reason, and a message to act on."""
    found = accepted(model, pool, None, "now")
    assert found is not None
    assert (found.is_true, found.reason, found.generation) == (is_true, reason, 3)
    assert word in found.message


def test_nothing_is_written_when_nothing_changed() -> None:
    """A condition that is right already is left alone."""
    assert accepted(MODEL, POOL, RIGHT, "now") is None


def test_a_new_generation_is_observed() -> None:
    """A changed spec is acknowledged even if the verdict stays; the transition time stays too."""
    found = accepted(replace(MODEL, generation=4), POOL, RIGHT, "now")
    assert found == replace(RIGHT, generation=4)


def test_the_transition_time_is_that_of_the_status() -> None:
    """Only a change of True or False moves it, a change of the reason does not."""
    wrong = accepted(MODEL, None, RIGHT, "now")
    assert wrong is not None
    assert wrong.since == "now"
    still = accepted(replace(MODEL, invalid="bad"), None, replace(wrong, since="then"), "now")
    assert still is not None
    assert (still.reason, still.since) == ("InvalidSpec", "then")


def test_events_are_for_transitions_to_false() -> None:
    """Becoming unservable is news, staying so is not, nor is recovering."""
    wrong = Condition(False, "PoolNotFound", "x", 3)
    assert is_refusal(None, wrong)
    assert is_refusal(RIGHT, wrong)
    assert not is_refusal(wrong, replace(wrong, reason="PoolInvalid"))
    assert not is_refusal(wrong, RIGHT)
