"""The registry's client: both versions detected, every trap stepped over, every failure named."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from registry.client import RegistryClient, connect
from registry.errors import (
    RegistryError,
    RegistryMalformed,
    RegistryNotFound,
    RegistryUnauthorized,
    RegistryUnavailable,
)
from registry.model import RecordState
from registry.rest import Address
from tests.fakes.kube_tls import server_context
from tests.fakes.registry import FakeRegistry, Fault, Quirks

OLD = Quirks(api="v1alpha1", duplicate_status=500, state_key="state")


@asynccontextmanager
async def pair(quirks: Quirks | None = None) -> AsyncIterator[tuple[FakeRegistry, RegistryClient]]:
    async with FakeRegistry(quirks) as registry:
        model = registry.add("registered_models", name="mnist")
        registry.add("model_versions", name="v8", registeredModelId=model["id"])
        registry.add("serving_environments", name="demo")
        registry.add(
            "inference_services", name="m0", registeredModelId="1", servingEnvironmentId="3"
        )
        async with connect(Address(registry.url, timeout_s=1.0)) as client:
            yield registry, client


@pytest.mark.parametrize("quirks", [Quirks(), OLD], ids=["v1alpha3", "v1alpha1"])
async def test_the_version_is_detected(quirks: Quirks) -> None:
    async with pair(quirks) as (_, client):
        assert [intent.name for intent in await client.intents("3")] == ["m0"]
        assert client.version == quirks.api


async def test_an_outage_is_no_version() -> None:
    """404 for everything: the version stays unknown, and is asked for again."""
    async with pair() as (registry, client):
        registry.faults = [Fault("404")]
        with pytest.raises(RegistryUnavailable, match="speaks none"):
            await client.intents("3")
        registry.faults.clear()

        assert await client.environment("demo")


@pytest.mark.parametrize("quirks", [Quirks(), OLD], ids=["v1alpha3", "v1alpha1"])
async def test_the_desired_state_is_always_sent(quirks: Quirks) -> None:
    """A PATCH of the version alone would deploy what is UNDEPLOYED."""
    async with pair(quirks) as (registry, client):
        await client.set_desired_state("4", deployed=False)
        found = await client.set_desired_state("4", deployed=False, version_id="2")
        patches = [body for method, _, body in registry.writes if method == "PATCH"]

        assert not found.deployed
        assert found.version_id == "2"
        key = "state" if quirks.state_key == "state" else "desiredState"
        assert [body[key] for body in patches] == ["UNDEPLOYED", "UNDEPLOYED"]


@pytest.mark.parametrize("quirks", [Quirks(), OLD], ids=["409", "500"])
async def test_a_record_that_exists_is_done(quirks: Quirks) -> None:
    """Whatever an old or a new server says of a duplicate name."""
    async with pair(quirks) as (registry, client):
        made = [
            await client.create_record("4", "m0/1-v2", "2", RecordState.UNKNOWN, {"a": "b"})
            for _ in range(3)
        ]
        assert len({record.id for record in made}) == 1
        assert len(registry.serves("4")) == 1
        assert made[0].properties == {"a": "b"}


async def test_a_lost_answer_is_looked_for() -> None:
    """The record was written and the answer cut: it is found, not written again."""
    async with pair() as (registry, client):
        await client.detect()
        registry.faults = [Fault("lost", method="POST", left=1)]
        with pytest.raises(RegistryError):
            await client.create_record("4", "m0/1-v2", "2", RecordState.UNKNOWN, {})
        again = await client.create_record("4", "m0/1-v2", "2", RecordState.UNKNOWN, {})

        assert [record["id"] for record in registry.serves("4")] == [again.id]


@pytest.mark.parametrize("can", [True, False])
async def test_patching_a_record_is_tried_once(can: bool) -> None:
    """Where the server cannot, that is remembered."""
    async with pair(Quirks(patch_serves=can)) as (registry, client):
        record = await client.create_record("4", "m0/1-v2", "2", RecordState.UNKNOWN, {})
        for _ in range(2):
            patched = await client.patch_record("4", record.id, RecordState.RUNNING, {})
        patches = [method for method, _, _ in registry.writes if method == "PATCH"]

        assert (patched is not None) is can
        assert len(patches) == (2 if can else 1)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("401", RegistryUnauthorized),
        ("403", RegistryUnauthorized),
        ("302", RegistryUnauthorized),
        ("404", RegistryNotFound),
        ("500", RegistryUnavailable),
        ("503", RegistryUnavailable),
        ("429", RegistryUnavailable),
        ("slow", RegistryUnavailable),
        ("cut", RegistryMalformed),
        ("html", RegistryMalformed),
        ("not-a-list", RegistryMalformed),
        ("short", RegistryMalformed),
    ],
)
async def test_every_failure_has_its_name(kind: str, error: type[RegistryError]) -> None:
    async with pair() as (registry, client):
        await client.detect()
        registry.faults = [Fault(kind)]
        with pytest.raises(error) as told:
            await client.intents("3")
        assert "inference_services" in str(told.value)
        assert "token" not in str(told.value).lower() or kind == "401"


@pytest.mark.parametrize("last_token", ["empty", "wraps"])
@pytest.mark.parametrize("cap", [1, 7, 20])
async def test_a_list_is_read_to_its_end(cap: int, last_token: str) -> None:
    """Small pages, and servers that begin again instead of ending."""
    async with pair(Quirks(page_cap=cap, last_token=last_token)) as (registry, client):
        for number in range(1, 45):
            registry.add(
                "inference_services",
                name=f"m{number}", registeredModelId="1", servingEnvironmentId="3",
            )  # fmt: skip
        found = await client.intents("3")

        assert [intent.name for intent in found] == [f"m{n}" for n in range(45)]


async def test_a_server_in_circles_gives_no_list() -> None:
    """The same page again and again: nothing is known, least of all that something is gone."""
    async with pair(Quirks(page_cap=20, last_token="stuck")) as (registry, client):
        for number in range(1, 45):
            registry.add(
                "inference_services",
                name=f"m{number}", registeredModelId="1", servingEnvironmentId="3",
            )  # fmt: skip
        with pytest.raises(RegistryMalformed):
            await client.intents("3")


async def test_only_a_known_certificate_is_trusted(tmp_path: Path) -> None:
    """With the CA bundle it is spoken to, without it never."""
    context, authority = server_context(tmp_path)
    bundle = tmp_path / "bundle.crt"
    bundle.write_bytes(authority)
    async with FakeRegistry(tls=context) as registry:
        registry.add("serving_environments", name="demo")
        async with connect(Address(registry.url, ca_file=bundle)) as client:
            assert await client.environment("demo")
        async with connect(Address(registry.url)) as client:
            with pytest.raises(RegistryUnavailable, match="certificate"):
                await client.environment("demo")
        requests = len(registry.log)

        assert requests == 2


async def test_the_environment_is_created_once() -> None:
    """Two processes at once: the second finds the first one's."""
    async with pair() as (registry, client):
        made = [await client.create_environment("other") for _ in range(2)]

        assert made[0] == made[1]
        assert len(registry.store.children("serving_environments")) == 2
