"""A page's commands, run as a reader would: one after another, in one folder, for real.

What is not taken from the page stands here, and nowhere else:

- `Ports`: the ports in the text are those of a machine of one's own.  They are replaced by free
  ones in the text of commands and blocks, and in files that commands wrote; `epp serve` and
  `epp get`, whose text names no port, are told by their environment variables.
- `LASTING`: programs that stay in the foreground, for which a reader opens another terminal, and
  how it is seen that they are up.
- `BEFORE`: what a reader has done before, which another test does (`make demo`).
- Envoys beside one another need an id of their own (`--use-dynamic-base-id`).

A `text` block after a `sh` block is what the command comes to print; `…` stands for anything, and
a run of spaces for any other.
"""

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from random import SystemRandom
from types import TracebackType
from typing import Self

import aiohttp

from epp.demo.envoyprocess import envoy_path
from tests.docs.pages import ROOT, Block
from tests.docs.shell import lines_of

BEFORE = re.compile(r"(?:make demo|\. \.venv/bin/activate)\s*$")
LASTING = {
    r"python -m epp\.demo\.modelserver .*--port (\d+)": r"http://127.0.0.1:\1/health",
    r"epp serve\b": "http://127.0.0.1:9090/readyz",
    r"envoy -c\b": "http://127.0.0.1:19000/ready",
}
PATIENCE_S = 40.0
COMES_TO_PRINT_S = 40.0


def _free_ports(count: int) -> list[int]:
    """Return ports below those that systems give away: nobody else gets them before we use them."""
    found: list[int] = []
    for port in SystemRandom().sample(range(20_000, 32_000), 500):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == count:
            break
    return found


class Ports:
    """Free ports in the place of those in the text."""

    TEXT = (8000, 8001, 8081, 9002, 9003, 9090, 9091, 19000)

    def __init__(self) -> None:
        free = sorted(_free_ports(len(self.TEXT)))  # tables are sorted by port
        self._given = dict(zip(map(str, self.TEXT), free, strict=True))

    def replace(self, text: str) -> str:
        """Return the text with other ports."""
        return re.sub(r"\b\d{4,5}\b", lambda port: str(self._given.get(port[0], port[0])), text)

    @property
    def variables(self) -> dict[str, str]:
        """What tells the programs whose command lines name no port."""
        return {
            "EPP_HOST": "127.0.0.1",
            "EPP_GRPC_PORT": self.replace("9002"),
            "EPP_GRPC_HEALTH_PORT": self.replace("9003"),
            "EPP_METRICS_PORT": self.replace("9090"),
            "EPP_DEBUG_PORT": self.replace("9091"),
            "EPP_SERVER": self.replace("http://127.0.0.1:9091"),
        }


class Reader:
    """Somebody who does what the page says, in `folder`, until the `async with` ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = Ports()
        self._stack = AsyncExitStack()
        self._environment = {**os.environ, **self._ports.variables}  # noqa: TID251  # programs need a PATH
        self.said: list[str] = []

    async def __aenter__(self) -> Self:
        """Put the programs where a reader has them."""
        programs = self._folder / ".programs"
        programs.mkdir()
        for name, start in (
            ("python", sys.executable),
            ("epp", f"{sys.executable} -m epp"),
            ("envoy", f"{envoy_path()} --use-dynamic-base-id --concurrency 1 -l warning"),
        ):
            (programs / name).write_text(f'#!/bin/sh\nexec {start} "$@"\n')
            (programs / name).chmod(0o755)
        self._environment["PATH"] = f"{programs}:{self._environment['PATH']}"
        self._environment["PYTHONPATH"] = str(ROOT)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """End what is still running."""
        await self._stack.aclose()

    async def read(self, blocks: tuple[Block, ...]) -> None:
        """Write the files, run the commands, and compare with what the page says they print."""
        for at, block in enumerate(blocks):
            if block.file:
                self._write(block.file, block.text)
            if block.language != "sh":
                continue
            after = blocks[at + 1] if at + 1 < len(blocks) else None
            wanted = after.text.strip() if after and after.language == "text" else None
            await self._type(block, wanted)

    def _write(self, name: str, text: str) -> None:
        file = self._folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self._ports.replace(text))

    async def _type(self, block: Block, wanted: str | None) -> None:
        lines = [line for _, line in lines_of(block.text)] if wanted is None else [block.text]
        if "<<" in block.text:  # a here-document is one command
            lines = [block.text]
        for line in lines:
            line = self._ports.replace(line).strip()
            lasting = [(p, url) for p, url in LASTING.items() if re.match(p, line)]
            if BEFORE.match(line):
                continue
            if lasting:
                pattern, url = lasting[0]
                found = re.match(pattern, line)
                assert found is not None
                await self._keep_running(
                    line.removesuffix("&"), self._ports.replace(found.expand(url))
                )
            else:
                await self._until_it_prints(line, wanted)
            self._correct_written_files()

    def _correct_written_files(self) -> None:
        for file in self._folder.glob("*.yaml"):
            text = file.read_text()
            if (changed := self._ports.replace(text)) != text:
                file.write_text(changed)

    async def _keep_running(self, line: str, url: str) -> None:
        log = self._folder / f".log-{len(self.said)}"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                "bash", "-c", f"exec {line}",
                cwd=self._folder, env=self._environment, stdout=output, stderr=output,
            )  # fmt: skip
        self._stack.push_async_callback(_end, process)
        self.said.append(line)
        async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as session:
            while not await _is_up(session, url):
                assert process.returncode is None, f"{line}\n{log.read_text()}"
                await asyncio.sleep(0.05)

    async def _until_it_prints(self, line: str, wanted: str | None) -> None:
        """Run it, again until it prints what is wanted: a change takes its second."""
        pattern = None if wanted is None else _pattern(self._ports.replace(wanted))
        self.said.append(line)
        until = asyncio.get_running_loop().time() + COMES_TO_PRINT_S
        while True:
            status, out = await self._run(line)
            if status == 0 and (pattern is None or re.fullmatch(pattern, _narrow(out))):
                return
            late = asyncio.get_running_loop().time() > until
            assert not late, f"{line}\nstatus {status}\n{out}\nwanted: {pattern}"
            await asyncio.sleep(0.25)

    async def _run(self, line: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            "bash", "-eo", "pipefail", "-c", line,
            cwd=self._folder, env=self._environment,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        out, _ = await process.communicate()
        return process.returncode or 0, out.decode()


def _pattern(wanted: str) -> str:
    return re.escape(_narrow(wanted)).replace("…", ".*")


def _narrow(text: str) -> str:
    """Return text whose columns are as narrow as can be: other ports make other widths."""
    return re.sub(r" +", " ", re.sub(r" +$", "", text, flags=re.M)).strip()


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), 20)
    except TimeoutError:
        process.kill()
        await process.wait()


async def _is_up(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status < 400
    except aiohttp.ClientError:
        return False
