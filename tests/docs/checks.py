"""What can be known of a command without running it, for each program that the pages name.

A program without an entry in `PROGRAMS` is unknown, and a page that names it fails: nothing gets
into the docs without somebody deciding how it is checked.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import typer
import yaml

import artifacts.cli
import registry.cli
from deploy.render import render
from epp.cli import application
from epp.settings import InvalidSettings, Settings
from tests.docs.pages import ROOT
from tests.docs.shell import Command, parse

Words = Sequence[str]
Found = Iterator[str]

SERVED_PATHS = ("/metrics", "/healthz", "/readyz", "/debug/state", "/v1/")
KUBECTL_VERBS = {
    "apply", "delete", "describe", "diff", "exec", "get", "kustomize", "label", "logs", "patch",
    "port-forward", "rollout", "scale", "wait", "create",
}  # fmt: skip
KUBECTL_FLAGS = {
    "-n": True, "--namespace": True, "-f": True, "-k": True, "-o": True, "-l": True, "-c": True,
    "-p": True, "-w": False, "-A": False, "--type": True, "--timeout": True, "--replicas": True,
    "--server-side": False, "--ignore-not-found": False, "--all": False, "--for": True,
    "--sort-by": True, "--field-selector": True, "--clusterrole": True, "--serviceaccount": True,
}  # fmt: skip
KINDS = {
    "infmodel", "inferencemodels", "inferencepool", "inferencepools", "pods", "events", "lease",
    "leases", "deployment", "deploy", "crd", "secret", "configmap",
}  # fmt: skip
DOCKER_RUN_FLAGS = {
    "--rm": False, "--read-only": False, "--tmpfs": True, "-p": True, "-v": True, "--network": True,
    "--name": True, "-d": False, "-e": True,
}  # fmt: skip
PLAIN = {"awk", "grep", "tail", "head", "sort", "cat", "mkdir", "cp", "echo", "cd", "export", "."}
"""Programs of every system, which a page may use around ours."""


def problems(command: Command, *, sketch: bool = False) -> Found:
    """Yield what is wrong with a command; a `sketch` may leave out what is needed."""
    program, *words = command.words
    program = program.removeprefix(".venv/bin/")
    if program in PLAIN:
        return
    check = PROGRAMS.get(program)
    if check is None:
        yield f"nobody has said how `{program}` is checked: tests/docs/checks.py"
        return
    yield from check(words, sketch)


def _typer(app: typer.Typer, words: Words, sketch: bool) -> Found:
    """Let typer read the words, without running anything."""
    command: Any = typer.main.get_command(app)
    try:
        while hasattr(command, "get_command"):
            if not words or words[0] in ("-h", "--help", "--version"):
                return
            found = command.get_command(command.context_class(command), words[0])
            if found is None:
                yield f"there is no command {words[0]}"
                return
            command, words = found, words[1:]
        command.make_context(command.name, list(words))
    except typer.Exit:
        return
    except Exception as error:  # noqa: BLE001  # typer names no class for its refusals
        if sketch and type(error).__name__ in ("MissingParameter", "BadOptionUsage"):
            return
        yield str(getattr(error, "message", error)) or type(error).__name__


def _epp(words: Words, sketch: bool) -> Found:
    if words[:1] == ["serve"] and "--help" not in words:
        try:
            Settings.parse(list(words[1:]))
        except InvalidSettings as error:
            if not sketch or "no such" in str(error) or "unknown" in str(error):
                yield str(error)
        return
    yield from _typer(application(words[0] if words else ""), words, sketch)


def _artifacts(words: Words, sketch: bool) -> Found:
    yield from _typer(artifacts.cli.app, words, sketch)


def _registry(words: Words, sketch: bool) -> Found:
    yield from _typer(registry.cli.app, words, sketch)


def _flags(
    words: Words, known: dict[str, bool]
) -> tuple[dict[str, list[str]], list[str], list[str]]:
    """Return the flags with their values, the other words, and the flags that are not known."""
    flags: dict[str, list[str]] = {}
    others: list[str] = []
    unknown: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if not word.startswith("-") or word == "-":
            others.append(word)
        elif name not in known:
            unknown.append(name)
        else:
            flags.setdefault(name, []).append(
                value if equals or not known[name] else next(rest, "")
            )
    return flags, others, unknown


def _kubectl(words: Words, sketch: bool) -> Found:
    inner: Words = ()
    if "--" in words:
        at = list(words).index("--")
        words, inner = words[:at], words[at + 1 :]
    flags, others, unknown = _flags(words, KUBECTL_FLAGS)
    yield from (f"kubectl: is {name} a flag?" for name in unknown)
    verb = others[0] if others else ""
    if verb not in KUBECTL_VERBS:
        yield f"kubectl: is {verb} a verb?"
    if verb in ("get", "describe", "delete") and len(others) > 1:
        kind = others[1].partition("/")[0]
        if kind not in KINDS:
            yield f"kubectl: is {kind} a kind?"
    yield from (line for path in flags.get("-k", ()) for line in _kustomization(path))
    yield from (f"there is no {path}" for path in flags.get("-f", ()) if not _is_there(path))
    if inner:
        yield from problems(Command(tuple(inner)), sketch=sketch)


def _kustomization(path: str) -> Found:
    if not path.startswith("deploy"):
        return  # the reader's own, which the page shows
    if not (ROOT / path / "kustomization.yaml").exists():
        yield f"there is no kustomization in {path}"
    elif not render(ROOT / path):
        yield f"nothing is in {path}"


def _is_there(path: str) -> bool:
    """A path of the repository, standard input, or a file that the reader has."""
    return (ROOT / path).exists() or path == "-" or not path.startswith(("deploy", "epp", "docs"))


def _helm(words: Words, _sketch: bool) -> Found:
    known = {"-n": True, "--set": True, "--create-namespace": False, "-f": True, "--install": False}
    flags, others, unknown = _flags(words, known)
    yield from (f"helm: is {name} a flag?" for name in unknown)
    if others[0] not in ("install", "upgrade", "uninstall", "rollback"):
        yield f"helm: is {others[0]} a verb?"
    if others[0] in ("install", "upgrade"):
        chart = ROOT / others[-1]
        if not (chart / "Chart.yaml").exists():
            yield f"there is no chart in {others[-1]}"
            return
        values = yaml.safe_load((chart / "values.yaml").read_text("utf-8"))
        for given in flags.get("--set", ()):
            yield from _value(values, given.partition("=")[0])


def _value(values: Any, path: str) -> Found:
    for step in path.split("."):
        name = re.sub(r"\[\d+\]$", "", step)
        if not isinstance(values, dict) or name not in values:
            yield f"values.yaml has no {path}"
            return
        values = values[name]


def _docker(words: Words, sketch: bool) -> Found:
    if words[0] == "build":
        folder = words[-1]
        if not (ROOT / folder / "Dockerfile").exists():
            yield f"there is no Dockerfile in {folder}"
        return
    if words[0] not in ("run", "buildx"):
        yield f"docker: is {words[0]} a command?"
    if words[0] == "run":
        yield from _docker_run(words[1:], sketch)


def _docker_run(words: Words, sketch: bool) -> Found:
    """Check the options, and what follows the image against the image's entry point."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        name, equals, _ = words[at].partition("=")
        if name not in DOCKER_RUN_FLAGS:
            yield f"docker run: is {name} a flag?"
            return
        at += 2 if DOCKER_RUN_FLAGS[name] and not equals else 1
    flags, _, _ = _flags(words[:at], DOCKER_RUN_FLAGS)
    exposed = exposed_ports()
    for published in flags.get("-p", ()):
        if published.rpartition(":")[2] not in exposed:
            yield f"the image does not expose port {published}"
    arguments = words[at + 1 :]
    mounts = [volume.split(":")[1] for volume in flags.get("-v", ())]
    for path in (word for word in arguments if word.startswith("/")):
        if not any(Path(path).is_relative_to(mount) for mount in mounts):
            yield f"{path} is not in a folder that is mounted"
    yield from _epp(list(arguments), sketch)


