"""The registry's JSON read as values, in both of its versions.  Pure.

Differences are read here and nowhere else: `registeredModelID` and `registeredModelId`, `state`
and `desiredState`.  What lacks an id or has a field of the wrong type is refused: half an answer
must never pass for a whole one.
"""

from collections.abc import Mapping
from typing import Any

from registry.errors import RegistryMalformed
from registry.model import (
    Artifact,
    Environment,
    Intent,
    Json,
    Record,
    RecordState,
    Version,
)

MODEL_ARTIFACT = "model-artifact"
LONGEST_ID = 256
LATEST_MS = 253_402_300_799_999  # the year 9999


def read_environment(item: Json) -> Environment:
    """Read a ServingEnvironment."""
    return Environment(_id(item), _text(item, "name") or "", _millis(item))


def read_intent(item: Json) -> Intent:
    """Read an InferenceService.  A state that is not told is DEPLOYED, the API's default."""
    state = _text(item, "desiredState") or _text(item, "state") or "DEPLOYED"
    if state not in ("DEPLOYED", "UNDEPLOYED"):
        raise RegistryMalformed(f"inference service {item.get('id')}: unknown state {state!r}")
    return Intent(
        id=_id(item),
        name=_text(item, "name") or "",
        model_id=_text(item, "registeredModelId", "registeredModelID") or "",
        deployed=state == "DEPLOYED",
        version_id=_text(item, "modelVersionId", "modelVersionID") or None,
        runtime=_text(item, "runtime") or None,
        properties=read_properties(item),
    )


def read_version(item: Json) -> Version:
    """Read a ModelVersion."""
    archived = _text(item, "state") == "ARCHIVED"
    return Version(_id(item), _text(item, "name") or "", _millis(item), archived)


def read_artifact(item: Json) -> Artifact | None:
    """Read a model artifact; None for any other kind of artifact."""
    if (_text(item, "artifactType") or MODEL_ARTIFACT) != MODEL_ARTIFACT:
        return None
    return Artifact(
        id=_id(item),
        name=_text(item, "name") or "",
        created_ms=_millis(item),
        state=_text(item, "state") or "UNKNOWN",
        format_name=_text(item, "modelFormatName"),
        format_version=_text(item, "modelFormatVersion"),
        storage_key=_text(item, "storageKey"),
        storage_path=_text(item, "storagePath"),
        uri=_text(item, "uri"),
        service_account=_text(item, "serviceAccountName"),
        properties=read_properties(item),
    )


def read_record(item: Json) -> Record:
    """Read a ServeModel."""
    state = _text(item, "lastKnownState") or "UNKNOWN"
    try:
        known = RecordState(state)
    except ValueError as error:
        raise RegistryMalformed(f"serve {item.get('id')}: unknown state {state!r}") from error
    return Record(
        id=_id(item),
        name=_text(item, "name") or "",
        version_id=_text(item, "modelVersionId", "modelVersionID") or "",
        state=known,
        created_ms=_millis(item),
        properties=read_properties(item),
    )


def read_properties(item: Json) -> dict[str, str]:
    """Return the customProperties that have a plain value, as text."""
    properties = item.get("customProperties") or {}
    if not isinstance(properties, dict):
        raise RegistryMalformed("customProperties is not an object")
    found = {}
    for key, value in properties.items():
        if not isinstance(value, dict):
            raise RegistryMalformed(f"customProperties.{key} is not a metadata value")
        for field in ("string_value", "int_value", "double_value", "bool_value"):
            if field in value and value[field] is not None:
                found[key] = _plain(value[field])
    return found


def write_properties(properties: Mapping[str, str]) -> Json:
    """Return properties as the registry spells them."""
    return {
        key: {"metadataType": "MetadataStringValue", "string_value": value}
        for key, value in properties.items()
    }


def read_page(answer: Any) -> tuple[list[Json], str]:
    """Return the items of a page and the token of the next one; empty at the end."""
    if not isinstance(answer, dict):
        raise RegistryMalformed("a list is not a JSON object")
    items, size = answer.get("items"), answer.get("size")
    if items is None and size in (0, None) and "nextPageToken" in answer:
        items = []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise RegistryMalformed("a list has no `items`")
    if size is not None and size != len(items):
        raise RegistryMalformed(f"a page says size {size} and holds {len(items)} items")
    token = answer.get("nextPageToken") or ""
    if not isinstance(token, str):
        raise RegistryMalformed("nextPageToken is not text")
    return items, token


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _clean(str(value))


def _clean(text: str) -> str:
    """Return text that every encoder takes: JSON can spell half a surrogate pair."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _id(item: Json) -> str:
    identifier = _text(item, "id")
    if not identifier or len(identifier) > LONGEST_ID:
        raise RegistryMalformed("an object without an id")
    return identifier


def _text(item: Json, *keys: str) -> str | None:
    if not isinstance(item, dict):
        raise RegistryMalformed("the answer is not a JSON object")
    for key in keys:
        value = item.get(key)
        if value is None:
            continue
        if not isinstance(value, str):
            raise RegistryMalformed(f"{key} of {item.get('id', 'an object')} is not text")
        return _clean(value)
    return None


def _millis(item: Json) -> int:
    text = _text(item, "createTimeSinceEpoch") or "0"
    if not text.isdecimal() or len(text) > len(str(LATEST_MS)) or int(text) > LATEST_MS:
        raise RegistryMalformed(f"createTimeSinceEpoch {text[:20]!r} is no time")
    return int(text)
