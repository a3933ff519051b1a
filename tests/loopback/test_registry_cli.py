"""`epp-registry plan` and `history`: what they print, and that they change nothing."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from registry.cli import app
from tests.fakes.registry_scene import Scene, scene

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
