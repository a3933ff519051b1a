"""Which version, which artifact: from the registry's lists to the one thing to serve.

The newest version is the one with the highest (createTime, id) that is not ARCHIVED; the newest
artifact likewise.  Whatever leaves a doubt is a `Condition`, and then nothing changes.
"""

import re
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, quote

from registry.model import Artifact, Condition, Intent, Policy, Serving, Version

DEAD_ARTIFACTS = frozenset({"MARKED_FOR_DELETION", "DELETED", "ABANDONED"})
PIN_KEYS = ("versionId", "etag", "sha256", "md5")
MODEL_MESH = "ModelMesh"
_SHA256 = re.compile(r"(sha256:)?([0-9a-fA-F]{64})")


class _Refused(Exception):
    """A doubt, on its way to becoming a condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.condition = Condition(reason, message)


def choose_version(intent: Intent, versions: Sequence[Version]) -> str | Condition:
    """Return the id of the version to serve."""
    if intent.version_id:
        return intent.version_id
    live = [version for version in versions if not version.archived]
    if not live:
        return Condition(
            "NoVersion", f"registered model {intent.model_id} has no version that is not ARCHIVED"
        )
    return max(live, key=lambda version: (version.created_ms, _number(version.id))).id


def choose_artifact(
    version_id: str, artifacts: Sequence[Artifact], policy: Policy
) -> Serving | Condition:
    """Return what to serve of a version, or why that cannot be said."""
    live = [artifact for artifact in artifacts if artifact.state not in DEAD_ARTIFACTS]
    if not live:
        return Condition("NoArtifact", f"version {version_id} has no live model artifact")
    artifact = max(live, key=lambda item: (item.created_ms, _number(item.id)))
    note = None
    if len(live) > 1:
        note = Condition(
            "SeveralArtifacts",
            f"version {version_id} has {len(live)} live model artifacts; "
            f"the newest, {artifact.id}, is served",
        )
    try:
        return _serving(version_id, artifact, policy, note)
    except _Refused as refused:
        return refused.condition


def _serving(
    version_id: str, artifact: Artifact, policy: Policy, note: Condition | None
) -> Serving:
    where = f"artifact {artifact.id} of version {version_id}"
    if not artifact.format_name:
        raise _Refused("NoFormat", f"{where} has no modelFormatName")
    account = artifact.service_account or None
    if account and account not in policy.service_accounts:
        raise _Refused(
            "ServiceAccountRefused",
            f"{where} names service account {account!r}; allow it with --service-account",
        )
    stored = bool(artifact.storage_key or artifact.storage_path)
    if not stored and not artifact.uri:
        raise _Refused("NoLocation", f"{where} has no uri, storageKey or storagePath")
    uri, pins = _pins(artifact, where)
    _check_pins(pins, policy, where)
    if policy.require_pins and not stored and not (uri or "").startswith("s3://"):
        raise _Refused(
            "PinNotEnforced",
            f"{where} is pinned, and nothing enforces it on a uri that is not s3://",
        )
    path = artifact.storage_path or (_path_of(uri) if stored and uri else None)
    return Serving(
        version_id=version_id,
        format_name=artifact.format_name,
        format_version=artifact.format_version or None,
        storage_key=(artifact.storage_key or None) if stored else None,
        storage_path=path if stored else None,
        uri=None if stored else _pinned_uri(uri or "", pins),
        pins=pins,
        service_account=account,
        note=note,
    )


def _pins(artifact: Artifact, where: str) -> tuple[str | None, Mapping[str, str]]:
    """Return the uri without its query, and the pins of both, which must not disagree."""
    uri, _, query = (artifact.uri or "").partition("?")
    pins = {key: artifact.properties[key] for key in PIN_KEYS if artifact.properties.get(key)}
    if not uri.startswith("s3://"):
        return artifact.uri, _normal(pins, where)
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in PIN_KEYS or not value:
            raise _Refused("BadPin", f"{where}: uri has {key!r}, known are {', '.join(PIN_KEYS)}")
        if pins.setdefault(key, value) != value:
            raise _Refused("BadPin", f"{where}: {key} differs between uri and customProperties")
    return uri or None, _normal(pins, where)


def _normal(pins: dict[str, str], where: str) -> Mapping[str, str]:
    """Return pins in one spelling: a digest with its algorithm, an etag without its quotes."""
    if "etag" in pins:
        pins["etag"] = pins["etag"].strip('"')
    if blank := [key for key, pin in pins.items() if not pin.strip()]:
        raise _Refused("BadPin", f"{where}: {blank[0]} is empty")
    if "sha256" in pins:
        found = _SHA256.fullmatch(pins["sha256"])
        if found is None:
            raise _Refused("BadPin", f"{where}: sha256 is not 64 hexadecimal digits")
        pins["sha256"] = f"sha256:{found[2].lower()}"
    return dict(sorted(pins.items()))


def _check_pins(pins: Mapping[str, str], policy: Policy, where: str) -> None:
    if not policy.require_pins:
        return
    if not pins or dict(pins) == {"versionId": "null"}:
        raise _Refused(
            "Floating",
            f"{where} is not pinned; add versionId, etag or sha256 to its customProperties",
        )
    if policy.deployment_mode == MODEL_MESH:
        raise _Refused("PinNotEnforced", f"{where} is pinned, and nothing enforces it on ModelMesh")


def _pinned_uri(uri: str, pins: Mapping[str, str]) -> str:
    if not pins or not uri.startswith("s3://"):
        return uri
    query = "&".join(
        f"{key}={quote(value.removeprefix('sha256:'), safe='')}" for key, value in pins.items()
    )
    return f"{uri}?{query}"


def _path_of(uri: str) -> str:
    """Return what comes after `scheme://bucket/`."""
    return uri.partition("://")[2].partition("/")[2].partition("?")[0]


def _number(identifier: str) -> int:
    return int(identifier) if identifier.isdecimal() else 0
