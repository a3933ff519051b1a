"""EDS files: each whole, written only when something changed, emptied when a pool is gone."""

import json
from pathlib import Path

from datastore.model import Endpoint, InferencePool, Load, ObjectName, PoolView, join_host_port
from epp.edsfile import EdsFolder, render, write_atomically

POOL = ObjectName("default", "llama")


def view(*addresses: str, pool: ObjectName = POOL) -> PoolView:
    endpoints = tuple(
        Endpoint(ObjectName(pool.namespace, a), a, a, 8000, join_host_port(a, 8000), Load())
        for a in addresses
    )
    return PoolView(InferencePool(pool, (), (8000,)), endpoints)


def members(path: Path) -> list[str]:
    (assignment,) = json.loads(path.read_text())["resources"]
    return [
        lb["endpoint"]["address"]["socket_address"]["address"]
        for locality in assignment.get("endpoints", ())
        for lb in locality["lb_endpoints"]
    ]


def test_the_members_are_the_views_endpoints(tmp_path: Path) -> None:
    assert EdsFolder(tmp_path).sync([view("10.0.0.1", "fd00::1")]) == 1

    assert members(tmp_path / "default_llama.json") == ["10.0.0.1", "fd00::1"]


def test_a_view_that_says_the_same_is_not_written_again(tmp_path: Path) -> None:
    """Envoy reloads on every rename; a rebuilt view with the same endpoints is no news."""
    folder = EdsFolder(tmp_path)
    folder.sync([view("10.0.0.1")])
    before = (tmp_path / "default_llama.json").stat().st_ino

    assert folder.sync([view("10.0.0.1")]) == 0
    assert (tmp_path / "default_llama.json").stat().st_ino == before


def test_a_pool_that_is_gone_keeps_its_file_without_members(tmp_path: Path) -> None:
    folder = EdsFolder(tmp_path)
    folder.sync([view("10.0.0.1")])

    assert folder.sync([]) == 1
    assert members(tmp_path / "default_llama.json") == []
    assert folder.sync([]) == 0
    assert folder.sync([view("10.0.0.1")]) == 1


def test_a_pool_that_went_while_the_picker_was_away_has_no_members(tmp_path: Path) -> None:
    """Envoy reads on what an earlier run has left; files of others are not touched."""
    gone, foreign = ObjectName("default", "gone.v1"), ("a_b.json", "no_json.json", "x.json")
    EdsFolder(tmp_path).sync([view("10.0.0.1"), view("10.0.0.2", pool=gone)])
    (tmp_path / "a_b.json").write_bytes(render(ObjectName("a", "c"), view("10.0.0.3").endpoints))
    (tmp_path / "no_json.json").write_text("[")
    (tmp_path / "x.json").write_text("{}")
    before = [(tmp_path / name).read_bytes() for name in foreign]

    assert EdsFolder(tmp_path).sync([view("10.0.0.1")]) == 1
    assert members(tmp_path / "default_gone.v1.json") == []
    assert members(tmp_path / "default_llama.json") == ["10.0.0.1"]
    assert [(tmp_path / name).read_bytes() for name in foreign] == before


def test_nothing_else_is_left_in_the_folder(tmp_path: Path) -> None:
    folder = EdsFolder(tmp_path / "new")
    folder.sync([view("10.0.0.1"), view("10.0.0.2", pool=ObjectName("other", "llama"))])

    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [
        "default_llama.json",
        "other_llama.json",
    ]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.mkdir()

    try:
        write_atomically(target, b"x")
    except OSError:
        left = [p.name for p in tmp_path.iterdir()]
    else:
        left = []

    assert left == ["file"]


def test_a_change_of_members_changes_the_version() -> None:
    one, two = view("10.0.0.1"), view("10.0.0.1", "10.0.0.2")

    versions = {json.loads(render(POOL, v.endpoints))["version_info"] for v in (one, two)}

    assert len(versions) == 2
