"""Pull: exactly the bytes of a pin, or the old folder as it was."""

import asyncio
import errno
import hashlib
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from artifacts import (
    PinGone,
    TryAgain,
    UsageError,
    VerificationFailed,
    dump_lock,
    find_faults,
    read_record,
)
from artifacts.workspace import open_workspace
from tests.artifacts.bucket import Bucket
from tests.artifacts.conftest import SMALL_PARTS, Client, tree

BIG = bytes(range(256)) * 2048  # 512 KiB: eight parts


def upload_model(bucket: Bucket) -> dict[str, bytes]:
    files = {"big.bin": BIG, "a b/ü.txt": b"text", "empty": b"", "plus+%3F?.bin": b"odd"}
    for path, data in files.items():
        bucket.put(f"model/{path}", data)
    bucket.put("model2/other", b"not part of it")
    return files


async def test_a_lock_gives_the_same_bytes_after_everything_was_overwritten(
    bucket: Bucket, client: Client, tmp_path: Path
) -> None:
    """What was locked comes back, though every object has been overwritten or deleted since."""
    files = upload_model(bucket)
    lock = tmp_path / "m.lock.json"
    lock.write_bytes(dump_lock(await client.lock(bucket.uri("model/"))))
    for path in files:
        bucket.put(f"model/{path}", b"v2 " + files[path])
    bucket.delete("model/big.bin")
    bucket.put("model/added", b"new")

    pulled = await client.pull(str(lock), tmp_path / "out")

    assert files == tree(tmp_path / "out")
    assert pulled.manifest.digest == read_record(tmp_path / "out").digest
    assert find_faults(tmp_path / "out", pulled.manifest) == ()


async def test_one_object_is_pulled_under_its_own_name(
    bucket: Bucket, client: Client, tmp_path: Path
) -> None:
    """A pin of one object makes a folder with that object, and its digest is the object's."""
    version = bucket.put("deep/model.bin", BIG)
    bucket.put("deep/model.bin", b"other")

    pulled = await client.pull(
        f"{bucket.uri('deep/model.bin')}?versionId={version}", tmp_path / "o"
    )

    assert tree(tmp_path / "o") == {"model.bin": BIG}
    assert pulled.manifest.digest == f"sha256:{hashlib.sha256(BIG).hexdigest()}"


@pytest.mark.parametrize("identity", ["etag", "sha256", "md5"])
async def test_an_identity_other_than_a_version_pins_too(
    bucket: Bucket, client: Client, tmp_path: Path, identity: str
) -> None:
    """etag, sha256 and md5 each pin the latest version's bytes, and refuse any others."""
    bucket.put("m.bin", BIG)
    values = {
        "etag": bucket.etag("m.bin"),
        "sha256": hashlib.sha256(BIG).hexdigest(),
        "md5": hashlib.md5(BIG).hexdigest(),
    }
    pin = f"{bucket.uri('m.bin')}?{identity}={values[identity]}"
    await client.pull(pin, tmp_path / "o")
    bucket.put("m.bin", BIG[:-1] + b"!")

    with pytest.raises((VerificationFailed, PinGone)):
        await client.pull(pin, tmp_path / "o2")

    assert tree(tmp_path / "o") == {"m.bin": BIG}
    assert not (tmp_path / "o2").exists()


async def test_multipart_objects_are_pinned_by_their_odd_etag(
    bucket: Bucket, client: Client, tmp_path: Path
) -> None:
    """An etag that is no md5 (`…-2`) pins as well as any."""
    parts = [b"x" * (5 << 20), b"y" * 1000]
    bucket.put_parts("m.bin", parts)
    etag = bucket.etag("m.bin")

    await client.pull(f"{bucket.uri('m.bin')}?etag={etag}", tmp_path / "o")

    assert etag.endswith("-2")
    assert b"".join(parts) == (tmp_path / "o/m.bin").read_bytes()


async def test_a_directory_can_be_pinned_by_its_digest_alone(
    bucket: Bucket, client: Client, tmp_path: Path
) -> None:
    """`s3://bucket/prefix/?sha256=` accepts those bytes wherever they came from, and no others."""
    upload_model(bucket)
    digest = (await client.lock(bucket.uri("model/"))).digest.removeprefix("sha256:")
    pin = f"{bucket.uri('model/')}?sha256={digest}"
    bucket.put("model/big.bin", BIG)  # the same bytes, another version
    await client.pull(pin, tmp_path / "o")
    before = tree(tmp_path / "o")
    bucket.put("model/big.bin", b"others")

    with pytest.raises(VerificationFailed, match="the pin says"):
        await client.pull(pin, tmp_path / "o")

    assert before == tree(tmp_path / "o")


