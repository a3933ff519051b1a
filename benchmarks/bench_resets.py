"""Memory over streams that each end in RST_STREAM, as Envoy ends them."""

from contextlib import ExitStack

from benchmarks import messages, openloop, servers
from benchmarks.report import Row, at_most

SECONDS = 25.0
WARM_S = 5.0
RATE = 4_000


def run() -> list[Row]:
    """Return the drift that was seen, and what it would be over two million streams."""
    rows: list[Row] = []
    for transport in ("http2", "grpcio"):
        with ExitStack() as stack:
            upstream = stack.enter_context(servers.module("upstream", "10"))
            manifests = stack.enter_context(servers.world(endpoints=tuple(upstream.ports.values())))
            picker = stack.enter_context(servers.picker(manifests, transport=transport))
            rate = RATE if transport == "http2" else RATE // 10
            rows.append(openloop.run(_measure(picker, transport, rate)))
    return rows


async def _measure(picker: servers.Child, transport: str, rate: int) -> Row:
    body = messages.chat_body("model-42", 1024)
    asked = [messages.request_headers(), messages.request_body(body)]
    client = await openloop.connect(picker.port, asked, reset=True)
    await openloop.offer(client, rate, WARM_S)
    before = picker.rss_kib()
    seen = len(await openloop.offer(client, rate, SECONDS))
    grown = picker.rss_kib() - before
    note = f"{grown} KiB over {seen:,} streams; {grown / seen * 1024:.1f} B each"
    if transport == "http2":
        return at_most("http2: drift", grown / 1024, 2.0, "MiB", note)
    return Row("grpcio: drift", grown / 1024, "MiB", note=note)
