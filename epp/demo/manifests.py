"""The manifests of the demo: what a cluster would hold, as files that the picker watches."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

LLAMA, MISTRAL = "llama", "mistral"
WEIGHTED, NAMED, PLAIN = "llama-chat", "llama-3-8b", "mistral"
BASE, TUNED = "llama-base", "llama-tuned"
UNSPELLABLE = "meta-llama/Llama-3.1-8B-Instruct"
WEIGHTS = {BASE: 3, TUNED: 1}

SERVES: dict[str, frozenset[str]] = {
    LLAMA: frozenset({BASE, TUNED, UNSPELLABLE}),
    MISTRAL: frozenset({PLAIN}),
}
"""The names that the model servers of a pool know."""


@dataclass(frozen=True, slots=True)
class Member:
    """One model server in a pool."""

    name: str
    pool: str
    port: int


def models() -> str:
    """Return the InferenceModels: a 3:1 split, a name that Kubernetes cannot spell, a plain one."""
    weighted = [{"name": name, "weight": weight} for name, weight in WEIGHTS.items()]
    return _yaml(
        [
            _model(WEIGHTED, LLAMA, weighted),
            _model(NAMED, LLAMA, [{"name": UNSPELLABLE}]),
            _model(PLAIN, MISTRAL, []),
        ]
    )


def pools() -> str:
    """Return the InferencePools."""
    return _yaml(_pool(name) for name in SERVES)


def endpoints(members: Iterable[Member]) -> str:
    """Return one EndpointSlice per model server: each has a port of its own here."""
    return _yaml(_slice(member) for member in members)


def _model(name: str, pool: str, targets: Sequence[dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = {"poolRef": {"name": pool}}
    if targets:
        spec["targetModels"] = list(targets)
    return {
        "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
        "kind": "InferenceModel",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


def _pool(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "targetPorts": [{"number": 8000}],
            "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
        },
    }


def _slice(member: Member) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": member.name,
            "namespace": "default",
            "labels": {"app": member.pool},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}],
        "ports": [{"port": member.port}],
    }


def _yaml(documents: Iterable[dict[str, Any]]) -> str:
    return str(yaml.safe_dump_all(documents, sort_keys=False, explicit_start=True))
