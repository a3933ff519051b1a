"""Where a pull builds a model, and the one step that puts it in the old one's place.

The new folder grows beside the target, so that the switch is a rename: a reader sees the old model
or the new one, whole.  A mount point cannot be renamed over; there the new folder grows inside it,
and its entries are moved up only after all of them are verified.

A journal notes which spans have landed.  It is what a later run resumes from, so it is tied to the
manifest by name, and it is believed only as far as the final digest bears it out.
"""

import hashlib
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from artifacts.disk import disk_errors, exchange, is_mount_point
from artifacts.errors import UsageError
from artifacts.landing import Span
from artifacts.manifest import Manifest
from artifacts.paths import PRIVATE_PREFIX, RECORD_NAME, is_ours

_NOT_CONTENT = {"lost+found"}  # what mkfs leaves in the root of a volume


@dataclass(slots=True)
class Workspace:
    """The folders of one pull.  Written by that pull, under its lock."""

    target: Path
    staging: Path
    journal: Path
    lock: Path
    inside: bool
    """Whether the target cannot be renamed (a mount point), so that staging lies inside it."""
    _journal: int = field(default=-1)

    def begin(self) -> dict[int, list[Span]]:
        """Create what is missing, open the journal, and return the spans that it already has."""
        with disk_errors(self.staging):
            self._remove_strangers()
            self.staging.mkdir(exist_ok=True)
            landed = read_journal(self.journal)
            self._journal = os.open(
                self.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
            )
            os.write(self._journal, b"!\n")  # spoils a line that a crash cut off
        return landed

    def note(self, index: int, span: Span) -> None:
        """Write down that a span of a file has landed."""
        with disk_errors(self.journal):
            os.write(self._journal, f"{index} {span[0]} {span[1]}\n".encode())

    def forget(self, index: int) -> None:
        """Write down that a file begins anew."""
        self.note(index, (0, 0))

    def discard(self) -> None:
        """Remove what was fetched."""
        self.end()
        with disk_errors(self.staging):
            shutil.rmtree(self.staging, ignore_errors=True)
            self.journal.unlink(missing_ok=True)

    def end(self) -> None:
        """Close the journal."""
        if self._journal >= 0:
            os.close(self._journal)
            self._journal = -1

    def switch(self) -> None:
        """Put the staged folder in the target's place, and remove what was there."""
        with disk_errors(self.target):
            if self.inside:
                self._move_up()
            else:
                self._swap()
            self.end()
            self.journal.unlink(missing_ok=True)

    def _swap(self) -> None:
        if not _has_entries(self.target):
            self.staging.rename(self.target)
        elif exchange(self.staging, self.target):
            shutil.rmtree(self.staging)
        else:
            old = self.staging.with_name(self.staging.name + ".old")
            self.target.rename(old)
            self.staging.rename(self.target)
            shutil.rmtree(old)

    def _move_up(self) -> None:
        for entry in _content(self.target):
            _remove(entry)
        (self.target / RECORD_NAME).unlink(missing_ok=True)
        for entry in sorted(self.staging.iterdir(), key=lambda path: path.name == RECORD_NAME):
            entry.rename(self.target / entry.name)
        self.staging.rmdir()

    def _remove_strangers(self) -> None:
        """Remove what pulls of other manifests into this target left behind: it is ours alone."""
        stem = re.escape(f"{PRIVATE_PREFIX}{self.target.name}.")
        ours = re.compile(stem + r"[0-9a-f]{16}\.(partial|partial\.old|journal)")
        for path in self.staging.parent.iterdir():
            if ours.fullmatch(path.name) and path not in (self.staging, self.journal):
                _remove(path)


def open_workspace(target: Path, manifest: Manifest) -> Workspace:
    """Return the workspace for a pull of this manifest; refuse a target that is not ours."""
    target = Path(os.path.realpath(target))
    inside = _must_stay(target)
    parent = target if inside else target.parent
    if not inside:
        with disk_errors(parent):
            parent.mkdir(parents=True, exist_ok=True)
    _refuse_foreign(target)
    name = f"{PRIVATE_PREFIX}{target.name}"
    key = _identity(manifest)
    return Workspace(
        target=target,
        staging=parent / f"{name}.{key}.partial",
        journal=parent / f"{name}.{key}.journal",
        lock=parent / f"{name}.lock",
        inside=inside,
    )


def _must_stay(target: Path) -> bool:
    """Whether the folder itself cannot be renamed, so that only what is in it can change."""
    if not target.is_dir():
        return False
    return is_mount_point(target) or not os.access(target.parent, os.W_OK)


def read_journal(path: Path) -> dict[int, list[Span]]:
    """Return the spans that a journal holds, by file; what is cut off or damaged is left out."""
    landed: dict[int, list[Span]] = {}
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return landed
    for line in lines:
        numbers = line.split(b" ")
        if len(numbers) != 3 or not all(number.isdigit() for number in numbers):
            continue
        index, start, stop = map(int, numbers)
        if start < stop:
            landed.setdefault(index, []).append((start, stop))
        else:
            landed.pop(index, None)
    return landed


def _identity(manifest: Manifest) -> str:
    digest = hashlib.sha256(str(manifest.source).encode("utf-8", "surrogateescape"))
    for entry in manifest.entries:
        digest.update(repr(entry).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def _refuse_foreign(target: Path) -> None:
    with disk_errors(target):
        if not target.exists():
            return
        if not target.is_dir():
            raise UsageError("the target is a file", where=str(target), fix="Name a folder")
        if _content(target) and not (target / RECORD_NAME).exists():
            raise UsageError(
                "the target folder is not empty, and no pull made it",
                where=str(target),
                fix="Name a new folder; what is in a target is replaced as a whole",
            )


def _content(folder: Path) -> list[Path]:
    return [
        path
        for path in folder.iterdir()
        if not is_ours(path.name) and path.name not in _NOT_CONTENT
    ]


def _has_entries(folder: Path) -> bool:
    return folder.exists() and any(folder.iterdir())


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
