"""The picker's HTTP pages: metrics and health for the cluster, its state for whoever is inside.

Two listeners, so that the one with the state can stay on localhost.  Pages that can be long are
written in slices, or on a thread: a pick never waits for a page.
"""

import asyncio
import ipaddress
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web

from epp.metrics import PickerMetrics
from epp.state import Known, describe, take

_log = logging.getLogger(__name__)

_AUTH_TIMEOUT_S = 5.0
_AUTH_AT_ONCE = 4
_PAGES_AT_ONCE = 2
_SHUTDOWN_S = 1.0
_LOCALHOST = "127.0.0.1"

Allowed = Callable[[str], Awaitable[bool]]
"""Whether the bearer of this token may read /metrics."""


class Admin:
    """What the pages show.  `missing` names what readiness still waits for; none = ready."""

    def __init__(
        self,
        metrics: PickerMetrics,
        known: Known,
        *,
        missing: Callable[[], Sequence[str]],
        clock: Callable[[], float],
        allowed: Allowed | None = None,
    ) -> None:
        self._metrics = metrics
        self._known = known
        self._missing = missing
        self._clock = clock
        self._allowed = allowed
        self._asking = asyncio.Semaphore(_AUTH_AT_ONCE)
        self._rendering = asyncio.Semaphore(_PAGES_AT_ONCE)

    @asynccontextmanager
    async def serve(self, *, host: str, port: int) -> AsyncIterator[int]:
        """Serve metrics and health while the block runs, on the port that it gets; 0: any free."""
        public = web.Application()
        public.router.add_get("/metrics", self._show_metrics)
        public.router.add_get("/healthz", self._show_health)
        public.router.add_get("/readyz", self._show_readiness)
        async with _listening(public, host or None, port) as bound:
            yield bound

    @asynccontextmanager
    async def serve_debug(self, *, port: int) -> AsyncIterator[int]:
        """Serve the state on localhost while the block runs, on the port that it gets."""
        inner = web.Application()
        inner.router.add_get("/debug/state", self._show_state)
        async with _listening(inner, _LOCALHOST, port) as bound:
            yield bound

    async def _show_metrics(self, request: web.Request) -> web.Response:
        if self._allowed is not None:
            refused = await self._refusal(request, self._allowed)
            if refused is not None:
                return refused
        slices, content_type = self._metrics.page(request.headers.get("Accept", ""))
        page = bytearray()
        for text in slices:
            page += text
            await asyncio.sleep(0)  # picks go first
        return web.Response(body=page, headers={"Content-Type": content_type})

    async def _show_health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _show_readiness(self, _: web.Request) -> web.Response:
        missing = self._missing()
        if not missing:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="".join(f"waiting for {what}\n" for what in missing))

    async def _show_state(self, request: web.Request) -> web.Response:
        if not _is_localhost(request.host):
            # A web page that resolves its own name to 127.0.0.1 must not read this.
            return web.Response(status=403, text="ask for localhost\n")
        async with self._rendering:
            taken = take(self._known, self._clock())
            body = await asyncio.to_thread(lambda: msgspec.json.encode(describe(taken)))
        return web.Response(body=body, content_type="application/json")

    async def _refusal(self, request: web.Request, allowed: Allowed) -> web.Response | None:
        """Return what to answer a reader who may not read, or None."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            challenge = {"WWW-Authenticate": 'Bearer realm="metrics"'}
            return web.Response(status=401, headers=challenge, text="a bearer token is needed\n")
        try:
            async with asyncio.timeout(_AUTH_TIMEOUT_S), self._asking:
                may_read = await allowed(token.strip())
        except (TimeoutError, OSError) as error:
            # Whoever asks the cluster has turned its client's errors into these two.
            _log.warning("could not ask the cluster whether /metrics may be read: %s", error)
            return web.Response(status=503, text="the cluster could not be asked\n")
        if may_read:
            return None
        return web.Response(status=403, text="this token may not read /metrics\n")


@asynccontextmanager
async def _listening(app: web.Application, host: str | None, port: int) -> AsyncIterator[int]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_S)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


def _is_localhost(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.removeprefix("[").removesuffix("]")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
