"""When to ask again: exponential back-off with full jitter, and a limit."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from artifacts.errors import TryAgain

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often and how patiently to try.

    Full jitter (a draw between nothing and the ceiling) keeps a hundred pods that were refused
    together from coming back together.
    """

    attempts: int = 8
    base_s: float = 0.25
    ceiling_s: float = 20.0

    def delay_s(self, failures: int, rng: Random) -> float:
        """Return how long to wait after that many failures in a row (1, 2, …)."""
        return rng.uniform(0.0, min(self.ceiling_s, self.base_s * 2.0 ** min(failures, 30)))


async def retry(call: Callable[[], Awaitable[T]], backoff: Backoff, rng: Random) -> T:
    """Return what `call` returns; wait and call again while it raises TryAgain."""
    for failures in range(1, backoff.attempts):
        try:
            return await call()
        except TryAgain:
            await asyncio.sleep(backoff.delay_s(failures, rng))
    return await call()
