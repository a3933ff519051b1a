"""Pull: make a folder hold exactly what a manifest says, or leave it as it was.

Workers take spans of files from one list, so that one large object is fetched by all of them and
thousands of small ones just as well; no object waits for another.
"""

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from artifacts.disk import disk_errors, flush, held
from artifacts.errors import PinGone, TryAgain, VerificationFailed
from artifacts.flight import Crew, Flight
from artifacts.landing import Landing, Span
from artifacts.manifest import Entry, Manifest, complete_manifest, dump_lock
from artifacts.paths import RECORD_NAME
from artifacts.progress import Progress
from artifacts.retry import Backoff
from artifacts.store import Store
from artifacts.tasks import run_workers
from artifacts.verify import is_verified
from artifacts.workspace import Workspace, open_workspace


@dataclass(frozen=True, slots=True)
class PullOptions:
    """How to pull."""

    parallel: int = 8
    """Requests at once.  One S3 connection gives about 100 MB/s, and eight fill 10 Gbit/s."""
    part_bytes: int = 16 << 20
    """Objects over this size are fetched in ranges; a crash loses one of them per request."""
    cache: Path | None = None
    """A folder of verified files that many models share."""
    backoff: Backoff = field(default_factory=Backoff)
    flush: bool = False
    """Whether the disk must hold every byte before the switch.  Without it a power cut can leave
    files that were never written, which the next pull or `verify` finds and replaces; with it the
    pull takes as long as the disk does."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull did: the manifest with every digest, and where the bytes came from."""

    manifest: Manifest
    fetched_bytes: int = 0
    cached_bytes: int = 0
    resumed_bytes: int = 0
    already_there: bool = False


async def pull(
    store: Store,
    manifest: Manifest,
    target: Path,
    options: PullOptions,
    *,
    rng: Random,
    progress: Progress,
    expected_digest: str | None = None,
) -> Pulled:
    """Make `target` hold the manifest's bytes; whatever fails, the old content stays in place."""
    workspace = open_workspace(target, manifest)
    with held(workspace.lock, why="another pull into this folder is running"):
        if manifest.is_complete and await asyncio.to_thread(
            is_verified, workspace.target, manifest
        ):
            return Pulled(manifest, already_there=True)
        progress.start(len(manifest.entries), manifest.size)
        try:
            pulled = await _fetch_all(store, manifest, workspace, options, rng, progress)
            _expect(pulled.manifest, expected_digest)
        except (VerificationFailed, PinGone):
            workspace.discard()  # what cannot become the artifact is not worth resuming
            raise
        await asyncio.to_thread(_install, workspace, pulled.manifest, options)
        return pulled


async def _fetch_all(
    store: Store,
    manifest: Manifest,
    workspace: Workspace,
    options: PullOptions,
    rng: Random,
    progress: Progress,
) -> Pulled:
    landed = await asyncio.to_thread(workspace.begin)
    _refuse_if_too_big(workspace, manifest, landed)
    crew = Crew(store, manifest, workspace, options.cache, options.backoff, rng, progress)
    flights = _flights(manifest, workspace, landed, options.part_bytes)
    try:
        await run_workers("pull", options.parallel, flights, lambda job: crew.fly(*job))
    finally:
        crew.close()
        workspace.end()
    complete = complete_manifest(manifest, crew.digests)
    return Pulled(complete, crew.fetched_bytes, crew.cached_bytes, crew.resumed_bytes)


def _flights(
    manifest: Manifest, workspace: Workspace, landed: dict[int, list[Span]], part_bytes: int
) -> Iterator[tuple[Flight, Span]]:
    """Yield every span of every file, lazily: thousands of files are not thousands of objects."""
    for index, entry in enumerate(manifest.entries):
        path = workspace.staging / manifest.path(entry)
        planned = _spans(entry, part_bytes)
        before = landed.get(index, [])
        if before and (not path.is_file() or path.stat().st_nlink > 1):
            before = []  # lost, or linked into the cache: a file that must not be written to
        known = [span for span in planned if span in before]
        missing = [span for span in planned if span not in known]
        flight = Flight(index, Landing(path, entry), tuple(known), len(missing))
        for span in missing or [(0, 0)]:
            yield flight, span


def _spans(entry: Entry, part_bytes: int) -> list[Span]:
    starts = range(0, entry.size, part_bytes)
    return [(start, min(start + part_bytes, entry.size)) for start in starts]


def _refuse_if_too_big(
    workspace: Workspace, manifest: Manifest, landed: dict[int, list[Span]]
) -> None:
    have = sum(stop - start for spans in landed.values() for start, stop in spans)
    with disk_errors(workspace.staging):
        free = shutil.disk_usage(workspace.staging).free
    if manifest.size - have > free:
        raise TryAgain(
            f"the disk is full: {manifest.size - have} bytes are needed, and {free} are free",
            where=str(workspace.staging.parent),
            fix="Free some space, then run the same command again",
        )


def _expect(manifest: Manifest, digest: str | None) -> None:
    if digest is not None and manifest.digest != digest:
        raise VerificationFailed(
            f"the artifact has {manifest.digest}, and the pin says {digest}",
            where=str(manifest.source),
            fix="It was changed where it is kept: lock it again, if that was meant",
        )


def _install(workspace: Workspace, manifest: Manifest, options: PullOptions) -> None:
    with disk_errors(workspace.staging):
        (workspace.staging / RECORD_NAME).write_bytes(dump_lock(manifest))
        if options.flush:
            flush(workspace.staging)
    workspace.switch()
