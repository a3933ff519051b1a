"""The commands that only look: what a reference means now, and how two of them differ."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from artifacts.commands import Run, figures
from artifacts.errors import NotAllowed, PinGone, VerificationFailed
from artifacts.lock import lock
from artifacts.manifest import Change, Entry, Manifest, diff_manifests, entry_pin
from artifacts.pin import Pin
from artifacts.progress import Silent
from artifacts.resolve import resolve
from artifacts.retry import retry
from artifacts.source import Artifact, open_store, read_reference
from artifacts.store import Store, Version
from console import Column, Table


async def run_show(run: Run, reference: str) -> None:
    """Show what a reference means now, and what else it could have meant."""
    pin = read_reference(reference)
    if pin.location.is_lock:
        async with run.open(pin, allow_floating=True) as artifact:
            await _show_lock(run, artifact)
        return
    async with open_store(
        pin.location, await run.connect(), parallel=run.settings.parallel
    ) as store:
        if pin.location.is_directory:
            manifest = await resolve(store, pin, run.backoff, run.rng)
            run.reporter.rows("object", _objects(manifest))
            run.reporter.result("resolved", _total(manifest), **figures(manifest))
        else:
            await _show_object(run, store, pin)


async def _show_object(run: Run, store: Store, pin: Pin) -> None:
    """Show an object and its versions; one that is gone still has versions worth seeing."""
    entry: Entry | None = None
    gone: PinGone | None = None
    try:
        entry = await retry(lambda: store.stat(pin), run.backoff, run.rng)
    except PinGone as error:
        gone = error
    try:
        versions = [v async for v in _own_versions(store, pin)]
    except NotAllowed as error:
        run.reporter.warning("the versions cannot be listed", error.where, error.fix)
        versions = []
    if versions:
        pinned = entry.version_id if entry and pin.is_immutable else pin.version_id
        run.reporter.rows("version", _versions(versions, pinned))
    if gone is not None:
        raise gone
    if entry is not None:
        manifest = Manifest(pin.location, (entry,))
        resolved = str(entry_pin(manifest, entry))
        run.reporter.result("resolved", f"resolves to {resolved}", **figures(manifest))


async def _own_versions(store: Store, pin: Pin) -> AsyncIterator[Version]:
    """Yield the versions of this key: they come first, before those of longer keys."""
    async for version in store.versions(pin.location):
        if version.entry.key != pin.location.key:
            return
        yield version


async def _show_lock(run: Run, artifact: Artifact) -> None:
    """Show each object of a lock, and whether it is still what its name means."""
    manifest = artifact.manifest
    now: dict[str, Entry] = {}
    try:
        current = await resolve(artifact.store, Pin(manifest.source), run.backoff, run.rng)
        now = {current.path(entry): entry for entry in current.entries}
    except PinGone:
        pass  # nothing is there now; the pinned versions may be
    rows = [
        (manifest.path(e), e.version_id, e.size, e.sha256, _state(e, now.get(manifest.path(e))))
        for e in manifest.entries
    ]
    columns = ("path", "version", Column("size", right=True), "sha256", "now")
    run.reporter.rows("object", Table(columns, rows))
    run.reporter.result("resolved", f"{manifest.digest}  {_total(manifest)}", **figures(manifest))


def _state(pinned: Entry, now: Entry | None) -> str:
    if now is None:
        return "deleted"
    if pinned.etag is None or now.etag is None:
        return "same size" if pinned.size == now.size else "changed"
    if pinned.etag != now.etag:
        return "overwritten"
    return "latest" if pinned.version_id == now.version_id else "same bytes, newer version"


def _versions(versions: list[Version], pinned: str | None) -> Table:
    rows = []
    for version in versions:
        entry = version.entry
        notes = ["latest"] if version.is_latest else []
        notes += ["deleted"] if version.is_marker else []
        notes += ["pinned"] if pinned is not None and entry.version_id == pinned else []
        modified = version.modified.isoformat(timespec="seconds") if version.modified else None
        size = None if version.is_marker else entry.size
        rows.append((entry.version_id, size, modified, entry.etag, ", ".join(notes)))
    return Table(("version", Column("size", right=True), "modified", "etag", "notes"), rows)


def _objects(manifest: Manifest) -> Table:
    rows = [(manifest.path(e), e.version_id, e.size, e.etag) for e in manifest.entries]
    return Table(("path", "version", Column("size", right=True), "etag"), rows)


def _total(manifest: Manifest) -> str:
    return f"{manifest.source}  {len(manifest.entries)} objects, {manifest.size} bytes"


async def run_diff(run: Run, before: str, after: str, *, fail: bool) -> None:
    """Show every path on which two references differ."""
    async with AsyncExitStack() as stack:
        sides = []
        for reference in (before, after):
            pin = read_reference(reference)
            sides.append(await stack.enter_async_context(run.open(pin, allow_floating=True)))
        old, new = [await _comparable(run, side, sides) for side in sides]
    changes = diff_manifests(old, new)
    if changes:
        run.reporter.rows("change", _changes(changes))
    same = len({old.path(e) for e in old.entries} & {new.path(e) for e in new.entries})
    same -= sum(1 for change in changes if change.before and change.after)
    run.reporter.result(
        "compared", f"{len(changes)} differ, {same} are the same", differ=len(changes), same=same
    )
    if changes and fail:
        raise VerificationFailed(f"{len(changes)} paths differ", where=f"{before} and {after}")


async def _comparable(run: Run, side: Artifact, sides: list[Artifact]) -> Manifest:
    """Return the side's manifest; read the bytes where etags alone cannot tell."""
    manifest = side.manifest
    etags = all(entry.etag for other in sides for entry in other.manifest.entries)
    if manifest.is_complete or etags:
        return manifest
    return await lock(
        side.store,
        Pin(manifest.source)
        if manifest.source.is_directory
        else entry_pin(manifest, manifest.entries[0]),
        parallel=run.settings.parallel,
        backoff=run.backoff,
        rng=run.rng,
        progress=Silent(),
    )


def _changes(changes: tuple[Change, ...]) -> Table:
    rows = []
    for change in changes:
        kind = (
            "added" if change.before is None else "removed" if change.after is None else "changed"
        )
        rows.append((change.path, kind, _identity(change.before), _identity(change.after)))
    return Table(("path", "change", "before", "after"), rows)


def _identity(entry: Entry | None) -> str | None:
    if entry is None:
        return None
    return f"sha256:{entry.sha256}" if entry.sha256 else entry.version_id or entry.etag
