"""The walk-through of docs/pins.md, command by command, with its output."""

import re
import shlex
import textwrap
from pathlib import Path

import pytest

import artifacts
from tests.artifacts.bucket import Bucket
from tests.artifacts.conftest import Cli

PAGE = Path(__file__).parents[2] / "docs/pins.md"


def steps() -> list[tuple[str, list[str]]]:
    """Return the page's commands with the lines expected of each; `upload` is one of them."""
    found: list[tuple[str, list[str]]] = []
    inside = False
    for line in PAGE.read_text().splitlines():
        if line == "<!-- upload v2 -->":
            found.append(("upload", []))
        elif line.startswith("```"):
            inside = line == "```console"
        elif inside and line.startswith("$ "):
            found.append((line[2:], []))
        elif inside:
            found[-1][1].append(line)
    return found


def upload(bucket: Bucket, weights: bytes) -> None:
    bucket.put("model/weights.bin", weights)
    bucket.put("model/config.json", b"{}")


def fits(expected: str, line: str) -> bool:
    """Whether a printed line is the page's: `…` stands for anything, spaces for spaces."""
    pattern = r".*".join(re.escape(part) for part in expected.split("…"))
    return re.fullmatch(re.sub(r"(\\ )+", r" +", pattern), line) is not None


def test_the_walk_through(
    bucket: Bucket, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upload v1, lock, overwrite with v2, pull v1 again: as the page says, and as it prints."""
    monkeypatch.chdir(tmp_path)
    upload(bucket, b"version 1")
    commands = steps()

    assert len(commands) == 9
    for command, expected in commands:
        if command == "upload":
            upload(bucket, b"version 2")
            continue
        program, *arguments = shlex.split(command.replace("$BUCKET", bucket.name))
        assert program == "epp-artifacts"
        result = cli(*arguments)
        if expected == ["exit 2"]:
            assert result.exit_code == 2
            continue
        assert result.exit_code == 0, (command, result.stderr)
        printed = result.stdout.splitlines()
        for wanted, line in zip(expected, printed, strict=True):
            assert fits(wanted, line), (command, wanted, line)

    expected_bytes = {"serving": b"version 1", "replica": b"version 1", "floating": b"version 2"}
    assert expected_bytes == {
        name: (tmp_path / name / "weights.bin").read_bytes() for name in expected_bytes
    }


def test_the_page_s_python_compiles_and_names_what_exists() -> None:
    """The example from Python is real: it compiles, and every name that it takes is public."""
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    compile(textwrap.dedent(source), str(PAGE), "exec")

    for name in set(re.findall(r"artifacts\.(\w+)", source)):
        assert name in artifacts.__all__
