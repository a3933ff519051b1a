"""A file that is still arriving: spans of it land in any order, and are hashed in the right one.

Everything here blocks, and is called in threads.  Bytes that come in order are hashed as they are
written; those that came too early are read back when their turn is there.
"""

import hashlib
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

from artifacts.disk import disk_errors
from artifacts.errors import VerificationFailed
from artifacts.manifest import Entry

_READ_BYTES = 1 << 20

Span = tuple[int, int]


@dataclass(slots=True, eq=False)
class Landing:
    """One file of a pull.  Written by the workers of that pull."""

    path: Path
    entry: Entry
    sha256: str | None = None
    """The digest of all of it, once it is finished."""
    _landed: list[Span] = field(default_factory=list)
    _descriptor: int = -1
    _hashed: int = 0
    _sha: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    _md5: "hashlib._Hash | None" = None
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def open(self) -> None:
        """Open the file, once, and give it its size."""
        with self._turn, disk_errors(self.path):
            if self._descriptor < 0:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._descriptor = os.open(self.path, flags, 0o644)
                os.ftruncate(self._descriptor, self.entry.size)
                self._start_hashing()

    def write(self, at: int, chunks: list[bytes]) -> None:
        """Put chunks at their place, and hash them where they come in order."""
        end = at
        with disk_errors(self.path):
            for chunk in chunks:
                view = memoryview(chunk)
                while view:
                    written = os.pwrite(self._descriptor, view, end)
                    view, end = view[written:], end + written
        with self._turn:
            if self._hashed == at:
                self._update(chunks)

    def land(self, span: Span) -> None:
        """Note that a span is complete, and hash as far as nothing is missing."""
        with self._turn, disk_errors(self.path):
            self._landed.append(span)
            for start, stop in sorted(self._landed):
                if start <= self._hashed < stop:
                    self._hash_to(stop)

    def restart(self) -> None:
        """Forget every span: another fetch will write all of the file."""
        with self._turn:
            self._landed.clear()
            self._start_hashing()

    def finish(self) -> None:
        """Compare the digests with the pin's; raise VerificationFailed where they differ."""
        assert self._hashed == self.entry.size
        self.sha256 = self._sha.hexdigest()
        _compare("sha256", self.entry.sha256, self.sha256, self.entry)
        if self._md5 is not None:
            _compare("md5", self.entry.md5, self._md5.hexdigest(), self.entry)

    def close(self) -> None:
        """Close the file; to be called when no thread can write to it any more."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _start_hashing(self) -> None:
        self._hashed = 0
        self._sha = hashlib.sha256()
        self._md5 = hashlib.md5(usedforsecurity=False) if self.entry.md5 else None

    def _hash_to(self, stop: int) -> None:
        while self._hashed < stop:
            block = os.pread(self._descriptor, min(_READ_BYTES, stop - self._hashed), self._hashed)
            if not block:
                raise VerificationFailed(
                    "the file shrank while it was written", where=str(self.path)
                )
            self._update([block])

    def _update(self, chunks: list[bytes]) -> None:
        for chunk in chunks:
            self._sha.update(chunk)
            if self._md5 is not None:
                self._md5.update(chunk)
            self._hashed += len(chunk)


def _compare(name: str, expected: str | None, found: str, entry: Entry) -> None:
    if expected is not None and expected != found:
        raise VerificationFailed(
            f"the bytes have {name} {found}, and the pin says {expected}",
            where=entry.key,
            fix="They were changed where they are kept, or on the way: do not use them",
        )


def hash_file(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    digest = hashlib.sha256()
    with disk_errors(path), path.open("rb", buffering=0) as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()
