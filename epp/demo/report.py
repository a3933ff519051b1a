"""The demo's tables: what was asked, what was seen, and whether each promise held."""

from collections.abc import Sequence

from console import Column, Table, bad, format_seconds, good, say, show
from epp.demo.manifests import WEIGHTED, WEIGHTS
from epp.demo.stage import SERVERS, Stage
from epp.demo.traffic import Seen

SHOWN_PICKS = 8


def print_all(stage: Stage, seen: Seen) -> None:
    """Print every table."""
    for table in (
        _split(seen),
        _servers(stage, seen),
        _latency(seen),
        _refusals(seen),
        _picks(stage),
        _checks(seen),
    ):
        show(table)
        say()


def print_curl_lines(stage: Stage) -> None:
    """Print what a person can try while everything keeps running."""
    url = stage.envoy.url
    say(f"Envoy: {url}   manifests: {stage.manifests}   metrics: {stage.picker.metrics_url}")
    say()
    for body in (
        f'{{"model": "{WEIGHTED}", "messages": [{{"role": "user", "content": "hello"}}]}}',
        '{"model": "mistral", "stream": true, "messages": [{"role": "user", "content": "hello"}]}',
        '{"model": "gpt-9"}',
    ):
        say(f"curl -sN {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'")
    say(f"curl -s {url}/v1/models")
    say()
    say("Edit a manifest and ask again. Ctrl-C ends everything.")


def _split(seen: Seen) -> Table:
    numbers = ("weight", "asked", "observed", "requests")
    total, weights = seen.targets.total() or 1, sum(WEIGHTS.values())
    return Table(
        ("target", *(Column(name, right=True) for name in numbers)),
        [
            (
                name,
                weight,
                f"{weight / weights:.1%}",
                f"{seen.targets[name] / total:.1%}",
                seen.targets[name],
            )
            for name, weight in WEIGHTS.items()
        ],
        f"The split of {WEIGHTED}",
    )


def _servers(stage: Stage, seen: Seen) -> Table:
    rows = [
        (name, pool, stage.servers[name].authority, seen.servers[name]) for name, pool in SERVERS
    ]
    columns = ("model server", "pool", "endpoint", Column("requests", right=True))
    return Table(columns, rows, "Where requests went")


def _latency(seen: Seen) -> Table:
    rows: list[tuple[str | int, ...]] = [
        (what, *(format_seconds(percentile(times, p)) for p in (50, 99)), len(times))
        for what, times in (("without the picker", seen.direct_s), ("with it", seen.picked_s))
        if times
    ]
    if len(rows) == 2:
        added = [
            f"{(percentile(seen.picked_s, p) - percentile(seen.direct_s, p)) * 1000:+.2f} ms"
            for p in (50, 99)
        ]
        rows.append(("added", *added, len(seen.picked_s)))
    columns = (
        "the same Envoy",
        Column("p50", right=True),
        Column("p99", right=True),
        Column("requests", right=True),
    )
    return Table(columns, rows, "Latency, one request at a time")


def _refusals(seen: Seen) -> Table:
    rows = [
        (what, answer.status, answer.body.decode(errors="replace"))
        for what, answer in seen.refusals
    ]
    return Table(("asked for", Column("status", right=True), "body"), rows, "Refusals")


def _picks(stage: Stage) -> Table:
    """Return the last picks of each kind, as the picker's log tells them."""
    last: dict[tuple[str, str, str], tuple[str, ...]] = {}
    for line in stage.picker.requests():
        if line["reason"] == "picked":
            row = (line["model"], line["target"], line["pool"])
            server = stage.server_at(line["endpoint"])
            last[row] = (*row, server, line["choice"], f"{line['picker_ms']:.3f}")
    columns = ("model", "target", "pool", "picked", "why", Column("picker ms", right=True))
    rows = list(last.values())[-SHOWN_PICKS:]
    return Table(columns, rows, "What was picked and why, from the picker's log")


def _checks(seen: Seen) -> Table:
    rows = [
        (good("held") if check.held else bad("FAILED"), check.promise, check.detail)
        for check in seen.checks
    ]
    return Table(("", "promise", "seen"), rows, "What had to hold")


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that `percent` of the values do not exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * percent / 100))]
