"""What a CustomResourceDefinition's schema does to an object: defaults, pruning, validation.

A hand-written subset of structural OpenAPI v3, and the few CEL rules that the CRDs in use contain:
a rule that is not in the table is refused when its CRD is installed, so that no rule is passed
over in silence.
"""

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
Rule = Callable[[Any, Any], bool]

_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
}


def _weights_all_or_none(targets: Any, _: Any) -> bool:
    return len({"weight" in target for target in targets}) <= 1


_INFERENCE_GROUPS = ("inference.networking.x-k8s.io", "inference.networking.k8s.io")
CEL: dict[str, Rule] = {
    "self == oldSelf": lambda new, old: old is None or new == old,
    "self.all(model, has(model.weight)) || self.all(model, !has(model.weight))": (
        _weights_all_or_none
    ),
    "self.all(t, has(t.weight)) || self.all(t, !has(t.weight))": _weights_all_or_none,
    "self.kind == 'InferencePool'": lambda ref, _: ref.get("kind") == "InferencePool",
    "self.group in ['', 'inference.networking.x-k8s.io', 'inference.networking.k8s.io']": (
        lambda ref, _: ref.get("group", "") in ("", *_INFERENCE_GROUPS)
    ),
    "self.kind != 'Service' || has(self.port)": (
        lambda ref, _: ref.get("kind") != "Service" or "port" in ref
    ),
    "self.all(p1, self.exists_one(p2, p1.number==p2.number))": (
        lambda ports, _: len({port["number"] for port in ports}) == len(ports)
    ),
}


def unknown_rules(schema: Schema) -> list[str]:
    """Return the CEL rules of a schema that this table cannot evaluate."""
    rules = [rule["rule"] for rule in schema.get("x-kubernetes-validations", ())]
    found = [rule for rule in rules if _normal(rule) not in _NORMAL_CEL]
    for child in _children(schema):
        found += unknown_rules(child)
    return found


def _normal(rule: str) -> str:
    return re.sub(r"\s+", "", rule)


_NORMAL_CEL = {_normal(rule): test for rule, test in CEL.items()}


def _children(schema: Schema) -> Iterator[Schema]:
    yield from schema.get("properties", {}).values()
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            yield schema[key]


def set_defaults(value: Any, schema: Schema) -> None:
    """Fill in the defaults of absent fields, in place."""
    if isinstance(value, dict):
        for name, child in schema.get("properties", {}).items():
            if name not in value and "default" in child:
                value[name] = copy.deepcopy(child["default"])
    for item, child, _ in _known(value, schema, ""):
        set_defaults(item, child)


def prune(value: Any, schema: Schema, path: str = "") -> list[str]:
    """Remove what the schema does not know, in place; return the paths removed."""
    removed: list[str] = []
    closed = not (_keeps_all(schema) or schema.get("additionalProperties"))
    if isinstance(value, dict) and closed:
        known = {*schema.get("properties", {}), *(() if path else _IDENTITY)}
        for name in [name for name in value if name not in known]:
            del value[name]
            removed.append(f"{path}.{name}".lstrip("."))
    for item, child, where in _known(value, schema, path):
        if where != "metadata":
            removed += prune(item, child, where)
    return removed


_IDENTITY = ("apiVersion", "kind", "metadata")


def _known(value: Any, schema: Schema, path: str) -> Iterator[tuple[Any, Schema, str]]:
    """Yield the parts of a value that have a schema of their own, and their paths."""
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield item, schema["items"], f"{path}[{index}]"
    if isinstance(value, dict):
        extra = schema.get("additionalProperties")
        for name, item in value.items():
            child = schema.get("properties", {}).get(name, extra)
            if isinstance(child, Mapping):
                yield item, child, f"{path}.{name}".lstrip(".")


def _keeps_all(schema: Schema) -> bool:
    return bool(
        schema.get("x-kubernetes-preserve-unknown-fields")
        or schema.get("x-kubernetes-embedded-resource")
        or schema.get("x-kubernetes-int-or-string")
    )


