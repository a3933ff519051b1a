"""Programs that run beside us: how they end."""

import asyncio

STOP_TIMEOUT_S = 10.0


class ChildEnded(Exception):
    """A program that should run has ended; the message has what it said last."""


def check_running(process: asyncio.subprocess.Process, what: str, said: str) -> None:
    """Raise ChildEnded if the program is no longer there."""
    if process.returncode is not None:
        raise ChildEnded(f"{what} ended with status {process.returncode}:\n{said[-4000:]}")


async def stop(process: asyncio.subprocess.Process) -> None:
    """End a program, by force if it takes too long; also while we are being cancelled."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
