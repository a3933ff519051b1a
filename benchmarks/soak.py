"""A long run at a steady rate: `python -m benchmarks.soak MINUTES [RATE]`.

Each stream ends in RST_STREAM, as Envoy ends them.  A line a period: memory, median, tail.
"""

import sys
from contextlib import ExitStack

from benchmarks import messages, openloop, report, servers
from benchmarks.report import Row

RATE = 2_000.0
PERIODS = 20


async def _soak(picker: servers.Child, minutes: float, rate: float) -> list[Row]:
    body = messages.chat_body("model-42", 1024)
    asked = [messages.request_headers(), messages.request_body(body)]
    client = await openloop.connect(picker.port, asked, reset=True)
    period_s = minutes * 60 / PERIODS
    rows: list[Row] = []
    for number in range(1, PERIODS + 1):
        got = await openloop.offer(client, rate, period_s)
        client.latencies.clear()
        p50, p99 = (openloop.quantile(got, share) * 1e3 for share in (0.5, 0.99))
        mib = picker.rss_kib() / 1024
        at = f"minute {number * period_s / 60:.1f}"
        print(f"{at}: {len(got):,} streams, RSS {mib:.1f} MiB, p50 {p50:.2f} ms, p99 {p99:.2f} ms")
        rows.append(Row(at, p99, "ms p99", note=f"RSS {mib:.1f} MiB, p50 {p50:.2f} ms"))
    if client.failed:
        raise RuntimeError(f"{client.failed} streams failed")
    return rows


def main() -> None:
    """Soak, and keep the figures."""
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    rate = float(sys.argv[2]) if len(sys.argv) > 2 else RATE
    with ExitStack() as stack:
        upstream = stack.enter_context(servers.module("upstream", "10", core=servers.CLIENT_CORE))
        manifests = stack.enter_context(servers.world(endpoints=tuple(upstream.ports.values())))
        picker = stack.enter_context(servers.picker(manifests))
        report.keep("soak", openloop.run(_soak(picker, minutes, rate)))


if __name__ == "__main__":
    main()
