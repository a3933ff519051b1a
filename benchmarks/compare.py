"""This checkout against another revision: `python -m benchmarks.compare REV`.

Both pickers run at once on the same core and are loaded in turn, so that what else the machine does
meets both alike.
"""

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks import load, messages, report, servers
from benchmarks.report import Row

ROUNDS = 8
ROOT = Path(__file__).parent.parent


def run(revision: str) -> list[Row]:
    """Return both costs of a stream, and their ratio."""
    body = messages.chat_body("model-42", 1024)
    request = messages.framed([messages.request_headers(), messages.request_body(body)])
    with ExitStack() as stack:
        other = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epp-compare-")))
        archive = subprocess.run(
            ["git", "archive", revision], cwd=ROOT, check=True, stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "-x", "-C", str(other)], input=archive.stdout, check=True)
        upstream = stack.enter_context(servers.module("upstream", "10", core=servers.CLIENT_CORE))
        manifests = stack.enter_context(servers.world(endpoints=tuple(upstream.ports.values())))
        pickers = {
            "here": stack.enter_context(servers.picker(manifests, cwd=ROOT)),
            revision: stack.enter_context(servers.picker(manifests, cwd=other)),
        }
        best = dict.fromkeys(pickers, float("inf"))
        for _ in range(ROUNDS):
            for name, picker in pickers.items():
                got = load.streams(picker, request, seconds=1)
                best[name] = min(best[name], got.cpu_us)
    rows = [Row(f"a stream, {name}", cost, "us CPU") for name, cost in best.items()]
    return [*rows, Row("here versus there", best["here"] / best[revision], "x")]


if __name__ == "__main__":
    compared = run(sys.argv[1])
    report.show("Against another revision", compared)
    report.keep("compare.local", compared)