async def test_a_pull_is_idempotent_and_heals(
    bucket: Bucket, client: Client, tmp_path: Path
) -> None:
    """Again = nothing fetched; a file that was changed on disk is found out and replaced."""
    upload_model(bucket)
    manifest = await client.lock(bucket.uri("model/"))
    await client.pull_manifest(manifest, tmp_path / "o")
    again = await client.pull_manifest(manifest, tmp_path / "o")
    damaged = tmp_path / "o/big.bin"
    damaged.write_bytes(b"!" + BIG[1:])
    healed = await client.pull_manifest(manifest, tmp_path / "o")

    assert (again.already_there, again.fetched_bytes) == (True, 0)
    assert (healed.already_there, healed.fetched_bytes) == (False, manifest.size)
    assert damaged.read_bytes() == BIG


async def test_a_failed_verification_leaves_the_old_model(
    bucket: Bucket, client: Client, tmp_path: Path
) -> None:
    """Wrong bytes never reach the folder, and leave nothing beside it either."""
    version = bucket.put("m.bin", b"v1")
    await client.pull(f"{bucket.uri('m.bin')}?versionId={version}", tmp_path / "o")

    with pytest.raises(VerificationFailed, match="sha256"):
        await client.pull(f"{bucket.uri('m.bin')}?sha256={'0' * 64}", tmp_path / "o")

    assert tree(tmp_path / "o") == {"m.bin": b"v1"}
    assert os.listdir(tmp_path) == ["o"]


async def test_a_reader_sees_the_old_model_or_the_new_one(
    bucket: Bucket, client: Client, tmp_path: Path
) -> None:
    """While a pull switches between two models, the folder holds one of them at every moment."""
    pins = []
    for number in (1, 2):
        for name in ("a", "b"):
            bucket.put(f"m/{name}", b"%d" % number)
        pins.append(await client.lock(bucket.uri("m/")))
    await client.pull_manifest(pins[0], tmp_path / "o")
    seen: set[tuple[bytes, ...]] = set()
    stop = asyncio.Event()

    def read_all() -> None:
        while not stop.is_set():
            folder = os.open(tmp_path / "o", os.O_RDONLY | os.O_DIRECTORY)
            try:
                seen.add(tuple(_read_at(folder, name) for name in ("a", "b")))
            except FileNotFoundError:
                pass  # the folder that this descriptor means was removed: an old reader
            finally:
                os.close(folder)
            time.sleep(0.001)

    reader = asyncio.create_task(asyncio.to_thread(read_all))  # noqa: TID251  ends in this test
    for turn in range(5):
        await client.pull_manifest(pins[(turn + 1) % 2], tmp_path / "o")
    stop.set()
    await reader

    assert seen
    assert seen <= {(b"1", b"1"), (b"2", b"2")}


def _read_at(folder: int, name: str) -> bytes:
    file = os.open(name, os.O_RDONLY, dir_fd=folder)
    try:
        return os.read(file, 10)
    finally:
        os.close(file)


async def test_a_folder_that_no_pull_made_is_never_replaced(
    bucket: Bucket, client: Client, tmp_path: Path
) -> None:
    """A target with somebody's files in it is refused: they would be deleted."""
    version = bucket.put("m.bin", b"v1")
    (tmp_path / "thesis.tex").write_text("years of work")

    with pytest.raises(UsageError, match="not empty"):
        await client.pull(f"{bucket.uri('m.bin')}?versionId={version}", tmp_path)

    assert os.listdir(tmp_path) == ["thesis.tex"]


async def test_two_pulls_into_one_folder_do_not_meet(
    bucket: Bucket, client: Client, tmp_path: Path
) -> None:
    """The second is told to try again; the first is not disturbed."""
    upload_model(bucket)
    manifest = await client.lock(bucket.uri("model/"))

    results = await asyncio.gather(
        *(client.pull_manifest(manifest, tmp_path / "o") for _ in range(2)),
        return_exceptions=True,
    )

    refused = [result for result in results if isinstance(result, TryAgain)]
    assert len(refused) == 1
    assert find_faults(tmp_path / "o", manifest) == ()
    assert os.listdir(tmp_path) == ["o"]


async def test_a_floating_reference_is_pulled_only_when_allowed(
    bucket: Bucket, client: Client, tmp_path: Path
) -> None:
    """Nobody gets unpinned bytes without having said so."""
    bucket.put("m.bin", b"v1")

    with pytest.raises(UsageError, match="floats"):
        await client.pull(bucket.uri("m.bin"), tmp_path / "o")
    await client.pull(bucket.uri("m.bin"), tmp_path / "o", floating=True)

    assert tree(tmp_path / "o") == {"m.bin": b"v1"}


async def test_an_unversioned_bucket_is_pinned_by_etag_and_digest(
    plain_bucket: Bucket, client: Client, tmp_path: Path
) -> None:
    """A lock of a bucket without versions works, until an object of it is overwritten."""
    files = upload_model(plain_bucket)
    manifest = await client.lock(plain_bucket.uri("model/"))
    await client.pull_manifest(manifest, tmp_path / "one")
    plain_bucket.put("model/big.bin", BIG[:-1] + b"!")

    with pytest.raises((PinGone, VerificationFailed)):
        await client.pull_manifest(manifest, tmp_path / "two")

    assert files == tree(tmp_path / "one")
    assert not (tmp_path / "two").exists()


