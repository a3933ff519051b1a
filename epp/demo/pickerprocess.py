"""The picker as its users run it: `epp serve` in a process of its own, told everything by flags."""

import asyncio
import json
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import aiohttp

from epp.demo.child import check_running, stop

START_TIMEOUT_S = 30.0
PROGRAM = (sys.executable, "-c", "from epp.cli import main; main()", "serve")
PORTS = ("grpc-port", "grpc-health-port", "metrics-port")


class PickerProcess:
    """Runs `epp serve` until the `async with` ends; `flags` are given as `--name=value`."""

    def __init__(self, folder: Path, flags: Mapping[str, object]) -> None:
        self._folder = folder
        self._flags = dict(flags)
        self._process: asyncio.subprocess.Process | None = None
        self.ports: dict[str, int] = {}

    @property
    def port(self) -> int:
        """Where the ext_proc service is."""
        return self.ports["grpc-port"]

    @property
    def metrics_url(self) -> str:
        """Where /metrics is."""
        return f"http://127.0.0.1:{self.ports['metrics-port']}/metrics"

    @property
    def process_id(self) -> int:
        """The process."""
        assert self._process is not None
        return self._process.pid

    @property
    def errors(self) -> str:
        """What it wrote to standard error."""
        return (self._folder / "picker.err").read_text(errors="replace")

    def requests(self) -> list[dict[str, Any]]:
        """Return the lines of the access log so far, in order; one per request."""
        lines = (self._folder / "picker.out").read_text(errors="replace").split("\n")
        complete = (line for line in lines[:-1] if line.startswith("{"))
        parsed = (json.loads(line) for line in complete)
        return [line for line in parsed if "picker_ms" in line]

    async def __aenter__(self) -> Self:
        """Start, and wait until it says that it is ready."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self.ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        flags = {"host": "127.0.0.1", "debug-port": 0, **self.ports, **self._flags}
        arguments = [f"--{name}={value}" for name, value in flags.items()]
        out, err = self._folder / "picker.out", self._folder / "picker.err"
        with out.open("wb") as output, err.open("wb") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *PROGRAM, *arguments, stdout=output, stderr=errors
            )
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._wait_until_ready()
        except BaseException:
            await stop(self._process)
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Stop."""
        assert self._process is not None
        await stop(self._process)

    async def metrics(self) -> str:
        """Return /metrics."""
        async with aiohttp.ClientSession() as session, session.get(self.metrics_url) as response:
            return await response.text()

    async def _wait_until_ready(self) -> None:
        assert self._process is not None
        url = f"http://127.0.0.1:{self.ports['metrics-port']}/readyz"
        async with aiohttp.ClientSession() as session:
            while True:
                check_running(self._process, "epp serve", self.errors)
                try:
                    async with session.get(url) as response:
                        if response.status == 200:
                            return
                except aiohttp.ClientError:
                    pass  # it does not listen yet
                await asyncio.sleep(0.02)


def free_ports(count: int) -> list[int]:
    """Return ports that were free just now, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
