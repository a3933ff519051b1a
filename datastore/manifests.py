"""The Kubernetes objects that we read, down to the fields that we use, as they are spelled there.

Optional fields accept null, as the API server does.  A `Closed` struct lists every field that its
schema has, so that a field which it does not list is a misspelling; the others name only what is
read.
"""

from dataclasses import dataclass

import msgspec

X_GROUP = "inference.networking.x-k8s.io"
V1_GROUP = "inference.networking.k8s.io"


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object: where the API server keeps it, and what a manifest of it says."""

    group: str
    version: str
    kind: str
    plural: str

    @property
    def api_version(self) -> str:
        """Return what a manifest's `apiVersion` says."""
        return f"{self.group}/{self.version}" if self.group else self.version


INFERENCE_MODEL = Resource(X_GROUP, "v1alpha2", "InferenceModel", "inferencemodels")
INFERENCE_POOL_V1 = Resource(V1_GROUP, "v1", "InferencePool", "inferencepools")
INFERENCE_POOL_V1ALPHA2 = Resource(X_GROUP, "v1alpha2", "InferencePool", "inferencepools")
POD = Resource("", "v1", "Pod", "pods")
ENDPOINT_SLICE = Resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")

RESOURCES = (INFERENCE_MODEL, INFERENCE_POOL_V1, INFERENCE_POOL_V1ALPHA2, POD, ENDPOINT_SLICE)


class Part(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A piece of an object of which we read some fields."""


class Closed(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A piece of an object whose every field is listed here."""


class Metadata(Part, frozen=True):
    """`metadata` of any object."""

    name: str
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    generation: int | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Target(Closed, frozen=True):
    """One of an InferenceModel's `spec.targetModels`."""

    name: str
    weight: int | None = None
    artifact_digest: str | None = None


class PoolRef(Closed, frozen=True):
    """An InferenceModel's `spec.poolRef`."""

    name: str
    group: str | None = None
    kind: str | None = None


class ModelSpec(Closed, frozen=True):
    """An InferenceModel's `spec`."""

    pool_ref: PoolRef
    model_name: str | None = None
    criticality: str | None = None
    target_models: list[Target] | None = None


class ModelManifest(Part, frozen=True):
    """An InferenceModel."""

    metadata: Metadata
    spec: ModelSpec


class PortNumber(Closed, frozen=True):
    """A port, in an object of its own."""

    number: int


class PickerRef(Closed, frozen=True):
    """A v1 InferencePool's `spec.endpointPickerRef`."""

    name: str
    group: str | None = None
    kind: str | None = None
    port: PortNumber | None = None
    failure_mode: str | None = None


class LabelSelector(Closed, frozen=True):
    """A v1 InferencePool's `spec.selector`."""

    match_labels: dict[str, str] | None = None


class PoolSpecV1(Closed, frozen=True):
    """A v1 InferencePool's `spec`."""

    selector: LabelSelector | None = None
    target_ports: list[PortNumber] | None = None
    app_protocol: str | None = None
    endpoint_picker_ref: PickerRef | None = None


class PoolManifestV1(Part, frozen=True):
    """An InferencePool of `inference.networking.k8s.io/v1`."""

    metadata: Metadata
    spec: PoolSpecV1


class ExtensionRef(Closed, frozen=True):
    """A v1alpha2 InferencePool's `spec.extensionRef`."""

    name: str
    group: str | None = None
    kind: str | None = None
    port_number: int | None = None
    failure_mode: str | None = None


class PoolSpecV1Alpha2(Closed, frozen=True):
    """A v1alpha2 InferencePool's `spec`."""

    selector: dict[str, str] | None = None
    target_port_number: int | None = None
    extension_ref: ExtensionRef | None = None


class PoolManifestV1Alpha2(Part, frozen=True):
    """An InferencePool of `inference.networking.x-k8s.io/v1alpha2`."""

    metadata: Metadata
    spec: PoolSpecV1Alpha2


class PodIP(Part, frozen=True):
    """One of a pod's addresses."""

    ip: str | None = None


class Condition(Part, frozen=True):
    """One of a pod's conditions."""

    type: str
    status: str | None = None


class Terminated(Part, frozen=True):
    """How a container ended."""

    exit_code: int | None = None
    message: str | None = None


class ContainerState(Part, frozen=True):
    """A container's state."""

    terminated: Terminated | None = None


class ContainerStatus(Part, frozen=True):
    """What became of one init container."""

    state: ContainerState | None = None


class PodStatus(Part, frozen=True):
    """A pod's `status`."""

    # msgspec's "camel" would spell these podIp and podIps.
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    pod_ips: list[PodIP] | None = msgspec.field(default=None, name="podIPs")
    conditions: list[Condition] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class PodManifest(Part, frozen=True):
    """A Pod."""

    metadata: Metadata
    status: PodStatus | None = None


class EndpointConditions(Part, frozen=True):
    """The state of one endpoint of a slice; null means what the API says it means."""

    ready: bool | None = None
    terminating: bool | None = None


class ObjectRef(Part, frozen=True):
    """What an endpoint of a slice stands for."""

    kind: str | None = None
    name: str | None = None
    uid: str | None = None


class SliceEndpoint(Part, frozen=True):
    """One endpoint of a slice: interchangeable addresses."""

    addresses: list[str]
    conditions: EndpointConditions | None = None
    target_ref: ObjectRef | None = None


class SlicePort(Part, frozen=True):
    """One port of a slice."""

    port: int | None = None
    protocol: str | None = None


class EndpointSliceManifest(Part, frozen=True):
    """An EndpointSlice."""

    metadata: Metadata
    address_type: str
    endpoints: list[SliceEndpoint] | None = None
    ports: list[SlicePort] | None = None
