"""What the fake model registry holds, and the rules by which it changes.

The quirks of real servers are switches of `Quirks`, so that a test says which it means.
"""

import itertools
import re
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

BASE_FIELDS = {"name", "description", "externalId", "customProperties"}
STATES = {
    "registered_models": ("state", "LIVE"),
    "model_versions": ("state", "LIVE"),
    "model_artifacts": ("state", "UNKNOWN"),
    "inference_services": ("desiredState", "DEPLOYED"),
    "serves": ("lastKnownState", "UNKNOWN"),
}
ENUMS = {
    "registered_models": {"LIVE", "ARCHIVED"},
    "model_versions": {"LIVE", "ARCHIVED"},
    "model_artifacts": {
        "UNKNOWN", "PENDING", "LIVE", "MARKED_FOR_DELETION", "DELETED", "ABANDONED", "REFERENCE",
    },
    "inference_services": {"DEPLOYED", "UNDEPLOYED"},
    "serves": {"UNKNOWN", "NEW", "RUNNING", "COMPLETE", "FAILED", "CACHED", "CANCELED"},
}  # fmt: skip
FIELDS: dict[str, set[str]] = {
    "registered_models": BASE_FIELDS | {"state", "owner"},
    "model_versions": BASE_FIELDS | {"state", "author", "registeredModelId"},
    "model_artifacts": BASE_FIELDS
    | {"state", "artifactType", "uri", "modelFormatName", "modelFormatVersion", "storageKey"}
    | {"storagePath", "serviceAccountName"},
    "serving_environments": BASE_FIELDS,
    "inference_services": BASE_FIELDS
    | {"desiredState", "runtime", "modelVersionId", "registeredModelId", "servingEnvironmentId"},
    "serves": BASE_FIELDS | {"lastKnownState", "modelVersionId"},
}
REQUIRED: dict[str, tuple[str, ...]] = {
    "registered_models": ("name",),
    "model_versions": ("name", "registeredModelId"),
    "model_artifacts": (),
    "serving_environments": ("name",),
    "inference_services": ("registeredModelId", "servingEnvironmentId"),
    "serves": ("modelVersionId",),
}
IMMUTABLE = {"name", "registeredModelId", "servingEnvironmentId"}
SEQUENCE = {"model_artifacts": "artifacts", "serves": "executions"}


@dataclass(slots=True)
class Quirks:
    """How this registry differs from what its specification promises."""

    api: str = "v1alpha3"
    page_cap: int | None = None
    """The most items in a page, whatever is asked; v1alpha1 servers gave 20 by default."""
    last_token: str = "empty"
    """After the last page: `empty`, `wraps` (to the first page), or `stuck` (this page again)."""
    like_find: bool = True
    """Find by name uses SQL LIKE with the wildcards of the name left in."""
    patch_defaults_state: bool = True
    """A PATCH without a state sets the default state."""
    duplicate_status: int = 409
    patch_serves: bool = False
    state_key: str = "desiredState"
    """What an InferenceService's state is called; `state` in the oldest v1alpha1."""


class Refusal(Exception):
    """An answer that is not 2xx."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(slots=True)
class Store:
    """The entities by kind and id.  Written by the handlers, and by tests that set a scene."""

    quirks: Quirks
    kinds: dict[str, dict[str, Json]] = field(default_factory=lambda: {kind: {} for kind in FIELDS})
    parents: dict[tuple[str, str], str] = field(default_factory=dict)
    clock_ms: int = 1_700_000_000_000
    ids: dict[str, "itertools.count[int]"] = field(default_factory=dict)

    def now(self) -> str:
        """Return the time, which moves with each write."""
        self.clock_ms += 1
        return str(self.clock_ms)

    def create(self, kind: str, body: Json, parent: str = "") -> Json:
        """Store a new entity."""
        given = self._accept(kind, body)
        if missing := [key for key in REQUIRED[kind] if not given.get(key)]:
            raise Refusal(422, f"required field '{missing[0]}' is zero value")
        parent = parent or given.get("registeredModelId", "")
        if kind == "inference_services":
            parent = given["servingEnvironmentId"]
        name = given.get("name")
        if name and any(item.get("name") == name for item in self.children(kind, parent)):
            raise Refusal(self.quirks.duplicate_status, f"already exists: {name}")
        counter = self.ids.setdefault(SEQUENCE.get(kind, "contexts"), itertools.count(1))
        now = self.now()
        item = {"id": str(next(counter)), **given}
        item |= {"createTimeSinceEpoch": now, "lastUpdateTimeSinceEpoch": now}
        if kind in STATES:
            item.setdefault(*STATES[kind])
        if kind == "model_artifacts":
            item.setdefault("artifactType", "model-artifact")
        self.kinds[kind][item["id"]] = item
        self.parents[kind, item["id"]] = parent
        return item

    def update(self, kind: str, identifier: str, body: Json) -> Json:
        """Change an entity as PATCH does: null and absent keep, maps are replaced whole."""
        item = self.get(kind, identifier)
        given = self._accept(kind, body)
        if fixed := [key for key in given if key in IMMUTABLE]:
            raise Refusal(400, f'json: unknown field "{fixed[0]}"')
        if self.quirks.patch_defaults_state and kind in STATES:
            given.setdefault(*STATES[kind])
        item |= {key: value for key, value in given.items() if value is not None}
        item["lastUpdateTimeSinceEpoch"] = self.now()
        return item

    def get(self, kind: str, identifier: str) -> Json:
        """Return an entity."""
        if identifier not in self.kinds[kind]:
            raise Refusal(404, f"no {kind} found for id {identifier}")
        return self.kinds[kind][identifier]

    def find(self, kind: str, name: str, parent: str = "") -> Json:
        """Find one by name, as loosely as the real server does."""
        pattern = re.escape(name)
        if self.quirks.like_find:
            pattern = pattern.replace("%", ".*").replace("_", ".")
        found = [
            item
            for item in self.children(kind, parent)
            if re.fullmatch(pattern, item.get("name", ""))
        ]
        if len(found) != 1:
            raise Refusal(404, f"{len(found)} {kind} found for name {name}")
        return found[0]

    def children(self, kind: str, parent: str = "") -> list[Json]:
        """Return the entities of a kind, of one parent if one is named."""
        return [
            item
            for identifier, item in self.kinds[kind].items()
            if not parent or self.parents[kind, identifier] == parent
        ]

    def _accept(self, kind: str, body: Any) -> Json:
        """Read a body as the server does: keys in any case, unknown ones refused."""
        if not isinstance(body, dict):
            raise Refusal(400, "json: cannot unmarshal")
        known = {name.lower(): name for name in FIELDS[kind]}
        if kind == "inference_services" and self.quirks.state_key == "state":
            known["state"] = "desiredState"
            known.pop("desiredstate")
        given = {}
        for key, value in body.items():
            if key.lower() not in known:
                raise Refusal(400, f'json: unknown field "{key}"')
            given[known[key.lower()]] = value
        state = given.get(STATES[kind][0]) if kind in STATES else None
        if state is not None and state not in ENUMS[kind]:
            raise Refusal(400, f"invalid value {state!r} for state")
        for value in (given.get("customProperties") or {}).values():
            if not isinstance(value, dict) or "metadataType" not in value:
                raise Refusal(400, "customProperties: metadataType is missing")
        return given
