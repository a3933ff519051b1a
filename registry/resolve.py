"""Many intents, few questions: each model's versions and each version's artifacts asked once.

What was answered, an error included, holds for `ttl_s`: five hundred intents of one model cost one
GET, and five hundred intents behind a dead registry cost one timeout.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from registry.chain import REGISTRY_SILENT
from registry.choice import choose_artifact, choose_version
from registry.errors import RegistryError, RegistryUnavailable
from registry.model import Artifact, Condition, Desired, Intent, Policy, Serving, Version

T = TypeVar("T")

CONCURRENCY = 16


class Catalogue(Protocol):
    """Where versions and artifacts are looked up."""

    async def versions(self, model_id: str) -> list[Version]:
        """Return every version of a registered model."""
        ...

    async def artifacts(self, version_id: str) -> list[Artifact]:
        """Return the model artifacts of a version."""
        ...


@dataclass(frozen=True, slots=True)
class _Limits:
    """What one look may ask for: so many things at once, and until then."""

    slots: asyncio.Semaphore
    until: float


class _Shelf:
    """Answers by key, each fetched by the first who asks."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], tuple[float, object]] = {}
        self.locks: dict[tuple[str, str], asyncio.Lock] = {}

    def sweep(self, before: float) -> None:
        """Forget what is older."""
        for key in [key for key, (at, _) in self.answers.items() if at < before]:
            del self.answers[key]
            self.locks.pop(key, None)


class Resolver:
    """Resolves intents against one registry."""

    def __init__(
        self, catalogue: Catalogue, policy: Policy, *, ttl_s: float, limit_s: float
    ) -> None:
        self._catalogue = catalogue
        self._policy = policy
        self._ttl_s = ttl_s
        self._limit_s = limit_s
        self._shelf = _Shelf()

    async def resolve(self, intents: Sequence[Intent]) -> dict[str, Serving | Condition]:
        """Return what each intent should serve, or why that is not known, within `limit_s`."""
        now = asyncio.get_running_loop().time()
        self._shelf.sweep(now - self._ttl_s)
        limits = _Limits(asyncio.Semaphore(CONCURRENCY), now + self._limit_s)
        found: dict[str, Serving | Condition] = {}

        async def resolve_one(intent: Intent) -> None:
            found[intent.id] = await self._resolve(intent, limits)

        async with asyncio.TaskGroup() as tasks:
            for intent in intents:
                tasks.create_task(resolve_one(intent), name=f"resolve {intent.id}")
        return found

    async def _resolve(self, intent: Intent, limits: _Limits) -> Serving | Condition:
        try:
            versions: list[Version] = []
            if not intent.version_id:
                versions = await self._once(
                    ("model", intent.model_id), self._catalogue.versions, limits
                )
            chosen = choose_version(intent, versions)
            if isinstance(chosen, Condition):
                return chosen
            artifacts = await self._once(("version", chosen), self._catalogue.artifacts, limits)
        except RegistryError as error:
            return Condition(REGISTRY_SILENT, f"{error.reason}: {error}")
        return choose_artifact(chosen, artifacts, self._policy)

    async def _once(
        self, key: tuple[str, str], ask: Callable[[str], Awaitable[list[T]]], limits: _Limits
    ) -> list[T]:
        async with self._shelf.locks.setdefault(key, asyncio.Lock()):
            now = asyncio.get_running_loop().time()
            at, answer = self._shelf.answers.get(key, (-1.0, None))
            if answer is None or now - at >= self._ttl_s:
                answer = await _ask(key, ask, limits)
                answered = asyncio.get_running_loop().time()
                self._shelf.answers[key] = (answered, answer)
        if isinstance(answer, RegistryError):
            raise answer
        assert isinstance(answer, list)
        return answer


async def _ask(
    key: tuple[str, str], ask: Callable[[str], Awaitable[list[T]]], limits: _Limits
) -> list[T] | RegistryError:
    try:
        async with asyncio.timeout_at(limits.until), limits.slots:
            return await ask(key[1])
    except RegistryError as error:
        return error
    except TimeoutError:
        return RegistryUnavailable(f"no time left to ask for {' '.join(key)}")


def desired_of(
    intents: Sequence[Intent], resolved: dict[str, Serving | Condition]
) -> list[Desired]:
    """Return the intents with what they resolved to."""
    return [Desired(intent, resolved.get(intent.id)) for intent in intents]
