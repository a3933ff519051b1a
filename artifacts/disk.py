"""The local file system: its errors as ours, a swap of two folders, a lock between processes.

`renameat2` is what makes a switch of two non-empty folders one step; Python has no name for it, so
it is called through ctypes, and a file system without it gets two renames.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

from artifacts.errors import ArtifactError, NotAllowed, PinGone, TryAgain

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_ABSENT = {errno.ENOENT, errno.ENOTDIR}
_NO_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}
_OCTAL = re.compile(rb"\\([0-7]{3})")
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextlib.contextmanager
def disk_errors(where: Path | str) -> Iterator[None]:
    """Turn an OSError inside the block into one of our errors."""
    try:
        yield
    except OSError as error:
        raise translate(error, where) from error


def translate(error: OSError, where: Path | str) -> ArtifactError:
    """Return our error for the file system's."""
    place = str(error.filename or where)
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return TryAgain(
            f"the disk is full: {reason}",
            where=place,
            fix="Free some space, then run the same command again: it resumes",
        )
    if error.errno in _REFUSED:
        return NotAllowed(
            f"the file system refuses: {reason}", where=place, fix="Check owner, mode and mount"
        )
    if error.errno in _ABSENT:
        return PinGone(f"there is no such file or folder: {reason}", where=place)
    return TryAgain(f"the file system failed: {reason}", where=place, fix="Check the disk")


def exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step; return False where the file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    paths = os.fsencode(one), os.fsencode(other)
    if libc.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(other))


def is_mount_point(path: Path) -> bool:
    """Whether something is mounted at `path`; a bind mount of the same disk counts too."""
    if os.path.ismount(path):
        return True
    try:
        table = Path("/proc/self/mountinfo").read_bytes()
    except OSError:
        return False
    return os.fsencode(path) in mount_points(table)


def mount_points(table: bytes) -> set[bytes]:
    """Return the paths in a mountinfo table, in which a space is spelled `\\040`."""
    fields = [line.split(b" ") for line in table.splitlines()]
    return {_OCTAL.sub(lambda code: bytes([int(code[1], 8)]), f[4]) for f in fields if len(f) > 4}


def flush(folder: Path) -> None:
    """Bring what was written to `folder`'s file system onto the disk."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not hasattr(libc, "syncfs"):
            os.sync()
        elif libc.syncfs(descriptor) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(folder))
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def held(lock: Path, *, why: str) -> Iterator[None]:
    """Hold a lock file for the block, against other processes; refuse when another has it.

    The file is gone afterwards, so whoever gets a lock looks whether it still is the file there.
    """
    descriptor = -1
    while descriptor < 0:
        with disk_errors(lock):
            descriptor = _locked(lock, why)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(lock: Path, why: str) -> int:
    """Return a descriptor that holds the lock, or -1 where the file was removed meanwhile."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(lock)):
            return descriptor
    except FileNotFoundError:
        pass
    except BlockingIOError as error:
        os.close(descriptor)
        raise TryAgain(why, where=str(lock), fix="Wait for it to end") from error
    os.close(descriptor)
    return -1
