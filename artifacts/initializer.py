"""KServe's storage initializer, with pins.  Pure: arguments and environment in, a plan out.

KServe runs the initializer as `SRC_URI DEST_PATH` pairs, with the connection in STORAGE_CONFIG and
the InferenceService's `storage.parameters` in STORAGE_OVERRIDE_CONFIG.  A storage spec without a
type or bucket arrives with the literal placeholder for them, to be filled in here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from artifacts.credentials import (
    Connection,
    connection_from_environment,
    decode_object,
    parse_connection,
)
from artifacts.errors import UsageError
from artifacts.pin import CONNECTION_KEYS

SCHEME_PLACEHOLDER = "<scheme-placeholder>://"
BUCKET_PLACEHOLDER = "<bucket-placeholder>/"
MESSAGE_LIMIT_BYTES = 4096  # what Kubernetes keeps of a termination message
_OURS = ("s3://", "file://", "/")


@dataclass(frozen=True, slots=True)
class Step:
    """One artifact to fetch: the reference as given, and the folder that shall hold it."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run of the initializer does; `others` are pairs whose scheme is not ours."""

    steps: tuple[Step, ...]
    others: tuple[Step, ...]
    connection: Connection
    parameters: Mapping[str, object]


def plan_initializer(arguments: Sequence[str], environment: Mapping[str, str]) -> Plan:
    """Return what to do for these arguments in this environment."""
    if not arguments or len(arguments) % 2:
        raise UsageError(
            "the arguments are not pairs",
            where=" ".join(arguments),
            fix="Give SRC_URI DEST_PATH, once or several times",
        )
    stored = _object(environment, "STORAGE_CONFIG")
    override = _object(environment, "STORAGE_OVERRIDE_CONFIG")
    base = connection_from_environment(environment)
    connection = base
    if stored or override:
        merged = {**stored, **override}
        if merged.get("type", "s3") == "s3":
            connection = parse_connection(merged, where="STORAGE_CONFIG", base=base)
    kind = str({**stored, **override}.get("type", "s3"))
    pairs = zip(arguments[::2], arguments[1::2], strict=True)
    steps = [Step(_fill_in(source, kind, connection), target) for source, target in pairs]
    ours = [step for step in steps if step.source.startswith(_OURS)]
    parameters = {k: v for k, v in override.items() if k not in CONNECTION_KEYS}
    if parameters and len(ours) > 1:
        raise UsageError(
            f"{next(iter(parameters))} in storage.parameters cannot belong to {len(ours)} sources",
            where="STORAGE_OVERRIDE_CONFIG",
            fix="Write each pin into its URI",
        )
    return Plan(
        steps=tuple(sorted(ours, key=lambda step: step.target.rstrip("/").count("/"))),
        others=tuple(step for step in steps if step not in ours),
        connection=connection,
        parameters=parameters,
    )


def termination_message(digests: Mapping[str, str]) -> str:
    """Return what the pod's status shall say: the digest, or JSON where there are several.

    Then `digest` is the outermost folder's, the model that adapters lie below.
    """
    first = next(iter(digests.values()))
    if len(digests) == 1:
        return first
    return json.dumps({"digest": first, "artifacts": digests}, ensure_ascii=False)


def clip(message: str) -> bytes:
    """Return a message no longer than Kubernetes keeps, cut between two characters."""
    data = message.encode("utf-8", "replace")[:MESSAGE_LIMIT_BYTES]
    return data.decode("utf-8", "ignore").encode()


def _object(environment: Mapping[str, str], name: str) -> dict[str, Any]:
    text = environment.get(name, "")
    return decode_object(text, where=name) if text.strip() else {}


def _fill_in(source: str, kind: str, connection: Connection) -> str:
    if not source.startswith(SCHEME_PLACEHOLDER):
        return source
    if kind != "s3":
        return source.replace("<scheme-placeholder>", kind, 1)
    if connection.bucket is None:
        raise UsageError(
            "the storage spec names no bucket",
            where=source,
            fix="Add bucket to the storage-config secret or to storage.parameters",
        )
    path = source.removeprefix(SCHEME_PLACEHOLDER).removeprefix(BUCKET_PLACEHOLDER)
    return f"s3://{connection.bucket}/{path.lstrip('/')}"
