"""Manifest texts to values: several documents in a file, several files in a folder, one answer.

Each text is read on its own (`read_manifests`), so that an unchanged file need not be read again;
`collect` puts them together and is where two files can contradict each other.  Nothing stops at the
first mistake.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from datastore.decode import Decoded, Value, decode_object, misspelled_fields, resource_of
from datastore.documents import BadDocument, Node, read_documents
from datastore.manifests import RESOURCES, Resource
from datastore.model import ObjectName
from datastore.problems import BadManifest, Path, Problem, spell

Key = tuple[Resource, ObjectName]


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake (or warning) in a file, and what to do about it.

    `path` is where in the object, such as `spec.targetModels[1].weight`; `about` names the object.
    """

    file: str
    line: int
    path: str
    message: str
    fix: str = ""
    severity: str = "error"
    about: str = ""

    def __str__(self) -> str:
        about = f"{self.about}: " if self.about else ""
        path = f"{self.path}: " if self.path else ""
        fix = f" ({self.fix})" if self.fix else ""
        return f"{self.file}:{self.line}: {about}{path}{self.message}{fix}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """One object of a file, and how to find its lines again."""

    file: str
    decoded: Decoded
    node: Node
    root: Path = ()

    @property
    def line(self) -> int:
        """The line that the object begins on."""
        return self.node.line_of(self.root)

    def finding(self, problem: Problem) -> Finding:
        """Return a problem of this object with its file and line."""
        about = f"{self.decoded.resource.kind} {self.decoded.name}"
        return _finding(self.file, self.node, self.root, problem, about)


@dataclass(frozen=True, slots=True)
class Manifests:
    """What one text holds.  `unread` are the kinds (with their line) that nothing here reads."""

    file: str
    objects: tuple[Loaded, ...] = ()
    findings: tuple[Finding, ...] = ()
    unread: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Collected:
    """What all texts hold together."""

    objects: Mapping[Key, Loaded]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that keep all of it from being served."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    def values(self) -> Iterator[Value]:
        """Yield every value of every object that is not being deleted."""
        for loaded in self.objects.values():
            yield from loaded.decoded.values


def read_manifests(file: str, text: str, namespace: str, *, lint: bool = False) -> Manifests:
    """Read one text; `lint` also looks for fields that no schema has."""
    reader = _Reader(file, namespace, lint)
    try:
        for node in read_documents(text, json=file.endswith(".json")):
            for root, raw in _flatten(node):
                reader.read(node, root, raw)
    except BadDocument as bad:
        reader.findings.append(Finding(file, bad.line, "", bad.message, bad.fix))
    return Manifests(file, tuple(reader.objects), tuple(reader.findings), reader.unread)


def collect(texts: Iterable[Manifests]) -> Collected:
    """Put texts together; an object that two of them have is an error that names both."""
    objects: dict[Key, Loaded] = {}
    findings: list[Finding] = []
    for text in texts:
        findings += text.findings
        for loaded in text.objects:
            key = (loaded.decoded.resource, loaded.decoded.name)
            first = objects.setdefault(key, loaded)
            if first is not loaded:
                where = f"{first.file}:{first.line}"
                findings.append(
                    loaded.finding(
                        Problem(
                            ("metadata", "name"), f"is already in {where}", "remove one of them"
                        )
                    )
                )
    return Collected(objects, tuple(findings))


class _Reader:
    """What has been read of one text so far."""

    def __init__(self, file: str, namespace: str, lint: bool) -> None:
        self.objects: list[Loaded] = []
        self.findings: list[Finding] = []
        self.unread: dict[str, int] = {}
        self._file = file
        self._namespace = namespace
        self._lint = lint

    def read(self, node: Node, root: Path, raw: Any) -> None:
        """Take one object, or what is wrong with it."""
        try:
            resource = resource_of(raw)
            if resource is not None:
                self._decode(node, root, raw)
            elif (problem := _wrong_version(raw)) is not None:
                raise BadManifest((problem,))
            else:
                kind = f"{raw['kind']} of {raw['apiVersion']}"
                self.unread.setdefault(kind, node.line_of(root))
        except BadManifest as bad:
            about = _describe(raw)
            self.findings += [_finding(self._file, node, root, p, about) for p in bad.problems]

    def _decode(self, node: Node, root: Path, raw: Any) -> None:
        decoded = decode_object(raw, self._namespace)
        loaded = Loaded(self._file, decoded, node, root)
        self.findings += map(loaded.finding, decoded.problems)
        if self._lint:
            self.findings += map(loaded.finding, misspelled_fields(raw))
        else:
            # Where each field stands takes more memory than the object: keep the object's line.
            loaded = Loaded(self._file, decoded, Node(None, loaded.line, 1), root)
        self.objects.append(loaded)


def _wrong_version(raw: Mapping[str, Any]) -> Problem | None:
    """Say so when a kind that we do read has an apiVersion that we do not."""
    group = raw["apiVersion"].partition("/")[0]
    same_kind = [resource for resource in RESOURCES if resource.kind == raw["kind"]]
    if not any(resource.group == group for resource in same_kind):
        return None
    versions = " or ".join(resource.api_version for resource in same_kind)
    return Problem(("apiVersion",), f"{raw['apiVersion']} is not read here", f"use {versions}")


def _flatten(node: Node) -> Iterator[tuple[Path, Any]]:
    """Yield the document, or each item of a List, with its path."""
    raw = node.value
    if not isinstance(raw, dict) or not str(raw.get("kind", "")).endswith("List"):
        yield (), raw
        return
    items = raw.get("items")
    if not isinstance(items, list):
        yield ("items",), items
        return
    kind = str(raw["kind"]).removesuffix("List")
    implied = {"kind": kind, "apiVersion": raw.get("apiVersion")} if kind else {}
    for index, item in enumerate(items):
        yield ("items", index), implied | item if isinstance(item, dict) else item


def _finding(file: str, node: Node, root: Path, problem: Problem, about: str) -> Finding:
    path = (*root, *problem.path)
    return Finding(
        file,
        node.line_of(path),
        spell(path),
        problem.message,
        problem.fix,
        problem.severity,
        about,
    )


def _describe(raw: object) -> str:
    """Name an object that could not be read, as far as it says what it is."""
    if not isinstance(raw, dict):
        return ""
    metadata = raw.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    words = (raw.get("kind"), name)
    return " ".join(word for word in words if isinstance(word, str))
