"""The standalone source: a watched file or folder of manifests instead of a cluster.

What is on disk counts whole or not at all.  While any file in it is broken, the last good state of
all of them stays, so that half of an edit is never served.  A change is noticed by the kernel's
notification; a slow rescan is there for file systems that send none.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import watchfiles

from datastore.decode import Value
from datastore.events import Deleted, Event, Kind, Upserted
from datastore.folder import SUFFIXES, Folder, Signature
from datastore.model import Backend, InferenceModel, InferencePool, ObjectName
from datastore.reading import Finding, collect

log = logging.getLogger(__name__)

DEBOUNCE_MS = 200
"""How long the kernel's notifications are gathered: an editor's save is several of them."""

RESCAN_S = 5.0
"""How often the files are looked at in any case: network mounts may send no notification."""

FIRST_RESCAN_S = 0.2
"""How soon the first rescan is, each one being later: it finds what came before notifications."""

SETTLE_S = 0.1
"""How long files must have been left alone before a change of them counts.

A file that is written in place is empty, then a part of itself, and either may read well."""

SETTLE_ATTEMPTS = 20
"""How often they are looked at while somebody writes to them all the time."""

SOURCE = "manifests"

Place = tuple[Kind, str, ObjectName]
"""(kind, source, name): where the store keeps an object."""


class ManifestsError(Exception):
    """The manifests cannot be served as they are; `findings` has every mistake."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings = tuple(findings)


@dataclass(frozen=True, slots=True)
class _Scan:
    """One reading of the files: what to apply if there are no errors."""

    signature: Signature
    errors: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    unread: dict[str, str]
    events: tuple[Event, ...]
    held: dict[Place, Value]


