"""How the API server writes a watch to its client, and how it can go wrong."""

import asyncio
from collections.abc import Callable

from aiohttp import web

from tests.fakes.kube_faults import Faults
from tests.fakes.kube_history import Watcher, line
from tests.fakes.kube_objects import Resource, StatusError, encode

INITIAL_END = "k8s.io/initial-events-end"
IN_FLIGHT_S = 0.5


def bookmark(resource: Resource, revision: int, *, initial_end: bool = False) -> bytes:
    """Return a bookmark: nothing has happened up to this revision that you have not been told."""
    metadata: dict[str, object] = {"resourceVersion": str(revision)}
    if initial_end:
        metadata["annotations"] = {INITIAL_END: "true"}
    obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
    return line("BOOKMARK", encode(obj))


def error_line(error: StatusError) -> bytes:
    """Return the line that ends a watch with a refusal inside the stream."""
    return line("ERROR", encode(error.status))


class WatchResponse:
    """One open watch, from its headers to its end."""

    def __init__(
        self,
        request: web.Request,
        resource: Resource,
        watcher: Watcher,
        faults: Faults,
        *,
        bookmark_every_s: float | None,
        delivered: dict[int, float],
        revision: Callable[[], int],
    ) -> None:
        self._request = request
        self._resource = resource
        self._watcher = watcher
        self._faults = faults
        self._bookmark_every_s = bookmark_every_s
        self._delivered = delivered
        self._revision = revision
        self._written: dict[int, float] = {}
        self._response = web.StreamResponse(headers={"Content-Type": "application/json"})

    async def serve(self, timeout_s: float) -> web.StreamResponse:
        """Write what happens until the time is over or the watch is ended."""
        try:
            return await self._serve(timeout_s)
        finally:
            self._take_back()

    def _take_back(self) -> None:
        """What was written just before the end may never have been read."""
        now = asyncio.get_running_loop().time()
        for revision, at in self._written.items():
            if now - at < IN_FLIGHT_S and self._delivered.get(revision) == at:
                del self._delivered[revision]

    async def _serve(self, timeout_s: float) -> web.StreamResponse:
        await self._response.prepare(self._request)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not self._watcher.ending:
            await self._flush()
            remaining_s = deadline - asyncio.get_running_loop().time()
            if remaining_s <= 0:
                break
            await self._wait(remaining_s)
        await self._finish()
        return self._response

    async def _wait(self, remaining_s: float) -> None:
        pause_s = min(remaining_s, self._bookmark_every_s or remaining_s)
        try:
            async with asyncio.timeout(pause_s):
                await self._watcher.wake.wait()
        except TimeoutError:
            if self._bookmark_every_s and not self._watcher.muted:
                await self._response.write(bookmark(self._resource, self._revision()))

    async def _flush(self) -> None:
        watcher = self._watcher
        watcher.wake.clear()
        if watcher.muted or not watcher.pending:
            return
        lines = self._faults.scramble(list(watcher.pending))
        watcher.pending.clear()
        await self._response.write(b"".join(line for _, line in lines))
        now = asyncio.get_running_loop().time()
        self._written = {r: at for r, at in self._written.items() if now - at < IN_FLIGHT_S}
        self._written.update({revision: now for revision, _ in lines if revision})
        self._delivered.update(self._written)

    async def _finish(self) -> None:
        match self._watcher.ending:
            case "cut":
                half = line("MODIFIED", b'{"metadata":{"name":"cut in the mi')
                await self._response.write(half[:-12])
                await self._abort()
            case "gone":
                error = StatusError(410, "Expired", "too old resource version: 1 (2)")
                await self._response.write(error_line(error))
            case "failed":
                lines = [line for _, line in self._watcher.pending]
                error = StatusError(500, "InternalError", "etcdserver: leader changed")
                await self._response.write(b"".join([*lines, error_line(error)]))
            case _:
                await self._flush()
                if self._bookmark_every_s and not self._watcher.muted:
                    await self._response.write(bookmark(self._resource, self._revision()))

    async def _abort(self) -> None:
        await asyncio.sleep(0)
        if self._request.transport is not None:
            self._request.transport.abort()
