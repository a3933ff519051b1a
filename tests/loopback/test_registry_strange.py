"""A registry that is strange rather than down: odd answers, a new version, a bad token file."""

from collections.abc import Callable
from pathlib import Path

import pytest

from registry import client as registry_client
from registry.errors import RegistryNotFound, RegistryUnauthorized
from registry.model import RecordState
from registry.rest import Address
from tests.fakes.registry import FakeRegistry, Fault, Quirks
from tests.fakes.registry_scene import API, RUNTIME_API, scene


@pytest.mark.parametrize("path", ["serves", "serving_environments"])
async def test_a_write_is_answered_with_nonsense(path: str) -> None:
    """The program lives, finds its own work at the next look, and does it once."""
    async with scene(start=False) as s:
        s.model("mnist", "v8")
        s.runtime()
        s.registry.faults = [Fault("not-a-list", path=path, method="POST", left=2)]
        await s.start()
        await s.until(lambda: s.registry.store.children("serving_environments"))
        s.intend("m0")
        await s.until(lambda: s.states("m0") == [("v8", "RUNNING")])
        await s.looks(2)

        assert s.records("m0") == [("v8", "UNKNOWN"), ("v8", "RUNNING")]
        assert len(s.registry.store.children("serving_environments")) == 1


async def test_the_registry_is_replaced_by_a_newer_one() -> None:
    """The version it speaks is asked again when it is not spoken any more."""
    async with scene(quirks=Quirks(api="v1alpha1")) as s:
        await s.deploy("m0")
        s.registry.quirks.api = "v1alpha3"
        s.order("m0", desiredState="UNDEPLOYED")

        await s.until(lambda: s.states("m0") == [("v8", "COMPLETE")])


async def test_a_404_is_no_proof_that_records_cannot_be_patched() -> None:
    """Once a PATCH was taken, a 404 is an outage."""
    async with (
        FakeRegistry(Quirks(patch_serves=True)) as fake,
        registry_client.connect(Address(fake.url)) as client,
    ):
        model = fake.add("registered_models", name="m")["id"]
        version = fake.add("model_versions", name="v", registeredModelId=model)["id"]
        environment = fake.add("serving_environments", name="e")["id"]
        intent = fake.add(
            "inference_services", registeredModelId=model, servingEnvironmentId=environment
        )["id"]
        record = await client.create_record(intent, "r", version, RecordState.UNKNOWN, {})
        assert await client.patch_record(intent, record.id, RecordState.RUNNING, {})
        fake.faults = [Fault("404", method="PATCH", left=1)]
        with pytest.raises(RegistryNotFound):
            await client.patch_record(intent, record.id, RecordState.FAILED, {})

        assert await client.patch_record(intent, record.id, RecordState.FAILED, {})


WRITES: list[Callable[[Path], object]] = [
    lambda path: path.write_bytes(b"\xff\xfe"),
    lambda path: path.write_text(""),
    lambda path: path.write_text("a\nb"),
    lambda path: path.unlink(),
]


@pytest.mark.parametrize("write", WRITES)
async def test_a_token_file_that_holds_none_is_named(
    tmp_path: Path, write: Callable[[Path], object]
) -> None:
    """The file and the flag are told, and nothing of what is in it."""
    token = tmp_path / "token"
    token.write_text("good")
    async with (
        FakeRegistry() as fake,
        registry_client.connect(Address(fake.url, token_file=token)) as client,
    ):
        write(token)
        with pytest.raises(RegistryUnauthorized, match="--model-registry-token-file"):
            await client.environments()


async def test_the_namespace_goes_while_the_registry_is_down() -> None:
    """Its records are closed once the registry is back; other namespaces are kept meanwhile."""
    async with scene() as s:
        await s.deploy("m0")
        await s.registry.down()
        s.remove(API, "InferenceService", "m0")
        s.remove(RUNTIME_API, "ServingRuntime", "model-server")
        s.remove("v1", "Namespace", "demo")
        await s.until(lambda: s.loop and not s.loop.keepers)
        await s.registry.up()

        await s.until(lambda: s.states("m0") == [("v8", "COMPLETE")])


@pytest.mark.parametrize("kind", ["401", "404", "not-a-list", "503"])
async def test_a_registry_that_gives_no_answer_is_not_up(kind: str) -> None:
    """`epp_registry_up` is the truth of every outage, not only of a dead port."""
    async with scene() as s:
        await s.deploy("m0")
        assert s.loop is not None
        assert await s.loop.is_registry_up()
        s.registry.faults = [Fault(kind, path="/api/")]
        await s.looks(2)

        assert not await s.loop.is_registry_up()
