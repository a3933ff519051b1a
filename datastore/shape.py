"""Every way in which a raw object departs from the struct that it should be.

The decoder stops at the first mismatch, in words made for programmers; this walk runs only after
it has failed (or when a person asks for everything), names all of them, and knows which fields a
closed struct does not have.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import inspect

from datastore.manifests import Closed
from datastore.problems import Path, Problem


def departures(raw: object, struct: type[Any]) -> list[Problem]:
    """Return what keeps `raw` from being read as `struct`."""
    return [p for p in _walk(raw, inspect.type_info(struct), ()) if p.severity == "error"]


def unknown_fields(raw: object, struct: type[Any]) -> list[Problem]:
    """Return, as warnings, the fields that nothing reads because no such field exists."""
    return [p for p in _walk(raw, inspect.type_info(struct), ()) if p.severity == "warning"]


def _walk(raw: object, info: inspect.Type, path: Path) -> Iterator[Problem]:
    if isinstance(info, inspect.UnionType):  # every union here is "a type, or null"
        if raw is None:
            return
        info = info.types[0]
    match info, raw:
        case inspect.StructType(), Mapping():
            yield from _walk_struct(raw, info, path)
        case inspect.ListType(), list():
            yield from _walk_each(enumerate(raw), info.item_type, path)
        case inspect.DictType(), Mapping():
            yield from _walk_each(raw.items(), info.value_type, path)
        case _:
            if not _is_scalar(raw, info):
                yield _mismatch(raw, info, path)


def _walk_each(
    items: Iterable[tuple[int | str, object]], info: inspect.Type, path: Path
) -> Iterator[Problem]:
    for step, item in items:
        yield from _walk(item, info, (*path, step if isinstance(step, int) else str(step)))


def _walk_struct(raw: Mapping[Any, Any], info: inspect.StructType, path: Path) -> Iterator[Problem]:
    fields = {field.encode_name: field for field in info.fields}
    for name, field in fields.items():
        if name in raw:
            yield from _walk(raw[name], field.type, (*path, name))
        elif field.required:
            yield Problem((*path, name), "is missing", f"add {name}")
    if not issubclass(info.cls, Closed):
        return
    for key in raw:
        if key not in fields:
            close = difflib.get_close_matches(str(key), fields, 1)
            fix = f"did you mean {close[0]}?" if close else f"one of: {', '.join(fields)}"
            yield Problem((*path, str(key)), "no such field", fix, severity="warning")


def _is_scalar(raw: object, info: inspect.Type) -> bool:
    match info:
        case inspect.StrType():
            return isinstance(raw, str)
        case inspect.BoolType():
            return isinstance(raw, bool)
        case inspect.IntType():
            return isinstance(raw, int) and not isinstance(raw, bool)
        case _:
            return False


def _mismatch(raw: object, info: inspect.Type, path: Path) -> Problem:
    wanted = _WANTED.get(type(info), "something else")
    fix = ""
    if isinstance(info, inspect.StrType) and isinstance(raw, int | float):
        fix = "put it in quotes"
    elif isinstance(info, inspect.IntType) and isinstance(raw, str) and raw.strip().isdecimal():
        fix = "remove the quotes"
    return Problem(path, f"expected {wanted}, found {_found(raw)}", fix)


_WANTED: dict[type[inspect.Type], str] = {
    inspect.StrType: "text",
    inspect.IntType: "a whole number",
    inspect.BoolType: "true or false",
    inspect.ListType: "a list",
    inspect.DictType: "a mapping",
    inspect.StructType: "a mapping",
}


def _found(raw: object) -> str:
    match raw:
        case None:
            return "nothing"
        case bool():
            return str(raw).lower()
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case Mapping():
            return "a mapping"
        case _:
            return type(raw).__name__
