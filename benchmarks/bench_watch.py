"""How fast a cluster becomes known, and what requests feel of it.

The API server of the tests runs in a process of its own.  "Request" is a round trip over a socket
to this process, which picks a pool's endpoints from the store and answers: what a request to the
picker has to wait for besides its own work.  Run alone with `python -m benchmarks.bench_watch`.
"""

import asyncio
import json
import resource
import socket
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import cast

import uvloop

from benchmarks.report import Row, at_most, show
from datastore.cluster import ClusterSource, Scope
from datastore.kube import KubeClient
from datastore.kube_auth import Where
from datastore.model import ObjectName
from datastore.reflect import Pace
from datastore.store import Changes, Store

MODELS, PODS, POOLS = 10_000, 2_000, 50


def run() -> list[Row]:
    """Return the figures of the watches."""
    return uvloop.run(measure(MODELS, PODS, POOLS))


async def measure(models: int, pods: int, pools: int) -> list[Row]:
    """Sync with a full server, then follow it at 200 and at 1 000 changes a second."""
    async with server(models, pods, pools) as process, picker(process) as (store, source, seen):
        with requests(store) as asking:
            quiet = await asking.during(3.0)
            before_mb = memory_mb()
            start = time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(source.run(), name="watches")
                syncing = tasks.create_task(asking.until(source.synced), name="requests")
                await source.synced.wait()
                synced_s = time.monotonic() - start
                sync = await syncing
                memory = memory_mb()
                assert store.model_count == models
                seen.clear()
                await order(process, rate=200, seconds=5)
                await asyncio.sleep(0.5)
                delays = sorted(seen)
                busy = tasks.create_task(asking.during(5.0), name="requests")
                await order(process, rate=1000, seconds=5)
                churn = await busy
                running.cancel()
    size = f"{models} models, {pods} pods, {pools} pools"
    return [
        at_most("first sync", synced_s, 10.0, "s", size),
        at_most("memory after it", memory, 150.0, "MB", f"RSS; {before_mb:.0f} MB before"),
        at_most("event to visible, p99", 1000 * part(delays, 99), 50.0, "ms", "200 changes/s"),
        Row("event to visible, p50", 1000 * part(delays, 50), "ms", note=f"{len(delays)} events"),
        Row("quiet request, p99", 1000 * part(quiet, 99), "ms", note=f"{len(quiet)} requests"),
        at_most("request during sync, p99", part(sync, 99) / part(quiet, 99), 2.0, "x quiet"),
        Row("request during sync, worst", 1000 * sync[-1], "ms", note=f"{len(sync)} requests"),
        at_most("request during churn, p99", part(churn, 99) / part(quiet, 99), 2.0, "x quiet"),
        Row("request during churn, worst", 1000 * churn[-1], "ms", note="1000 changes/s"),
    ]


@asynccontextmanager
async def server(models: int, pods: int, pools: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run an API server in a process of its own."""
    pipe = asyncio.subprocess.PIPE
    sizes = (str(models), str(pods), str(pools))
    command = (sys.executable, "-m", "benchmarks.clusterserver", *sizes)
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


async def order(process: asyncio.subprocess.Process, **what: float) -> int:
    """Let the server change something; return how much it changed."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(what).encode() + b"\n")
    return int(json.loads(await process.stdout.readline())["changed"])


@asynccontextmanager
async def picker(
    process: asyncio.subprocess.Process,
) -> AsyncIterator[tuple[Store, ClusterSource, list[float]]]:
    """Connect a store; the list takes the delay of each change that it shows."""
    assert process.stdout is not None
    where = json.loads(await process.stdout.readline())
    store = Store()
    seen: list[float] = []

    def note(changes: Changes) -> None:
        now = time.monotonic()
        for name in changes.models:
            model = store.model(name)
            if model is not None and model.targets[0].name.startswith("at-"):
                seen.append(now - float(model.targets[0].name[3:]))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config"
        path.write_text(kubeconfig(where["url"], where["token"]))
        async with await KubeClient.connect(Where(kubeconfig=path)) as client:
            source = ClusterSource(
                client,
                store,
                scope=Scope(("default",)),
                pace=Pace(),
                rng=Random(1),
                on_change=note,
            )
            yield store, source, seen


def kubeconfig(url: str, token: str) -> str:
    """Return a kubeconfig, which is YAML, which JSON is."""
    return json.dumps(
        {
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
    )


class Requests:
    """A client in a thread that asks over and over, and the answers' times."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._times: list[float] = []
        self._ask = threading.Event()
        self._stop = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with socket.create_connection(self._address) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while not self._stop:
                self._ask.wait(0.1)
                if not self._ask.is_set():
                    continue
                start = time.monotonic()
                connection.sendall(b"?")
                connection.recv(64)
                self._times.append(time.monotonic() - start)
                time.sleep(0.002)

    async def during(self, seconds: float) -> list[float]:
        """Ask for some seconds; return the times, sorted."""
        self._times.clear()
        self._ask.set()
        await asyncio.sleep(seconds)
        self._ask.clear()
        return sorted(self._times)

    async def until(self, event: asyncio.Event) -> list[float]:
        """Ask until something has happened."""
        self._times.clear()
        self._ask.set()
        await event.wait()
        self._ask.clear()
        return sorted(self._times)

    def close(self) -> None:
        """End the client."""
        self._stop = True
        self._thread.join(2)


class Answer(asyncio.Protocol):
    """Answers each byte with the number of a pool's endpoints."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pool = ObjectName("default", "pool-0")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Pick and answer."""
        view = self._store.pool(self._pool)
        count = len(view.endpoints) if view else 0
        self._transport.write(b"%d" % count)


@contextmanager
def requests(store: Store) -> Iterator[Requests]:
    """Answer on a socket of this loop, and ask from a thread."""
    loop = asyncio.get_running_loop()
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    task = loop.create_task(loop.create_server(lambda: Answer(store), sock=listener))
    asking = Requests(address)
    try:
        yield asking
    finally:
        asking.close()
        task.result().close()


def memory_mb() -> float:
    """Return the memory of this process: now, not at its highest."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def part(values: list[float], percent: int) -> float:
    """Return the value below which so many percent of the sorted values are."""
    return values[min(len(values) - 1, len(values) * percent // 100)]


if __name__ == "__main__":
    show("Watches", run())
