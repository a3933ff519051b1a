"""How to reach a store, and as whom: one value, read from a storage-config secret or environment.

The secret is the one that ModelMesh and KServe share: a JSON object per connection.  The two spell
some fields differently (`certificate` is text, `ca_bundle` a path); both are read.  What a secret
does not say, AWS's own chain finds: environment, profile, web identity, instance.
No secret value is ever part of a `repr`, a message or a log line.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from artifacts.errors import UsageError
from artifacts.pin import nearest

_STYLES = ("auto", "path", "virtual")


@dataclass(frozen=True, slots=True)
class Connection:
    """An S3 endpoint and an identity; what is None is left to AWS's default chain."""

    endpoint_url: str | None = None
    region: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    bucket: str | None = None
    certificate: str | None = field(default=None, repr=False)
    """A CA certificate as PEM text."""
    ca_bundle: str | None = None
    """A CA certificate as a path."""
    verify_ssl: bool = True
    anonymous: bool = False
    addressing_style: str = "auto"
    """path (`host/bucket/key`), virtual (`bucket.host/key`); auto = path for an own endpoint."""


def parse_connection(
    fields: Mapping[str, Any], *, where: str, base: Connection | None = None
) -> Connection:
    """Return `base` with what one JSON object of a storage-config secret says laid over it."""
    kind = fields.get("type", "s3")
    if kind != "s3":
        raise UsageError(
            f"the connection has type {kind!r}, and only s3 can be pinned",
            where=where,
            fix="Choose another key of the secret",
        )
    texts = ("endpoint_url", "region", "session_token", "certificate", "ca_bundle")
    given: dict[str, Any] = {name: _text(fields, name, where) for name in texts}
    for name in ("access_key_id", "secret_access_key"):
        given[name] = _text(fields, name, where)
    given["bucket"] = _text(fields, "bucket", where) or _text(fields, "default_bucket", where)
    if "verify_ssl" in fields:
        given["verify_ssl"] = not _is_false(fields["verify_ssl"])
    if "anonymous" in fields:
        given["anonymous"] = _is_true(fields["anonymous"])
    if style := _text(fields, "addressing_style", where):
        given["addressing_style"] = _style(style, where)
    changes = {name: value for name, value in given.items() if value is not None}
    return _checked(replace(base or Connection(), **changes), where)


def connection_from_environment(environment: Mapping[str, str]) -> Connection:
    """Return what AWS's and KServe's environment variables say.

    Keys, profile and region are left to the SDK, which reads these variables itself.
    """
    bundle = environment.get("AWS_CA_BUNDLE")
    if not bundle and environment.get("CA_BUNDLE_CONFIGMAP_NAME"):
        folder = environment.get("CA_BUNDLE_VOLUME_MOUNT_POINT", "")
        bundle = str(Path(folder) / "cabundle.crt")
    virtual = _is_true(environment.get("S3_USER_VIRTUAL_BUCKET", ""))  # KServe's own spelling
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    return _checked(
        Connection(
            endpoint_url=endpoint or None,
            region=environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or None,
            ca_bundle=bundle or None,
            verify_ssl=not _is_false(environment.get("S3_VERIFY_SSL", "")),
            anonymous=_is_true(environment.get("awsAnonymousCredential", "")),
            addressing_style="virtual" if virtual else "auto",
        ),
        "environment",
    )


def connection_from_folder(folder: Path, key: str | None, base: Connection) -> Connection:
    """Return a connection from a storage-config secret that is mounted as a folder."""
    try:
        names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
        name = choose_key(names, key, where=str(folder))
        text = (folder / name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the secret cannot be read: {getattr(error, 'strerror', None) or 'not text'}",
            where=str(folder),
            fix="Mount the storage-config secret as a folder, one file a key",
        ) from error
    return parse_connection(decode_object(text, where=f"{folder}/{name}"), where=name, base=base)


def choose_key(names: list[str], key: str | None, *, where: str) -> str:
    """Return the connection to use: the one asked for, else `default_s3`, else `default`."""
    for name in [key] if key else ["default_s3", "default"]:
        if name in names:
            return name
    if key is None and len(names) == 1:
        return names[0]
    wanted = f"no connection {key!r}" if key else "no connection default_s3 or default"
    fix = (
        nearest(key, tuple(names)) if key and names else f"It has: {', '.join(names) or 'nothing'}"
    )
    raise UsageError(f"the secret has {wanted}", where=where, fix=fix)


def decode_object(text: str, *, where: str) -> dict[str, Any]:
    """Return the JSON object in `text`; the message of a refusal holds nothing of it."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None  # the parser's own message may quote the secret
    if not isinstance(value, dict):
        raise UsageError("this is not a JSON object", where=where, fix='Write {"type": "s3", …}')
    return value


def _text(fields: Mapping[str, Any], name: str, where: str) -> str | None:
    value = fields.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise UsageError(f"{name} is not a text", where=where)
    return value


def _is_true(value: object) -> bool:
    return str(value).strip().lower() in ("true", "1", "yes")


def _is_false(value: object) -> bool:
    return str(value).strip().lower() in ("false", "0", "no")


def _style(style: str, where: str) -> str:
    if style not in _STYLES:
        raise UsageError(
            f"addressing_style {style!r} is unknown", where=where, fix=nearest(style, _STYLES)
        )
    return style


def _checked(connection: Connection, where: str) -> Connection:
    if (connection.access_key_id is None) != (connection.secret_access_key is None):
        raise UsageError("access_key_id and secret_access_key go together", where=where)
    endpoint = connection.endpoint_url
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise UsageError(
            "endpoint_url must begin with http:// or https://",
            where=where,
            fix=f"https://{endpoint}?",
        )
    return connection
