"""A manifest: one text and one digest for what it says, and no lock that lies is read."""

import hashlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts import (
    Entry,
    Location,
    Manifest,
    UsageError,
    build_manifest,
    diff_manifests,
    dump_lock,
    load_lock,
)
from artifacts.manifest import EMPTY_SHA256, complete_manifest, entry_pin

SOURCE = Location("s3", "b", "m/")
A, B = "a" * 64, "b" * 64


def manifest(**files: str) -> Manifest:
    entries = [
        Entry(f"m/{name}", 1, f"v-{name}", f"e-{digest[:3]}", digest)
        for name, digest in files.items()
    ]
    return build_manifest(SOURCE, entries)


def test_the_digest_is_of_what_is_served_and_not_of_where_it_was() -> None:
    """Versions, etags, the bucket and the prefix do not count; paths, sizes and bytes do."""
    one = manifest(x=A, y=B)
    moved = build_manifest(
        Location("s3", "other", "deep/"),
        [Entry("deep/y", 1, sha256=B), Entry("deep/x", 1, sha256=A)],
    )

    assert one.digest == moved.digest
    for other in (manifest(x=B, y=A), manifest(x=A), manifest(x=A, z=B)):
        assert one.digest != other.digest
    assert one.digest != complete_manifest(one, {0: A, 1: A}).digest


def test_the_digest_of_one_object_is_its_own() -> None:
    """A pin of one file has the digest that `sha256sum` prints."""
    one = build_manifest(Location("s3", "b", "k/model.bin"), [Entry("k/model.bin", 1, sha256=A)])

    assert f"sha256:{A}" == one.digest
    assert one.path(one.entries[0]) == "model.bin"


def test_the_digest_is_known() -> None:
    """The canonical form never changes: this digest is in people's manifests."""
    known = build_manifest(
        SOURCE, [Entry("m/ü/a", 3, "v", "e", A), Entry("m/e", 0, sha256=EMPTY_SHA256)]
    )

    text = f'[["e",0,"{EMPTY_SHA256}"],["ü/a",3,"{A}"]]'
    assert f"sha256:{hashlib.sha256(text.encode()).hexdigest()}" == known.digest


names = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8
)
entries = st.builds(
    Entry,
    key=names.filter(lambda name: name not in (".", "..")).map(lambda name: f"m/{name}"),
    size=st.integers(0, 1 << 60),
    version_id=st.none() | st.sampled_from(["null", "v.1", "a/b+c"]),
    etag=st.none() | st.sampled_from(["e", "x-2"]),
    sha256=st.sampled_from([A, B]),
)


@given(st.lists(entries, max_size=5, unique_by=lambda entry: entry.key), st.randoms())
def test_a_lock_reads_back_and_does_not_depend_on_order(found: list[Entry], rng: object) -> None:
    """Writing and reading gives the same manifest; the same objects give the same file."""
    try:
        first = build_manifest(SOURCE, found)
    except UsageError:
        return  # a collision or a key too long, as it should be
    rng.shuffle(found)  # type: ignore[attr-defined]  # a Random

    assert first == load_lock(dump_lock(first), where="memory")
    assert dump_lock(first) == dump_lock(build_manifest(SOURCE, found))


def lock_with(**changes: object) -> bytes:
    document = json.loads(dump_lock(manifest(x=A, y=B)))
    return json.dumps({**document, **changes}).encode()


def object_with(**changes: object) -> bytes:
    document = json.loads(dump_lock(manifest(x=A)))
    document["objects"][0].update(changes)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a lock file"),
        (b"\xff\xfe", "not a lock file"),
        (b"[" * 100_000, "not a lock file"),
        (b"[]", "not a lock file"),
        (lock_with(lock=2), "format 2"),
        (lock_with(extra=1), "unknown field"),
        (lock_with(digest="sha256:" + "0" * 64), "its objects give"),
        (lock_with(objects=[]), "its objects give"),
        (lock_with(source="s3://b/other/"), "does not belong"),
        (lock_with(source="s3://b/m/x"), "does not belong"),
        (object_with(key="n/x"), "does not belong"),
        (object_with(key="m/../x"), "is . or .."),
        (object_with(key="m//etc/passwd"), "absolute"),
        (object_with(key="m/a\0b"), "NUL"),
        (object_with(key="m/.artifact.lock.json"), "kept for"),
        (object_with(key="m/.epp-artifacts-x/y"), "kept for"),
        (object_with(size=-1), "does not belong"),
        (object_with(size=1.5), "not a lock file"),
        (object_with(sha256="A"), "hexadecimal"),
        (object_with(sha256=B), "its objects give"),
        (object_with(versionId=""), "no usable value"),
        (object_with(etag='a"b'), "entity tag"),
        (object_with(surprise="x"), "unknown field"),
    ],
)
def test_a_lock_that_was_edited_is_refused(data: bytes, words: str) -> None:
    """Anything that would change what is fetched, or where it is written, ends in exit 2."""
    with pytest.raises(UsageError) as refused:
        load_lock(data, where="m.lock.json")

    assert words in str(refused.value)


@pytest.mark.parametrize(
    "keys",
    [("a", "a/b"), ("A", "a"), ("é", "é"), ("ß", "SS"), ("d/x", "D/y"), ("a/b", "A")],
)
def test_collisions_are_refused(keys: tuple[str, str]) -> None:
    """Two keys that would be one file somewhere: by case, by accents, by being a folder too."""
    with pytest.raises(UsageError, match="one file"):
        build_manifest(SOURCE, [Entry(f"m/{key}", 1, sha256=A) for key in keys])


def test_a_folder_marker_may_stand_beside_what_is_in_it() -> None:
    """`folder/` and `folder/file` are what consoles make of a folder."""
    kept = build_manifest(
        SOURCE, [Entry("m/f/", 0, sha256=EMPTY_SHA256), Entry("m/f/x", 1, sha256=A)]
    )

    assert [kept.path(entry) for entry in kept.entries] == ["f/", "f/x"]


def test_a_diff_names_what_differs() -> None:
    """Changed, added and removed paths, in order; the same bytes elsewhere are no difference."""
    before, after = manifest(a=A, b=A, c=A), manifest(b=B, c=A, d=A)
    retagged = replace(after, entries=tuple(replace(e, version_id="new") for e in after.entries))

    changes = diff_manifests(before, after)

    assert [change.path for change in changes] == ["a", "b", "d"]
    assert [change.after is None for change in changes] == [True, False, False]
    assert diff_manifests(after, retagged) == ()


def test_without_digests_etags_decide_and_nothing_else() -> None:
    """Two objects of unknown bytes are the same only where their etags are."""
    known = manifest(a=A)
    unknown = replace(known, entries=(replace(known.entries[0], sha256=None),))
    bare = replace(known, entries=(replace(known.entries[0], sha256=None, etag=None),))

    assert diff_manifests(known, unknown) == ()
    assert len(diff_manifests(known, bare)) == 1
    assert len(diff_manifests(bare, bare)) == 1


def test_an_entry_has_a_pin_of_its_own() -> None:
    """Each object of a lock can be named alone."""
    locked = manifest(a=A)

    assert f"s3://b/m/a?versionId=v-a&etag=e-aaa&sha256={A}" == str(
        entry_pin(locked, locked.entries[0])
    )
