"""The scraper against real HTTP servers on loopback."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import pytest
from aiohttp import web

from datastore.events import Deleted, Kind, Upserted
from datastore.model import Endpoint
from datastore.scrape import Scraper, ScrapeSettings
from datastore.store import Store
from tests.builders import a_pod, a_pool, a_store, named

PAGE = "vllm:num_requests_waiting 3\nvllm:num_requests_running 4\nvllm:kv_cache_usage_perc 0.5\n"


@dataclass
class FakeServer:
    """A model server that says `page` with `status`, after `delay_s`."""

    port: int = 0
    page: str | bytes = PAGE
    status: int = 200
    delay_s: float = 0.0
    paths: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer any GET."""
        self.paths.append(request.path)
        await asyncio.sleep(self.delay_s)
        body = self.page.encode() if isinstance(self.page, str) else self.page
        headers = {"location": "/elsewhere"} if self.status == 302 else None
        return web.Response(body=body, status=self.status, headers=headers)


@asynccontextmanager
async def a_server() -> AsyncIterator[FakeServer]:
    """Run a fake model server on a free port of loopback."""
    fake = FakeServer()
    app = web.Application()
    app.router.add_get("/{anything:.*}", fake.answer)
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.port = runner.addresses[0][1]
    try:
        yield fake
    finally:
        await runner.cleanup()


@asynccontextmanager
async def scraping(store: Store, **options: object) -> AsyncIterator[Scraper]:
    """Run a scraper of this store."""
    settings = ScrapeSettings(**{"interval_s": 0.02, "timeout_s": 5.0} | options)  # type: ignore[arg-type] # options are the settings' own fields
    scraper = Scraper(store, settings, rng=Random(1))
    task = asyncio.ensure_future(scraper.run())
    try:
        yield scraper
        assert not task.done()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def eventually(holds: Callable[[], bool], within_s: float = 10.0) -> None:
    """Wait until something holds; the limit is for a machine that is busy with other things."""
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.01)


def a_store_of(*ports: int) -> Store:
    """Return a store with one pod on loopback and these ports."""
    return a_store(a_pool().on(*ports), a_pod("p").at("127.0.0.1"))


def only_endpoint(store: Store) -> Endpoint:
    """Return the endpoint of the only pool."""
    view = store.pool(named("vllm"))
    assert view is not None
    (endpoint,) = view.endpoints
    return endpoint


async def test_the_load_is_what_the_endpoint_says() -> None:
    async with a_server() as server:
        store = a_store_of(server.port)
        load = only_endpoint(store).load
        async with scraping(store) as scraper:
            await eventually(lambda: load.scraped_at is not None)
            assert (load.waiting, load.running, load.kv_cache_utilization) == (3, 4, 0.5)
            assert scraper.latest(only_endpoint(store)) is not None

            server.page = "vllm:num_requests_waiting 9\n"
            await eventually(lambda: load.waiting == 9)
            assert (load.running, load.kv_cache_utilization) == (4, 0.5)
    assert set(server.paths) == {"/metrics"}


async def test_follows_endpoints_that_come_and_go() -> None:
    """No task, and no failure, of an endpoint outlives it."""
    async with a_server() as server:
        store = Store()
        async with scraping(store) as scraper:
            for turn in range(3):
                store.apply([Upserted(a_pool().on(server.port).value)])
                store.apply([Upserted(a_pod("p").at("127.0.0.1").with_uid(str(turn)).value)])
                load = only_endpoint(store).load
                scraper.notice()
                await eventually(lambda load=load: load.scraped_at is not None)  # type: ignore[misc] # a default argument has no type here

                store.apply([Deleted(Kind.BACKEND, named("p"))])
                scraper.notice()
                await eventually(lambda: scraper.endpoint_count == 0)
                assert load.scraped_at is None
            assert scraper.failing_count == 0
            await eventually(
                lambda: not any(t.get_name().startswith("scrape ") for t in asyncio.all_tasks())
            )