def exposed_ports() -> set[str]:
    """Return the ports in the Dockerfile's EXPOSE."""
    found = re.search(r"^EXPOSE (.+)$", (ROOT / "Dockerfile").read_text("utf-8"), re.M)
    return set(found[1].split()) if found else set()


def _make(words: Words, _sketch: bool) -> Found:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    for word in words:
        if "=" not in word and word not in targets:
            yield f"the Makefile has no {word}"


def _curl(words: Words, _sketch: bool) -> Found:
    urls = [word for word in words if re.match(r"(?:https?://)?(?:localhost|127\.0\.0\.1):", word)]
    if not urls and not any(word.startswith("$") for word in words):
        yield "curl: no URL that is known here"
    for url in urls:
        path = urlsplit(url if "//" in url else f"http://{url}").path
        if not path.startswith(SERVED_PATHS):
            yield f"nobody serves {path}"


def _python(words: Words, sketch: bool) -> Found:
    if words[:1] == ["-m"] and len(words) > 1:
        if words[1] == "venv":
            return
        if words[1] == "pip":
            yield from _pip(words[2:], sketch)
        elif find_spec(words[1]) is None:
            yield f"there is no module {words[1]}"


def _pip(words: Words, _sketch: bool) -> Found:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    for word in words[1:]:
        found = re.fullmatch(r"(?P<name>\.|[\w-]+)(?:\[(?P<extras>[\w,]+)\])?", word)
        if word.startswith("-"):
            continue
        if found is None or found["name"] not in (".", project["name"]):
            yield f"pip: what is {word}?"
        elif unknown := set((found["extras"] or "").split(",")) - {*extras, ""}:
            yield f"there is no extra {', '.join(unknown)}"


def _envoy(words: Words, _sketch: bool) -> Found:
    _, others, unknown = _flags(words, {"-c": True, "--mode": True, "--concurrency": True})
    yield from (f"envoy: is {name} known here?" for name in [*others, *unknown])


def _openssl(words: Words, _sketch: bool) -> Found:
    if words[0] not in ("req", "x509", "s_client"):
        yield f"openssl: is {words[0]} a command?"


PROGRAMS: dict[str, Callable[[Words, bool], Found]] = {
    "epp": _epp,
    "epp-artifacts": _artifacts,
    "epp-registry": _registry,
    "kubectl": _kubectl,
    "helm": _helm,
    "docker": _docker,
    "make": _make,
    "curl": _curl,
    "python": _python,
    "python3": _python,
    "pip": _pip,
    "envoy": _envoy,
    "openssl": _openssl,
}
"""How the commands of each program are checked."""


def inline_commands(code: Sequence[str]) -> Iterator[Command]:
    """Yield the commands among pieces of inline code: those that begin with a program of ours."""
    ours = ("epp ", "epp-artifacts ", "epp-registry ", "make ", "python -m ")
    for piece in code:
        if piece.startswith(ours) and not re.search(r"[…<>{}|]", piece):
            yield from parse(piece)
