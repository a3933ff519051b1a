"""The command `init`: carry out the initializer's plan, and leave the digest for the picker."""

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

from artifacts.commands import Run, run_pull
from artifacts.errors import ArtifactError, UsageError
from artifacts.initializer import Plan, Step, clip, plan_initializer, termination_message
from artifacts.pull import PullOptions
from artifacts.source import read_reference


async def run_init(
    run: Run,
    arguments: list[str],
    options: PullOptions,
    *,
    floating: bool,
    delegate: str | None,
    termination_log: Path,
) -> None:
    """Fetch every pair; write the digests, or what went wrong, where Kubernetes looks for it."""
    try:
        plan = plan_initializer(arguments, run.environment)
        if plan.others and delegate is None:
            raise UsageError(
                "this scheme cannot be pinned here, and no other initializer is named for it",
                where=plan.others[0].source,
                fix="Use s3://, or set --delegate to KServe's own initializer",
            )
        digests = await _fetch(replace(run, connection=plan.connection), plan, options, floating)
        if delegate is not None:
            await _hand_over(plan.others, delegate)
    except ArtifactError as error:
        _leave(run, termination_log, f"{error.title}: {error}")
        raise
    if digests:
        _leave(run, termination_log, termination_message(digests))


async def _fetch(run: Run, plan: Plan, options: PullOptions, floating: bool) -> dict[str, str]:
    digests = {}
    for step in plan.steps:
        pin = read_reference(step.source, plan.parameters)
        pulled = await run_pull(run, pin, Path(step.target), options, floating=floating)
        digests[step.target] = pulled.manifest.digest
    return digests


async def _hand_over(steps: tuple[Step, ...], delegate: str) -> None:
    """Run another initializer for the pairs that are not ours, with its own output."""
    if not steps:
        return
    arguments = [word for step in steps for word in (step.source, step.target)]
    try:
        process = await asyncio.create_subprocess_exec(delegate, *arguments)
    except OSError as error:
        raise UsageError(
            f"the other initializer does not start: {error.strerror}", where=delegate
        ) from error
    status = await process.wait()
    if status != 0:
        raise ArtifactError(f"the other initializer ended with {status}", where=delegate)


def _leave(run: Run, path: Path, message: str) -> None:
    """Write the termination message; outside of Kubernetes there is nowhere to."""
    with contextlib.suppress(FileNotFoundError):
        try:
            with path.open("r+b") as file:
                file.truncate()
                file.write(clip(message))
        except (PermissionError, IsADirectoryError) as error:
            run.reporter.warning("the termination message cannot be written", str(path), str(error))
