"""A cache that many models share: files named by the sha256 of their bytes.

A hit is a hard link where the file system allows one, and a copy elsewhere; either way its bytes
are hashed again first, so a damaged cache costs a download and never serves other bytes.  Nothing
is evicted: a file with one link is in no model (`find CACHE/sha256 -links 1 -delete`).
"""

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from artifacts.disk import disk_errors
from artifacts.landing import hash_file


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder of files by digest; any number of processes may use it at once."""

    root: Path

    def take(self, sha256: str, size: int, target: Path) -> bool:
        """Put the file with that digest at `target`; return False where it is not cached."""
        blob = self._blob(sha256)
        try:
            if blob.stat().st_size != size:
                return self._drop(blob)
        except OSError:
            return False
        with disk_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                target.unlink()
            try:
                _place(blob, target)
            except FileNotFoundError:
                return False  # somebody emptied the cache just now
        if hash_file(target) == sha256:
            return True
        target.unlink()
        return self._drop(blob)

    def put(self, sha256: str, file: Path) -> None:
        """Keep a verified file."""
        blob = self._blob(sha256)
        with disk_errors(blob):
            if blob.exists():
                return
            blob.parent.mkdir(parents=True, exist_ok=True)
            beside = blob.with_name(f"{blob.name}.{os.getpid()}.{id(file):x}")
            try:
                _place(file, beside)
                beside.chmod(0o444)  # a reader that writes into a model must not reach the others
                beside.replace(blob)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    beside.unlink()

    def _blob(self, sha256: str) -> Path:
        return self.root / "sha256" / sha256[:2] / sha256

    def _drop(self, blob: Path) -> bool:
        with contextlib.suppress(FileNotFoundError):
            blob.unlink()
        return False


def _place(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)
