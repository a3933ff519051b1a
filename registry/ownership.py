"""Server-side apply seen from outside: which fields are ours, and what our next apply would change.

Only leaves that we set are compared, so replicas, resources and the defaults of webhooks are
nobody's business here.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from registry.model import Json

Path = tuple[str, ...]
_MISSING = object()
_IDENTITY = frozenset({("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace")})


def delta(wanted: Json, live: Json, manager: str) -> tuple[str, ...]:
    """Return the fields that an apply of `wanted` would change, in words; empty means none.

    A field changes when its value differs, when it is not ours yet, or when it is ours and no
    longer wanted.
    """
    ours = set(owned_fields(live, manager))
    leaves = {path: value for path, value in _leaves(wanted, ()) if path not in _IDENTITY}
    changed = {path for path, value in leaves.items() if _get(live, path) != value}
    unowned = {path for path in leaves if path not in ours}
    dropped = {path for path in ours if path not in leaves and _get(live, path) is not _MISSING}
    return tuple(sorted(".".join(path) for path in changed | unowned | dropped))


def owned_fields(live: Json, manager: str) -> tuple[Path, ...]:
    """Return the leaves that `manager` holds by apply."""
    found: set[Path] = set()
    for entry in live["metadata"].get("managedFields") or ():
        if (
            entry.get("manager") == manager
            and entry.get("operation") == "Apply"
            and not entry.get("subresource")
        ):
            found.update(_field_paths(entry.get("fieldsV1") or {}, ()))
    return tuple(sorted(found - _IDENTITY))


def has_other_authors(live: Json, manager: str) -> bool:
    """Whether anybody else wrote to this object, its status aside."""
    return any(
        entry.get("manager") != manager and not entry.get("subresource")
        for entry in live["metadata"].get("managedFields") or ()
    )


def _leaves(value: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, Any]]:
    for key, item in value.items():
        if isinstance(item, dict) and item:
            yield from _leaves(item, (*path, key))
        else:
            yield (*path, key), item


def _field_paths(fields: Mapping[str, Any], path: Path) -> Iterator[Path]:
    for key, inner in fields.items():
        if not key.startswith("f:"):
            continue
        deeper = (*path, key.removeprefix("f:"))
        if isinstance(inner, dict) and any(name.startswith("f:") for name in inner):
            yield from _field_paths(inner, deeper)
        else:
            yield deeper


def _get(value: Any, path: Path) -> Any:
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return _MISSING
        value = value[key]
    return value
