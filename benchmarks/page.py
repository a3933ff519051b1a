"""Write docs/performance.md from the figures that were kept: `python -m benchmarks.page`.

No figure of that page's tables is typed by hand.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.__main__ import PARTS
from benchmarks.report import RESULTS

DOCS = Path(__file__).parent.parent / "docs"
_WIDTH, _BAR, _GAP, _LEFT = 720, 22, 10, 200
_VERDICTS = {True: "reached", False: "**missed**", None: ""}

_TOP = """# Performance

The figures below are the last that were kept in `benchmarks/results/`; each file there names the
machine and the command.  Ratios are taken within one run, with rounds of each server alternating.
The load average at the start of each part is told: above one, the machine was shared with other
work, and absolute times are worse than those of a quiet one.

![CPU time of one ext_proc stream](performance-streams.svg)
"""

_BOTTOM = """
## Where the time goes

A profile (`py-spy record --gil` on the picker under `h2load`) is flat: the largest function had
6 %.  What was heavy and no longer is:

- Protobuf objects for the request's headers.  The two messages that nearly every stream consists of
  are read by hand (`epp/extproc/wire.py`), and a header is searched for when it is asked for.
- Finding `"model"` twice in a large body.  Searching from both ends takes a third of the time.
- The access log's line.  Its thread holds the interpreter's lock, so its time is the loop's time.

`python -m benchmarks pipeline transport` prints the share of each part without sockets.

## Sizing

One picker uses one core.  CPU per request is told above (`streams`): divide a core by it, and plan
for a third of that, so that the tail stays short.  The autoscaling signal is
`epp_loop_lag_seconds`: scale out when its p99 is over 20 ms.  Both are
advice, not measurements.  An idle open stream costs what `idle` says; a request body is held until
its model is known, at most `--max-request-body-bytes`.

## Reproduce

```sh
make bench                       # everything; BENCH="streams envoy" runs some
make bench-compare REV=main      # this tree against another revision, on the same core
make soak MINUTES=30             # 2 000 streams a second; memory and tail over time
python -m benchmarks.page        # write this page from the results
```

Servers run on one core, clients on another.  `h2load` and `wrk` are the clients where a rate is
measured; where a latency is told under load, streams are sent on a schedule, whatever the server
does
(`benchmarks/openloop.py`), so that a stall is not hidden by a client that waits.
"""


def main() -> None:
    """Write the page and its plot."""
    parts = [_TOP]
    for name, title in PARTS.items():
        file = RESULTS / f"{name}.json"
        if file.exists():
            parts.append(_section(title, json.loads(file.read_text())))
    (DOCS / "performance.md").write_text("\n".join(parts) + _BOTTOM)
    streams = json.loads((RESULTS / "streams.json").read_text())
    bars = [
        (row["what"].strip(), 1e6 / row["value"])
        for row in streams["rows"][1:5]
        if row["unit"] == "/s per core"
    ]
    (DOCS / "performance-streams.svg").write_text(_plot("CPU microseconds per stream", bars))


def _section(title: str, kept: dict[str, Any]) -> str:
    lines = [
        f"## {title}",
        "",
        f"{kept['taken']}, load average {kept.get('load', '?')}, on {kept['machine']['cpu']},"
        f" {kept['machine']['cores']} cores: `{kept['command']}`",
        "",
        "| what | figure | target | verdict | note |",
        "|---|---:|---|---|---|",
    ]
    for row in kept["rows"]:
        figure = f"{row['value']:,.4g} {row['unit']}"
        verdict = _VERDICTS[row["reached"]]
        cells = (row["what"].replace("|", "/"), figure, row["target"], verdict, row["note"])
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def _plot(title: str, bars: Sequence[tuple[str, float]]) -> str:
    """Return a bar chart as SVG."""
    most = max(value for _, value in bars)
    height = 40 + len(bars) * (_BAR + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}"'
        ' font-family="sans-serif" font-size="13" fill="#445">',
        f'<text x="8" y="20" font-weight="bold">{title}</text>',
    ]
    for number, (name, value) in enumerate(bars):
        top = 32 + number * (_BAR + _GAP)
        length = max(1.0, value / most * (_WIDTH - _LEFT - 70))
        parts += [
            f'<text x="8" y="{top + 16}">{name}</text>',
            f'<rect x="{_LEFT}" y="{top}" width="{length:.1f}" height="{_BAR}" fill="#4a7bb7"/>',
            f'<text x="{_LEFT + length + 6:.1f}" y="{top + 16}">{value:,.1f}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    main()
