"""What `pip install` gives: three programs, their data, clear words where an extra is missing."""

import asyncio
import os
import re
import sys
import tomllib
import zipfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.docs.pages import ROOT

PACKAGES = ("epp", "datastore", "registry", "artifacts", "console", "protos")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

BROUGHT = {
    "demo": ("envoy",),
    "s3": ("aiobotocore", "botocore"),
    "tracing": ("opentelemetry",),
    "test": (
        "pytest",
        "hypothesis",
        "moto",
        "flask",
        "envoy_data_plane",
        "model_registry",
        "coverage",
    ),
    "dev": ("grpc_tools", "mypy", "mkdocs", "jsonschema", "importlinter", "piptools", "ruff"),
}
"""The modules of each extra, hidden to see what is left."""

HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
"""
IMPORT_ALL = """
import importlib, pkgutil
failed = []
for package in PACKAGES:
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        try:
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
        except ImportError as error:
            failed.append(f"{module.name}: {error}")
print("\\n".join(failed))
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """The project alone, installed in a folder of its own; `wheel` is what it came from."""

    folder: Path
    wheel: Path

    async def run(self, program: str, *words: str) -> tuple[int, str]:
        """Run one of its programs."""
        return await run(str(self.folder / "bin" / program), *words, path=self.folder)


async def run(*words: str, path: Path | None = None, cwd: Path | None = None) -> tuple[int, str]:
    environment = dict(os.environ)  # noqa: TID251  # programs need a PATH
    environment.update({"COLUMNS": "100", "PYTHONPATH": str(path or "")})
    process = await asyncio.create_subprocess_exec(
        *words,
        cwd=cwd or "/",
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def installed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installed]:
    """Build a wheel from what git would clone, offline, and install it without dependencies."""
    base = tmp_path_factory.mktemp("install")
    source = base / "source"
    source.mkdir()
    copied = ("pyproject.toml", "README.md", "LICENSE", *PACKAGES)
    status, said = await run("cp", "-r", *(str(ROOT / name) for name in copied), str(source))
    assert status == 0, said
    pip = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "--no-cache-dir")
    offline = ("--no-deps", "--no-index")
    status, said = await run(
        *(*pip, "wheel", *offline, "--no-build-isolation", "-w", str(base), "."), cwd=source
    )
    assert status == 0, said
    (wheel,) = base.glob("*.whl")
    folder = base / "target"
    status, said = await run(*pip, "install", *offline, "--target", str(folder), str(wheel))
    assert status == 0, said
    yield Installed(folder, wheel)


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("epp", ["serve", "check", "envoy-config", "crds", "migrate", "get", "demo"]),
        ("epp-registry", ["run", "plan", "history"]),
        ("epp-artifacts", ["lock", "pull", "verify", "diff", "show", "Exit codes"]),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_programs_say_what_they_can(
    installed: Installed, program: str, words: list[str]
) -> None:
    """`--help` has each command; a wrong one is refused with 2 and without a traceback."""
    status, said = await installed.run(program, "--help")
    assert status == 0, said
    assert [word for word in words if word not in said] == []
    status, said = await installed.run(program, "no-such-command")
    assert status == 2
    assert "no-such-command" in said
    assert "Traceback" not in said


@pytest.mark.asyncio(loop_scope="module")
async def test_data_comes_along(installed: Installed) -> None:
    """The CRD, the markers for type checkers, the messages' sources, and nothing of the tests."""
    names = zipfile.ZipFile(installed.wheel).namelist()
    wanted = {"epp/crds/inferencemodels.yaml", *(f"{package}/py.typed" for package in PACKAGES[:5])}
    wanted |= {str(p.relative_to(ROOT)) for p in (ROOT / "protos").rglob("*.proto")}
    assert wanted - set(names) == set()
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == set(PACKAGES)
    status, said = await installed.run("epp", "crds")
    assert status == 0
    assert said == (ROOT / "epp" / "crds" / "inferencemodels.yaml").read_text("utf-8")


@pytest.mark.asyncio(loop_scope="module")
async def test_the_version_is_the_projects(installed: Installed) -> None:
    status, said = await installed.run("epp", "--version")
    assert (status, said.split()[:2]) == (0, ["epp", PROJECT["version"]])


@pytest.mark.asyncio(loop_scope="module")
async def test_a_bare_install_imports_everything(installed: Installed) -> None:
    """Extras are imported where they are used, so that nothing else needs them."""
    hidden = {name for names in BROUGHT.values() for name in names}
    start = f"HIDDEN = {hidden!r}\nPACKAGES = {PACKAGES!r}\n{HIDE}{IMPORT_ALL}"
    status, said = await run(sys.executable, "-W", "error", "-c", start, path=installed.folder)
    assert (status, said.strip()) == (0, "")


@pytest.mark.parametrize(
    ("main", "words", "extra"),
    [
        ("from epp.cli import main; main(['demo'])", [], "demo"),
        ("from artifacts.cli import main; main()", ["show", "s3://bucket/key"], "s3"),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_missing_extra_is_named(
    installed: Installed, main: str, words: list[str], extra: str
) -> None:
    """One line that says what to install, and no traceback."""
    hidden = set(BROUGHT[extra])
    start = f"HIDDEN = {hidden!r}\n{HIDE}\n{main}"
    status, said = await run(sys.executable, "-c", start, *words, path=installed.folder)
    assert status == 2, said
    assert f"inference-epp[{extra}]" in said
    assert "Traceback" not in said


def test_extras_in_the_table_are_the_projects() -> None:
    assert set(BROUGHT) == set(PROJECT["optional-dependencies"])


def test_dependencies_are_explained() -> None:
    """Each has a line on the page, and the page has no other."""
    page = (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| ")]
    named = {name.strip() for row in rows for cell in row[:-1] for name in cell.split(",")}
    for requirement in PROJECT["dependencies"]:
        assert _name(requirement) in named, requirement
    families = (*PROJECT["optional-dependencies"].values(), ())
    for requirement in (each for family in families for each in family):
        name = _name(requirement)
        short = "types-*" if name.startswith("types-") else name
        assert short in named or name.startswith("pytest") or name in page, requirement


def _name(requirement: str) -> str:
    found = re.match(r"[\w-]+", requirement)
    assert found is not None
    return found[0]
