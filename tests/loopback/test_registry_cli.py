"""`epp-registry plan` and `history`: what they print, and that they change nothing."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from registry.cli import app
from registry.model import Policy
from tests.fakes.registry import Fault, Quirks
from tests.fakes.registry_scene import API, Scene, scene

RUNNER = CliRunner()


async def ask(s: Scene, *arguments: str) -> tuple[int, str]:
    """Run a command in a thread of its own, with this scene's addresses."""
    where: Sequence[str] = (
        "--model-registry-url", s.registry.url, "--kubeconfig", str(s.settings.kubeconfig),
    )  # fmt: skip
    found = await asyncio.to_thread(RUNNER.invoke, app, [*arguments, *where])
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found.exit_code, found.output


async def test_plan_prints_and_does_nothing() -> None:
    """Each step with its object; nothing is written to either side."""
    async with scene(start=False) as s:
        s.model("mnist", "v8")
        s.runtime()
        s.environment()
        s.intend("m0")
        code, text = await ask(s, "plan")
        assert code == 0
        assert "m0/1-v2" in text
        assert "create" in text
        code, text = await ask(s, "plan", "-o", "yaml", "--inference-models", "--namespace", "demo")
        [body] = yaml.safe_load_all(text)

        assert body["spec"]["predictor"]["model"]["storage"]["path"] == "mnist/v8"
        assert s.resources() == {}
        assert s.registry.writes == []


async def test_plan_of_an_unknown_environment() -> None:
    async with scene(start=False) as s:
        s.runtime()
        code, text = await ask(s, "plan")

        assert code == 0
        assert "create in the registry" in text


async def test_history_is_a_table() -> None:
    """The audit by name or id, versions by their names."""
    async with scene() as s:
        s.model("mnist", "v8")
        s.runtime()
        intent = s.intend("m0")
        await s.until(lambda: s.states("m0") == [("v8", "RUNNING")])
        code, text = await ask(s, "history", "m0")
        assert code == 0
        assert [line.split()[2:4] for line in text.splitlines()[2:]] == [
            ["UNKNOWN", "v8"],
            ["RUNNING", "v8"],
        ]
        assert (await ask(s, "history", intent))[1] == text
        code, text = await ask(s, "history", "nobody")
        assert code == 2
        assert "no intent 'nobody'" in text


async def test_a_registry_that_is_down_has_an_exit_status() -> None:
    """6: try again later."""
    async with scene(start=False) as s:
        await s.registry.down()
        code, text = await ask(s, "history", "m0")

        assert code == 6
        assert "error:" in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "--model-registry-url", "nowhere"], "not an http or https address"),
        (["run", "--deployment-mode", "Mesh"], "is none of"),
        (["run", "--model-registry-token-file", "/nowhere"], "not a file"),
        (["plan", "-o", "json"], "no output"),
        (["run", "--namespace-selector", ""], "--all-namespaces"),
        (["plan", "--namespace-selector", " "], "--all-namespaces"),
        (["plan", "--model-registry-ca-file", "/etc/hostname"], "no certificate"),
    ],
)
def test_mistakes_end_with_two(arguments: list[str], told: str) -> None:
    found = RUNNER.invoke(app, arguments)
    assert found.exit_code == 2
    assert told in found.output


def test_no_cluster_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    found = RUNNER.invoke(app, ["plan"])
    assert found.exit_code == 2
    assert "--kubeconfig" in found.output


async def test_yaml_holds_nothing_that_run_would_not_write() -> None:
    """Neither what the reverse controller made, nor a name that is taken, nor one name twice."""
    async with scene(start=False, quirks=Quirks(api="v1alpha1")) as s:
        s.model("mnist", "v8")
        s.runtime()
        for name in ("good", "mirrored", "taken", "other"):
            s.intend(name)
        s.registry.change("inference_services", s.ids["other"], name="good")
        key = "modelregistry.opendatahub.io/inference-service-id"
        for name, labels in (("isvc", {key: s.ids["mirrored"]}), ("taken", {"team": "x"})):
            metadata = {"name": name, "namespace": "demo", "labels": labels}
            s.api.put({"apiVersion": API, "kind": "InferenceService", "metadata": metadata,
                       "spec": {"predictor": {}}})  # fmt: skip
        code, text = await ask(s, "plan", "-o", "yaml")

        assert code == 0
        found = [body for body in yaml.safe_load_all(text) if body]
        assert [body["metadata"]["name"] for body in found] == ["good"]
        assert found[0]["metadata"]["labels"]["model-registry-is-id"] == s.ids["good"]


async def test_yaml_is_whole_or_an_error() -> None:
    """A repository from which half is missing would delete that half."""
    async with scene(start=False) as s:
        s.model("mnist", "v8")
        s.runtime()
        s.intend("m0")
        s.registry.faults = [Fault("500", path="artifacts")]
        code, text = await ask(s, "plan", "-o", "yaml")

        assert code == 6
        assert "kind:" not in text
        assert "500" in text


async def test_yaml_says_what_it_leaves_out() -> None:
    """An intent without an artifact is not passed over in silence."""
    async with scene(start=False) as s:
        s.model("mnist")
        s.bare_version("mnist", "v8")
        s.runtime()
        s.intend("m0")
        code, text = await ask(s, "plan", "-o", "yaml")

        assert code == 0
        assert "NoArtifact" in text


async def test_yaml_keeps_the_models_that_are_there() -> None:
    """What needs no change is still wanted."""
    async with scene(policy=Policy(inference_models=True, pool="pool")) as s:
        await s.deploy("m0")
        model = "inference.networking.x-k8s.io/v1alpha2", "InferenceModel"
        await s.until(lambda: s.api.all(*model))
        arguments = ("plan", "-o", "yaml", "--inference-models", "--inference-pool", "pool")
        code, text = await ask(s, *arguments)

        assert code == 0
        found = [body["kind"] for body in yaml.safe_load_all(text)]
        assert found == ["InferenceService", "InferenceModel"]


async def test_plan_promises_no_environment_that_run_would_not_make() -> None:
    """Without a runtime, or without the namespace, `run` writes nothing."""
    async with scene(start=False) as s:
        for namespace in ("demo", "nowhere"):
            code, text = await ask(s, "plan", "-n", namespace)
            assert code == 0
            assert "create in the registry" not in text
