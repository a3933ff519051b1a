"""From a reference to a manifest: what an object, or everything below a prefix, is now."""

from random import Random

from artifacts.errors import PinGone, VerificationFailed
from artifacts.manifest import Entry, Manifest, build_manifest
from artifacts.paths import is_ours
from artifacts.pin import Location, Pin
from artifacts.retry import Backoff, retry
from artifacts.store import Store


async def resolve(store: Store, pin: Pin, backoff: Backoff, rng: Random) -> Manifest:
    """Return the manifest of what `pin` means now, without having read the bytes."""
    if not pin.location.is_directory:
        entry = await retry(lambda: store.stat(pin), backoff, rng)
        return build_manifest(pin.location, [entry])
    return await retry(lambda: list_directory(store, pin.location), backoff, rng)


async def list_directory(store: Store, prefix: Location) -> Manifest:
    """Return the manifest of everything below a prefix, as one listing of it shows."""
    entries: list[Entry] = []
    seen: set[str] = set()
    async for version in store.versions(prefix):
        entry = version.entry
        if version.is_marker or not version.is_latest or entry.key == prefix.key:
            continue
        if entry.is_folder and entry.size:
            raise VerificationFailed(
                f"the object {entry.key!r} is named like a folder and has {entry.size} bytes",
                where=str(prefix),
                fix="Rename it",
            )
        if entry.key in seen:
            raise VerificationFailed(
                f"the listing names {entry.key!r} twice as the latest version", where=str(prefix)
            )
        seen.add(entry.key)
        if not is_ours(entry.key.removeprefix(prefix.key)):
            entries.append(entry)
    if not entries:
        raise PinGone(
            "there is no object below this prefix",
            where=str(prefix),
            fix="Check the name; a prefix must end where a folder's name ends",
        )
    return build_manifest(prefix, entries)
