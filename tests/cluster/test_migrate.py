"""From an older controller's cluster to ours, and back."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from datastore import manifests as m
from datastore.kube import KubeClient
from epp.cli import main
from epp.crds import read
from epp.migrate import carry_out
from epp.migration import Choices, plan
from tests.cluster.world import Json, World, model, objects
from tests.fakes.apiserver import ApiServer

V = m.INFERENCE_MODEL.api_version


def older_crd() -> Json:
    """The CRD as an older controller knows it: modelName is required and fixed, no digests."""
    crd: Json = copy.deepcopy(yaml.safe_load(read("inferencemodels")))
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    schema["required"] = ["modelName", "poolRef"]
    rule = {"rule": "self == oldSelf", "message": "modelName is immutable"}
    schema["properties"]["modelName"]["x-kubernetes-validations"] = [rule]
    del schema["properties"]["targetModels"]["items"]["properties"]["artifactDigest"]
    return crd


async def listed(client: KubeClient, namespace: str) -> list[Json]:
    raws = await objects(client, m.INFERENCE_MODEL, namespace)
    return [{"apiVersion": V, "kind": "InferenceModel", **msgspec.json.decode(r)} for r in raws]


async def test_a_cluster_is_migrated(world: World) -> None:
    """New objects are made before old ones go; names are swapped in place; twice is once."""
    await world.put(
        model("object-a", modelName="llama"),
        model("x", modelName="y"),
        model("y", modelName="x"),
        model("impossible", modelName="Meta/Llama"),
    )
    found = plan(await listed(world.client, world.namespace), Choices(accept_proposals=True))
    assert [step.after is None for step in found.steps] == [False, False, False, False, True, True]
    for step in found.steps:
        await carry_out(world.client, step)
    after = await listed(world.client, world.namespace)
    assert {one["metadata"]["name"]: one["spec"]["modelName"] for one in after} == {
        "llama": "llama",
        "meta-llama": "Meta/Llama",
        "x": "x",
        "y": "y",
    }
    assert plan(after, Choices()).steps == ()


async def test_upgrade_and_rollback_of_the_crd(api: ApiServer, client: KubeClient) -> None:
    """What an older CRD stored is readable under ours, and under the older one again."""
    api.uninstall("inferencemodels", "inference.networking.x-k8s.io")
    api.install(older_crd())
    api.put(model("object-a", modelName="Meta/Llama", targetModels=[{"name": "a"}]))
    (before,) = await listed(client, "default")
    api.install(yaml.safe_load(read("inferencemodels")))
    (upgraded,) = await listed(client, "default")
    assert upgraded == before
    for step in plan([upgraded], Choices(accept_proposals=True)).steps:
        await carry_out(client, step)
    api.install(older_crd())
    (back,) = await listed(client, "default")
    assert back["spec"] == before["spec"]
    patch = {"spec": {"criticality": "Critical"}}
    name = back["metadata"]["name"]
    changed = await client.patch(m.INFERENCE_MODEL, "default", name, patch)
    assert changed["spec"]["modelName"] == "Meta/Llama"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["migrate", *arguments], {})
    return int(ended.value.code or 0)


def write(path: Path, documents: Sequence[Any]) -> str:
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


def test_files_are_migrated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The new manifests go to standard output, the difference and the trouble elsewhere."""
    documents = [model("a", modelName="llama"), {"kind": "Other"}, model("b", modelName="A/b")]
    path = write(tmp_path / "models.yaml", documents)
    assert run(path) == 2
    told = capsys.readouterr()
    (made,) = yaml.safe_load_all(told.out)
    assert made["metadata"]["name"] == "llama"
    assert "+  name: llama" in told.err
    assert "a-b" in told.err
    assert run(path, "--rename", "A/b=b") == 0
    assert len(list(yaml.safe_load_all(capsys.readouterr().out))) == 2
    assert yaml.safe_dump_all(documents) == (tmp_path / "models.yaml").read_text()


def test_what_is_no_manifest_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A broken file, one without models, a rename that is none, --apply on files."""
    (tmp_path / "broken.yaml").write_text("a: [")
    for arguments, said in (
        ([str(tmp_path / "broken.yaml")], "cannot be read"),
        ([str(tmp_path / "nowhere.yaml")], "nowhere.yaml"),
        ([write(tmp_path / "other.yaml", [{"kind": "Other"}, None, [1]])], "no InferenceModel"),
        ([write(tmp_path / "m.yaml", [model("a")]), "--rename", "x"], "OLD=NEW"),
        ([write(tmp_path / "m.yaml", [model("a")]), "--apply"], "--apply"),
        (["--kubeconfig", str(tmp_path / "none")], "none"),
    ):
        assert run(*arguments) == 2
        assert said in capsys.readouterr().err
