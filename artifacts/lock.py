"""Lock: turn a reference into a manifest of immutable identities, with every byte hashed.

S3 has no snapshot of a directory.  So it is listed, read by version, and listed again: when the two
listings differ, somebody is writing to it, and a lock would name a state that never was.
"""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

from artifacts.errors import TryAgain, VerificationFailed
from artifacts.fetch import Fetcher
from artifacts.manifest import Entry, Manifest, complete_manifest, diff_manifests, entry_pin
from artifacts.pin import Pin
from artifacts.progress import Progress
from artifacts.resolve import resolve
from artifacts.retry import Backoff
from artifacts.store import Store
from artifacts.tasks import run_workers


async def lock(
    store: Store,
    pin: Pin,
    *,
    parallel: int,
    backoff: Backoff,
    rng: Random,
    progress: Progress,
) -> Manifest:
    """Return the complete manifest of what `pin` means now."""
    manifest = await resolve(store, pin, backoff, rng)
    progress.start(len(manifest.entries), manifest.size)
    digests: dict[int, str] = {}
    with ThreadPoolExecutor(max_workers=4, thread_name_prefix="lock") as pool:
        fetcher = Fetcher(store, backoff, rng, pool, progress.advance)

        async def hash_one(job: tuple[int, Entry]) -> None:
            index, entry = job
            digests[index] = await _hash(fetcher, manifest, entry)

        jobs: Iterator[tuple[int, Entry]] = iter(enumerate(manifest.entries))
        await run_workers("lock", parallel, jobs, hash_one)
    complete = complete_manifest(manifest, digests)
    _refuse_if_changed(manifest, await resolve(store, pin, backoff, rng))
    return complete


async def _hash(fetcher: Fetcher, manifest: Manifest, entry: Entry) -> str:
    sha256 = hashlib.sha256()
    md5 = hashlib.md5(usedforsecurity=False)

    def take(_at: int, chunks: list[bytes]) -> None:
        for chunk in chunks:
            sha256.update(chunk)
            if entry.md5:
                md5.update(chunk)

    await fetcher.fetch(entry_pin(manifest, entry), entry.size, 0, entry.size, take)
    _expect("sha256", entry.sha256, sha256.hexdigest(), entry)
    if entry.md5:
        _expect("md5", entry.md5, md5.hexdigest(), entry)
    return sha256.hexdigest()


def _expect(name: str, expected: str | None, found: str, entry: Entry) -> None:
    if expected not in (None, found):
        raise VerificationFailed(
            f"the bytes have {name} {found}, and the pin says {expected}", where=entry.key
        )


def _refuse_if_changed(before: Manifest, after: Manifest) -> None:
    if before == after:
        return
    paths = [change.path for change in diff_manifests(before, after)] or [before.source.name]
    raise TryAgain(
        f"it changed while it was being locked: {', '.join(paths[:3])}",
        where=str(before.source),
        fix="Wait until nobody writes to it, then lock it again",
    )