async def test_an_unchanged_endpoint_keeps_its_task_while_others_change() -> None:
    async with a_server() as server:
        store = a_store_of(server.port)
        async with scraping(store) as scraper:
            await eventually(lambda: scraper.scrape_count > 0)
            before = {t for t in asyncio.all_tasks() if t.get_name().startswith("scrape ")}
            store.apply([Upserted(a_pod("q").at("127.0.0.2").value)])
            scraper.notice()
            await eventually(lambda: scraper.endpoint_count == 2)

            assert before <= {t for t in asyncio.all_tasks() if not t.cancelling()}


@pytest.mark.parametrize("trouble", ["status", "redirect", "page", "slow", "gone"])
async def test_a_silent_endpoint_is_told_once_and_forgotten(
    trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Any kind of silence: one warning; past the limit the load is our own picks again."""
    caplog.set_level(logging.INFO, "datastore.scrape")
    async with a_server() as server:
        store = a_store_of(server.port)
        load = only_endpoint(store).load
        async with scraping(store, timeout_s=0.3, staleness_s=0.0) as scraper:
            await eventually(lambda: load.scraped_at is not None)
            if trouble == "slow":
                server.delay_s = 3.0
            elif trouble == "page":
                server.page = b"\xff\x00 nothing here"
            else:
                server.status = {"status": 500, "redirect": 302, "gone": 404}[trouble]
            await eventually(lambda: load.scraped_at is None)
            failures = scraper.failure_count
            await eventually(lambda: scraper.failure_count > failures + 1)
            assert scraper.failing_count == 1
            assert scraper.latest(only_endpoint(store)) is None

            server.delay_s, server.page, server.status = 0.0, PAGE, 200
            await eventually(lambda: load.scraped_at is not None)
            assert scraper.failing_count == 0
    levels = [r.levelno for r in caplog.records]
    assert levels == [logging.WARNING, logging.INFO]
    assert "/elsewhere" not in server.paths


async def test_nobody_listening_is_a_failure_and_not_a_crash() -> None:
    async with a_server() as server:
        port = server.port
    store = a_store_of(port)
    async with scraping(store) as scraper:
        await eventually(lambda: scraper.failure_count > 2)


async def test_a_huge_page_is_cut_and_still_read() -> None:
    async with a_server() as server:
        server.page = PAGE.encode() + b"# filler\n" * 1_000_000
        store = a_store_of(server.port)
        async with scraping(store):
            load = only_endpoint(store).load
            await eventually(lambda: load.scraped_at is not None)


async def test_an_endpoint_in_two_pools_is_asked_once() -> None:
    async with a_server() as server:
        store = a_store(
            a_pool("a").selecting(app="vllm").on(server.port),
            a_pool("b").selecting(app="vllm").on(server.port),
            a_pod("p").at("127.0.0.1"),
        )
        async with scraping(store) as scraper:
            await eventually(lambda: scraper.scrape_count > 0)
            assert scraper.endpoint_count == 1


async def test_the_metrics_port_may_be_another_where_there_is_one_port() -> None:
    async with a_server() as server:
        store = a_store_of(1)
        async with scraping(store, port=server.port, path="/internal/metrics"):
            load = only_endpoint(store).load
            await eventually(lambda: load.scraped_at is not None)
    assert set(server.paths) == {"/internal/metrics"}


async def test_no_more_questions_are_open_than_allowed() -> None:
    async with a_server() as server:
        server.delay_s = 0.05
        open_now, most = 0, 0

        async def count(request: web.Request) -> web.StreamResponse:
            nonlocal open_now, most
            open_now += 1
            most = max(most, open_now)
            try:
                return await FakeServer.answer(server, request)
            finally:
                open_now -= 1

        app = web.Application()
        app.router.add_get("/metrics", count)
        runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.1)
        await runner.setup()
        for _ in range(8):
            await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            store = a_store_of(*(address[1] for address in runner.addresses))
            async with scraping(store, concurrency=2) as scraper:
                await eventually(lambda: scraper.endpoint_count == 8)
                await eventually(lambda: scraper.scrape_count > 8)
        finally:
            await runner.cleanup()
        assert most == 2
