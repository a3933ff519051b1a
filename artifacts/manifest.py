"""The manifest of an artifact: every object of it, exactly, and one digest over them.  Pure.

The digest covers what is served (path, size, sha256), so the same bytes have the same digest in
another bucket, in a local folder, or uploaded twice.  versionId and etag only say where to find
those bytes: whoever edits them in a lock gets a failed verification, never other bytes.  The digest
of an artifact that is one object is that object's own sha256, as KServe's `verification` has it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from artifacts.errors import UsageError
from artifacts.paths import refuse_collisions, relative_path
from artifacts.pin import Location, Pin, parse_pin

FORMAT = 1


def sha256_hex(data: bytes) -> str:
    """Return the sha256 of some bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


EMPTY_SHA256 = sha256_hex(b"")


@dataclass(frozen=True, slots=True)
class Entry:
    """One object, as it was when it was resolved.

    `version_id` is None where the store has no versions; `sha256` is None until somebody has read
    the bytes.
    """

    key: str
    size: int
    version_id: str | None = None
    etag: str | None = None
    sha256: str | None = None
    md5: str | None = None

    @property
    def is_folder(self) -> bool:
        """Whether it is the empty object that consoles upload to show a folder."""
        return self.key.endswith("/")


@dataclass(frozen=True, slots=True)
class Manifest:
    """An artifact's objects, in the order of their keys.

    `source` is the object itself or the directory that all keys lie below.
    """

    source: Location
    entries: tuple[Entry, ...]

    @property
    def size(self) -> int:
        """The bytes of all objects together."""
        return sum(entry.size for entry in self.entries)

    @property
    def is_complete(self) -> bool:
        """Whether every object's sha256 is known."""
        return all(entry.sha256 for entry in self.entries)

    def path(self, entry: Entry) -> str:
        """Return where an entry lies below the folder that the artifact is pulled into."""
        if not self.source.is_directory:
            return self.source.name
        return entry.key.removeprefix(self.source.key)

    @property
    def digest(self) -> str:
        """`sha256:<hex>` over what is served; the manifest must be complete."""
        assert self.is_complete
        if not self.source.is_directory:
            return f"sha256:{self.entries[0].sha256}"
        rows = sorted(
            ((self.path(entry), entry.size, entry.sha256) for entry in self.entries),
            key=lambda row: row[0].encode(),
        )
        return f"sha256:{sha256_hex(_canonical(rows))}"


@dataclass(frozen=True, slots=True)
class Change:
    """One path on which two manifests differ; None = not there."""

    path: str
    before: Entry | None
    after: Entry | None


def build_manifest(source: Location, entries: list[Entry]) -> Manifest:
    """Return the manifest of these objects, or refuse keys that could not be written safely."""
    ordered = tuple(sorted(entries, key=lambda entry: entry.key.encode()))
    if source.is_directory:
        refuse_collisions([relative_path(entry.key, source.key) for entry in ordered])
    else:
        relative_path(source.name, "")
    return Manifest(source, ordered)


def diff_manifests(before: Manifest, after: Manifest) -> tuple[Change, ...]:
    """Return every path whose bytes differ, in the order of the paths."""
    old = {before.path(entry): entry for entry in before.entries}
    new = {after.path(entry): entry for entry in after.entries}
    pairs = ((path, old.get(path), new.get(path)) for path in sorted(old.keys() | new.keys()))
    return tuple(Change(path, a, b) for path, a, b in pairs if not _same_bytes(a, b))


def _same_bytes(a: Entry | None, b: Entry | None) -> bool:
    if a is None or b is None or a.size != b.size:
        return False
    if a.sha256 and b.sha256:
        return a.sha256 == b.sha256
    return a.etag is not None and a.etag == b.etag


def dump_lock(manifest: Manifest) -> bytes:
    """Return the lock file of a complete manifest: the same bytes for the same manifest, always."""
    rows = ",\n".join("  " + _canonical(_row(entry)).decode() for entry in manifest.entries)
    head = f'"digest":{json.dumps(manifest.digest)},\n"lock":{FORMAT},\n"objects":[\n{rows}\n],\n'
    source = _canonical(str(manifest.source)).decode()
    return ("{" + head + f'"source":{source}' + "}\n").encode()


def _row(entry: Entry) -> dict[str, Any]:
    fields = {
        "key": entry.key,
        "versionId": entry.version_id,
        "etag": entry.etag,
        "size": entry.size,
        "sha256": entry.sha256,
    }
    return {name: value for name, value in fields.items() if value is not None}


class _Object(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    key: str
    size: int
    sha256: str
    version_id: str | None = None
    etag: str | None = None


class _Lock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    lock: int
    source: str
    digest: str
    objects: list[_Object]


def load_lock(data: bytes, *, where: str) -> Manifest:
    """Return the manifest that a lock file holds; refuse one that contradicts itself."""
    try:
        lock = msgspec.json.decode(data, type=_Lock)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"this is not a lock file: {error}",
            where=where,
            fix="Write a new one with `epp-artifacts lock`",
        ) from error
    if lock.lock != FORMAT:
        raise UsageError(
            f"the lock has format {lock.lock}, and this program reads format {FORMAT}", where=where
        )
    return _checked(lock, where)


def _checked(lock: _Lock, where: str) -> Manifest:
    source = parse_pin(lock.source).location
    entries = [_entry(row, source, where) for row in lock.objects]
    manifest = build_manifest(source, entries)
    if not source.is_directory and len(entries) != 1:
        raise UsageError("the lock of one object must list exactly one", where=where)
    if manifest.digest != lock.digest:
        raise UsageError(
            f"the lock says {lock.digest}, and its objects give {manifest.digest}",
            where=where,
            fix="It was edited or damaged: take it from version control again",
        )
    return manifest


def _entry(row: _Object, source: Location, where: str) -> Entry:
    inside = row.key.startswith(source.key) if source.is_directory else row.key == source.key
    if not inside or row.key == "" or row.size < 0 or (row.key.endswith("/") and row.size):
        raise UsageError(f"the object {row.key!r} does not belong in this lock", where=where)
    identity = {"sha256": row.sha256}
    if row.version_id is not None:
        identity["versionId"] = row.version_id
    if row.etag is not None:
        identity["etag"] = row.etag
    pin = parse_pin("s3://lock/object", identity)
    return Entry(row.key, row.size, pin.version_id, pin.etag, pin.sha256)


def complete_manifest(manifest: Manifest, digests: Mapping[int, str]) -> Manifest:
    """Return the manifest with the sha256 of each entry, by its position."""
    entries = (replace(e, sha256=digests[i]) for i, e in enumerate(manifest.entries))
    return replace(manifest, entries=tuple(entries))


def entry_pin(manifest: Manifest, entry: Entry) -> Pin:
    """Return the pin of one object of a manifest."""
    source = Location(manifest.source.scheme, manifest.source.bucket, entry.key)
    return Pin(source, entry.version_id, entry.etag, entry.sha256, entry.md5)


def _canonical(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
