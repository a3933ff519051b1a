"""The storage initializer's plan: KServe's arguments and environment, read as KServe means them."""

import json

import pytest

from artifacts import UsageError
from artifacts.initializer import Step, clip, plan_initializer, termination_message

CONFIG = {"type": "s3", "bucket": "models", "endpoint_url": "http://s3", "region": "r"}


def environment(config: object = None, override: object = None) -> dict[str, str]:
    texts = {"STORAGE_CONFIG": config, "STORAGE_OVERRIDE_CONFIG": override}
    return {name: json.dumps(value) for name, value in texts.items() if value is not None}


@pytest.mark.parametrize(
    ("source", "filled"),
    [
        ("s3://b/k?versionId=v", "s3://b/k?versionId=v"),
        ("<scheme-placeholder>://k/m?versionId=v", "s3://models/k/m?versionId=v"),
        ("<scheme-placeholder>://<bucket-placeholder>/k/", "s3://models/k/"),
        ("<scheme-placeholder>:///k/", "s3://models/k/"),
        ("/mnt/pvc/model", "/mnt/pvc/model"),
    ],
)
def test_placeholders_are_filled_in(source: str, filled: str) -> None:
    """What the InferenceService left open comes from the connection."""
    plan = plan_initializer([source, "/mnt/models"], environment(CONFIG))

    assert (Step(filled, "/mnt/models"),) == plan.steps


def test_the_override_wins_and_carries_the_pin() -> None:
    """`storage.parameters` lie over the secret; what belongs to a pin is kept apart."""
    override = {"bucket": "other", "region": "elsewhere", "versionId": "v"}
    plan = plan_initializer(["<scheme-placeholder>://k", "/m"], environment(CONFIG, override))

    assert plan.steps[0].source == "s3://other/k"
    assert (plan.connection.endpoint_url, plan.connection.region) == ("http://s3", "elsewhere")
    assert plan.parameters == {"versionId": "v"}


def test_several_pairs_outer_folders_first() -> None:
    """A model and its adapters below it: a folder is replaced as a whole, so it goes first."""
    plan = plan_initializer(["s3://b/x/", "/mnt/models/lora/x", "s3://b/m/", "/mnt/models/"], {})

    assert [step.target for step in plan.steps] == ["/mnt/models/", "/mnt/models/lora/x"]


def test_schemes_that_are_not_ours_are_handed_on() -> None:
    """hf:// and the like are for the initializer that this one stands in for."""
    plan = plan_initializer(["hf://o/m", "/a", "s3://b/m/", "/b"], {})
    filled = plan_initializer(["<scheme-placeholder>://x/y", "/a"], environment({"type": "hdfs"}))

    assert (Step("hf://o/m", "/a"),) == plan.others
    assert (Step("hdfs://x/y", "/a"),) == filled.others


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        ([], {}, "not pairs"),
        (["s3://b/k"], {}, "not pairs"),
        (["<scheme-placeholder>://k", "/m"], environment({"type": "s3"}), "names no bucket"),
        (["s3://b/k", "/m"], {"STORAGE_CONFIG": '{"secret_access_key": "TOPSECRET'}, "JSON"),
        (["s3://b/k", "/m"], environment(None, {"endpoint_url": "x"}), "http"),
        (
            ["s3://b/k", "/m", "s3://b/l", "/n"],
            environment(None, {"versionId": "v"}),
            "cannot belong",
        ),
    ],
)
def test_what_is_refused(arguments: list[str], variables: dict[str, str], words: str) -> None:
    """Arguments and variables that cannot be meant are refused, and no secret is repeated."""
    with pytest.raises(UsageError) as refused:
        plan_initializer(arguments, variables)

    assert words in str(refused.value)
    assert "TOPSECRET" not in str(refused.value)


def test_the_termination_message() -> None:
    """One artifact: its digest alone, as the picker reads it.  Several: JSON, the model first."""
    assert termination_message({"/m": "sha256:a"}) == "sha256:a"
    several = {"/m": "sha256:a", "/m/lora": "sha256:b"}
    told = json.loads(termination_message(several))
    assert told == {"digest": "sha256:a", "artifacts": several}


def test_a_long_message_is_cut_where_a_character_ends() -> None:
    """Kubernetes keeps 4096 bytes; half a character would make the rest unreadable."""
    assert len(clip("é" * 5000)) == 4096
    assert clip("€" * 4000).decode() == "€" * 1365
    assert clip("short").decode() == "short"
