"""The Kubernetes API's own kinds, checked against the models that kubernetes-asyncio ships.

They are generated from the API's OpenAPI document, so that an unknown field, a wrong type or a
missing required field is found without a cluster.
"""

import re
from collections.abc import Iterator
from typing import Any

from kubernetes_asyncio.client import ApiException, Configuration, models

MODELS = {
    ("v1", "ServiceAccount"): "V1ServiceAccount",
    ("v1", "Service"): "V1Service",
    ("v1", "ConfigMap"): "V1ConfigMap",
    ("apps/v1", "Deployment"): "V1Deployment",
    ("policy/v1", "PodDisruptionBudget"): "V1PodDisruptionBudget",
    ("networking.k8s.io/v1", "NetworkPolicy"): "V1NetworkPolicy",
    ("rbac.authorization.k8s.io/v1", "Role"): "V1Role",
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): "V1RoleBinding",
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): "V1ClusterRole",
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): "V1ClusterRoleBinding",
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"): "V1CustomResourceDefinition",
}
_PLAIN: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "bool": bool,
    "float": (int, float),
    "datetime": str,
    "object": object,
}
_OPEN = {"V1JSONSchemaProps"}
"""The generator renames its `x-kubernetes-…` and `$ref` fields; they are not checked here."""


def departures(obj: dict[str, Any]) -> list[str]:
    """Return what is wrong with an object of one of the API's own kinds."""
    name = MODELS[obj["apiVersion"], obj["kind"]]
    return list(_check(obj, name, ""))


def _check(value: Any, kind: str, path: str) -> Iterator[str]:
    if found := re.fullmatch(r"list\[(.*)\]", kind):
        yield from _check_list(value, found[1], path)
    elif found := re.fullmatch(r"dict\(str, (.*)\)", kind):
        if not isinstance(value, dict):
            yield f"{path}: is not a mapping"
            return
        for key, item in value.items():
            yield from _check(item, found[1], f"{path}.{key}")
    elif kind in _PLAIN:
        wrong = kind == "int" and isinstance(value, bool)
        if wrong or not isinstance(value, _PLAIN[kind]):
            # A quantity or a port is an integer or a string; the models call both of them object.
            yield f"{path}: is not {kind}: {value!r}"
    else:
        yield from _check_model(value, kind, path)


def _check_list(value: Any, kind: str, path: str) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{path}: is not a list"
        return
    for index, item in enumerate(value):
        yield from _check(item, kind, f"{path}[{index}]")


def _check_model(value: Any, kind: str, path: str) -> Iterator[str]:
    model = getattr(models, kind)
    if not isinstance(value, dict):
        yield f"{path}: is not a mapping"
        return
    fields = {spelled: name for name, spelled in model.attribute_map.items()}
    for key, item in value.items():
        if key in fields:
            yield from _check(item, model.openapi_types[fields[key]], f"{path}.{key}".lstrip("."))
        elif kind not in _OPEN:
            yield f"{path}.{key}: no such field".lstrip(".")
    missing = _missing(model, {name for key, name in fields.items() if key in value})
    if missing:
        yield f"{path}: {missing}"


def _missing(model: Any, given: set[str]) -> str:
    """Let the model itself say which required field is not there."""
    configuration = Configuration()
    configuration.client_side_validation = True
    try:
        model(**dict.fromkeys(given, _Anything()), local_vars_configuration=configuration)
    except ValueError as error:
        return str(error) if "must not be `None`" in str(error) else ""
    except (TypeError, ApiException):
        return ""  # a check of a value that stands in for the real one
    return ""


class _Anything(str):
    """A value that a required field accepts."""

    __slots__ = ()
