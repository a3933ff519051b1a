"""Run the benchmarks: `python -m benchmarks [NAME…]`; without a name, all of them.

Each prints a table with its targets, and writes benchmarks/results/NAME.json.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module

from benchmarks import load, report
from benchmarks.report import Row

PARTS: dict[str, str] = {
    "pipeline": "Our own code per request, without sockets",
    "body": "A body's growth, without sockets",
    "transport": "The http2 transport, without sockets",
    "artifacts": "Pull of a pinned model, beside the usual tools",
    "streams": "ext_proc streams on one core, under h2load",
    "envoy": "Through a real Envoy",
    "growth": "Growth of models, endpoints and bodies",
    "idle": "Ten thousand idle streams",
    "reload": "The tail while manifests change",
    "resets": "Memory over streams that end in RST_STREAM",
}
"""Name of benchmarks/bench_NAME.py, and the title of its table."""


def main(names: Sequence[str]) -> int:
    """Run them; 1 if a target was missed."""
    if lacking := load.missing():
        print(f"missing programs: apt-get install -y {' '.join(lacking)}", file=sys.stderr)
        return 2
    missed = 0
    for name in names or PARTS:
        part: Callable[[], list[Row]] = import_module(f"benchmarks.bench_{name}").run
        begun = time.monotonic()
        before = os.getloadavg()[0]
        rows = part()
        took = time.monotonic() - begun
        report.show(f"{PARTS[name]}  ({took:.0f} s, load average {before:.1f})", rows)
        report.keep(name, rows, load=before)
        missed += sum(row.reached is False for row in rows)
    print(f"{missed} targets missed" if missed else "every target reached")
    return 1 if missed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=[*PARTS, []], metavar="NAME", help="|".join(PARTS)
    )
    sys.exit(main(parser.parse_args().names))
