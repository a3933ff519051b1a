"""Bytes from a store, in order and to the last one: asking again where the store broke off."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from random import Random

from artifacts.errors import TryAgain
from artifacts.pin import Pin
from artifacts.retry import Backoff
from artifacts.store import Store

BLOCK_BYTES = 1 << 20
"""How much is gathered before it is handed on: a thread switch for each is then small change."""

Take = Callable[[int, list[bytes]], None]
"""Take chunks that begin at an offset; called in a thread, in order, for one fetch."""


@dataclass(frozen=True, slots=True)
class Fetcher:
    """How to fetch: from where, how patiently, and in which threads the bytes are handled."""

    store: Store
    backoff: Backoff
    rng: Random
    pool: Executor
    advance: Callable[[int], None] = field(default=lambda _bytes: None)

    async def fetch(self, pin: Pin, size: int, start: int, stop: int, take: Take) -> None:
        """Hand every byte of start…stop to `take`; resume after a fault at the byte it reached.

        A fault counts against the limit only when it follows another without a block between.
        """
        at, failures = start, 0
        while at < stop:
            reached = _Reached(at)
            try:
                await self._fetch_once(pin, size, reached, stop, take)
            except TryAgain:
                failures = 1 if reached.at - at >= BLOCK_BYTES else failures + 1
                at = reached.at
                if failures >= self.backoff.attempts:
                    raise
                await asyncio.sleep(self.backoff.delay_s(failures, self.rng))
            else:
                at = reached.at

    async def _fetch_once(
        self, pin: Pin, size: int, reached: "_Reached", stop: int, take: Take
    ) -> None:
        loop = asyncio.get_running_loop()
        async with self.store.read(pin, size, reached.at, stop) as chunks:
            block: list[bytes] = []
            gathered = 0
            try:
                async for chunk in chunks:
                    block.append(chunk)
                    gathered += len(chunk)
                    if gathered >= BLOCK_BYTES:
                        full, block = block, []
                        await loop.run_in_executor(self.pool, take, reached.at, full)
                        gathered = self._count(reached, gathered)
            finally:
                if block:
                    await loop.run_in_executor(self.pool, take, reached.at, block)
                    self._count(reached, gathered)
        if reached.at < stop:
            raise TryAgain(
                f"the store broke off after {reached.at} of {size} bytes",
                where=str(pin),
                fix="Run the same command again: it resumes",
            )

    def _count(self, reached: "_Reached", gathered: int) -> int:
        reached.at += gathered
        self.advance(gathered)
        return 0


@dataclass(slots=True)
class _Reached:
    """How far one fetch has come; written by it alone."""

    at: int
