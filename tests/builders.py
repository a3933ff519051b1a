"""Values and manifests for tests, in sentences: `a_model("llama").in_pool("vllm").to("a", 3)`.

Every builder gives the value that the datastore holds (`.value`) and the manifest that it would be
read from (`.manifest`), so that a test can start at either end.
"""

from collections.abc import Iterable
from itertools import accumulate
from typing import Any, Self

from datastore.events import Upserted
from datastore.model import (
    Backend,
    Criticality,
    InferenceModel,
    InferencePool,
    ObjectName,
    TargetModel,
)
from datastore.store import Store

DIGEST_A = "sha256:" + "a" * 64
DIGEST_B = "sha256:" + "b" * 64


class ModelBuilder:
    """An InferenceModel in the making."""

    def __init__(self, name: str, namespace: str) -> None:
        self._name = ObjectName(namespace, name)
        self._pool = "vllm"
        self._targets: list[dict[str, Any]] = []
        self._criticality: Criticality | None = None
        self._old_name: str | None = None
        self._invalid: tuple[str, str] | None = None

    def in_pool(self, pool: str) -> Self:
        """Refer to this pool (otherwise: vllm)."""
        self._pool = pool
        return self

    def to(self, target: str, weight: int | None = None, digest: str | None = None) -> Self:
        """Add a target model."""
        entry: dict[str, Any] = {"name": target}
        if weight is not None:
            entry["weight"] = weight
        if digest is not None:
            entry["artifactDigest"] = digest
        self._targets.append(entry)
        return self

    def critical(self) -> Self:
        """Make it Critical."""
        self._criticality = Criticality.CRITICAL
        return self

    def sheddable(self) -> Self:
        """Make it Sheddable."""
        self._criticality = Criticality.SHEDDABLE
        return self

    def once_called(self, old_name: str) -> Self:
        """Give it a deprecated spec.modelName."""
        self._old_name = old_name
        return self

    def invalid(self, message: str, reason: str = "InvalidWeights") -> Self:
        """Make the value one that cannot be served (the manifest stays as it is)."""
        self._invalid = (message, reason)
        return self

    @property
    def value(self) -> InferenceModel:
        """The InferenceModel."""
        targets = tuple(
            TargetModel(t["name"], t.get("weight", 1), t.get("artifactDigest"))
            for t in self._targets
        ) or (TargetModel(self._name.name),)
        message, reason = self._invalid or (None, None)
        return InferenceModel(
            name=self._name,
            pool=ObjectName(self._name.namespace, self._pool),
            targets=targets,
            cumulative=tuple(accumulate(t.weight for t in targets)),
            criticality=self._criticality or Criticality.STANDARD,
            deprecated_model_name=self._old_name,
            invalid=message,
            invalid_reason=reason,
        )

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest, as parsed YAML."""
        spec: dict[str, Any] = {"poolRef": {"name": self._pool}}
        if self._targets:
            spec["targetModels"] = [dict(target) for target in self._targets]
        if self._criticality is not None:
            spec["criticality"] = self._criticality.value
        if self._old_name is not None:
            spec["modelName"] = self._old_name
        return {
            "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
            "kind": "InferenceModel",
            "metadata": _metadata(self._name),
            "spec": spec,
        }


class PoolBuilder:
    """An InferencePool in the making: v1, selecting `app: <its name>`, on port 8000."""

    def __init__(self, name: str, namespace: str) -> None:
        self._name = ObjectName(namespace, name)
        self._selector = {"app": name}
        self._ports: tuple[int, ...] = (8000,)
        self._picker: str | None = None
        self._alpha = False

    def selecting(self, **labels: str) -> Self:
        """Select these labels and no others."""
        self._selector = labels
        return self

    def on(self, *ports: int) -> Self:
        """Use these target ports."""
        self._ports = ports
        return self

    def picked_by(self, service: str) -> Self:
        """Name this Service as its endpoint picker."""
        self._picker = service
        return self

    def v1alpha2(self) -> Self:
        """Make it one of inference.networking.x-k8s.io."""
        self._alpha = True
        return self

    @property
    def value(self) -> InferencePool:
        """The InferencePool."""
        group = "inference.networking.x-k8s.io" if self._alpha else "inference.networking.k8s.io"
        return InferencePool(
            name=self._name,
            selector=tuple(sorted(self._selector.items())),
            ports=self._ports,
            group=group,
            picker_service=self._picker,
        )

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest, as parsed YAML."""
        spec: dict[str, Any]
        if self._alpha:
            spec = {"selector": dict(self._selector), "targetPortNumber": self._ports[0]}
            if self._picker is not None:
                spec["extensionRef"] = {"name": self._picker}
        else:
            spec = {
                "selector": {"matchLabels": dict(self._selector)},
                "targetPorts": [{"number": port} for port in self._ports],
            }
            if self._picker is not None:
                spec["endpointPickerRef"] = {"name": self._picker, "port": {"number": 9002}}
        group, version = (
            ("inference.networking.x-k8s.io", "v1alpha2")
            if self._alpha
            else ("inference.networking.k8s.io", "v1")
        )
        return {
            "apiVersion": f"{group}/{version}",
            "kind": "InferencePool",
            "metadata": _metadata(self._name),
            "spec": spec,
        }