def violations(value: Any, schema: Schema, old: Any = None, path: str = "") -> list[str]:
    """Return what the schema has against the value, one line each, with its path."""
    if value is None and schema.get("nullable"):
        return []
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        return [] if isinstance(value, int | str) else [f"{path}: must be an integer or a string"]
    if kind and not _TYPES[kind](value):
        return [f'{path}: Invalid value: {type(value).__name__}: must be of type {kind}: "{value}"']
    found = [*_scalar(value, schema, path)]
    if isinstance(value, dict):
        found += _object(value, schema, old if isinstance(old, dict) else {}, path)
    if isinstance(value, list):
        found += _array(value, schema, path)
    return found or [*_cel(value, schema, old, path)]


def _scalar(value: Any, schema: Schema, path: str) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        allowed = ", ".join(f'"{item}"' for item in schema["enum"])
        yield f'{path}: Unsupported value: "{value}": supported values: {allowed}'
    if isinstance(value, str):
        yield from _string(value, schema, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if value > schema.get("maximum", value):
            yield f"{path}: should be less than or equal to {schema['maximum']}"
        if value < schema.get("minimum", value):
            yield f"{path}: should be greater than or equal to {schema['minimum']}"


def _string(value: str, schema: Schema, path: str) -> Iterator[str]:
    if len(value) > schema.get("maxLength", len(value)):
        yield f"{path}: Too long: may not be more than {schema['maxLength']} bytes"
    if len(value) < schema.get("minLength", 0):
        yield f"{path}: should be at least {schema['minLength']} chars long"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{path}: Invalid value: \"{value}\": should match '{schema['pattern']}'"


def _object(value: dict[str, Any], schema: Schema, old: dict[str, Any], path: str) -> list[str]:
    found = [
        f"{path}.{name}: Required value".lstrip(".")
        for name in schema.get("required", ())
        if name not in value
    ]
    for item, child, where in _known(value, schema, path):
        found += violations(item, child, old.get(where.rpartition(".")[2]), where)
    if len(value) > schema.get("maxProperties", len(value)):
        found.append(f"{path}: must have at most {schema['maxProperties']} items")
    if len(value) < schema.get("minProperties", 0):
        found.append(f"{path}: should have at least {schema['minProperties']} properties")
    return found


def _array(value: list[Any], schema: Schema, path: str) -> list[str]:
    found: list[str] = []
    if len(value) > schema.get("maxItems", len(value)):
        found.append(
            f"{path}: Too many: {len(value)}: must have at most {schema['maxItems']} items"
        )
    if len(value) < schema.get("minItems", 0):
        found.append(f"{path}: should have at least {schema['minItems']} items")
    for index, item in enumerate(value):
        found += violations(item, schema.get("items", {}), None, f"{path}[{index}]")
    keys = schema.get("x-kubernetes-list-map-keys")
    if keys and not found:
        names = [tuple(item.get(key) for key in keys) for item in value]
        found += [f"{path}: Duplicate value: {name}" for name in names if names.count(name) > 1]
    return found


def _cel(value: Any, schema: Schema, old: Any, path: str) -> Iterator[str]:
    for validation in schema.get("x-kubernetes-validations", ()):
        if not _NORMAL_CEL[_normal(validation["rule"])](value, old):
            yield f"{path}: Invalid value: {validation.get('message', validation['rule'])}"


def list_keys(schema: Schema | None, path: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the map keys of the list at a path of field names; None = the list is atomic."""
    node: Any = schema
    for name in path:
        if not isinstance(node, Mapping):
            return None
        node = node.get("items") if name == "[]" else (node.get("properties") or {}).get(name)
    if not isinstance(node, Mapping) or node.get("x-kubernetes-list-type") != "map":
        return None
    return tuple(node.get("x-kubernetes-list-map-keys", ()))
