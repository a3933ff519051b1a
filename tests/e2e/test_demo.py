"""`epp demo` as a person runs it: it proves its promises, and leaves nothing behind."""

import asyncio
import contextlib
import os
import re
import signal
import sys
import urllib.request
from pathlib import Path

import pytest

DEMO = (sys.executable, "-m", "epp", "demo")
NO_WHEEL = "import sys; sys.modules['envoy'] = None; from epp.cli import main; main(['demo'])"


async def run(*command: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


def processes_with(text: str) -> list[str]:
    """Return the command lines of the processes that mention a path of ours."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended
        if text in line:
            lines.append(line)
    return lines


@pytest.mark.timeout(180)
async def test_every_promise_of_the_demo_holds() -> None:
    status, out, err = await run(*DEMO)

    assert status == 0, out + err
    assert "FAILED" not in out
    assert out.count("held") >= 20
    for title in ("The split", "Where requests went", "Latency", "Refusals", "What was picked"):
        assert title in out


@pytest.mark.timeout(180)
async def test_kept_running_it_serves_until_it_is_interrupted() -> None:
    process = await asyncio.create_subprocess_exec(
        *DEMO, "--keep", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    folder, url = "", ""
    try:
        async for line in process.stdout:
            found = re.search(r"Envoy: (\S+) +manifests: (\S+)/manifests", line.decode())
            if found:
                url, folder = found[1], found[2]
            if b"Ctrl-C" in line:
                break
        models = await asyncio.to_thread(_get, f"{url}/v1/models")
        running = processes_with(folder)
    finally:
        process.send_signal(signal.SIGINT)
        await process.wait()

    assert "llama-chat" in models
    assert len(running) == 2  # the picker and Envoy
    assert process.returncode == 130
    assert processes_with(folder) == []
    assert not _exists(folder)


@pytest.mark.timeout(180)
async def test_interrupted_while_it_starts_it_leaves_nothing() -> None:
    for delay_s in (0.8, 2.0):
        process = await asyncio.create_subprocess_exec(
            *DEMO, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        await asyncio.sleep(delay_s)
        children = _children(process.pid)
        process.send_signal(signal.SIGTERM)
        await process.wait()
        assert [child for child in children if _exists(f"/proc/{child}")] == []


@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
async def test_a_closed_terminal_and_an_impatient_person_leave_nothing(number: int) -> None:
    """Whatever signal comes, once or again and again, all that was started is ended.

    A late one may find the program on its way out, and be what ends it.
    """
    process = await asyncio.create_subprocess_exec(
        *DEMO, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    children: list[int] = []
    try:
        async with asyncio.timeout(60):
            while not children:
                children = _children(process.pid)
                await asyncio.sleep(0.02)
        for _ in range(3):
            with contextlib.suppress(ProcessLookupError):  # it may have ended by the second
                process.send_signal(number)
            await asyncio.sleep(0.05)
        await process.wait()
        left = [child for child in children if _exists(f"/proc/{child}")]
    finally:
        if process.returncode is None:
            process.kill()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    assert left == []


async def test_without_the_wheel_it_says_what_to_install() -> None:
    status, _, err = await run(sys.executable, "-c", NO_WHEEL)

    assert status == 2
    assert "pip install 'inference-epp[demo]'" in err


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:
        return str(response.read().decode())


def _children(pid: int) -> list[int]:
    file = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in file.read_text().split()] if file.exists() else []


def _exists(path: str) -> bool:
    return Path(path).exists()
