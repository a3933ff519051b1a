"""The manifests for KServe: each is what its CRD allows, and each pin in them is one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from artifacts import parse_pin
from artifacts.cli import app
from artifacts.credentials import parse_connection
from artifacts.initializer import SCHEME_PLACEHOLDER
from tests.published import KSERVE

FOLDER = Path(__file__).parents[2] / "deploy/kserve"


def documents() -> Iterator[dict[str, Any]]:
    """Yield every manifest, also those inside the pages."""
    for file in sorted(FOLDER.glob("*.yaml")):
        yield from yaml.safe_load_all(file.read_text())
    page = (FOLDER / "modelmesh.md").read_text()
    yield yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])


@pytest.mark.parametrize(
    "document",
    [document for document in documents() if document["kind"] != "ConfigMap"],
    ids=lambda d: f"{d['kind']}/{d['metadata']['name']}",
)
def test_a_manifest_is_what_its_crd_allows(document: dict[str, Any]) -> None:
    """No field that the API server would prune, and none that it would refuse."""
    schema = KSERVE[document["apiVersion"], document["kind"]]
    fault = jsonschema.exceptions.best_match(
        jsonschema.Draft202012Validator(schema).iter_errors(document["spec"])
    )

    assert document["metadata"]["name"]
    assert fault is None, fault.message


def test_every_pin_in_the_examples_is_one() -> None:
    """What people copy is pinned, by the rules of our own parser."""
    pins = []
    for document in documents():
        spec = document.get("spec", {})
        model = spec.get("predictor", {}).get("model", spec.get("model", {}))
        uri = model.get("storageUri") or model.get("uri")
        storage = model.get("storage")
        if uri:
            pins.append(parse_pin(uri))
        if storage:
            pins.append(parse_pin(f"s3://bucket/{storage['path']}", storage["parameters"]))

    assert len(pins) == 5
    assert all(pin.is_immutable for pin in pins)


def test_the_container_runs_our_program_and_claims_what_it_must() -> None:
    """The command is one of ours; `args` stay KServe's; the placeholder is claimed too."""
    (container,) = (d for d in documents() if d["kind"] == "ClusterStorageContainer")
    program, command = container["spec"]["container"]["command"]

    assert program == "epp-artifacts"
    assert command in {registered.name for registered in app.registered_commands}
    assert "args" not in container["spec"]["container"]
    claimed = [row["prefix"] for row in container["spec"]["supportedUriFormats"]]
    assert claimed == ["s3://", SCHEME_PLACEHOLDER]


def test_the_override_is_json_for_the_configmap() -> None:
    """KServe reads the key as JSON; the image is the one that the Dockerfile beside it is for."""
    (configmap,) = (d for d in documents() if d["kind"] == "ConfigMap")
    override = json.loads(configmap["data"]["storageInitializer"])
    recipe = (FOLDER / "Dockerfile").read_text()

    assert override["image"].split(":")[0] in recipe
    assert '"init"]' in recipe
    assert "EPP_ARTIFACTS_DELEGATE" in recipe
    assert parse_connection({"type": "s3"}, where="x").verify_ssl
