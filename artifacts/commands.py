"""What each command does, once its options are read.  No environment, no exit codes."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from artifacts.credentials import (
    Connection,
    connection_from_environment,
    connection_from_folder,
)
from artifacts.disk import disk_errors
from artifacts.errors import UsageError, VerificationFailed
from artifacts.lock import lock
from artifacts.manifest import Manifest, dump_lock, entry_pin
from artifacts.options import Log, Settings
from artifacts.pin import Pin
from artifacts.progress import show_progress
from artifacts.pull import Pulled, PullOptions, pull
from artifacts.report import Reporter
from artifacts.retry import Backoff
from artifacts.source import Artifact, open_artifact, open_store, read_lock_file, read_reference
from artifacts.verify import find_faults, read_record
from console import format_seconds

_SHOWN_FAULTS = 20


@dataclass(frozen=True, slots=True)
class Run:
    """What a command has at hand: where to read from, chance, and a voice."""

    settings: Settings
    environment: Mapping[str, str]
    rng: Random
    reporter: Reporter
    connection: Connection | None = None
    """How to reach the store, where that is known already."""

    @property
    def backoff(self) -> Backoff:
        """How patiently to ask again."""
        return Backoff(attempts=self.settings.attempts)

    @property
    def as_json(self) -> bool:
        """Whether to write JSON."""
        return self.settings.log is Log.JSON

    async def connect(self) -> Connection:
        """Return the connection that options and environment describe."""
        if self.connection is not None:
            return self.connection
        settings = self.settings
        connection = connection_from_environment(self.environment)
        if settings.storage_config is not None:
            folder, key = settings.storage_config, settings.storage_key
            connection = connection_from_folder(folder, key, connection)
        elif settings.storage_secret is not None:
            connection = await self._from_secret(settings.storage_secret, connection)
        elif settings.storage_key is not None:
            raise UsageError(
                "--storage-key chooses from a secret, and none is named",
                fix="Add --storage-config FOLDER or --storage-secret NAME",
            )
        if settings.endpoint_url:
            connection = replace(connection, endpoint_url=settings.endpoint_url)
        return replace(connection, region=settings.region or connection.region)

    async def _from_secret(self, name: str, base: Connection) -> Connection:
        from artifacts.kubesecret import connection_from_secret

        namespace, slash, secret = name.rpartition("/")
        chosen = namespace if slash else self.environment.get("POD_NAMESPACE", "default")
        key = self.settings.storage_key
        return await connection_from_secret(chosen, secret, key, base, environment=self.environment)

    @asynccontextmanager
    async def open(self, pin: Pin, *, allow_floating: bool) -> AsyncIterator[Artifact]:
        """Open what a pin names; say so where it floats."""
        async with open_artifact(
            pin,
            await self.connect(),
            parallel=self.settings.parallel,
            backoff=self.backoff,
            rng=self.rng,
            allow_floating=allow_floating,
        ) as artifact:
            if artifact.floating:
                self.reporter.warning(
                    "this reference floats: it can mean other bytes tomorrow",
                    str(pin),
                    "Pin it with `epp-artifacts lock`",
                )
            yield artifact


async def run_lock(run: Run, reference: str, output: Path | None) -> None:
    """Resolve a reference, hash its bytes and write the lock."""
    pin = read_reference(reference)
    if pin.location.is_lock:
        raise UsageError(
            "this is a lock already", where=reference, fix="Name the object or the directory"
        )
    async with open_store(
        pin.location, await run.connect(), parallel=run.settings.parallel
    ) as store:
        with show_progress("locking", as_json=run.as_json, clock=time.monotonic) as progress:
            manifest = await lock(
                store,
                pin,
                parallel=run.settings.parallel,
                backoff=run.backoff,
                rng=run.rng,
                progress=progress,
            )
    if output is None:
        run.reporter.result(
            "locked", dump_lock(manifest).decode().rstrip("\n"), **figures(manifest)
        )
        return
    write_beside(output, dump_lock(manifest))
    sentence = f"{manifest.digest}  {manifest.source}  ({len(manifest.entries)} objects)"
    run.reporter.result("locked", sentence, lock=str(output), **figures(manifest))


def figures(manifest: Manifest) -> dict[str, object]:
    """Return what a manifest is, as the fields of a JSON line."""
    found: dict[str, object] = {
        "source": str(manifest.source),
        "objects": len(manifest.entries),
        "bytes": manifest.size,
    }
    if manifest.is_complete:
        found["digest"] = manifest.digest
    if not manifest.source.is_directory:
        found["pin"] = str(entry_pin(manifest, manifest.entries[0]))
    return found


def write_beside(path: Path, data: bytes) -> None:
    """Replace a file in one step: a reader sees the old content or the new."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with disk_errors(path):
        try:
            beside.write_bytes(data)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


