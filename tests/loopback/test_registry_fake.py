"""The fake registry answers as the specification says: judged by models generated from it."""

import re
from typing import Any

import aiohttp
import mr_openapi.models as spec
import pytest

from tests.fakes.registry import FakeRegistry, Quirks

ENTITIES = {
    "registered_models": ("RegisteredModel", "RegisteredModelList"),
    "model_versions": ("ModelVersion", "ModelVersionList"),
    "versions": ("ModelVersion", "ModelVersionList"),
    "model_artifacts": ("ModelArtifact", "ModelArtifactList"),
    "artifacts": ("Artifact", "ArtifactList"),
    "serving_environments": ("ServingEnvironment", "ServingEnvironmentList"),
    "inference_services": ("InferenceService", "InferenceServiceList"),
    "serves": ("ServeModel", "ServeModelList"),
}


def check_answer(method: str, path: str, answer: Any) -> None:
    """Refuse an answer that the specification of v1alpha3 does not allow."""
    parts = path.split("/v1alpha3/")[-1].split("/")
    kinds = [part for part in parts if part in ENTITIES]
    if not kinds:
        return
    single, listing = ENTITIES[kinds[-1]]
    name = listing if "items" in answer else single
    model: Any = getattr(spec, name)
    parsed = model.from_dict(answer)
    if name == "Artifact":
        parsed = parsed.actual_instance
    known = {field.alias or key for key, field in type(parsed).model_fields.items()}
    assert set(answer) <= known, f"{method} {path}: unknown {set(answer) - known}"
    for item in answer.get("items", [answer]):
        assert re.fullmatch(r"[1-9][0-9]{0,8}", item["id"])


async def ask(
    registry: FakeRegistry, method: str, path: str, body: Any = None, **query: str
) -> tuple[int, Any]:
    url = f"{registry.url}/api/model_registry/{registry.quirks.api}/{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, json=body, params=query) as response,
    ):
        return response.status, await response.json()


async def scene(registry: FakeRegistry) -> None:
    """Make one of everything over HTTP."""
    for path, body in (
        ("registered_models", {"name": "mnist"}),
        ("model_versions", {"name": "v8", "registeredModelID": "1"}),
        ("model_versions/2/artifacts", {"name": "a", "uri": "s3://b/k", "modelFormatName": "onnx"}),
        ("serving_environments", {"name": "demo"}),
        ("serving_environments/3/inference_services",
         {"name": "is", "registeredModelId": "1", "servingEnvironmentId": "3", "runtime": "rt"}),
        ("inference_services/4/serves", {"name": "s", "modelVersionId": "2"}),
    ):  # fmt: skip
        status, answer = await ask(registry, "POST", path, body)

        assert status == 201, answer


async def test_every_answer_is_valid() -> None:
    """Whatever is created, listed, read and patched passes the generated models."""
    async with FakeRegistry(on_answer=check_answer) as registry:
        await scene(registry)
        for path in (
            "registered_models", "registered_models/1", "registered_models/1/versions",
            "model_versions", "model_versions/2", "model_versions/2/artifacts",
            "model_artifacts", "model_artifacts/1", "serving_environments",
            "serving_environments/3", "serving_environments/3/inference_services",
            "inference_services", "inference_services/4", "inference_services/4/serves",
        ):  # fmt: skip
            status, answer = await ask(registry, "GET", path)

            assert status == 200, (path, answer)
        status, _ = await ask(
            registry, "PATCH", "inference_services/4", {"desiredState": "UNDEPLOYED"}
        )
        assert status == 200


async def test_errors_have_the_specified_shape() -> None:
    """An error's code is text, and each cause has its status."""
    async with FakeRegistry() as registry:
        await scene(registry)
        asked = {
            400: ("POST", "registered_models", {"name": "x", "bogus": 1}),
            404: ("GET", "model_versions/99", None),
            409: ("POST", "registered_models", {"name": "mnist"}),
            422: ("POST", "model_versions", {"name": "v9"}),
        }
        for expected, (method, path, body) in asked.items():
            status, answer = await ask(registry, method, path, body)

            assert expected == status
            spec.Error.from_dict(answer)


async def test_patch_without_a_state_deploys() -> None:
    """The trap that makes us send `desiredState` always."""
    async with FakeRegistry() as registry:
        await scene(registry)
        await ask(registry, "PATCH", "inference_services/4", {"desiredState": "UNDEPLOYED"})
        _, answer = await ask(registry, "PATCH", "inference_services/4", {"description": "x"})

        assert answer["desiredState"] == "DEPLOYED"


async def test_find_by_name_is_loose() -> None:
    """`my_env` finds `myXenv`; with both there it finds nothing."""
    async with FakeRegistry() as registry:
        registry.add("serving_environments", name="myXenv")
        status, answer = await ask(registry, "GET", "serving_environment", name="my_env")
        assert (status, answer["name"]) == (200, "myXenv")

        registry.add("serving_environments", name="my_env")
        status, _ = await ask(registry, "GET", "serving_environment", name="my_env")
        assert status == 404


@pytest.mark.parametrize("cap", [1, 20])
async def test_pages(cap: int) -> None:
    """Pages hold at most the cap and end with an empty token."""
    async with FakeRegistry(Quirks(page_cap=cap), on_answer=check_answer) as registry:
        for number in range(41):
            registry.add("serving_environments", name=f"e{number}")
        token, sizes = "", []
        while True:
            _, page = await ask(registry, "GET", "serving_environments", nextPageToken=token)
            sizes.append(page["size"])
            token = page["nextPageToken"]
            if not token:
                break

        assert sum(sizes) == 41
        assert cap == max(sizes)


async def test_the_old_spelling() -> None:
    """v1alpha1 spells parents ID, answers a duplicate with 500, and may call the state `state`."""
    quirks = Quirks(api="v1alpha1", duplicate_status=500, state_key="state")
    async with FakeRegistry(quirks) as registry:
        await scene(registry)
        _, version = await ask(registry, "GET", "model_versions/2")
        _, intent = await ask(registry, "GET", "inference_services/4")
        status, _ = await ask(registry, "POST", "registered_models", {"name": "mnist"})

        assert version["registeredModelID"] == "1"
        assert (intent["state"], intent["registeredModelId"]) == ("DEPLOYED", "1")
        assert status == 500
