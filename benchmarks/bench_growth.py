"""How look-up, update and pick grow with what the cluster holds, and what large bodies do to small.

The last part has sockets: 16 MiB bodies arrive on one connection while another asks with 1 KiB.
"""

import asyncio
from contextlib import ExitStack
from random import Random

from benchmarks import bench_store, messages, openloop, servers, world
from benchmarks.bench_pipeline import measure_us
from benchmarks.report import Row, at_most
from epp.routing.request import UNBOUND, Request
from epp.routing.router import Policy, Router

LARGE = 15 * 1024 * 1024
LARGE_PER_S = 10
RATE = 200
SECONDS = 8.0


def run() -> list[Row]:
    """Return what grew, and by how much."""
    return _models() + _endpoints() + _bodies()


def _models() -> list[Row]:
    look_up = {figure["n"]: figure["value"] for figure in bench_store.look_up((10, 100_000))}
    update = {figure["n"]: figure["value"] for figure in bench_store.model_update((10, 100_000))}
    note = f"{look_up[10]:.2f} us -> {look_up[100_000]:.2f} us"
    return [
        at_most("look-up, 10 -> 100 000 models", look_up[100_000] / look_up[10], 4.0, note=note),
        at_most("update of one among 100 000 models", update[100_000], 20.0, "us"),
    ]


def _endpoints() -> list[Row]:
    cost: dict[int, float] = {}
    for count in (10, 1_000):
        store = world.store(endpoints=count)
        router = Router(Policy(), Random(7))
        request = Request({":method": b"POST"}, messages.chat_body("model-42", 1024))
        scope = router.scope(UNBOUND, store)
        cost[count] = measure_us(lambda: router.route(request, scope, store, 1.0), 50)  # noqa: B023
    note = f"{cost[10]:.1f} us -> {cost[1_000]:.1f} us"
    return [at_most("pick, 10 -> 1 000 endpoints", cost[1_000] / cost[10], 3.0, note=note)]


def _bodies() -> list[Row]:
    with ExitStack() as stack:
        upstream = stack.enter_context(servers.module("upstream", "10", core=servers.CLIENT_CORE))
        manifests = stack.enter_context(servers.world(endpoints=tuple(upstream.ports.values())))
        picker = stack.enter_context(servers.picker(manifests))
        alone, among, large = openloop.run(_measure(picker.port))
    p99 = openloop.quantile(among, 0.99) * 1e3
    note = (
        f"{openloop.quantile(alone, 0.99) * 1e3:.1f} ms without;"
        f" {large} bodies of 15 MiB in {SECONDS:g} s, renamed"
    )
    return [at_most(f"small requests' p99 beside {LARGE_PER_S} large/s", p99, 15.0, "ms", note)]


async def _measure(port: int) -> tuple[list[float], list[float], int]:
    body = messages.chat_body("model-42", 1024)
    small = [messages.request_headers(), messages.request_body(body)]
    whole = messages.chat_body("model-7", LARGE)
    pieces = [whole[at : at + 64 * 1024] for at in range(0, len(whole), 64 * 1024)]
    large = [
        messages.request_headers(),
        *(messages.request_body(piece, end=piece is pieces[-1]) for piece in pieces),
    ]
    client = await openloop.connect(port, small)
    heavy = await openloop.connect(port, large)
    await openloop.offer(client, RATE, 1.0)
    alone = await openloop.offer(client, RATE, SECONDS)
    sending = asyncio.ensure_future(_repeat(heavy))
    among = await openloop.offer(client, RATE, SECONDS)
    sending.cancel()
    return alone, among, len(heavy.latencies)


async def _repeat(heavy: openloop.Client) -> None:
    """Send large bodies at the rate asked for, one at a time where they take longer."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time()
        if not heavy.open_streams:
            heavy.ask(due)
            heavy.flush()
        await asyncio.sleep(max(0.0, due + 1 / LARGE_PER_S - loop.time()))
