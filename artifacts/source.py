"""From what a person typed to something that can be pulled: a reference, a lock, a folder."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from artifacts.credentials import Connection
from artifacts.disk import disk_errors
from artifacts.errors import UsageError, VerificationFailed
from artifacts.local import LocalStore, local_location
from artifacts.manifest import Entry, Manifest, load_lock, sha256_hex
from artifacts.pin import Location, Pin, parse_pin, require_immutable
from artifacts.resolve import resolve
from artifacts.retry import Backoff, retry
from artifacts.store import Store

_LOCK_LIMIT_BYTES = 64 << 20  # a lock of 200 000 objects has 50 MB


@dataclass(frozen=True, slots=True)
class Artifact:
    """Something that can be pulled.

    `digest` is what its manifest must turn out to have, where the pin says so and the manifest
    does not show it yet.  `floating` says that the reference can mean other bytes tomorrow.
    """

    store: Store
    manifest: Manifest
    digest: str | None = None
    floating: bool = False


@asynccontextmanager
async def open_store(
    location: Location, connection: Connection, *, parallel: int
) -> AsyncIterator[Store]:
    """Open the store that a location lies in."""
    if location.scheme == "file":
        yield LocalStore()
        return
    from artifacts.s3 import open_s3

    async with open_s3(connection, parallel=parallel) as store:
        yield store


def read_reference(text: str, parameters: Mapping[str, object] | None = None) -> Pin:
    """Return the pin that a reference spells; a path becomes absolute, a folder's ends in /."""
    pin = parse_pin(text, parameters)
    if pin.location.scheme == "file":
        return replace(pin, location=local_location(pin.location))
    return pin


@asynccontextmanager
async def open_artifact(
    pin: Pin,
    connection: Connection,
    *,
    parallel: int,
    backoff: Backoff,
    rng: Random,
    allow_floating: bool = False,
) -> AsyncIterator[Artifact]:
    """Open what a pin names: an object, a directory, or a lock file that names either."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(
            open_store(pin.location, connection, parallel=parallel)
        )
        local_lock = pin.location.is_lock and pin.location.scheme == "file"
        if not local_lock:
            require_immutable(pin, allow_floating=allow_floating)
        floating = not (local_lock or pin.is_immutable)
        if not pin.location.is_lock:
            digest = f"sha256:{pin.sha256}" if pin.sha256 else None
            yield Artifact(store, await resolve(store, pin, backoff, rng), digest, floating)
            return
        manifest = await _load_lock(store, pin, backoff, rng)
        if manifest.source.scheme != pin.location.scheme:
            store = await stack.enter_async_context(
                open_store(manifest.source, connection, parallel=parallel)
            )
        yield Artifact(store, manifest, floating=floating)


def read_lock_file(path: Path) -> Manifest:
    """Return the manifest of a lock file on disk."""
    with disk_errors(path):
        return load_lock(path.read_bytes(), where=str(path))


async def _load_lock(store: Store, pin: Pin, backoff: Backoff, rng: Random) -> Manifest:
    entry = await retry(lambda: store.stat(pin), backoff, rng)
    if entry.size > _LOCK_LIMIT_BYTES:
        raise UsageError(
            f"a lock file has at most {_LOCK_LIMIT_BYTES} bytes, and this has {entry.size}",
            where=str(pin),
        )
    data = await retry(lambda: _read(store, pin, entry), backoff, rng)
    if pin.sha256 not in (None, sha256_hex(data)):
        raise VerificationFailed("the lock file's bytes are not those of its pin", where=str(pin))
    manifest = load_lock(data, where=str(pin.location))
    if pin.location.scheme == "s3" and manifest.source.scheme != "s3":
        raise UsageError("a lock on S3 must not name local files", where=str(pin))
    return manifest


async def _read(store: Store, pin: Pin, entry: Entry) -> bytes:
    exact = replace(pin, version_id=entry.version_id, etag=entry.etag)
    async with store.read(exact, entry.size, 0, entry.size) as chunks:
        return b"".join([chunk async for chunk in chunks])
