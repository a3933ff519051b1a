"""A file, or a folder of files, read whole: every manifest in it as it stood at one moment.

Plain files only, in the order of their names; hidden names are left out, which is also what makes
the layout of a mounted ConfigMap work (`models.yaml -> ..data/models.yaml`).
"""

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from datastore.reading import Finding, Manifests, read_manifests

SUFFIXES = (".yaml", ".yml", ".json")

MAX_FILE_BYTES = 64 * 1024 * 1024
"""About three hundred thousand InferenceModels."""

ATTEMPTS = 5

Signature = tuple[tuple[str, int, int, int, int], ...]
"""(name, inode, size, mtime, ctime) of each file."""


@dataclass(slots=True)
class Folder:
    """Reads manifests, and remembers what each text meant.  Used by one thread at a time."""

    path: Path
    namespace: str = "default"
    lint: bool = False
    _memory: dict[str, tuple[bytes, Manifests]] = field(default_factory=dict)

    def signature(self) -> Signature:
        """Return what changes when the files do; raises OSError where there is nothing."""
        found = []
        for path in self.files():
            stat = path.stat()
            found.append((str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
        return tuple(found)

    def files(self) -> list[Path]:
        """Return the files that hold manifests, sorted; raises OSError where there is nothing."""
        if not self.path.is_dir():
            os.stat(self.path)
            return [self.path]
        return sorted(
            path
            for path in self.path.iterdir()
            if path.suffix in SUFFIXES and not path.name.startswith(".") and path.is_file()
        )

    def read(self) -> tuple[Signature, list[Manifests]]:
        """Read every file, all of the same moment; raises OSError where there is nothing."""
        signature = self.signature()
        for _ in range(ATTEMPTS):
            texts = [self._read_file(Path(name)) for name, *_ in signature]
            before, signature = signature, self.signature()
            if before == signature:
                break
        self._memory = {t.file: self._memory[t.file] for t in texts if t.file in self._memory}
        return signature, texts

    def _read_file(self, path: Path) -> Manifests:
        file = str(path).encode("utf-8", "backslashreplace").decode()  # fit for a log
        try:
            with path.open("rb") as stream:
                data = stream.read(MAX_FILE_BYTES + 1)
            if len(data) > MAX_FILE_BYTES:
                return _unreadable(file, f"is larger than {MAX_FILE_BYTES} bytes", "split it")
            digest = hashlib.blake2b(data, digest_size=32).digest()
            known = self._memory.get(file)
            if known is not None and known[0] == digest:
                return known[1]
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            return _unreadable(file, "is not UTF-8", "save it as UTF-8", line)
        except OSError as error:
            return _unreadable(file, f"cannot be read: {error.strerror}", "")
        manifests = read_manifests(file, text, self.namespace, lint=self.lint)
        self._memory[file] = (digest, manifests)
        return manifests


def _unreadable(file: str, message: str, fix: str, line: int = 1) -> Manifests:
    return Manifests(file, findings=(Finding(file, line, "", message, fix),))