class PodBuilder:
    """A ready pod in the making: 10.0.0.1, labelled `app: vllm`."""

    def __init__(self, name: str, namespace: str) -> None:
        self._name = ObjectName(namespace, name)
        self._uid = f"uid-{name}"
        self._address = "10.0.0.1"
        self._labels = {"app": "vllm"}
        self._annotations: dict[str, str] = {}
        self._ready = True
        self._active: tuple[int, ...] | None = None
        self._digest: str | None = None

    def at(self, address: str) -> Self:
        """Give it this IP address."""
        self._address = address
        return self

    def labelled(self, **labels: str) -> Self:
        """Give it these labels and no others."""
        self._labels = labels
        return self

    def with_uid(self, uid: str) -> Self:
        """Give it this uid (otherwise: one made from its name)."""
        self._uid = uid
        return self

    def not_ready(self) -> Self:
        """Make its Ready condition false."""
        self._ready = False
        return self

    def active_on(self, *ports: int) -> Self:
        """Narrow its ports by annotation."""
        self._active = ports
        self._annotations["inference.networking.k8s.io/active-ports"] = ",".join(map(str, ports))
        return self

    def serving(self, digest: str) -> Self:
        """Let it say which bytes it serves."""
        self._digest = digest
        self._annotations["epp.inference/artifact-digest"] = digest
        return self

    @property
    def value(self) -> Backend:
        """The Backend."""
        return Backend(
            name=self._name,
            uid=self._uid,
            address=self._address,
            ready=self._ready,
            labels=dict(self._labels),
            active_ports=self._active,
            artifact_digest=self._digest,
            annotations=dict(self._annotations),
        )

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest, as parsed YAML."""
        metadata = _metadata(self._name)
        metadata |= {"uid": self._uid, "labels": dict(self._labels)}
        metadata["annotations"] = dict(self._annotations)
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "status": {
                "podIP": self._address,
                "conditions": [{"type": "Ready", "status": "True" if self._ready else "False"}],
            },
        }


def a_model(name: str, namespace: str = "default") -> ModelBuilder:
    """Begin an InferenceModel."""
    return ModelBuilder(name, namespace)


def a_pool(name: str = "vllm", namespace: str = "default") -> PoolBuilder:
    """Begin an InferencePool."""
    return PoolBuilder(name, namespace)


def a_pod(name: str, namespace: str = "default") -> PodBuilder:
    """Begin a Pod."""
    return PodBuilder(name, namespace)


def a_slice(
    name: str,
    *addresses: str,
    ports: Iterable[int] = (),
    namespace: str = "default",
    **labels: str,
) -> dict[str, Any]:
    """Return the manifest of an EndpointSlice whose addresses are all ready."""
    metadata = _metadata(ObjectName(namespace, name))
    metadata["labels"] = labels or {"app": "vllm"}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": metadata,
        "addressType": "IPv6" if any(":" in address for address in addresses) else "IPv4",
        "endpoints": [{"addresses": [address]} for address in addresses],
        "ports": [{"port": port} for port in ports],
    }


def a_store(*objects: ModelBuilder | PoolBuilder | PodBuilder) -> Store:
    """Return a store that holds these objects."""
    store = Store()
    store.apply([Upserted(built.value) for built in objects])
    return store


def named(name: str, namespace: str = "default") -> ObjectName:
    """Return a namespaced name."""
    return ObjectName(namespace, name)


def _metadata(name: ObjectName) -> dict[str, Any]:
    return {"name": name.name, "namespace": name.namespace}
