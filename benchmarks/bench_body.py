"""How reading and renaming a body grow with its size."""

from benchmarks.bench_pipeline import measure_us
from benchmarks.messages import chat_body
from benchmarks.report import Row, at_least
from epp.routing.body import read_model

KIB = 1024


def run() -> list[Row]:
    """Return the cost of parsing, and of parsing and renaming, from 1 KB to 16 MB."""
    rows: list[Row] = []
    for size in (KIB, 64 * KIB, 1024 * KIB, 16 * 1024 * KIB):
        body = chat_body("model-42", size)
        times = max(1, min(2000, 20_000_000 // size))
        parse = measure_us(lambda body=body: read_model(body), times)  # type: ignore[misc]  # bound now
        rename = measure_us(
            lambda body=body: read_model(body).renamed("meta/Other"),  # type: ignore[misc]  # bound now
            times,
        )
        label = f"{size // KIB} KiB"
        if size >= 1024 * KIB:
            rows.append(at_least(f"parse, {label}", size / parse / 1000, 1.0, "GB/s"))
            rows.append(at_least(f"parse and rename, {label}", size / rename / 1000, 1.0, "GB/s"))
        else:
            rows.append(Row(f"parse, {label}", parse, "us"))
            rows.append(Row(f"parse and rename, {label}", rename, "us"))
    return rows
