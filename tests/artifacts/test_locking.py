"""Lock: everything below a prefix, nothing beside it, and never a state that was not."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from artifacts import (
    Backoff,
    PinGone,
    PullOptions,
    TryAgain,
    UsageError,
    dump_lock,
    load_lock,
)
from tests.artifacts.bucket import Bucket, Endpoint
from tests.artifacts.conftest import Client, tree
from tests.fakes.s3faults import Faults

MANY = 2500


async def test_a_prefix_ends_where_a_name_ends(bucket: Bucket, client: Client) -> None:
    """`model/` has nothing of `model2/`, of `model` and of `xmodel/`."""
    for key in ("model/a", "model2/b", "model", "xmodel/model/c", "model/sub/d"):
        bucket.put(key, key.encode())

    manifest = await client.lock(bucket.uri("model/"))

    assert [entry.key for entry in manifest.entries] == ["model/a", "model/sub/d"]


async def test_a_bare_prefix_is_an_object_or_nothing(bucket: Bucket, client: Client) -> None:
    """`s3://bucket/model` is never a directory: without such an object it is gone."""
    bucket.put("model/a", b"x")

    with pytest.raises(PinGone, match=r"write s3://.*/model/"):
        await client.lock(bucket.uri("model"))


async def test_a_prefix_with_nothing_below_it_is_gone(bucket: Bucket, client: Client) -> None:
    """Zero objects are an error, and not an empty model."""
    bucket.put("model/a", b"x")
    bucket.delete("model/a")

    with pytest.raises(PinGone, match="no object below"):
        await client.lock(bucket.uri("model/"))


async def test_the_latest_versions_are_locked_and_empty_objects_kept(
    bucket: Bucket, client: Client, tmp_path: Path
) -> None:
    """Old versions and deleted keys are left out; an empty file and an empty folder are not."""
    bucket.put("m/a", b"old")
    latest = bucket.put("m/a", b"new")
    bucket.put("m/gone", b"x")
    bucket.delete("m/gone")
    bucket.put("m/__init__.py", b"")
    bucket.put("m/folder/", b"")

    manifest = await client.lock(bucket.uri("m/"))
    await client.pull_manifest(manifest, tmp_path / "o")

    assert [entry.key for entry in manifest.entries] == ["m/__init__.py", "m/a", "m/folder/"]
    assert latest == manifest.entries[1].version_id
    assert tree(tmp_path / "o") == {"a": b"new", "__init__.py": b""}
    assert (tmp_path / "o/folder").is_dir()


async def test_a_whole_bucket_can_be_locked(bucket: Bucket, client: Client) -> None:
    """`s3://bucket/` is everything in it."""
    bucket.put("a", b"1")
    bucket.put("b/c", b"2")

    manifest = await client.lock(bucket.uri())

    assert [entry.key for entry in manifest.entries] == ["a", "b/c"]


async def test_locking_twice_gives_the_same_lock(bucket: Bucket, client: Client) -> None:
    """A lock is a function of what is there: byte for byte the same, and it reads back."""
    for key in ("m/b", "m/a", "m/ü", "m/C/x"):
        bucket.put(key, key.encode())
    first = await client.lock(bucket.uri("m/"))
    second = await client.lock(bucket.uri("m/"))

    assert dump_lock(first) == dump_lock(second)
    assert first == load_lock(dump_lock(first), where="memory")


async def test_the_same_bytes_have_the_same_digest_anywhere(
    bucket: Bucket, plain_bucket: Bucket, client: Client, tmp_path: Path
) -> None:
    """Another bucket, another prefix, another upload, a local folder: one digest."""
    for path in ("a", "b/c"):
        bucket.put(f"m/{path}", path.encode())
        plain_bucket.put(f"deep/er/{path}", path.encode())
        (tmp_path / "m" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "m" / path).write_bytes(path.encode())

    references = [bucket.uri("m/"), plain_bucket.uri("deep/er/"), str(tmp_path / "m")]
    digests = {(await client.lock(reference)).digest for reference in references}

    assert len(digests) == 1


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("m/../../etc/passwd", "is . or .."),
        ("m/./a", "is . or .."),
        ("m//a", "absolute"),
        ("m/a//b", "empty component"),
        ("m/" + "x" * 256, "255 bytes"),
    ],
)
async def test_keys_that_would_leave_the_folder_are_refused(
    bucket: Bucket, client: Client, key: str, words: str
) -> None:
    """One key that cannot be a file below the target refuses the lock, by name."""
    bucket.put("m/good", b"x")
    bucket.put(key, b"x")

    with pytest.raises(UsageError, match=words):
        await client.lock(bucket.uri("m/"))


@pytest.mark.parametrize(
    "keys", [("m/Model.bin", "m/model.bin"), ("m/a", "m/a/b"), ("m/D/x", "m/d/y")]
)
async def test_keys_that_some_file_systems_take_for_one_are_refused(
    bucket: Bucket, client: Client, keys: tuple[str, str]
) -> None:
    """Two keys that cannot both be files everywhere refuse the lock, both named."""
    for key in keys:
        bucket.put(key, b"x")

    with pytest.raises(UsageError, match="would be one file"):
        await client.lock(bucket.uri("m/"))


@pytest.mark.parametrize("change", ["overwrite", "add", "delete", "same bytes again"])
async def test_a_change_underneath_is_detected(
    bucket: Bucket, s3: Endpoint, faults: Faults, change: str
) -> None:
    """Whoever writes while a lock is made gets it refused: that state never was."""
    bucket.put("m/a", b"1")
    bucket.put("m/b", b"2")
    done: list[str] = []

    def interfere(request: web.Request) -> None:
        if request.method == "GET" and request.path.endswith("/m/b") and not done:
            done.append(change)
            match change:
                case "overwrite":
                    bucket.put("m/a", b"3")
                case "add":
                    bucket.put("m/c", b"3")
                case "delete":
                    bucket.delete("m/a")
                case _:
                    bucket.put("m/a", b"1")

    faults.on_request = interfere
    watched = Client(replace(s3.connection, endpoint_url=faults.url))

    with pytest.raises(TryAgain, match="changed while it was being locked"):
        await watched.lock(bucket.uri("m/"))


@pytest.mark.timeout(180)
async def test_2500_objects_are_locked_and_pulled(
    bucket: Bucket, client: Client, tmp_path: Path
) -> None:
    """No page of a listing is left out: three pages of it, most objects of them empty."""
    expected = {f"{n % 50:02}/{n:05}": b"" if n % 10 else b"%d" % n for n in range(MANY)}
    await asyncio.to_thread(bucket.put_all, {f"m/{path}": expected[path] for path in expected})
    quick = Client(client.connection, PullOptions(parallel=8, backoff=Backoff()))

    manifest = await quick.lock(bucket.uri("m/"))
    await quick.pull_manifest(manifest, tmp_path / "o")

    assert len(manifest.entries) == MANY
    assert expected == tree(tmp_path / "o")
