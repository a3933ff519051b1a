"""A pin: where an artifact is, and which bytes it must be.  Pure: text in, values out.

A query key that nobody knows is refused, with the nearest known one named: a `versionID` that is
silently ignored serves whatever was uploaded last, which is the very thing a pin is there to stop.

Keys are written as they are (as `aws s3` does), with two exceptions that make every key spellable:
`%3F` is a question mark and `%25` is a percent sign.
"""

import difflib
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

from artifacts.errors import UsageError

LOCK_SUFFIX = ".lock.json"

_FIELDS = {"versionId": "version_id", "etag": "etag", "sha256": "sha256", "md5": "md5"}
# The keys that KServe and ModelMesh put beside ours in `storage.parameters`.
CONNECTION_KEYS = frozenset(
    {
        "type",
        "access_key_id",
        "secret_access_key",
        "session_token",
        "endpoint_url",
        "region",
        "bucket",
        "default_bucket",
        "certificate",
        "ca_bundle",
        "cabundle_configmap",
        "verify_ssl",
        "anonymous",
        "addressing_style",
    }
)
_DIGEST_KEY = "verification.digest"
_HEX = {"sha256": re.compile(r"[0-9a-f]{64}"), "md5": re.compile(r"[0-9a-f]{32}")}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


@dataclass(frozen=True, slots=True)
class Location:
    """Where an artifact is: `s3://bucket/key`, or a path with `bucket` empty (`file://`)."""

    scheme: str
    bucket: str
    key: str

    @property
    def is_directory(self) -> bool:
        """Whether this names everything below a prefix: the whole bucket, or a key ending in /."""
        return self.key == "" or self.key.endswith("/")

    @property
    def is_lock(self) -> bool:
        """Whether this names a lock file, by its suffix."""
        return self.key.endswith(LOCK_SUFFIX)

    @property
    def name(self) -> str:
        """The last component of the key."""
        return posixpath.basename(self.key.rstrip("/"))

    def __str__(self) -> str:
        escaped = self.key.replace("%", "%25").replace("?", "%3F")
        if self.scheme != "file":
            return f"{self.scheme}://{self.bucket}/{escaped}"
        return f"file://{escaped}" if escaped.startswith("/") else escaped


@dataclass(frozen=True, slots=True)
class Pin:
    """A location and what identifies its bytes; with no identity at all it is a floating reference.

    `sha256` of a directory is the digest of its manifest; of an object, that of its bytes.
    """

    location: Location
    version_id: str | None = None
    etag: str | None = None
    sha256: str | None = None
    md5: str | None = None

    @property
    def is_immutable(self) -> bool:
        """Whether it can only ever mean one sequence of bytes.

        The version `null` can be overwritten, so it counts only with an identity beside it.
        """
        return self.has_version or any((self.etag, self.sha256, self.md5))

    @property
    def has_version(self) -> bool:
        """Whether it names a version that the store keeps immutable."""
        return self.version_id not in (None, "null")

    @property
    def parameters(self) -> dict[str, str]:
        """The identity as fields, as `storage.parameters` spells them."""
        pairs = {key: getattr(self, name) for key, name in _FIELDS.items()}
        return {key: value for key, value in pairs.items() if value is not None}

    @property
    def verification(self) -> dict[str, str]:
        """The identity as KServe's `verification` spells it; empty without a sha256."""
        return {"digest": f"sha256:{self.sha256}"} if self.sha256 else {}

    def __str__(self) -> str:
        query = "&".join(f"{key}={quote(value, safe='')}" for key, value in self.parameters.items())
        return f"{self.location}?{query}" if query else str(self.location)


def parse_pin(text: str, parameters: Mapping[str, object] | None = None) -> Pin:
    """Return the pin that `text` spells, with the identity that `parameters` add to it."""
    path, _, query = text.partition("?")
    location = _parse_location(path)
    given = _parse_query(query, path) if "?" in text else {}
    for key, value in _pin_parameters(parameters or {}, path).items():
        if given.setdefault(key, value) != value:
            raise UsageError(
                f"{key} is given twice, and differently, in the URI and in the parameters",
                where=path,
                fix=f"Keep one {key}",
            )
    identity = {name: given.get(key) for key, name in _FIELDS.items()}
    return _checked(Pin(location, **identity))


def nearest(word: str, known: frozenset[str] | tuple[str, ...]) -> str:
    """Return which known word was probably meant, as the end of a sentence."""
    folded = {name.casefold(): name for name in sorted(known)}
    found = difflib.get_close_matches(word.casefold(), list(folded), n=1, cutoff=0.5)
    if found:
        return f"Did you mean {folded[found[0]]!r}?"
    return "Known are: " + ", ".join(sorted(known))


