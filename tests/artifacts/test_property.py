"""The law of a pin, against a store that anybody may write to at any moment."""

import asyncio
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artifacts import ArtifactError, PullOptions
from tests.artifacts.bucket import Bucket, Endpoint, new_bucket
from tests.artifacts.conftest import QUICK, Client, tree
from tests.fakes.s3faults import Faults, gets_object, serve_faults

PART = 1024
KEYS = ("m/a", "m/b/c", "m/new")
FAULTS: tuple[dict[str, Any], ...] = (
    {},
    {"truncate": 700, "times": 2},
    {"ignore_range": True},
    {"ignore_version": True},
    {"flip": True, "times": 1},
    {"status": 503, "code": "SlowDown", "times": 2},
    {"reset": True, "times": 2},
    {"short_length": 500, "times": 1},
)


@dataclass(frozen=True)
class Write:
    """One thing that somebody does to the bucket, before the pull's `moment`-th request."""

    moment: int
    key: str
    kind: str

    def apply(self, bucket: Bucket, versions: dict[str, str | None], original: bytes) -> None:
        match self.kind:
            case "overwrite":
                bucket.put(self.key, _content(f"{self.key} {self.moment}", len(original)))
            case "same bytes":
                bucket.put(self.key, original)
            case "shorter":
                bucket.put(self.key, original[: len(original) // 2])
            case "delete":
                bucket.delete(self.key)
            case _:
                bucket.delete(self.key, versions.get(self.key))


KINDS = ("overwrite", "same bytes", "shorter", "delete", "destroy")
writes = st.lists(
    st.builds(Write, st.integers(0, 8), st.sampled_from(KEYS), st.sampled_from(KINDS)), max_size=5
)


def _content(seed: str, size: int) -> bytes:
    return hashlib.shake_128(seed.encode()).digest(size)


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    versioned=st.booleans(),
    sizes=st.tuples(st.integers(0, 4 * PART), st.integers(1, 2 * PART)),
    interleaved=writes,
    fault=st.sampled_from(FAULTS),
    seed=st.integers(0, 1000),
)
def test_a_pull_yields_the_locked_bytes_or_fails(
    s3: Endpoint,
    writer: Any,
    versioned: bool,
    sizes: tuple[int, int],
    interleaved: list[Write],
    fault: dict[str, Any],
    seed: int,
) -> None:
    """Whatever is overwritten, deleted, uploaded again or broken in between: never a mixture."""
    original = {key: _content(key, size) for key, size in zip(KEYS[:2], sizes, strict=True)}
    with TemporaryDirectory() as folder, new_bucket(writer, s3, versioned=versioned) as bucket:
        asyncio.run(
            _pull_while_written(s3, bucket, original, interleaved, fault, seed, Path(folder))
        )


async def _pull_while_written(
    s3: Endpoint,
    bucket: Bucket,
    original: dict[str, bytes],
    interleaved: list[Write],
    fault: dict[str, Any],
    seed: int,
    folder: Path,
) -> None:
    versions = {key: bucket.put(key, data) for key, data in original.items()}
    async with serve_faults(s3.url, s3.keys) as proxy:
        options = PullOptions(parallel=3, part_bytes=PART, backoff=QUICK)
        client = Client(replace(s3.connection, endpoint_url=proxy.url), options)
        client.rng = Random(seed)
        manifest = await client.lock(bucket.uri("m/"))
        _arm(proxy, bucket, versions, original, interleaved, fault)
        try:
            await client.pull_manifest(manifest, folder / "o")
        except ArtifactError:
            assert not (folder / "o").exists()
        else:
            expected = {key.removeprefix("m/"): data for key, data in original.items()}
            assert expected == tree(folder / "o")


def _arm(
    proxy: Faults,
    bucket: Bucket,
    versions: dict[str, str | None],
    original: dict[str, bytes],
    interleaved: list[Write],
    fault: dict[str, Any],
) -> None:
    vars(proxy).update(fault)
    waiting = sorted(interleaved, key=lambda write: write.moment)
    reached = 0

    def interfere(request: web.Request) -> None:
        nonlocal reached
        while waiting and waiting[0].moment <= reached:
            write = waiting.pop(0)
            write.apply(bucket, versions, original.get(write.key, b"new"))
        reached += gets_object(request)

    proxy.on_request = interfere
