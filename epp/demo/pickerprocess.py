"""The picker as its users run it: `epp serve` in a process of its own, told everything by flags."""

import asyncio
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import aiohttp

from epp.demo.child import check_running, stop

START_TIMEOUT_S = 30.0
PROGRAM = (sys.executable, "-c", "from epp.cli import main; main()", "serve")
_SERVING = re.compile(
    r"grpc-port=(?P<grpc>\d+) grpc-health-port=(?P<health>\d+) metrics-port=(?P<metrics>\d+)"
)


class PickerProcess:
    """Runs `epp serve` until the `async with` ends; `flags` are given as `--name=value`.

    `port` is where its ext_proc service is.
    """

    def __init__(self, folder: Path, flags: Mapping[str, object]) -> None:
        self._folder = folder
        self._flags = dict(flags)
        self._process: asyncio.subprocess.Process | None = None
        self.port = 0
        self._admin_url = ""

    @property
    def metrics_url(self) -> str:
        """Where /metrics is."""
        return f"{self._admin_url}/metrics"

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
        ports = {"grpc-port": 0, "grpc-health-port": 0, "metrics-port": 0, "debug-port": 0}
        flags = {"host": "127.0.0.1", **ports, **self._flags}
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

    def terminate(self) -> None:
        """Ask it to stop; it finishes what it has begun."""
        assert self._process is not None
        self._process.terminate()

    async def metrics(self) -> str:
        """Return /metrics."""
        async with aiohttp.ClientSession() as session, session.get(self.metrics_url) as response:
            return await response.text()

    async def _wait_until_ready(self) -> None:
        assert self._process is not None
        async with aiohttp.ClientSession() as session:
            while not await self._is_ready(session):
                check_running(self._process, "epp serve", self.errors)
                await asyncio.sleep(0.02)

    async def _is_ready(self, session: aiohttp.ClientSession) -> bool:
        if not self._admin_url:
            said = _SERVING.search(self.errors)
            if said is None:
                return False
            self.port = int(said["grpc"])
            self._admin_url = f"http://127.0.0.1:{said['metrics']}"
        async with session.get(f"{self._admin_url}/readyz") as response:
            return response.status == 200