async def run_pull(
    run: Run, pin: Pin, target: Path, options: PullOptions, *, floating: bool
) -> Pulled:
    """Fetch an artifact into a folder, and say how long it took."""
    began = time.monotonic()
    async with run.open(pin, allow_floating=floating) as artifact:
        with show_progress("pulling", as_json=run.as_json, clock=time.monotonic) as progress:
            pulled = await pull(
                artifact.store,
                artifact.manifest,
                target,
                options,
                rng=run.rng,
                progress=progress,
                expected_digest=artifact.digest,
            )
    _tell_pulled(run, pulled, target, time.monotonic() - began)
    return pulled


def _tell_pulled(run: Run, pulled: Pulled, target: Path, seconds: float) -> None:
    manifest = pulled.manifest
    rate = manifest.size / 1e6 / max(seconds, 1e-9)
    took = f"{format_seconds(seconds)}, {rate:.0f} MB/s"
    if pulled.already_there:
        how = f"already there and verified ({took})"
    else:
        parts = [f"{pulled.fetched_bytes} bytes fetched"]
        parts += [f"{pulled.cached_bytes} from the cache"] if pulled.cached_bytes else []
        parts += [f"{pulled.resumed_bytes} resumed"] if pulled.resumed_bytes else []
        how = f"{len(manifest.entries)} objects, {', '.join(parts)} ({took})"
    run.reporter.result(
        "pulled",
        f"{manifest.digest}  {target}  {how}",
        target=str(target),
        seconds=round(seconds, 3),
        mb_per_s=round(rate, 1),
        fetched_bytes=pulled.fetched_bytes,
        cached_bytes=pulled.cached_bytes,
        resumed_bytes=pulled.resumed_bytes,
        already_there=pulled.already_there,
        **figures(manifest),
    )


async def run_verify(run: Run, folder: Path, expected: str | None) -> None:
    """Compare a folder with a lock, or with the digest that it should have."""
    manifest = await _expected_manifest(run, folder, expected)
    with show_progress("verifying", as_json=run.as_json, clock=time.monotonic) as progress:
        progress.start(len(manifest.entries), manifest.size)
        faults = find_faults(folder, manifest, progress.advance)
    if faults:
        shown = "; ".join(faults[:_SHOWN_FAULTS])
        more = len(faults) - _SHOWN_FAULTS
        raise VerificationFailed(
            shown + (f"; and {more} more" if more > 0 else ""),
            where=str(folder),
            fix="Pull it again",
        )
    run.reporter.result(
        "verified",
        f"{manifest.digest}  {folder}  ({len(manifest.entries)} objects)",
        target=str(folder),
        **figures(manifest),
    )


async def _expected_manifest(run: Run, folder: Path, expected: str | None) -> Manifest:
    if expected is None:
        return await asyncio.to_thread(read_record, folder)
    if not expected.startswith("sha256:"):
        return await _manifest_of(run, expected)
    manifest = await asyncio.to_thread(read_record, folder)
    if manifest.digest != expected.lower():
        raise VerificationFailed(
            f"the folder was pulled as {manifest.digest}, and not as {expected}", where=str(folder)
        )
    return manifest


async def _manifest_of(run: Run, reference: str) -> Manifest:
    pin = read_reference(reference)
    if not pin.location.is_lock:
        raise UsageError("this is not a lock file", where=reference, fix="Name a .lock.json")
    if pin.location.scheme == "file":
        return await asyncio.to_thread(read_lock_file, Path(pin.location.key))
    async with run.open(pin, allow_floating=False) as artifact:
        return artifact.manifest
