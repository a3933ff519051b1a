"""Ten thousand open idle streams: what each holds, and what a pick among them costs."""

import asyncio
from contextlib import ExitStack

from benchmarks import messages, openloop, servers
from benchmarks.report import Row, at_most

STREAMS = 10_000
RATE = 200
SECONDS = 5.0


def run() -> list[Row]:
    """Return the memory and the ratio of the medians."""
    with ExitStack() as stack:
        upstream = stack.enter_context(servers.module("upstream", "10", core=servers.CLIENT_CORE))
        manifests = stack.enter_context(servers.world(endpoints=tuple(upstream.ports.values())))
        picker = stack.enter_context(
            servers.picker(manifests, transport="http2", first_message_timeout="300s")
        )
        return openloop.run(_measure(picker))


async def _measure(picker: servers.Child) -> list[Row]:
    body = messages.chat_body("model-42", 1024)
    asked = [messages.request_headers(), messages.request_body(body)]
    client = await openloop.connect(picker.port, asked)
    idle = await openloop.connect(picker.port, asked)
    await openloop.offer(client, RATE, 2.0)
    alone = await openloop.offer(client, RATE, SECONDS)
    before = picker.rss_kib()
    for number in range(STREAMS):
        idle.open_idle()
        if number % 100 == 0:
            idle.flush()
            await asyncio.sleep(0.005)
    idle.flush()
    await asyncio.sleep(1.0)
    held = servers.metric(picker, "epp_transport_open_streams")
    if held < STREAMS:
        raise RuntimeError(f"only {held:.0f} streams are open")
    each = (picker.rss_kib() - before) / STREAMS
    among = await openloop.offer(client, RATE, SECONDS)
    medians = openloop.quantile(alone, 0.5), openloop.quantile(among, 0.5)
    note = f"{medians[0] * 1e3:.3f} ms alone, {medians[1] * 1e3:.3f} ms among them"
    return [
        at_most(f"{STREAMS:,} idle streams, each", each, 10.0, "KB"),
        at_most("a pick among them, p50 versus alone", medians[1] / medians[0], 1.2, note=note),
    ]
