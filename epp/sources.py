"""Where the store's contents come from: manifests on disk, or a cluster."""

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

from console import Mistake
from datastore.events import Event
from datastore.files import FileSource, ManifestsError
from epp.metrics import PickerMetrics
from epp.readiness import Readiness
from epp.settings import Settings

MANIFESTS = "the manifests"


class StartError(Exception):
    """The picker cannot start; `mistakes` say why, and what to do."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = tuple(mistakes)


class Source(Protocol):
    """What brings the store its contents."""

    async def start(self) -> None:
        """Bring what must be there before the first request.  Raises StartError."""

    def tasks(self) -> Sequence[tuple[str, Coroutine[Any, Any, None]]]:
        """Return what must run, for ever and each under its name, to keep the store current."""


class FromManifests:
    """A file or folder of manifests, right at the start; later, the last good state counts."""

    def __init__(
        self,
        settings: Settings,
        apply: Callable[[Sequence[Event]], object],
        readiness: Readiness,
        metrics: PickerMetrics,
    ) -> None:
        self._readiness = readiness
        self._files = FileSource(Path(settings.manifests), apply, namespace=settings.pool_namespace)
        metrics.read("epp_manifest_errors_total", lambda: self._files.failure_count)
        metrics.read("epp_manifests_broken", lambda: int(self._files.last_error is not None))
        readiness.lack(MANIFESTS)

    async def start(self) -> None:
        """Read the manifests.  Raises StartError with every mistake in them."""
        try:
            await self._files.load_once()
        except ManifestsError as error:
            raise StartError(
                [
                    Mistake(
                        finding.message,
                        f"{finding.file}:{finding.line} {finding.path}".rstrip(),
                        finding.fix,
                    )
                    for finding in error.findings
                ]
            ) from error
        self._readiness.meet(MANIFESTS)

    def tasks(self) -> Sequence[tuple[str, Coroutine[Any, Any, None]]]:
        """Return the watch of the files."""
        return [("manifests", self._files.run())]