class FileSource:
    """Feeds `apply` from a file or a folder.

    `last_error` is what is wrong with the files now (None = they are what is served);
    `failure_count` and `load_count` only grow.  Written by its own task.
    """

    def __init__(
        self,
        path: Path,
        apply: Callable[[Sequence[Event]], object],
        *,
        namespace: str = "default",
        rescan_s: float = RESCAN_S,
        first_rescan_s: float = FIRST_RESCAN_S,
        debounce_ms: int = DEBOUNCE_MS,
    ) -> None:
        self.last_error: str | None = None
        self.failure_count = 0
        self.load_count = 0
        self._path = path
        self._apply = apply
        self._rescan_s = rescan_s
        self._first_rescan_s = first_rescan_s
        self._debounce_ms = debounce_ms
        self._folder = Folder(path, namespace)
        self._held: dict[Place, Value] = {}
        self._signature: Signature | None = None
        self._told_errors: set[str] = set()
        self._told_warnings: set[str] = set()
        self._told_unread: set[str] = set()
        self._changed = asyncio.Event()
        self._loading = asyncio.Lock()  # the folder's memory is for one thread at a time

    async def load_once(self) -> None:
        """Read everything and apply it as one batch; raises ManifestsError and changes nothing."""
        async with self._loading:
            try:
                scan = await asyncio.to_thread(self._scan)
            except OSError as error:
                raise self._gone(error) from error
            self._take(scan)

    async def load_settled(self) -> None:
        """Do the same once nobody is writing to the files any more."""
        async with self._loading:
            try:
                scan = await self._settled_scan()
            except OSError as error:
                raise self._gone(error) from error
            self._take(scan)

    async def _settled_scan(self) -> _Scan:
        """Read the files when they are as they were a while before; raises OSError."""
        for _ in range(SETTLE_ATTEMPTS):
            # Absent files are waited for too: a folder may be away only while it is replaced.
            before = await self._look()
            await asyncio.sleep(SETTLE_S)
            if before is not None and before == await self._look():
                scan = await asyncio.to_thread(self._scan)
                if scan.signature == before:
                    return scan
        return await asyncio.to_thread(self._scan)

    def _take(self, scan: _Scan) -> None:
        self._signature = scan.signature
        _tell_once(scan.warnings, self._told_warnings, logging.WARNING)
        for kind in scan.unread.keys() - self._told_unread:
            self._told_unread.add(kind)
            log.warning("manifests: %s is not read here (in %s)", kind, scan.unread[kind])
        if scan.errors:
            raise self._failed(scan.errors)
        self._held = scan.held
        if scan.events:
            self._apply(scan.events)
        self._succeeded()

    async def run(self) -> None:
        """Keep the store as the files are, for ever."""
        if self.load_count == 0:
            self._changed.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._notice(), name="manifests-notice")
            tasks.create_task(self._follow(), name="manifests-follow")

    async def _follow(self) -> None:
        """Load again whenever something was noticed, or a look at the files finds them changed."""
        wait_s = self._first_rescan_s
        while True:
            if await self._is_noticed(wait_s) or await self._is_different():
                # Whatever is wrong has been logged and counted; the last good state stays.
                with contextlib.suppress(ManifestsError):
                    await self.load_settled()
            wait_s = min(wait_s * 2, self._rescan_s)

    async def _is_noticed(self, wait_s: float) -> bool:
        try:
            async with asyncio.timeout(wait_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    async def _is_different(self) -> bool:
        return await self._look() != self._signature

    async def _look(self) -> Signature | None:
        """Return what changes when the files do; None where there is nothing."""
        try:
            return await asyncio.to_thread(self._folder.signature)
        except OSError:
            return None

    async def _notice(self) -> None:
        """Pass on the kernel's notifications; begin again when the folder is another one."""
        while True:
            try:
                watched = await asyncio.to_thread(self._inode)
                async for changes in watchfiles.awatch(
                    self._watched_folder(),
                    watch_filter=self._is_ours,
                    debounce=self._debounce_ms,
                    rust_timeout=max(1, int(self._rescan_s * 1000)),
                    yield_on_timeout=True,
                    recursive=False,
                ):
                    if changes:
                        self._changed.set()
                    if await asyncio.to_thread(self._inode) != watched:
                        break
            except OSError as error:
                log.debug("no notifications for %s: %s", self._path, error)
                await asyncio.sleep(self._rescan_s)
            self._changed.set()

    def _watched_folder(self) -> Path:
        # A file is watched through its folder: an editor puts a new file in its place.
        return self._path if self._path.is_dir() else self._path.parent

    def _inode(self) -> tuple[int, int]:
        stat = self._watched_folder().stat()
        return stat.st_dev, stat.st_ino

    def _is_ours(self, _change: watchfiles.Change, path: str) -> bool:
        name = Path(path).name
        return (
            name == self._path.name
            or name.endswith(SUFFIXES)
            or name.startswith("..")  # a mounted ConfigMap swaps the symlink `..data`
        )

    def _scan(self) -> _Scan:
        """Read the files and work out what is new; runs in a thread and changes nothing here."""
        signature, texts = self._folder.read()
        collected = collect(texts)
        held = {_place(value): value for value in collected.values()}
        return _Scan(
            signature,
            collected.errors,
            tuple(f for f in collected.findings if f.severity == "warning"),
            {kind: text.file for text in texts for kind in text.unread},
            tuple(_differences(self._held, held)),
            held,
        )

    def _gone(self, error: OSError) -> ManifestsError:
        self._signature = None
        return self._failed((self._missing(error),))

    def _missing(self, error: OSError) -> Finding:
        return Finding(
            str(self._path),
            0,
            "",
            f"cannot be read: {error.strerror or error}",
            "name a file or a folder of manifests that exists",
        )

    def _failed(self, findings: Sequence[Finding]) -> ManifestsError:
        self.failure_count += 1
        error = ManifestsError(findings)
        self.last_error = str(error)
        _tell_once(findings, self._told_errors, logging.ERROR)
        return error

    def _succeeded(self) -> None:
        self.load_count += 1
        if self.last_error is not None:
            log.info("%s is good again", self._path)
        self.last_error = None
        self._told_errors.clear()


def _tell_once(findings: Sequence[Finding], told: set[str], level: int) -> None:
    """Log each finding that was not there the last time, which is what `told` holds."""
    texts = dict.fromkeys(map(str, findings))
    for text in texts:
        if text not in told:
            log.log(level, "manifests: %s", text)
    told.clear()
    told.update(texts)


def _place(value: Value) -> Place:
    match value:
        case InferenceModel():
            return Kind.MODEL, SOURCE, value.name
        case InferencePool():
            # One name may exist in two API groups: they are two objects, said by two sources.
            return Kind.POOL, f"{SOURCE}/{value.group}", value.name
        case Backend():
            return Kind.BACKEND, SOURCE, value.name


def _differences(before: dict[Place, Value], after: dict[Place, Value]) -> Iterator[Event]:
    """Yield what leads from one state to the other."""
    for place in before.keys() - after.keys():
        kind, source, name = place
        yield Deleted(kind, name, source)
    for place, value in after.items():
        if before.get(place) != value:
            yield Upserted(value, place[1])
