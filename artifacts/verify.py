"""Verify: does a folder hold exactly the bytes of a manifest?  More is as wrong as less."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from artifacts.disk import disk_errors
from artifacts.errors import PinGone, UsageError, VerificationFailed
from artifacts.landing import hash_file
from artifacts.local import walk_files
from artifacts.manifest import Entry, Manifest, load_lock
from artifacts.paths import RECORD_NAME

_THREADS = 4  # hashing holds no lock of the interpreter's, and reading waits for the disk


def read_record(folder: Path) -> Manifest:
    """Return the lock that a pull left in the folder it made."""
    record = folder / RECORD_NAME
    try:
        with disk_errors(record):
            data = record.read_bytes()
    except PinGone as error:
        raise UsageError(
            "this folder has no lock of its own",
            where=str(folder),
            fix="Name the lock: epp-artifacts verify DIR LOCK",
        ) from error
    return load_lock(data, where=str(record))


def is_verified(folder: Path, manifest: Manifest) -> bool:
    """Return whether a pull made this folder from this manifest, and its bytes still are there."""
    try:
        if read_record(folder).digest != manifest.digest:
            return False
        return not find_faults(folder, manifest)
    except (UsageError, VerificationFailed, PinGone):
        return False


def find_faults(
    folder: Path, manifest: Manifest, advance: Callable[[int], None] = lambda _size: None
) -> tuple[str, ...]:
    """Return what is wrong with a folder, a line for each path; empty when it is the manifest's."""
    with disk_errors(folder):
        found = {path: status.st_size for path, status in walk_files(folder)}
    paths = [manifest.path(entry) for entry in manifest.entries]
    faults = [f"{path}: not part of the artifact" for path in found.keys() - set(paths)]

    def check(path: str, entry: Entry) -> str:
        fault = _fault(folder, path, entry, found.get(path))
        return f"{path}: {fault}" if fault else ""

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="verify") as pool:
        checks = pool.map(check, paths, manifest.entries)
        for entry, fault in zip(manifest.entries, checks, strict=True):
            faults += [fault] if fault else []
            advance(entry.size)
    return tuple(sorted(faults))


def _fault(folder: Path, path: str, entry: Entry, size: int | None) -> str:
    if entry.is_folder:
        return "" if (folder / path).is_dir() else "missing"
    if size is None:
        return "missing"
    if size != entry.size:
        return f"has {size} bytes instead of {entry.size}"
    digest = hash_file(folder / path)
    return "" if digest == entry.sha256 else f"has sha256 {digest} instead of {entry.sha256}"
