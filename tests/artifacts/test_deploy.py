"""The manifests for KServe: each is what its CRD allows, and each pin in them is one."""

import functools
import json
import os
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

FOLDER = Path(__file__).parents[2] / "deploy/kserve"


def documents() -> Iterator[dict[str, Any]]:
    """Yield every manifest, also those inside the pages."""
    for file in sorted(FOLDER.glob("*.yaml")):
        yield from yaml.safe_load_all(file.read_text())
    page = (FOLDER / "modelmesh.md").read_text()
    yield yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])


def crd_folder() -> Path | None:
    """Return a folder with KServe's CRDs: CRDS names one, or one that lies beside the checkout."""
    named = os.environ.get("CRDS")  # noqa: TID251  a test's own knob
    places = [Path(named)] if named else [p / "shared/data/crds" for p in FOLDER.parents]
    return next((place for place in places if place.is_dir()), None)


@functools.cache
def schema(api_version: str, kind: str) -> Any:
    """Return the CRD's schema for a kind; None where there is no folder of CRDs, or none of it."""
    folder = crd_folder()
    file = folder / f"serving.kserve.io_{kind.lower()}s.yaml" if folder else None
    if file is None or not file.is_file():
        return None
    spec = yaml.load(file.read_bytes(), Loader=yaml.CSafeLoader)["spec"]  # 2 MB: C or a minute
    for version in spec["versions"]:
        if api_version == f"{spec['group']}/{version['name']}":
            return _closed(version["schema"]["openAPIV3Schema"])
    return None


def _closed(schema: Any) -> Any:
    """Return a schema in which an unknown field is an error, as the API server prunes it."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(schema.get("properties"), dict) and not open_ended:
        closed.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        closed.pop("type", None)
    return closed


@pytest.mark.parametrize(
    "document", list(documents()), ids=lambda d: f"{d['kind']}/{d['metadata']['name']}"
)
def test_a_manifest_is_what_its_crd_allows(document: dict[str, Any]) -> None:
    """No field that the API server would prune, and none that it would refuse."""
    known = schema(document["apiVersion"], document["kind"])
    assert document["metadata"]["name"]
    if known is not None:
        fault = jsonschema.exceptions.best_match(
            jsonschema.Draft202012Validator(known).iter_errors(document)
        )
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
