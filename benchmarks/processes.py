"""What a command used: time, CPU and memory of that process alone.

Linux counts the memory of whoever starts a process as that process's own until it has grown past
it, so the command is started by a small interpreter, and not by this one.
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_STARTER = """
import json, os, sys
pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=[
    (os.POSIX_SPAWN_DUP2, 2, 1)])
_, status, used = os.wait4(pid, 0)
cpu = used.ru_utime + used.ru_stime
print(json.dumps([os.waitstatus_to_exitcode(status), cpu, used.ru_maxrss / 1024]))
"""


@dataclass(frozen=True, slots=True)
class Usage:
    """What one process used."""

    exit_code: int
    seconds: float
    cpu_s: float
    rss_mb: float


def run_measured(command: Sequence[str], environment: Mapping[str, str]) -> Usage:
    """Run a command, its output on standard error, and return what it used."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _STARTER, *command],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    seconds = time.monotonic() - began
    code, cpu_s, rss_mb = json.loads(done.stdout)
    return Usage(code, seconds, cpu_s, rss_mb)
