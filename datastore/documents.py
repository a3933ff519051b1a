"""YAML and JSON text to plain values, remembering on which line each value stands.

The usual loaders are too kind for files that decide where traffic goes: they let the last of two
equal keys win, turn a timestamp into an object, and expand a few hundred bytes of aliases into
gigabytes.  Here a duplicate key is an error, depth and expansion are bounded, tags that build
objects are refused, and every error has its line.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from datastore.problems import Path

MAX_DEPTH = 64
"""A manifest nests about ten deep; a CRD about thirty."""

MAX_NODES = 2_000_000
"""Values in one document, aliases counted each time: a hundred thousand models fit."""


class BadDocument(Exception):
    """Text that is not YAML (or JSON), or is more than a manifest may be."""

    def __init__(self, message: str, line: int, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.fix = fix


class Node(msgspec.Struct, frozen=True, gc=False):
    """A value, its line (from 1; its key's, where it has one), and the same of what is inside."""

    value: Any
    line: int
    size: int
    inside: "dict[str, Node] | list[Node] | None" = None

    def step(self, step: str | int) -> "Node | None":
        """Return what is under this key or index, if anything."""
        match self.inside:
            case dict() if isinstance(step, str):
                return self.inside.get(step)
            case list() if isinstance(step, int) and step < len(self.inside):
                return self.inside[step]
            case _:
                return None

    def line_of(self, path: Path) -> int:
        """Return the line of what `path` leads to, or of the last step that exists."""
        node = self
        for step in path:
            inner = node.step(step)
            if inner is None:
                break
            node = inner
        return node.line


def read_documents(text: str, *, json: bool = False) -> Iterator[Node]:
    """Yield each document of a text that is not empty.

    JSON is nearly YAML: only its tabs and its pairs of surrogate escapes are spelled differently.
    """
    reader = _Reader(_json_as_yaml(text) if json else text)
    try:
        yield from reader.documents()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # What is missing at the end is missing in the last line, not after it.
        line = min(mark.line + 1, len(text.splitlines())) if mark is not None else 1
        raise BadDocument(f"is not YAML: {error.problem or error.context}", line) from error
    except (yaml.YAMLError, UnicodeError) as error:
        position = getattr(error, "position", 0)
        line = text.count("\n", 0, position) + 1 if isinstance(position, int) else 1
        raise BadDocument(f"is not YAML: {str(error).splitlines()[0]}", line) from error


_SURROGATE_PAIR = re.compile(
    r"(?<!\\)((?:\\\\)*)\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE
)


def _json_as_yaml(text: str) -> str:
    def join(match: re.Match[str]) -> str:
        high, low = int(match[2], 16), int(match[3], 16)
        return f"{match[1]}\\U{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):08x}"

    return _SURROGATE_PAIR.sub(join, text.replace("\t", " "))


class _Reader:
    """One pass over the events of a text."""

    def __init__(self, text: str) -> None:
        self._events = _events(text)
        self._anchors: dict[str, Node] = {}
        self._size = 0

    def documents(self) -> Iterator[Node]:
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors = {}
                self._size = 0
                node = self._node(next(self._events), 0)
                if node.value is not None:
                    yield node

    def _node(self, event: yaml.Event, depth: int) -> Node:
        line = _line(event)
        if depth > MAX_DEPTH:
            raise BadDocument(f"is nested more than {MAX_DEPTH} levels deep", line)
        match event:
            case yaml.ScalarEvent():
                node = Node(_scalar(event, line), line, 1)
            case yaml.MappingStartEvent():
                node = self._mapping(event, line, depth)
            case yaml.SequenceStartEvent():
                node = self._sequence(event, line, depth)
            case yaml.AliasEvent():
                node = self._alias(event, line)
            case _:
                raise BadDocument("is not YAML that a manifest may use", line)
        self._count(node.size if isinstance(event, yaml.AliasEvent) else 1, line)
        anchor = getattr(event, "anchor", None)
        if anchor is not None and not isinstance(event, yaml.AliasEvent):
            self._anchors[anchor] = node
        return node

    def _count(self, size: int, line: int) -> None:
        self._size += size
        if self._size > MAX_NODES:
            raise BadDocument(
                f"holds more than {MAX_NODES} values, its aliases expanded",
                line,
                "split the file, or write less with aliases",
            )

    def _alias(self, event: yaml.AliasEvent, line: int) -> Node:
        node = self._anchors.get(event.anchor or "")
        if node is None:
            raise BadDocument(f"the alias *{event.anchor} has no anchor before it", line)
        return Node(node.value, line, node.size, node.inside)

    def _sequence(self, event: yaml.SequenceStartEvent, line: int, depth: int) -> Node:
        _refuse_tag(event.tag, "seq", line)
        items: list[Node] = []
        while not isinstance(inner := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(inner, depth + 1))
        return Node([i.value for i in items], line, 1 + sum(i.size for i in items), items)

    def _mapping(self, event: yaml.MappingStartEvent, line: int, depth: int) -> Node:
        _refuse_tag(event.tag, "map", line)
        inside: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        while not isinstance(inner := next(self._events), yaml.MappingEndEvent):
            key_line = _line(inner)
            is_merge = _is_merge(inner)
            key = "<<" if is_merge else self._key(inner, key_line)
            node = self._node(next(self._events), depth + 1)
            if is_merge:
                merged = _merge(node, merged, key_line)
            elif key in inside:
                raise BadDocument(
                    f"has the key {key!r} twice, first on line {inside[key].line}",
                    key_line,
                    "remove one of them",
                )
            else:
                inside[key] = Node(node.value, key_line, node.size, node.inside)
        inside = merged | inside
        size = 1 + sum(node.size for node in inside.values())
        return Node({key: node.value for key, node in inside.items()}, line, size, inside)

    def _key(self, event: yaml.Event, line: int) -> str:
        key = None
        if isinstance(event, yaml.ScalarEvent | yaml.AliasEvent):
            key = self._node(event, 0).value
        if not isinstance(key, str):
            raise BadDocument("has a key that is not text", line, "put the key in quotes")
        return key


def _merge(node: Node, merged: dict[str, Node], line: int) -> dict[str, Node]:
    """Return what `<<: node` adds; of two merged mappings the first wins."""
    parts = node.inside if isinstance(node.inside, list) else [node]
    for part in parts:
        if not isinstance(part.inside, dict):
            raise BadDocument("merges (<<) what is not a mapping", line)
        merged = part.inside | merged
    return merged


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark is not None else 1


def _is_merge(event: yaml.Event) -> bool:
    return isinstance(event, yaml.ScalarEvent) and event.value == "<<" and event.implicit[0]


def _events(text: str) -> Iterator[yaml.Event]:
    return iter(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def _refuse_tag(tag: str | None, usual: str, line: int) -> None:
    if tag not in (None, "!", f"tag:yaml.org,2002:{usual}"):
        raise BadDocument(f"has the tag {tag}, which a manifest may not use", line, "remove it")


_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_TRUES = frozenset(word for w in ("true", "yes", "on") for word in (w, w.title(), w.upper()))
_FALSES = frozenset(word for w in ("false", "no", "off") for word in (w, w.title(), w.upper()))
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_BASED_INT = re.compile(r"[-+]?0(x[0-9a-fA-F_]+|o?[0-7_]+|b[01_]+)")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)


def _scalar(event: yaml.ScalarEvent, line: int) -> object:
    """Return what a scalar means to the Kubernetes tools: YAML 1.1, without dates and base 60."""
    tag = event.tag
    text: str = event.value
    if tag in ("!", "tag:yaml.org,2002:str") or (tag is None and not event.implicit[0]):
        return text
    if tag is None:
        return _plain(text, line)
    for kind in ("int", "float", "bool", "null"):
        if tag == f"tag:yaml.org,2002:{kind}":
            return _plain(text, line)
    raise BadDocument(f"has the tag {tag}, which a manifest may not use", line, "remove it")


def _plain(text: str, line: int) -> object:
    if text in _NULLS:
        return None
    if text in _TRUES or text in _FALSES:
        return text in _TRUES
    if text[0] not in "+-.0123456789":
        return text
    return _number(text, line)


def _number(text: str, line: int) -> object:
    try:
        if _INT.fullmatch(text):
            return int(text.replace("_", ""))
        if _BASED_INT.fullmatch(text):
            return _based(text.replace("_", ""))
        if _FLOAT.fullmatch(text):
            return float(
                text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan")
            )
    except ValueError as error:
        raise BadDocument("has a number that cannot be read", line) from error
    return text


def _based(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-").lower()
    if digits[1] in "xob":
        return sign * int(digits, 0)
    return sign * int(digits, 8)
