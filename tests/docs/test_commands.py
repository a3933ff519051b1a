"""Every command in the pages is known: its program, its flags, the paths it names."""

import asyncio
import os
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from epp.demo.envoyprocess import envoy_path
from epp.envoyconfig.options import eds_file_name
from tests.docs import checks, pages, shell
from tests.docs.pages import Page
from tests.docs.shell import Command

PAGES = {page.name: page for page in pages.every()}

TOLD_BY = {
    "docs/registry.md": "tests/loopback/test_registry_docs.py",
    "docs/pins.md": "tests/artifacts/test_walkthrough.py",
}
"""Pages that are run as a whole, as a story, and the test that does it."""


@pytest.mark.parametrize("name", PAGES)
def test_every_command_is_known(name: str) -> None:
    """A command that nobody has said how to check fails too."""
    found = [
        f"{command}: {problem}"
        for command in shell.commands_of(PAGES[name])
        for problem in checks.problems(command)
    ]
    assert found == []


@pytest.mark.parametrize("name", PAGES)
def test_every_command_in_running_text_is_known(name: str) -> None:
    """`epp explain` in a sentence is a promise as well."""
    found = [
        f"{name}: `{' '.join(command.words)}`: {problem}"
        for command in checks.inline_commands(PAGES[name].inline)
        for problem in checks.problems(command, sketch=True)
    ]
    assert found == []


@pytest.mark.parametrize("name", PAGES)
def test_every_flag_in_running_text_is_known(name: str) -> None:
    """A flag in backticks, alone, is a flag of one of the programs or of Envoy's."""
    flags = {piece.partition("=")[0].partition(" ")[0] for piece in PAGES[name].inline}
    flags = {flag for flag in flags if re.fullmatch(r"--[a-z][a-z0-9-]+", flag)}
    assert {flag for flag in flags if not _is_a_flag(flag)} == set()


def _is_a_flag(flag: str) -> bool:
    sources = (
        "epp",
        "registry",
        "artifacts",
        "tests/conftest.py",
        "Makefile",
        "deploy",
        "benchmarks",
    )
    name = flag.removeprefix("--").removeprefix("no-")
    for source in sources:
        path = pages.ROOT / source
        files = path.rglob("*.py") if path.is_dir() else [path]
        for file in files:
            text = file.read_text("utf-8")
            if name in text or name.replace("-", "_") in text:
                return True
    return False


@pytest.mark.parametrize(
    "line",
    [
        "epp serv",
        "epp serve --manifest models",
        "epp check",
        "epp envoy-config --endpoint original",
        "epp explain x",
        "epp-registry run --no-such-flag",
        "epp-artifacts pul x",
        "kubectl apply -k deploy/kustomize/nowhere",
        "kubectl apply -f deploy/nothing.yaml",
        "kubectl exec deploy/epp -- epp get nothing",
        "kubectl get gadgets",
        "helm install epp deploy/helm/epp --set replica=3",
        "docker run -p 9002:9004 image serve",
        "docker run image serve --manifests /models",
        "docker run -v ./m:/m image serve --manifest /m",
        "docker run image epp serve",
        "make dmeo",
        "curl localhost:9090/metric",
        "python -m epp.dcos",
        "pip install 'inference-epp[s4]'",
        "envoy --config envoy.yaml",
        "terraform apply",
    ],
)
def test_a_wrong_command_is_found(line: str) -> None:
    """The checks can fail."""
    assert [p for command in shell.parse(line) for p in checks.problems(command)] != []


def test_blocks_are_taken_apart_as_a_shell_does() -> None:
    page = Page(
        "p", "```sh\na 'x\ny' | b > out  # why\nX=1 c \\\n -d && e\ncat > f <<'E'\nno\nE\n```\n"
    )
    assert [(c.words, c.into) for c in shell.commands_of(page)] == [
        (("a", "x\ny"), ""),
        (("b",), "out"),
        (("c", "-d"), ""),
        (("e",), ""),
        (("cat",), "f"),
    ]


def test_stories_have_a_test_that_tells_them() -> None:
    """A page that is run as a whole is named by the test that runs it."""
    for page, test in TOLD_BY.items():
        assert page in PAGES
        assert Path(page).name in (pages.ROOT / test).read_text("utf-8"), (page, test)


STORIES = {*TOLD_BY, "docs/quick-start.md"}


@pytest.mark.parametrize("name", sorted(PAGES.keys() - STORIES))
def test_output_is_shown_where_it_is_compared(name: str) -> None:
    """Output that a page shows goes stale unless a test reads it: only stories show any."""
    blocks = PAGES[name].blocks
    pairs = pairwise(blocks)
    assert [after for one, after in pairs if (one.language, after.language) == ("sh", "text")] == []
    shown = [line for b in blocks if b.language == "console" for line in b.text.splitlines()]
    assert [line for line in shown if not line.startswith("$ ")] == []


@pytest.mark.parametrize("name", PAGES)
def test_no_block_is_overlooked(name: str) -> None:
    """A block that is indented, or fenced with tildes, would be read by nobody here."""
    page = PAGES[name]
    assert re.findall(r"^(?:[ \t]+```|~~~).*$", page.text, re.MULTILINE) == []
    assert page.text.count("\n```") == 2 * len(page.blocks), "a fence is not closed"


def _is_quick(command: Command) -> bool:
    """Whether a command needs no cluster and ends by itself, so that it can be run here."""
    program, *words = command.words
    if program == "openssl":
        return words[0] == "req"
    if program == "epp" and words[0] == "migrate":
        return len(words) > 1 and not words[1].startswith("-")
    return program == "mkdir" or (
        program == "epp" and words[0] in ("crds", "check", "envoy-config")
    )


QUICK = [
    name
    for name, page in PAGES.items()
    if name not in TOLD_BY and any(_is_quick(command) for command in shell.commands_of(page))
]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", QUICK)
async def test_commands_that_need_no_cluster_are_run(name: str, tmp_path: Path) -> None:
    """In the page's order, beside the files that the page shows; Envoy takes what it gets."""
    for block in PAGES[name].blocks:
        if block.file:
            file = tmp_path / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
    for command in filter(_is_quick, shell.commands_of(PAGES[name])):
        status, out, err = await run(command.words, tmp_path)
        assert status == 0, f"{command}\n{err}"
        if command.into:
            (tmp_path / command.into).write_bytes(out)
        if command.words[1] == "envoy-config":
            said = await what_envoy_says(command, tmp_path)
            assert said == "", f"{command}\n{said}"


async def what_envoy_says(command: Command, folder: Path) -> str:
    """Return what Envoy has against the configuration that a command made, "" if nothing."""
    values = dict(zip(command.words, command.words[1:], strict=False))
    if eds_dir := values.get("--eds-dir"):
        (folder / eds_dir).mkdir()
        for flag, pool in zip(command.words, command.words[1:], strict=False):
            if flag == "--pool":  # the picker has started before, and written its files
                (folder / eds_dir / eds_file_name(pool)).write_text("{}")
    made = command.into or values["--output"]
    mode = ("--mode", "validate", "--disable-hot-restart", "-c", made)
    status, out, err = await run((str(envoy_path()), *mode), folder)
    return "" if status == 0 else out.decode() + err


async def run(words: tuple[str, ...], folder: Path) -> tuple[int, bytes, str]:
    program, *rest = words
    start = (sys.executable, "-m", "epp") if program == "epp" else (program,)
    process = await asyncio.create_subprocess_exec(
        *start, *rest,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(pages.ROOT)},  # noqa: TID251  # programs need a PATH
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode or 0, out, err.decode()
