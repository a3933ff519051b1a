"""The page on the registry is run: its commands work, and print what it says they print."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from registry.tell import REASONS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "registry.md"
BLOCK = re.compile(r"```sh\n(?P<code>.*?)```(\n```text\n(?P<out>.*?)```)?", re.DOTALL)


@asynccontextmanager
async def demo() -> AsyncIterator[dict[str, str]]:
    """The demo left running, and the environment that it prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "registry.demo", "--serve",
        cwd=ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        environment: dict[str, str] = {}
        while "READYZ" not in environment:
            line = (await asyncio.wait_for(process.stdout.readline(), 40)).decode()
            assert line, "the demo ended"
            environment |= re.findall(r"(\w+)=(\S+)", line)
        yield environment
    finally:
        process.terminate()
        await process.wait()


async def shell(code: str, environment: dict[str, str], folder: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        "bash", "-eo", "pipefail", "-c", code,
        cwd=folder, env=environment,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await process.communicate()
    return out.decode()


@pytest.mark.timeout(120)
async def test_the_story_on_the_page(tmp_path: Path) -> None:
    """Each `sh` block runs; where a `text` block follows, it comes to print that."""
    program = tmp_path / "epp-registry"
    start = "from registry.cli import main; main()"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -c "{start}" "$@"\n')
    program.chmod(0o755)
    async with demo() as exported:
        environment = {**os.environ, **exported, "PATH": f"{tmp_path}:{os.environ['PATH']}"}  # noqa: TID251  # programs need a PATH
        for block in BLOCK.finditer(PAGE.read_text("utf-8")):
            wanted = block["out"]
            if wanted is None:
                out = await shell(block["code"], environment, tmp_path)
                assert "curl: (" not in out
                continue
            pattern = re.escape(wanted.strip()).replace("…", ".*")
            for _ in range(15):
                await asyncio.sleep(1.0)  # the demo's period; each try starts a program
                out = await shell(block["code"], environment, tmp_path)
                if re.fullmatch(pattern, out.strip()):
                    break
            assert re.fullmatch(pattern, out.strip()), (block["code"], out)


@pytest.mark.timeout(120)
async def test_the_demo_tells_its_story() -> None:
    """`make demo-registry` runs to its end, and the end is as it should be."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "registry.demo", cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    last = out.decode().rpartition("8. It is back")[2]

    assert process.returncode == 0
    assert "nothing has moved" in last
    assert "mnist/v8" in last
    assert last.count("audit: COMPLETE") == 2


def test_every_reason_is_on_the_page() -> None:
    """Whatever can be told has its line in the table."""
    page = PAGE.read_text("utf-8")
    told = REASONS - {"Duplicate", "NamespaceGone", "SeveralArtifacts", "Unresolved"}

    assert {reason for reason in told if f"`{reason}`" not in page} == set()
