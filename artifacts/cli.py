"""The program `epp-artifacts`: options in, one exit code out.

The only module of the package that reads the environment and makes the dice; what the commands do
is in `commands`, `inspection` and `init_command`.
"""

import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from artifacts.commands import Run, run_lock, run_pull, run_verify
from artifacts.errors import ArtifactError
from artifacts.init_command import run_init
from artifacts.inspection import run_diff, run_show
from artifacts.options import Log, LogOption, Settings, reaching_a_store
from artifacts.pull import PullOptions
from artifacts.report import Reporter
from artifacts.source import read_reference

_EXITS = (
    "Exit codes: 0 done, 2 usage, 3 verification failed, 4 pin gone, 5 not allowed,"
    " 6 try again later."
)

app = typer.Typer(
    name="epp-artifacts",
    help="Pin a model on S3 to its bytes, fetch exactly those, and prove it.",
    epilog=_EXITS,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Reference = Annotated[
    str,
    typer.Argument(
        help="s3://bucket/key?versionId=…, s3://bucket/prefix/, a path, or a .lock.json",
        show_default=False,
    ),
]
Floating = Annotated[
    bool,
    typer.Option(
        "--allow-floating",
        envvar="EPP_ARTIFACTS_ALLOW_FLOATING",
        help="Take whatever an unpinned reference means now, and say so",
    ),
]
CacheFolder = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        envvar="EPP_ARTIFACTS_CACHE",
        help="A folder of verified files that many models share",
        show_default=False,
    ),
]
Flush = Annotated[
    bool,
    typer.Option(
        "--flush", help="Have every byte on the disk before the switch: outlast a power cut"
    ),
]
NO_SETTINGS = Settings()


@app.command("lock", epilog=_EXITS)
@reaching_a_store
def _lock(
    reference: Reference,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The lock file to write; standard output without it"),
    ] = None,
    settings: Settings = NO_SETTINGS,
) -> None:
    """Resolve a reference once, hash every byte, and write down exactly what it was.

    A directory must end in /.  It is listed again at the end: exit 6 when it changed meanwhile.
    """
    _run(settings, lambda run: run_lock(run, reference, output))


@app.command("pull", epilog=_EXITS)
@reaching_a_store
def _pull(
    reference: Reference,
    folder: Annotated[Path, typer.Argument(help="The folder to fill", show_default=False)],
    cache: CacheFolder = None,
    allow_floating: Floating = False,
    flush: Flush = False,
    settings: Settings = NO_SETTINGS,
) -> None:
    """Make a folder hold exactly the bytes that a pin or a lock names.

    Built beside the folder, verified, and put in its place in one step: on any failure the old
    content stays.  A pull that was cut off resumes.  The folder's content is replaced as a whole.
    """
    options = PullOptions(settings.parallel, cache=cache, flush=flush)

    async def command(run: Run) -> None:
        patient = replace(options, backoff=run.backoff)
        await run_pull(run, read_reference(reference), folder, patient, floating=allow_floating)

    _run(settings, command)


@app.command("verify", epilog=_EXITS)
@reaching_a_store
def _verify(
    folder: Annotated[Path, typer.Argument(help="The folder to check", show_default=False)],
    lock: Annotated[
        str | None,
        typer.Argument(
            help="A lock file, or sha256:…; the lock that pull left in the folder without it",
            show_default=False,
        ),
    ] = None,
    settings: Settings = NO_SETTINGS,
) -> None:
    """Check that a folder holds exactly the bytes of its lock: none changed, missing or added."""
    _run(settings, lambda run: run_verify(run, folder, lock))


@app.command("diff", epilog=_EXITS)
@reaching_a_store
def _diff(
    before: Reference,
    after: Reference,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="End with 3 when anything differs")
    ] = False,
    settings: Settings = NO_SETTINGS,
) -> None:
    """Show every path on which two pins, locks, directories or folders differ."""
    _run(settings, lambda run: run_diff(run, before, after, fail=exit_code))


@app.command("show", epilog=_EXITS)
@reaching_a_store
def _show(reference: Reference, settings: Settings = NO_SETTINGS) -> None:
    """Show what a reference means now, its versions newest first, and which of them is pinned."""
    _run(settings, lambda run: run_show(run, reference))


@app.command("init", epilog=_EXITS)
def _init(
    pairs: Annotated[list[str], typer.Argument(metavar="SRC_URI DEST_PATH...", show_default=False)],
    cache: CacheFolder = None,
    allow_floating: Floating = False,
    flush: Flush = False,
    delegate: Annotated[
        str | None,
        typer.Option(
            envvar="EPP_ARTIFACTS_DELEGATE",
            help="The program to run for schemes that cannot be pinned here (hf://, gs://, …)",
            show_default=False,
        ),
    ] = None,
    termination_log: Annotated[
        Path, typer.Option(help="Where the digest goes, for the pod's status")
    ] = Path("/dev/termination-log"),
    parallel: Annotated[int, typer.Option(min=1, max=256, help="Requests at once")] = 8,
    attempts: Annotated[
        int, typer.Option(min=1, max=100, help="Tries in a row before giving up")
    ] = 8,
    log: LogOption = Log.TEXT,
) -> None:
    """Be KServe's storage initializer: fetch each SRC_URI, pinned, into its DEST_PATH.

    Reads STORAGE_CONFIG, STORAGE_OVERRIDE_CONFIG and AWS's variables as KServe sets them.
    """
    settings = Settings(parallel=parallel, attempts=attempts, log=log)
    options = PullOptions(parallel, cache=cache, flush=flush)

    async def command(run: Run) -> None:
        await run_init(
            run,
            pairs,
            replace(options, backoff=run.backoff),
            floating=allow_floating,
            delegate=delegate,
            termination_log=termination_log,
        )

    _run(settings, command)


def _run(settings: Settings, command: Callable[[Run], Awaitable[None]]) -> None:
    """Run one command on an event loop; end with the exit code of its error, if it has one."""
    reporter = Reporter(as_json=settings.log is Log.JSON)
    environment = dict(os.environ)  # noqa: TID251  a program's cli.py reads it, once
    run = Run(settings, environment, random.Random(), reporter)

    async def whole() -> None:
        await command(run)

    try:
        uvloop.run(whole())
    except ArtifactError as error:
        reporter.error(error)


def main() -> None:
    """Run the program."""
    app()
