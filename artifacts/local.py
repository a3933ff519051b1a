"""Artifacts that already are files: the default store, which needs no S3.

A local file has no versions, so only a digest can pin it; whoever changes a file during a pull is
found out by that digest.  Symbolic links to files are followed (model hubs' caches are made of
them); links to folders are refused, because what is behind one may have no end.
"""

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from artifacts.disk import disk_errors
from artifacts.errors import PinGone, UsageError, VerificationFailed
from artifacts.manifest import Entry
from artifacts.paths import is_ours
from artifacts.pin import Location, Pin
from artifacts.store import Version

_CHUNK_BYTES = 1 << 20


class LocalStore:
    """A `Store` of files; a location's key is a path."""

    async def stat(self, pin: Pin) -> Entry:
        """Return the file that the pin names."""
        with disk_errors(pin.location.key):
            found = await asyncio.to_thread(os.stat, pin.location.key)
        if not stat.S_ISREG(found.st_mode):
            raise PinGone("this is not a file", where=str(pin.location))
        return Entry(pin.location.key, found.st_size, sha256=pin.sha256, md5=pin.md5)

    async def versions(self, prefix: Location) -> AsyncIterator[Version]:
        """Yield each file below the folder, as the one version that it has."""
        with disk_errors(prefix.key):
            files = await asyncio.to_thread(lambda: list(walk_files(Path(prefix.key))))
        for path, found in files:
            modified = datetime.fromtimestamp(found.st_mtime, UTC)
            yield Version(Entry(prefix.key + path, found.st_size), True, False, modified)

    @asynccontextmanager
    async def read(
        self, pin: Pin, size: int, start: int, stop: int
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield bytes start…stop of the file."""
        where = pin.location.key
        with disk_errors(where):
            descriptor = await asyncio.to_thread(os.open, where, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor).st_size
            if found != size:
                raise VerificationFailed(
                    f"the file has {found} bytes, and the pin says {size}", where=where
                )
            yield _chunks(descriptor, start, stop, where)
        finally:
            os.close(descriptor)


async def _chunks(descriptor: int, start: int, stop: int, where: str) -> AsyncIterator[bytes]:
    while start < stop:
        with disk_errors(where):
            chunk = os.pread(descriptor, min(_CHUNK_BYTES, stop - start), start)
        if not chunk:
            raise VerificationFailed("the file was cut off while it was read", where=where)
        start += len(chunk)
        yield chunk


def local_location(location: Location) -> Location:
    """Return the location with an absolute path, ending in / where it is a folder."""
    path = os.path.abspath(location.key)
    folder = location.is_directory or os.path.isdir(path)
    return Location("file", "", path.rstrip("/") + "/" if folder else path)


def walk_files(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield every file below a folder, with its path below it; leave out our bookkeeping."""

    def fail(error: OSError) -> None:
        raise error

    for folder, folders, files in os.walk(root, onerror=fail):
        below = os.path.relpath(folder, root)
        folders.sort()
        for name in folders:
            _refuse_link(Path(folder) / name)
        for name in sorted(files):
            path = name if below == "." else f"{below}/{name}"
            if not is_ours(path):
                yield path, _stat_file(Path(folder) / name)
        folders[:] = [name for name in folders if below != "." or not is_ours(name + "/")]


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise UsageError(
            "a symbolic link to a folder cannot be part of an artifact",
            where=str(path),
            fix="Copy the folder to its place",
        )


def _stat_file(path: Path) -> os.stat_result:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise UsageError("this is neither a file nor a folder", where=str(path), fix="Remove it")
    return found