async def test_versions_that_came_later_do_not_hide_the_null_version(
    plain_bucket: Bucket, client: Client, tmp_path: Path
) -> None:
    """A lock made before versioning was turned on still finds its bytes under `null`."""
    plain_bucket.put("m/a", b"before")
    manifest = await client.lock(plain_bucket.uri("m/"))
    plain_bucket.set_versioning("Enabled")
    plain_bucket.put("m/a", b"after!")

    await client.pull_manifest(manifest, tmp_path / "o")

    assert tree(tmp_path / "o") == {"a": b"before"}


@pytest.mark.parametrize("how", ["deleted for good", "a delete marker's id", "never existed"])
async def test_a_pin_that_is_gone_is_told_from_one_to_try_again(
    bucket: Bucket, client: Client, tmp_path: Path, how: str
) -> None:
    """Whatever the server calls it, the answer is: gone, and no retry will help."""
    version = bucket.put("m.bin", b"v1")
    if how == "deleted for good":
        bucket.delete("m.bin", version)
    elif how == "a delete marker's id":
        version = bucket.delete("m.bin")
    else:
        version = "aW52YWxpZC12ZXJzaW9uLWlkLTAwMDAx"

    with pytest.raises(PinGone):
        await client.pull(f"{bucket.uri('m.bin')}?versionId={version}", tmp_path / "o")


async def test_a_hidden_object_is_still_there_under_its_version(
    bucket: Bucket, client: Client, tmp_path: Path
) -> None:
    """A delete marker hides a key, and not the version that a pin names."""
    version = bucket.put("m.bin", b"v1")
    bucket.delete("m.bin")

    await client.pull(f"{bucket.uri('m.bin')}?versionId={version}", tmp_path / "o")

    assert tree(tmp_path / "o") == {"m.bin": b"v1"}


async def test_a_locked_object_that_vanished_ends_the_whole_pull(
    bucket: Bucket, client: Client, tmp_path: Path
) -> None:
    """One object of many is gone: nothing is installed."""
    upload_model(bucket)
    manifest = await client.lock(bucket.uri("model/"))
    entry = manifest.entries[1]
    bucket.delete(entry.key, entry.version_id)

    with pytest.raises(PinGone):
        await client.pull_manifest(manifest, tmp_path / "o")

    assert os.listdir(tmp_path) == []


async def test_a_full_disk_is_told_before_anything_is_fetched(
    bucket: Bucket, client: Client, tmp_path: Path
) -> None:
    """A lock that cannot fit is refused, with how much is needed."""
    bucket.put("m/a", b"x")
    manifest = await client.lock(bucket.uri("m/"))
    huge = replace(manifest, entries=(replace(manifest.entries[0], size=1 << 60),))

    with pytest.raises(TryAgain, match="disk is full"):
        await client.pull_manifest(huge, tmp_path / "o")


async def test_a_symbolic_link_as_target_is_followed(
    bucket: Bucket, client: Client, tmp_path: Path
) -> None:
    """`current -> models/7` keeps pointing there; the folder behind it is what changes."""
    version = bucket.put("m.bin", b"v1")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    await client.pull(f"{bucket.uri('m.bin')}?versionId={version}", tmp_path / "link")

    assert (tmp_path / "link").is_symlink()
    assert tree(tmp_path / "real") == {"m.bin": b"v1"}


async def test_a_mount_point_is_filled_from_the_inside(
    bucket: Bucket, client: Client, tmp_path: Path
) -> None:
    """Where the target cannot be renamed over, its entries change after all are verified."""
    files = upload_model(bucket)
    manifest = await client.lock(bucket.uri("model/"))
    target = tmp_path / "volume"
    target.mkdir()
    for name in ("lost+found", "old"):
        (target / name).mkdir()
    workspace = open_workspace(tmp_path / "elsewhere", manifest)
    inside = replace(
        workspace,
        target=target,
        staging=target / workspace.staging.name,
        journal=target / workspace.journal.name,
        inside=True,
    )
    inside.begin()
    for path, data in files.items():
        file = inside.staging / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)

    inside.switch()

    assert files == tree(target)
    assert ["lost+found", *sorted({path.split("/")[0] for path in files})] == sorted(
        os.listdir(target), key=lambda name: (name != "lost+found", name)
    )


async def test_an_exhausted_disk_in_the_middle_can_be_resumed(
    bucket: Bucket, client: Client, tmp_path: Path
) -> None:
    """A write that fails for want of space is `try again`, and what landed is kept."""
    from artifacts.disk import translate

    for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        assert isinstance(translate(OSError(code, os.strerror(code)), tmp_path), TryAgain)
    assert SMALL_PARTS.backoff.attempts > 1
