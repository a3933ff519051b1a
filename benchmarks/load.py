"""Load from independent clients: h2load for ext_proc streams, wrk for HTTP through Envoy."""

import json
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.servers import CLIENT_CORE, Child, pinned
from epp.extproc.codec import METHOD

TOOLS = {"h2load": "nghttp2-client", "wrk": "wrk"}
_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}


def missing() -> list[str]:
    """Return the packages of the programs that are not installed."""
    return [package for program, package in TOOLS.items() if shutil.which(program) is None]


@dataclass(frozen=True, slots=True)
class Streams:
    """What one run of h2load says, and what it cost the server."""

    count: int
    per_s: float
    cpu_us: float
    """CPU microseconds of the server per stream, without what it uses when nobody asks."""
    idle: float = 0.0
    """The share of a core that it uses when nobody asks: the scrapes of its endpoints."""

    @property
    def per_core_s(self) -> float:
        """Streams per second of a server that has a core for itself."""
        return (1 - self.idle) * 1e6 / self.cpu_us


def streams(
    server: Child,
    request: bytes,
    *,
    seconds: int = 3,
    clients: int = 4,
    at_once: int = 32,
    idle: float = 0.0,
) -> Streams:
    """Send the same ext_proc stream again and again, and return what that came to.

    A moment first to warm the server, which is not counted.
    """
    _h2load(server.port, request, 1, clients, at_once)
    before, begun = server.cpu_s(), time.monotonic()
    rate, count = _h2load(server.port, request, seconds, clients, at_once)
    background = idle * (time.monotonic() - begun)
    used = max(server.cpu_s() - before - background, 1e-6)
    return Streams(count, rate, used / count * 1e6, idle)


def idle_share(server: Child, seconds: float = 3.0) -> float:
    """Return the share of a core that a server uses when nobody asks."""
    before = server.cpu_s()
    time.sleep(seconds)
    return (server.cpu_s() - before) / seconds


def _h2load(
    port: int, request: bytes, seconds: int, clients: int, at_once: int
) -> tuple[float, int]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(request)
        file.flush()
        command = [
            *("h2load", "-t1", f"-c{clients}", f"-m{at_once}", f"-D{seconds}", "-d", file.name),
            *("-H", "content-type: application/grpc", "-H", "te: trailers"),
            f"http://127.0.0.1:{port}{METHOD}",
        ]
        said = _run(pinned(CLIENT_CORE, command))
    rate = re.search(r"finished in [\d.]+\w+, ([\d.]+) req/s", said)
    done = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored", said)
    assert rate is not None, said
    assert done is not None, said
    if int(done.group(3)):
        raise RuntimeError(f"streams failed:\n{said}")
    return float(rate.group(1)), int(done.group(1))


@dataclass(frozen=True, slots=True)
class Requests:
    """What one run of wrk says."""

    count: int
    per_s: float
    p50_s: float
    p99_s: float
    failed: int


def requests(port: int, body: bytes, *, seconds: int = 3, connections: int = 1) -> Requests:
    """POST the same body over so many connections, each waiting for its answer."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "body").write_bytes(body)
        script = Path(folder) / "post.lua"
        script.write_text(
            'wrk.method = "POST"\n'
            'wrk.headers["content-type"] = "application/json"\n'
            f'wrk.body = io.open({json.dumps(folder + "/body")}, "rb"):read("*a")\n'
        )
        command = [
            *("wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "--timeout", "30s"),
            *("-s", str(script), f"http://127.0.0.1:{port}/v1/chat/completions"),
        ]
        said = _run(pinned(CLIENT_CORE, command))
    total = re.search(r"(\d+) requests in", said)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", said)
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", said)
    socket = re.search(
        r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", said
    )
    assert total is not None, said
    assert rate is not None, said
    failed = sum(map(int, socket.groups())) if socket is not None else 0
    failed += int(bad.group(1)) if bad is not None else 0
    return Requests(
        int(total.group(1)), float(rate.group(1)), _quantile(said, 50), _quantile(said, 99), failed
    )


def _quantile(said: str, percent: int) -> float:
    found = re.search(rf"\b{percent}%\s+([\d.]+)(us|ms|s|m)\b", said)
    assert found is not None, said
    return float(found.group(1)) * _UNITS_S[found.group(2)]


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[3]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout
