"""What `kubectl kustomize` makes of our kustomizations: enough of it to check them.

Resources, components, config maps from files, and strategic merge patches.  A name of a config map
gets no hash: nothing here depends on it.
"""

from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]

_KNOWN = {"apiVersion", "kind", "resources", "components", "configMapGenerator", "patches"}
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
}


def load(path: Path) -> list[Json]:
    """Return the documents of a YAML file."""
    return [document for document in yaml.safe_load_all(path.read_text("utf-8")) if document]


def render(folder: Path) -> list[Json]:
    """Return the objects of a kustomization."""
    (kustomization,) = load(folder / "kustomization.yaml")
    unknown = set(kustomization) - _KNOWN
    if unknown:
        raise ValueError(f"{folder}: this renderer does not know {', '.join(sorted(unknown))}")
    found: list[Json] = []
    for name in (*kustomization.get("resources", ()), *kustomization.get("components", ())):
        path = folder / name
        found += render(path.resolve()) if path.is_dir() else load(path)
    found += [_config_map(folder, one) for one in kustomization.get("configMapGenerator", ())]
    for patch in kustomization.get("patches", ()):
        for change in load(folder / patch["path"]):
            _apply(found, change, folder / patch["path"])
    return found


def _config_map(folder: Path, generator: Json) -> Json:
    data = {name: (folder / name).read_text("utf-8") for name in generator["files"]}
    metadata = {"name": generator["name"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _apply(found: list[Json], change: Json, path: Path) -> None:
    wanted = (change["kind"], change["metadata"]["name"])
    for index, one in enumerate(found):
        if (one["kind"], one["metadata"]["name"]) == wanted:
            found[index] = _merge(one, change, (one["kind"],))
            return
    raise ValueError(f"{path}: there is no {wanted[0]} {wanted[1]} to patch")


def _merge(target: Any, patch: Any, path: tuple[str, ...]) -> Any:
    if isinstance(target, dict) and isinstance(patch, dict):
        merged = dict(target)
        for key, value in patch.items():
            merged[key] = _merge(target[key], value, (*path, key)) if key in target else value
        return merged
    key = "port" if path == ("Service", "spec", "ports") else _KEYS.get(path[-1])
    if isinstance(target, list) and isinstance(patch, list) and key:
        changes = {item[key]: item for item in patch}
        kept = [_merge(t, changes.pop(t[key], t), (*path, "[]")) for t in target]
        return [*changes.values(), *kept]
    return patch
