"""What looks right and is not: another registry's ids, pins nobody enforces, odd names."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from registry import wire
from registry.choice import choose_artifact
from registry.errors import RegistryMalformed
from registry.model import Artifact, Condition, Policy, Record, RecordState
from registry.report import history_rows
from registry.rest import Address
from registry.settings import Settings, mistakes_in
from tests.unit.registry_world import World

HEX = "a" * 64


def world(name: str = "m0", policy: Policy | None = None) -> World:
    made = World(policy or Policy())
    made.tag("3")
    made.intend("4", name)
    return made


@pytest.mark.parametrize("deployed", [True, False])
async def test_the_ids_of_a_replaced_registry_are_not_ours(deployed: bool) -> None:
    """A wiped registry counts from one again: its intent 4 is not the one that was served."""
    one = world()
    await one.settle()
    one.objects["m0"]["metadata"]["creationTimestamp"] = "1969-12-01T00:00:00Z"
    one.tag("5")
    one.records.clear()
    one.intend("4", "another", deployed=deployed)
    await one.step()
    outcome = await one.step()

    assert one.objects["m0"]["spec"]["predictor"]["model"]["storage"]["path"] == "p/3"
    assert set(one.objects) == {"m0"}
    assert [c.reason for c in outcome.conditions["4"]] == ["RegistryReplaced"]
    assert one.audit("4") == []


@pytest.mark.parametrize("name", ["two\nlines", "a/b", "a/1-v3", "a/1-v3/1-running", "\r", "  "])
async def test_the_records_of_an_odd_name_are_read_back(name: str) -> None:
    """Whatever an intent is called, its own records are known again, and nothing is repeated."""
    one = world(name)
    await one.settle()

    assert one.states("4") == [("3", "RUNNING")]
    assert len(one.audit("4")) == 2


@pytest.mark.parametrize("uri", ["hf://org/model", "https://x/y", "pvc://claim/model"])
def test_a_pin_that_nothing_enforces_is_refused(uri: str) -> None:
    """Only the storage initializer of s3 checks a pin; elsewhere a property is only a wish."""
    item = Artifact("1", format_name="onnx", uri=uri, properties={"sha256": HEX})
    found = choose_artifact("2", [item], Policy(require_pins=True))
    assert isinstance(found, Condition)
    assert found.reason == "PinNotEnforced"


@pytest.mark.parametrize(("key", "pin"), [("etag", '""'), ("versionId", " "), ("etag", '" "')])
def test_an_empty_pin_is_none(key: str, pin: str) -> None:
    item = Artifact("1", format_name="onnx", storage_key="k", properties={key: pin})
    found = choose_artifact("2", [item], Policy(require_pins=True))
    assert isinstance(found, Condition)
    assert found.reason == "BadPin"


async def test_a_model_that_nobody_asks_for_any_more_goes() -> None:
    """An intent that moved to another InferenceModel is no target of the old one for ever."""
    one = world(policy=Policy(inference_models=True, pool="p"))
    one.intend("4", "m0", properties={"inferenceModel": "old"})
    await one.settle()
    assert set(one.models) == {"old"}
    one.intend("4", "m0", properties={"inferenceModel": "new"})
    await one.settle()

    assert set(one.models) == {"new"}


async def test_the_model_of_a_lost_intent_stays_while_its_resource_does() -> None:
    """The list lacks the intent: its resource stays without --prune, and so does its traffic."""
    one = world(policy=Policy(inference_models=True, pool="p"))
    await one.settle()
    one.intents.clear()
    await one.step()
    await one.step()
    assert set(one.models) == set(one.objects) == {"m0"}
    one.policy = replace(one.policy, prune=True)
    await one.settle()

    assert one.models == one.objects == {}


@pytest.mark.parametrize("time", ["9" * 5000, "9" * 20])
def test_a_time_that_is_none_is_malformed(time: str) -> None:
    with pytest.raises(RegistryMalformed):
        wire.read_environment({"id": "1", "name": "a", "createTimeSinceEpoch": time})


@pytest.mark.parametrize("answer", [None, [], "x", 7])
def test_an_answer_that_is_no_object_is_malformed(answer: object) -> None:
    """Every reader refuses it by name: an AttributeError would end the process."""
    for read in (wire.read_environment, wire.read_intent, wire.read_record, wire.read_version):
        with pytest.raises(RegistryMalformed):
            read(answer)  # type: ignore[arg-type]  # what a server may send


def test_history_of_one_millisecond_is_in_order() -> None:
    """Ids are numbers: the tenth record comes after the ninth."""
    records = [Record(str(n), f"r{n}", "1", RecordState.RUNNING, 5) for n in (10, 9, 11)]
    assert [row[-1] for row in history_rows(records, {})] == ["r9", "r10", "r11"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_period_is_a_number_of_seconds(value: float) -> None:
    wrong = Settings(period_s=value, address=Address("", timeout_s=value))
    assert [flag for flag, _ in mistakes_in(wrong)] == [
        "--model-registry-timeout", "--model-registry-period",
    ]  # fmt: skip


@pytest.mark.parametrize("url", ["http://u:secret@host", "http://host:99999", "http://host:x/"])
def test_an_address_holds_no_password_and_a_real_port(url: str) -> None:
    """Addresses are logged; and a port that there cannot be is no outage."""
    [(flag, what)] = mistakes_in(Settings(address=Address(url)))
    assert flag == "--model-registry-url"
    assert "secret" not in what


def test_a_bundle_without_certificates_is_told(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("not a certificate")
    [(flag, what)] = mistakes_in(Settings(address=Address("", ca_file=bundle)))
    assert flag == "--model-registry-ca-file"
    assert str(bundle) in what
