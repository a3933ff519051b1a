"""The Dockerfile, read step by step: its sources exist, its pins are whole, its user is nobody."""

import re
import tomllib
from collections.abc import Iterator

import pytest

from epp.settings import Settings
from tests.docs.pages import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")


def steps() -> Iterator[tuple[str, str]]:
    """Yield each instruction with its words, continued lines joined, comments left out."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            instruction, _, words = line.partition(" ")
            yield instruction, words.strip()


def of(instruction: str) -> list[str]:
    return [words for name, words in steps() if name == instruction]


def test_what_is_copied_is_there() -> None:
    """And every package of the wheel is copied."""
    sources: list[str] = []
    for words in of("COPY"):
        if "--from=" not in words:
            sources += words.split()[:-1]
    assert [name for name in sources if not (ROOT / name).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    packages = project["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {name.removesuffix("*") for name in packages} <= set(sources)


def test_what_is_copied_is_not_ignored() -> None:
    """The context is small, and has what the steps need."""
    ignored = (ROOT / ".dockerignore").read_text("utf-8").split()
    needed = {word for words in of("COPY") if "--from=" not in words for word in words.split()[:-1]}
    assert ignored[0] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == needed


def entries(name: str) -> dict[str, str]:
    """Return each pin of a requirements file by the project's name."""
    text = (ROOT / name).read_text("utf-8")
    parts = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.M)[1:]
    return {re.split(r"[^\w.-]", part)[0].lower(): part for part in parts}


@pytest.mark.parametrize(
    "name", ["requirements.txt", "requirements-dev.txt", "requirements-build.txt"]
)
def test_requirements_are_pinned_with_hashes(name: str) -> None:
    """Each has an exact version and hashes; no index has its address in the file."""
    text = (ROOT / name).read_text("utf-8")
    assert "://" not in re.sub(r"^\s*#.*$", "", text, flags=re.M)
    assert re.findall(r"^-.*$", text, re.M) == []
    assert entries(name)
    for entry in entries(name).values():
        assert re.match(r"[\w.-]+==\S+", entry), entry
        assert "--hash=sha256:" in entry, entry


def test_the_image_installs_what_is_pinned_and_nothing_else() -> None:
    pips = [step.strip() for words in of("RUN") for step in words.split("&&") if "/pip " in step]
    pinned = [step for step in pips if "--require-hashes" in step]
    assert [step.split()[-1] for step in pinned] == ["requirements.txt", "requirements-build.txt"]
    made = [step for step in pips if step not in pinned]
    assert len(made) == 2
    assert all("--no-deps" in step for step in made)
    assert "--no-build-isolation" in made[0]
    assert "--no-index" in made[1]


def test_pins_cover_what_the_project_needs() -> None:
    """What runs, with the extra that the image has (s3), and what builds it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    needed = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["s3"],
    ]
    assert {_name(each) for each in needed} <= entries("requirements.txt").keys()
    assert {_name(each) for each in project["build-system"]["requires"]} == entries(
        "requirements-build.txt"
    ).keys()


def test_everything_is_pinned_to_one_version() -> None:
    """What is tested is what the image runs."""

    def versions(name: str) -> dict[str, str]:
        return {key: entry.split()[0] for key, entry in entries(name).items()}

    tested = versions("requirements-dev.txt")
    for name in ("requirements.txt", "requirements-build.txt"):
        assert versions(name).items() <= tested.items(), name


def _name(requirement: str) -> str:
    return re.split(r"[^\w-]", requirement)[0].lower()


def test_the_container_runs_as_nobody_and_serves() -> None:
    (user,) = of("USER")
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user)
    (entry,), (command,) = of("ENTRYPOINT"), of("CMD")
    assert (entry, command) == ('["epp"]', '["serve"]')
    settings = Settings.parse([])
    ports = {settings.grpc_port, settings.grpc_health_port, settings.metrics_port}
    assert of("EXPOSE") == [" ".join(map(str, sorted(ports)))]


def test_bases_are_small_and_alike() -> None:
    """One Python in both stages, so that what is built runs."""
    bases = [words.split()[0] for words in of("FROM")]
    assert bases == ["python:${PYTHON}-slim"] * 2
