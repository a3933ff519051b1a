"""Which keys may become files, and under which name.  Pure.

An object store allows keys that a file system must not follow (`../`, an absolute path) or cannot
tell apart (`A.bin` and `a.bin` on many).  One such key refuses the whole directory, by name: a
model with a file missing is not the model.
"""

import unicodedata
from collections.abc import Iterable

from artifacts.errors import UsageError

RECORD_NAME = ".artifact.lock.json"
"""The lock that a pull leaves inside the folder it made; never part of an artifact's content."""
PRIVATE_PREFIX = ".epp-artifacts-"
"""What files of ours that live beside or inside a target begin with; never content either."""

_MAX_COMPONENT_BYTES = 255  # ext4, xfs, overlayfs and tmpfs agree


def is_ours(path: str) -> bool:
    """Whether this path, below an artifact's root, is bookkeeping rather than content."""
    top = path.split("/", 1)[0]
    return path == RECORD_NAME or top.startswith(PRIVATE_PREFIX)


def relative_path(key: str, prefix: str) -> str:
    """Return where `key` lies below `prefix`, or refuse it.  A trailing / marks an empty folder."""
    path = key.removeprefix(prefix)
    why = _why_unsafe(path)
    if why:
        raise UsageError(
            f"the key {key!r} cannot be a file below the target folder: {why}",
            where=prefix,
            fix="Rename the object, or lock a prefix without it",
        )
    return path


def refuse_collisions(paths: Iterable[str]) -> None:
    """Refuse two paths that some file system takes for one, and a file that is a folder too."""
    files: dict[str, str] = {}
    folders: dict[str, str] = {}
    for path in paths:
        parts = path.rstrip("/").split("/")
        for depth in range(1, len(parts) + path.endswith("/")):
            folder = "/".join(parts[:depth])
            if folders.setdefault(_fold(folder), folder) != folder:
                _refuse(folders[_fold(folder)] + "/", folder + "/")
        if not path.endswith("/"):
            if _fold(path) in files:
                _refuse(files[_fold(path)], path)
            files[_fold(path)] = path
    for folded in sorted(files.keys() & folders.keys()):
        _refuse(files[folded], folders[folded] + "/")


def _refuse(one: str, other: str) -> None:
    raise UsageError(
        f"the keys {one!r} and {other!r} would be one file on some file systems",
        fix="Rename one of the objects",
    )


def _fold(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _why_unsafe(path: str) -> str:
    if path.startswith("/"):
        return "it would be an absolute path"
    if is_ours(path):
        return "that name is kept for what a pull notes down"
    if "\0" in path:
        return "it holds a NUL character"
    parts = path.rstrip("/").split("/") if path else [""]
    if path.endswith("//") or "" in parts:
        return "it has an empty component"
    if "." in parts or ".." in parts:
        return "it has a component that is . or .."
    return _why_unwritable(parts)


def _why_unwritable(parts: list[str]) -> str:
    try:
        longest = max(len(part.encode()) for part in parts)
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    return "a component is longer than 255 bytes" if longest > _MAX_COMPONENT_BYTES else ""