def require_immutable(pin: Pin, *, allow_floating: bool) -> None:
    """Refuse a pin that can mean other bytes tomorrow, unless that is allowed."""
    if pin.is_immutable or allow_floating:
        return
    if pin.version_id == "null":
        what = "versionId=null can be overwritten, so alone it pins nothing"
    else:
        what = "this reference floats: it can mean other bytes tomorrow"
    raise UsageError(
        what,
        where=str(pin),
        fix="Pin it with `epp-artifacts lock`, or add versionId, etag, sha256 or md5;"
        " --allow-floating takes whatever is there now",
    )


def _parse_location(path: str) -> Location:
    if "\0" in path:
        raise UsageError("a NUL character cannot be part of a reference")
    scheme = _SCHEME.match(path)
    if scheme is None:
        return _local(path)
    rest = path[scheme.end() :]
    match scheme[1].lower():
        case "s3":
            return _s3(rest)
        case "file":
            return _file(rest)
        case other:
            raise UsageError(
                f"the scheme {other}:// is not one that can be pinned here",
                where=_without_userinfo(path),
                fix="Use s3://, file:// or a path",
            )


def _s3(rest: str) -> Location:
    bucket, slash, key = rest.partition("/")
    if "@" in bucket:  # never echoed: it may hold a secret
        raise UsageError(
            "a URI must not carry credentials",
            fix="Put them in the environment or in a storage-config secret",
        )
    if not bucket or any(character.isspace() for character in bucket):
        raise UsageError("the bucket's name is missing", where=f"s3://{rest}", fix=_S3_FORM)
    if not slash:
        raise UsageError(
            "this names a bucket and nothing in it",
            where=f"s3://{bucket}",
            fix=f"Write s3://{bucket}/ for all of it",
        )
    return Location("s3", bucket, _unescape(key))


_S3_FORM = "Write s3://bucket/key or s3://bucket/prefix/"


def _file(rest: str) -> Location:
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost") or not slash:
        raise UsageError(
            "a file URI needs an absolute path",
            where=f"file://{rest}",
            fix="Write file:///path, or the path alone",
        )
    return _local("/" + path)


def _local(path: str) -> Location:
    if not path:
        raise UsageError("the reference is empty", fix=f"{_S3_FORM}, or a path")
    return Location("file", "", _unescape(path))


def _unescape(key: str) -> str:
    return re.sub(r"%3[Ff]", "?", key).replace("%25", "%")


def _without_userinfo(path: str) -> str:
    return re.sub(r"://[^/]*@", "://…@", path)


def _parse_query(query: str, where: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for part in query.split("&"):
        raw, _, value = part.partition("=")
        key = unquote(raw)
        if key not in _FIELDS:
            raise UsageError(
                f"{key!r} is not a key of a pin",
                where=where,
                fix=nearest(key, tuple(_FIELDS)),
            )
        if key in given:
            raise UsageError(f"{key} is given twice", where=where, fix=f"Keep one {key}")
        given[key] = _clean(key, unquote(value, errors="surrogateescape"), where)
    return given


def _pin_parameters(parameters: Mapping[str, object], where: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for raw, value in parameters.items():
        if raw in CONNECTION_KEYS:
            continue
        key = "sha256" if raw == _DIGEST_KEY else raw
        if key not in _FIELDS:
            known = frozenset({*_FIELDS, _DIGEST_KEY}) | CONNECTION_KEYS
            raise UsageError(
                f"{raw!r} is not a storage parameter", where=where, fix=nearest(raw, known)
            )
        clean = _clean(key, value if isinstance(value, str) else "", where)
        if given.setdefault(key, clean) != clean:
            raise UsageError(f"{key} is given twice, and differently", where=where)
    return given


def _clean(key: str, value: str, where: str) -> str:
    if not value or not value.isprintable():
        raise UsageError(f"{key} has no usable value", where=where, fix=f"Write {key}=<value>")
    if key == "etag":
        return _clean_etag(value, where)
    if key not in _HEX:
        return value
    digits = value.lower().removeprefix(f"{key}:")
    if not _HEX[key].fullmatch(digits):
        raise UsageError(
            f"{key} is not {64 if key == 'sha256' else 32} hexadecimal digits", where=where
        )
    return digits


def _clean_etag(value: str, where: str) -> str:
    bare = value[1:-1] if len(value) > 2 and value[0] == value[-1] == '"' else value
    if '"' in bare or bare == "*":
        raise UsageError("etag is not one strong entity tag", where=where)
    return bare


def _checked(pin: Pin) -> Pin:
    extra = [key for key in pin.parameters if key != "sha256"]
    if pin.location.is_directory and extra:
        raise UsageError(
            f"{extra[0]} belongs to one object, and this is a directory",
            where=str(pin.location),
            fix="Pin a directory with `epp-artifacts lock`, or with the sha256 of its manifest",
        )
    if pin.location.scheme == "file" and (pin.version_id or pin.etag):
        raise UsageError(
            "a local file has no versionId and no etag",
            where=str(pin.location),
            fix="Pin it by sha256 or md5",
        )
    return pin
