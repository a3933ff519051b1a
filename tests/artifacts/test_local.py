"""Local sources and the cache: no S3 anywhere, the same promises."""

import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from artifacts import (
    Connection,
    PinGone,
    UsageError,
    VerificationFailed,
    dump_lock,
    find_faults,
)
from artifacts.cache import Cache
from tests.artifacts.conftest import SMALL_PARTS, Client, tree

FILES = {"a": b"x" * 300_000, "sub/b": b"text", "empty": b""}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Give a folder with a model in it."""
    folder = tmp_path / "model"
    for path, data in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


@pytest.fixture
def local() -> Client:
    """Give the API, with no server to talk to."""
    return Client(Connection())


@pytest.mark.parametrize("form", ["{}", "{}/", "file://{}/"])
async def test_a_folder_is_an_artifact(
    model: Path, local: Client, tmp_path: Path, form: str
) -> None:
    """A path, a folder with its slash and a file URI mean the same."""
    manifest = await local.lock(form.format(model))
    await local.pull_manifest(manifest, tmp_path / "o")

    assert tree(tmp_path / "o") == FILES
    assert str(manifest.source) == f"file://{model}/"


async def test_a_pulled_folder_is_the_same_artifact(
    model: Path, local: Client, tmp_path: Path
) -> None:
    """What a pull adds to a folder is not part of it: the copy of a copy has the same digest."""
    first = await local.lock(str(model))
    await local.pull_manifest(first, tmp_path / "o")

    assert first.digest == (await local.lock(str(tmp_path / "o"))).digest


async def test_a_changed_file_is_found_out(model: Path, local: Client, tmp_path: Path) -> None:
    """A lock of local files holds their digests: a file of the same size is refused as well."""
    lock = tmp_path / "m.lock.json"
    lock.write_bytes(dump_lock(await local.lock(str(model))))
    (model / "a").write_bytes(b"y" + FILES["a"][1:])

    with pytest.raises(VerificationFailed, match="sha256"):
        await local.pull(str(lock), tmp_path / "o")

    (model / "a").write_bytes(b"short")
    with pytest.raises(VerificationFailed, match="5 bytes"):
        await local.pull(str(lock), tmp_path / "o")


async def test_one_file_by_its_digest(model: Path, local: Client, tmp_path: Path) -> None:
    """`path?sha256=` pins a file; a lock is not needed."""
    digest = "ec2eb9ccc1ac6bbdd1b2ee5f6a51c5dbf4ee0a4ad8b4ee2a8bd4d1a0d2d5b8d1"
    with pytest.raises(VerificationFailed) as refused:
        await local.pull(f"{model}/sub/b?sha256={digest}", tmp_path / "o")
    found = str(refused.value).split("sha256 ")[1].split(",")[0]

    await local.pull(f"{model}/sub/b?sha256={found}", tmp_path / "o")

    assert tree(tmp_path / "o") == {"b": b"text"}


async def test_links_to_files_are_followed_and_to_folders_refused(
    model: Path, local: Client, tmp_path: Path
) -> None:
    """A model hub's cache is made of links to files; a link to a folder may have no end."""
    (model / "link").symlink_to("a")
    assert (await local.lock(str(model))).size == 2 * len(FILES["a"]) + 4

    (model / "loop").symlink_to(".")
    with pytest.raises(UsageError, match="symbolic link"):
        await local.lock(str(model))


async def test_what_is_no_file_is_refused(model: Path, local: Client) -> None:
    """A pipe in a model would hang every reader."""
    os.mkfifo(model / "pipe")

    with pytest.raises(UsageError, match="neither a file nor a folder"):
        await local.lock(str(model))


async def test_a_path_that_is_not_there(local: Client, tmp_path: Path) -> None:
    """Nothing at the path: the pin is gone."""
    for path in ("none", "none/"):
        with pytest.raises(PinGone):
            await local.lock(f"{tmp_path}/{path}")


async def test_models_share_files_through_the_cache(
    model: Path, local: Client, tmp_path: Path
) -> None:
    """A second pull of the same bytes, into another folder, fetches nothing and copies nothing."""
    cached = Client(Connection(), replace(SMALL_PARTS, cache=tmp_path / "cache"))
    manifest = await local.lock(str(model))
    first = await cached.pull_manifest(manifest, tmp_path / "one")
    second = await cached.pull_manifest(manifest, tmp_path / "two")

    assert (manifest.size, 0) == (first.fetched_bytes, first.cached_bytes)
    assert (0, manifest.size) == (second.fetched_bytes, second.cached_bytes)
    assert tree(tmp_path / "two") == FILES
    assert (tmp_path / "one/a").samefile(tmp_path / "two/a")
    assert not os.stat(tmp_path / "two/a").st_mode & 0o222


async def test_a_damaged_cache_costs_a_download(model: Path, local: Client, tmp_path: Path) -> None:
    """A file in the cache that is not its name's bytes is thrown away, never served."""
    cached = Client(Connection(), replace(SMALL_PARTS, cache=tmp_path / "cache"))
    manifest = await local.lock(str(model))
    await cached.pull_manifest(manifest, tmp_path / "one")
    for blob in (tmp_path / "cache").rglob("*"):
        if blob.is_file():
            data = blob.read_bytes()
            blob.unlink()
            blob.write_bytes(b"!" + data[1:])

    again = await cached.pull_manifest(manifest, tmp_path / "two")
    third = await cached.pull_manifest(manifest, tmp_path / "three")

    assert again.fetched_bytes == manifest.size
    assert third.cached_bytes == manifest.size
    assert find_faults(tmp_path / "two", manifest) == ()


async def test_a_resumed_pull_never_writes_into_the_cache(
    model: Path, local: Client, tmp_path: Path
) -> None:
    """A staged file that the cache shares is not opened for writing after a crash."""
    cached = Client(Connection(), replace(SMALL_PARTS, cache=tmp_path / "cache"))
    manifest = await local.lock(str(model))
    (model / "sub/b").write_bytes(b"TEXT")
    with pytest.raises(VerificationFailed):
        await cached.pull_manifest(manifest, tmp_path / "o")
    (model / "sub/b").write_bytes(b"text")
    await cached.pull_manifest(manifest, tmp_path / "o")
    digest = next(entry.sha256 for entry in manifest.entries if entry.size == 300_000)
    assert digest is not None

    assert Cache(tmp_path / "cache").take(digest, 300_000, tmp_path / "copy")
    assert tree(tmp_path / "o") == FILES


def test_a_disk_that_fills_up_is_told_and_resumed(model: Path, tmp_path: Path) -> None:
    """A write that the system refuses for its size ends in exit 6; with room, it goes on."""
    command = [sys.executable, "-c", "from artifacts.cli import main; main()"]
    lock = tmp_path / "m.lock.json"
    subprocess.run([*command, "lock", str(model), "-o", str(lock)], check=True, capture_output=True)

    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    pull = [*command, "pull", str(lock), str(tmp_path / "o")]
    full = subprocess.run(pull, capture_output=True, text=True, preexec_fn=little_room)
    after = subprocess.run(pull, capture_output=True, text=True)

    assert full.returncode == 6
    assert "the disk is full" in full.stderr
    assert after.returncode == 0
    assert tree(tmp_path / "o") == FILES
