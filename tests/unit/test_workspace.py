"""Where a pull builds: what it takes for its own, and what it never touches."""

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from artifacts import Entry, Location, build_manifest
from artifacts.disk import exchange, mount_points
from artifacts.workspace import open_workspace, read_journal

MANIFEST = build_manifest(Location("s3", "b", "m/"), [Entry("m/a", 1, sha256="a" * 64)])


def test_only_leftovers_of_the_same_target_are_removed(tmp_path: Path) -> None:
    """An older pull's staging goes; that of `o.x`, a target beside `o`, is somebody else's."""
    old = tmp_path / ".epp-artifacts-o.0123456789abcdef.partial"
    other = tmp_path / ".epp-artifacts-o.x.0123456789abcdef.partial"
    lock = tmp_path / ".epp-artifacts-o.lock"
    for folder in (old, other, lock):
        folder.mkdir()
    workspace = open_workspace(tmp_path / "o", MANIFEST)

    workspace.begin()
    workspace.end()

    assert [old.exists(), other.exists(), lock.exists()] == [False, True, True]


@given(st.binary(max_size=200))
def test_a_journal_of_anything_is_read(data: bytes) -> None:
    """A damaged journal costs a download: it never raises, and never promises an empty span."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        for spans in read_journal(Path(file.name)).values():
            assert all(start < stop for start, stop in spans)


def test_a_line_that_a_crash_cut_off_does_not_spoil_the_next(tmp_path: Path) -> None:
    """Half a line counts as nothing, and what is noted after it counts."""
    workspace = open_workspace(tmp_path / "o", MANIFEST)
    workspace.begin()
    workspace.note(0, (0, 10))
    workspace.end()
    with workspace.journal.open("ab") as file:
        file.write(b"0 10 2")
    landed = workspace.begin()
    workspace.note(1, (5, 6))
    workspace.note(2, (5, 6))
    workspace.forget(2)
    workspace.end()

    assert landed == {0: [(0, 10)]}
    assert read_journal(workspace.journal) == {0: [(0, 10)], 1: [(5, 6)]}


def test_another_manifest_begins_anew(tmp_path: Path) -> None:
    """Spans of one lock are never taken for another's, though they go to the same folder."""
    first = open_workspace(tmp_path / "o", MANIFEST)
    changed = build_manifest(MANIFEST.source, [Entry("m/a", 1, "v", sha256="a" * 64)])

    assert first.staging != open_workspace(tmp_path / "o", changed).staging


def test_two_folders_change_places(tmp_path: Path) -> None:
    """The exchange is one step where the file system knows it, and nothing elsewhere."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()

    exchanged = exchange(tmp_path / "one", tmp_path / "two")

    assert (tmp_path / "one/two").exists() is exchanged
    assert (tmp_path / "two/one").exists() is exchanged


def test_mount_points_are_found_in_the_table() -> None:
    """Escaped characters are read, short lines are not."""
    table = b"36 35 98:0 /x /mnt/a\\040b rw - ext4 /dev/sda rw\nshort line\n"

    assert mount_points(table) == {b"/mnt/a b"}
