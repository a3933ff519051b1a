"""The reconciler's words: what a registry says and what a cluster holds, as immutable values.

The registry calls an order to serve a model an InferenceService, and so does KServe.  Here the
registry's is an `Intent` and the cluster's a `Resource`, so that no sentence means both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

Json = dict[str, Any]


class RecordState(Enum):
    """The states of a ServeModel record, as the registry spells them."""

    UNKNOWN = "UNKNOWN"
    NEW = "NEW"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    FAILED = "FAILED"
    CACHED = "CACHED"
    CANCELED = "CANCELED"


@dataclass(frozen=True, slots=True)
class Environment:
    """A ServingEnvironment: the registry's name for one namespace."""

    id: str
    name: str
    created_ms: int = 0


@dataclass(frozen=True, slots=True)
class Intent:
    """A registry InferenceService: serve this model here, or do not.

    `version_id` None means the newest version.  `properties` are the customProperties that have a
    plain value, as text.
    """

    id: str
    name: str
    model_id: str
    deployed: bool
    version_id: str | None = None
    runtime: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Version:
    """A ModelVersion."""

    id: str
    name: str
    created_ms: int = 0
    archived: bool = False


@dataclass(frozen=True, slots=True)
class Artifact:
    """A model artifact: where a version's bytes are."""

    id: str
    name: str = ""
    created_ms: int = 0
    state: str = "UNKNOWN"
    format_name: str | None = None
    format_version: str | None = None
    storage_key: str | None = None
    storage_path: str | None = None
    uri: str | None = None
    service_account: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Record:
    """A ServeModel: one line of the audit."""

    id: str
    name: str
    version_id: str
    state: RecordState
    created_ms: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Serving:
    """What an intent resolves to: the version and where its bytes are."""

    version_id: str
    format_name: str
    format_version: str | None
    storage_key: str | None = None
    storage_path: str | None = None
    uri: str | None = None
    pins: Mapping[str, str] = field(default_factory=dict)
    service_account: str | None = None
    note: "Condition | None" = None


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that a person should know about an intent; `reason` is from a closed set."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Desired:
    """An intent and what it resolves to: a `Serving`, or why there is none."""

    intent: Intent
    serving: Serving | Condition | None = None


@dataclass(frozen=True, slots=True)
class Resource:
    """A Kubernetes object as the API server shows it, with what plans ask of it at hand."""

    body: Json

    @property
    def name(self) -> str:
        """metadata.name."""
        return str(self.body["metadata"]["name"])

    @property
    def uid(self) -> str:
        """metadata.uid."""
        return str(self.body["metadata"].get("uid", ""))

    @property
    def created(self) -> str:
        """metadata.creationTimestamp, which sorts as text."""
        return str(self.body["metadata"].get("creationTimestamp") or "")

    @property
    def created_ms(self) -> int:
        """metadata.creationTimestamp in milliseconds since the epoch, 0 where it is not told."""
        try:
            return int(datetime.fromisoformat(self.created).timestamp() * 1000)
        except ValueError:
            return 0

    @property
    def generation(self) -> int:
        """metadata.generation: how often the spec was changed."""
        return int(self.body["metadata"].get("generation") or 0)

    @property
    def terminating(self) -> bool:
        """Whether a delete has begun."""
        return bool(self.body["metadata"].get("deletionTimestamp"))

    @property
    def labels(self) -> Mapping[str, str]:
        """metadata.labels."""
        return self.body["metadata"].get("labels") or {}

    @property
    def annotations(self) -> Mapping[str, str]:
        """metadata.annotations."""
        return self.body["metadata"].get("annotations") or {}

    @property
    def status(self) -> Json:
        """The status, empty before the controller's first word."""
        return self.body.get("status") or {}


@dataclass(frozen=True, slots=True)
class Observed:
    """One namespace of the cluster, and the audit as the registry has it.

    `usable` is False once the namespace is gone or going: nothing can be created there.
    `records` holds the records of each intent that is in the list.  `seen` and `written` are what
    this process remembers: the record label of the resource last seen of an intent, and the digest
    of the status that came back with our last write to it; `missing` are the intents that the
    list before this one lacked too.  Losing them costs precision or time, never a wrong delete.
    """

    namespace: str
    environment: Environment | None = None
    runtimes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    resources: tuple[Resource, ...] = ()
    models: tuple[Resource, ...] = ()
    records: Mapping[str, tuple[Record, ...]] = field(default_factory=dict)
    usable: bool = True
    seen: Mapping[str, str] = field(default_factory=dict)
    written: Mapping[str, str] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator allows: the part of the settings that plans depend on."""

    deployment_mode: str = "RawDeployment"
    """ModelMesh, Standard (RawDeployment) or Knative (Serverless), written as given."""
    service_accounts: frozenset[str] = frozenset()
    """Service accounts that an artifact may name."""
    require_pins: bool = False
    """Refuse an artifact whose bytes can change."""
    prune: bool = False
    """Remove the resource of an intent that a full list no longer has."""
    inference_models: bool = False
    """Write InferenceModels for the picker."""
    pool: str | None = None
    """The InferencePool that they refer to; a runtime's label goes before it."""
