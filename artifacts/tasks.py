"""Workers over one list of jobs, and the one error that is worth telling of those they raised."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from artifacts.errors import (
    ArtifactError,
    NotAllowed,
    PinGone,
    TryAgain,
    UsageError,
    VerificationFailed,
)

T = TypeVar("T")

_TOLD_FIRST = (VerificationFailed, PinGone, NotAllowed, UsageError, TryAgain)


async def run_workers(
    name: str, count: int, jobs: Iterable[T], do: Callable[[T], Awaitable[None]]
) -> None:
    """Do every job, `count` at once; the first error ends all of them."""
    waiting = iter(jobs)

    async def work() -> None:
        for job in waiting:
            await do(job)

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(work(), name=f"{name}-{number}")
    except* ArtifactError as errors:
        raise _worst(errors) from None


def _worst(group: BaseExceptionGroup[ArtifactError]) -> ArtifactError:
    """Return the error that says most: wrong bytes before gone ones, and those before a fault."""
    found = [
        _worst(error) if isinstance(error, BaseExceptionGroup) else error
        for error in group.exceptions
    ]
    return min(found, key=lambda error: _TOLD_FIRST.index(type(error)))
