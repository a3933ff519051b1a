"""The pick's tail while the manifests change, and the garbage collector's pauses."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import load, messages, openloop, servers
from benchmarks.report import Row, at_most

RATE = 3_000
"""Less where the machine, busy with other things, cannot give it: a third of what it can."""
SECONDS = 6.0
CHANGES_PER_S = 20
ROUNDS = 2
_ASKED = [messages.request_headers(), messages.request_body(messages.chat_body("model-42", 1024))]


def run() -> list[Row]:
    """Return the tails, quiet and not, and the longest pause."""
    with ExitStack() as stack:
        upstream = stack.enter_context(servers.module("upstream", "10", core=servers.CLIENT_CORE))
        manifests = stack.enter_context(servers.world(endpoints=tuple(upstream.ports.values())))
        pauses = manifests.parent / "pauses.json"
        with servers.picker(manifests, watch=pauses) as picker:
            rate = min(RATE, load.streams(picker, messages.framed(_ASKED), seconds=2).per_s / 3)
            quiet, busy = openloop.run(_measure(picker.port, manifests, rate))
        return _rows(rate, quiet, busy, json.loads(pauses.read_text()))


async def _measure(port: int, manifests: Path, rate: float) -> tuple[list[float], list[float]]:
    client = await openloop.connect(port, _ASKED)
    await openloop.offer(client, rate, 1.0)
    quiet: list[float] = []
    busy: list[float] = []
    for _ in range(ROUNDS):  # alternating: what else the machine does meets both
        quiet += await openloop.offer(client, rate, SECONDS)
        changing = asyncio.ensure_future(_change(manifests))
        busy += await openloop.offer(client, rate, SECONDS)
        changing.cancel()
    if client.failed:
        raise RuntimeError(f"{client.failed} streams failed")
    return sorted(quiet), sorted(busy)


async def _change(manifests: Path) -> None:
    """Rewrite one model's file, atomically, so and so many times a second."""
    number = 0
    text = json.dumps(servers.model(1_000, "target-{}"))
    while True:
        number += 1
        temporary = manifests / ".extra.tmp"
        temporary.write_text(text.replace("target-{}", f"target-{number}"))
        temporary.replace(manifests / "extra.json")
        await asyncio.sleep(1 / CHANGES_PER_S)


def _rows(
    rate: float, quiet: Sequence[float], busy: Sequence[float], pauses: Sequence[tuple[int, float]]
) -> list[Row]:
    tails = openloop.quantile(quiet, 0.999), openloop.quantile(busy, 0.999)
    longest = max((ms for _, ms in pauses), default=0.0)
    note = f"{len(pauses)} collections, {sum(g == 2 for g, _ in pauses)} of them full"
    return [
        Row(f"p50 at {rate:,.0f}/s", openloop.quantile(quiet, 0.5) * 1e3, "ms"),
        Row("p99.9, quiet", tails[0] * 1e3, "ms"),
        Row(f"p99.9, {CHANGES_PER_S} changes a second", tails[1] * 1e3, "ms"),
        at_most("p99.9, changing versus quiet", tails[1] / tails[0], 2.0),
        at_most("longest pause of the collector", longest, 2.0, "ms", note),
    ]
