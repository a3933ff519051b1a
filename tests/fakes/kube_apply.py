"""Field ownership: what server-side apply and plain writes do to `managedFields`.

A field is a path of `f:name` and `k:{"key":"value"}` steps, as in `fieldsV1`.  Lists are atomic
unless their map keys are known.
"""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.fakes.kube_objects import Json, StatusError

Path = tuple[str, ...]
ListKeys = Callable[[tuple[str, ...]], tuple[str, ...] | None]
MISSING = object()

_IDENTITY = {
    ("f:apiVersion",),
    ("f:kind",),
    ("f:metadata", "f:name"),
    ("f:metadata", "f:namespace"),
    ("f:metadata", "f:uid"),
    ("f:metadata", "f:resourceVersion"),
    ("f:metadata", "f:generation"),
    ("f:metadata", "f:creationTimestamp"),
    ("f:metadata", "f:managedFields"),
    ("f:metadata", "f:deletionTimestamp"),
}


@dataclass(frozen=True, slots=True)
class Manager:
    """Who owns fields: a name, the way it writes, and the subresource it writes through."""

    name: str
    operation: str
    subresource: str = ""


Owners = dict[Manager, tuple[frozenset[Path], str]]
"""Each manager's fields, and when it last changed them."""


def fields(value: Json, keys_of: ListKeys) -> frozenset[Path]:
    """Return the fields that an object sets."""
    return frozenset(path for path in _leaves(value, (), (), keys_of) if path not in _IDENTITY)


def _leaves(value: Any, path: Path, names: tuple[str, ...], keys_of: ListKeys) -> Iterator[Path]:
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _leaves(item, (*path, f"f:{name}"), (*names, name), keys_of)
        return
    keys = keys_of(names) if isinstance(value, list) else None
    if not keys or not all(isinstance(item, dict) for item in value):
        yield path
        return
    for item in value:
        step = (*path, _step(item, keys))
        yield step
        yield from _leaves(item, step, (*names, "[]"), keys_of)


def _step(item: Json, keys: tuple[str, ...]) -> str:
    return "k:" + json.dumps({key: item.get(key) for key in keys}, separators=(",", ":"))


def get(value: Any, path: Path) -> Any:
    """Return what is at a path, or MISSING."""
    for step in path:
        if step.startswith("k:"):
            value = _item(value, step)
        else:
            value = value.get(step[2:], MISSING) if isinstance(value, dict) else MISSING
        if value is MISSING:
            break
    return value


def _item(value: Any, step: str) -> Any:
    keys = json.loads(step[2:])
    for item in value if isinstance(value, list) else ():
        if all(item.get(key) == wanted for key, wanted in keys.items()):
            return item
    return MISSING


def _put(target: Json, path: Path, value: Any) -> None:
    node: Any = target
    for step, following in zip(path, (*path[1:], None), strict=True):
        last = following is None
        if step.startswith("k:"):
            found = _item(node, step)
            if found is MISSING:
                found = json.loads(step[2:])
                node.append(found)
            node = found
            continue
        if last:
            node[step[2:]] = copy.deepcopy(value)
            return
        empty: Any = [] if following is not None and following.startswith("k:") else {}
        if not isinstance(node.get(step[2:]), type(empty)):
            node[step[2:]] = empty
        node = node[step[2:]]


def _drop(target: Json, path: Path) -> None:
    parent = get(target, path[:-1])
    if path[-1].startswith("k:"):
        item = get(target, path)
        if item is not MISSING:
            parent.remove(item)
    elif isinstance(parent, dict):
        parent.pop(path[-1][2:], None)


def apply(
    live: Json, owners: Owners, config: Json, manager: Manager, keys_of: ListKeys, force: bool
) -> tuple[Json, Owners]:
    """Return the object and its owners after `manager` applied `config`; 409 on a conflict.

    The times of changed owners are left empty for the storage to fill in.
    """
    wanted = fields(config, keys_of)
    _refuse_conflicts(live, owners, config, manager, wanted, force)
    result = copy.deepcopy(live)
    for path in sorted(wanted, key=len):
        _put(result, path, get(config, path))
    others: Owners = {}
    for other, (paths, when) in owners.items():
        if other != manager:
            kept = frozenset(
                path for path in paths if path not in wanted or get(config, path) == get(live, path)
            )
            if kept:
                others[other] = (kept, when)
    theirs = frozenset[Path]().union(*(paths for paths, _ in others.values()))
    mine, when = owners.get(manager, (frozenset[Path](), ""))
    for path in sorted(mine - wanted - theirs, key=len, reverse=True):
        _drop(result, path)
    return result, {**others, manager: (wanted, when if mine == wanted else "")}


def _refuse_conflicts(
    live: Json, owners: Owners, config: Json, manager: Manager, wanted: frozenset[Path], force: bool
) -> None:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f'conflict with "{other.name}"',
            "field": _spell(path),
        }
        for other, (paths, _) in owners.items()
        if other != manager
        for path in sorted(paths & wanted)
        if not path[-1].startswith("k:") and get(config, path) != get(live, path)
    ]
    if causes and not force:
        where = ", ".join(cause["field"] for cause in causes)
        text = f"Apply failed with {len(causes)} conflict(s): {causes[0]['message']}: {where}"
        raise StatusError(409, "Conflict", text, causes=causes)


def _spell(path: Path) -> str:
    return "".join(f"[{step[2:]}]" if step.startswith("k:") else f".{step[2:]}" for step in path)


def update(old: Json, new: Json, owners: Owners, manager: Manager, keys_of: ListKeys) -> Owners:
    """Return the owners after a plain write: the writer takes what it changed from the others."""
    present = fields(new, keys_of)
    changed = frozenset(path for path in present if get(old, path) != get(new, path))
    after: Owners = {}
    for other, (paths, when) in owners.items():
        kept = paths & present if other == manager else (paths & present) - changed
        if kept:
            after[other] = (kept, when)
    if changed:
        mine = after.get(manager, (frozenset[Path](), ""))[0]
        after[manager] = (mine | changed, "")
    return after


def managed_fields(owners: Owners, api_version: str) -> list[Json]:
    """Return the owners as `metadata.managedFields` spells them."""
    rows = []
    for manager, (paths, when) in owners.items():
        tree: Json = {}
        for path in sorted(paths):
            node = tree
            for step in path:
                node = node.setdefault(step, {})
            if path[-1].startswith("k:"):
                node["."] = {}
        row = {
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": api_version,
            "time": when,
            "fieldsType": "FieldsV1",
            "fieldsV1": tree,
        }
        rows.append({**row, "subresource": manager.subresource} if manager.subresource else row)
    return rows
