"""Many intents, few questions; a dead or slow answer costs once."""

import asyncio
from collections import Counter

from registry.errors import RegistryUnavailable
from registry.model import Artifact, Condition, Intent, Policy, Serving, Version
from registry.resolve import Resolver


class Catalogue:
    """Counts what is asked; model `dead` fails after a while, model `slow` never answers."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    async def versions(self, model_id: str) -> list[Version]:
        self.asked[model_id] += 1
        if model_id == "slow":
            await asyncio.Event().wait()
        if model_id == "dead":
            await asyncio.sleep(0.1)
            raise RegistryUnavailable("no answer")
        return [Version(f"{model_id}0", "v", 1)]

    async def artifacts(self, version_id: str) -> list[Artifact]:
        self.asked[version_id] += 1
        return [Artifact("1", format_name="onnx", uri="s3://b/k")]


def intents(model_id: str, count: int) -> list[Intent]:
    return [Intent(f"{model_id}-{n}", "m", model_id, True) for n in range(count)]


async def test_each_model_and_version_is_asked_once() -> None:
    catalogue = Catalogue()
    resolver = Resolver(catalogue, Policy(), ttl_s=60.0, limit_s=5.0)
    for _ in range(2):
        found = await resolver.resolve([*intents("1", 50), *intents("2", 50)])
        assert all(isinstance(item, Serving) for item in found.values())

    assert catalogue.asked == {"1": 1, "2": 1, "10": 1, "20": 1}


async def test_a_failure_is_waited_for_once() -> None:
    """Even where it takes longer than answers are kept."""
    catalogue = Catalogue()
    resolver = Resolver(catalogue, Policy(), ttl_s=0.05, limit_s=5.0)
    found = await resolver.resolve(intents("dead", 50))

    assert {item.reason for item in found.values() if isinstance(item, Condition)} == {
        "RegistryUnavailable"
    }
    assert catalogue.asked["dead"] == 1


async def test_a_slow_answer_holds_up_only_who_needs_it() -> None:
    """The others are resolved, and all of it ends in time."""
    catalogue = Catalogue()
    resolver = Resolver(catalogue, Policy(), ttl_s=60.0, limit_s=0.2)
    found = await resolver.resolve([*intents("slow", 50), *intents("1", 50)])

    assert sum(isinstance(item, Serving) for item in found.values()) == 50
    assert catalogue.asked["slow"] == 1


async def test_an_answer_is_asked_for_again_when_it_is_old() -> None:
    catalogue = Catalogue()
    resolver = Resolver(catalogue, Policy(), ttl_s=0.0, limit_s=5.0)
    for _ in range(2):
        await resolver.resolve(intents("1", 1))

    assert catalogue.asked["1"] == 2
