"""The small HTTP server beside the loop: /metrics, /readyz and /healthz."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from registry.metrics import Metrics
from registry.model import Json


@asynccontextmanager
async def serving(
    host: str, port: int, metrics: Metrics, state: Callable[[], Json]
) -> AsyncIterator[int]:
    """Serve for as long as the block runs; yields the port."""
    app = web.Application()

    async def show_metrics(_: web.Request) -> web.Response:
        body, content_type = metrics.exposition()
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def show_readiness(_: web.Request) -> web.Response:
        found = state()
        return web.json_response(found, status=503 if found.get("waitingFor") else 200)

    async def show_life(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    app.router.add_get("/metrics", show_metrics)
    app.router.add_get("/readyz", show_readiness)
    app.router.add_get("/healthz", show_life)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host or None, port).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
