"""Which version, which artifact, which pins: tables."""

import pytest

from registry.choice import choose_artifact, choose_version
from registry.model import Artifact, Condition, Intent, Policy, Serving, Version

INTENT = Intent("4", "m", "1", deployed=True)
HEX = "a" * 64


def artifact(identifier: str = "1", created_ms: int = 1, **fields: object) -> Artifact:
    given = {"format_name": "onnx", "storage_key": "k", "storage_path": "p", **fields}
    return Artifact(identifier, created_ms=created_ms, **given)  # type: ignore[arg-type]  # test data


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ([Version("2", "a", 5), Version("3", "b", 4)], "2"),
        ([Version("2", "a", 5), Version("3", "b", 5)], "3"),
        ([Version("9", "a", 5), Version("10", "b", 5)], "10"),
        ([Version("2", "a", 5), Version("3", "b", 6, archived=True)], "2"),
    ],
)
def test_the_newest_live_version(versions: list[Version], expected: str) -> None:
    """By createTime, then by id as a number; ARCHIVED does not count."""
    assert choose_version(INTENT, versions) == expected


def test_a_pinned_version_needs_no_list() -> None:
    assert choose_version(Intent("4", "m", "1", True, version_id="7"), []) == "7"


def test_no_version() -> None:
    found = choose_version(INTENT, [Version("2", "a", 5, archived=True)])
    assert isinstance(found, Condition)
    assert found.reason == "NoVersion"


def test_the_newest_of_several_is_said() -> None:
    found = choose_artifact("2", [artifact("1", 9, storage_path="new"), artifact("2", 3)], Policy())
    assert isinstance(found, Serving)
    assert found.storage_path == "new"
    assert found.note is not None
    assert found.note.reason == "SeveralArtifacts"


@pytest.mark.parametrize("state", ["MARKED_FOR_DELETION", "DELETED", "ABANDONED"])
def test_dead_artifacts_do_not_count(state: str) -> None:
    found = choose_artifact("2", [artifact("1", 1), artifact("2", 9, state=state)], Policy())
    assert isinstance(found, Serving)
    assert found.note is None


PINNED = Policy(require_pins=True)
REFUSALS = [
    ([], Policy(), "NoArtifact"),
    ([artifact(state="DELETED")], Policy(), "NoArtifact"),
    ([artifact(format_name=None)], Policy(), "NoFormat"),
    ([artifact(storage_key=None, storage_path=None)], Policy(), "NoLocation"),
    ([artifact(service_account="root")], Policy(), "ServiceAccountRefused"),
    ([artifact()], PINNED, "Floating"),
    ([artifact(properties={"versionId": "null"})], PINNED, "Floating"),
    (
        [artifact(properties={"versionId": "x"})],
        Policy(require_pins=True, deployment_mode="ModelMesh"),
        "PinNotEnforced",
    ),
    ([artifact(properties={"sha256": "abc"})], Policy(), "BadPin"),
    ([artifact(uri="s3://b/k?versionID=1")], Policy(), "BadPin"),
    ([artifact(uri="s3://b/k?versionId=1", properties={"versionId": "2"})], Policy(), "BadPin"),
]


@pytest.mark.parametrize(("artifacts", "policy", "reason"), REFUSALS)
def test_a_doubt_is_a_condition(artifacts: list[Artifact], policy: Policy, reason: str) -> None:
    found = choose_artifact("2", artifacts, policy)
    assert isinstance(found, Condition)
    assert found.reason == reason


def test_pins_of_a_uri() -> None:
    """The query and the properties are one set of pins; the uri carries them on."""
    one = artifact(
        storage_key=None,
        storage_path=None,
        uri="s3://b/k?versionId=a%2Fb",
        properties={"sha256": HEX},
    )
    found = choose_artifact("2", [one], PINNED)
    assert isinstance(found, Serving)
    assert found.pins == {"sha256": f"sha256:{HEX}", "versionId": "a/b"}
    assert found.uri == f"s3://b/k?sha256={HEX}&versionId=a%2Fb"


def test_an_etag_is_spelled_without_quotes() -> None:
    found = choose_artifact("2", [artifact(properties={"etag": '"abc-2"'})], PINNED)
    assert isinstance(found, Serving)
    assert found.pins == {"etag": "abc-2"}


def test_other_schemes_keep_their_query() -> None:
    """Only s3 has pins in its query: `https://…?token=` is nobody's pin."""
    one = artifact(storage_key=None, storage_path=None, uri="https://x/y?token=1")
    found = choose_artifact("2", [one], Policy())
    assert isinstance(found, Serving)
    assert (found.uri, found.pins) == ("https://x/y?token=1", {})


def test_a_uri_that_is_no_url() -> None:
    """Whatever a registry holds is read, or is a condition."""
    one = artifact(storage_path=None, uri="s3://[bad/k")
    found = choose_artifact("2", [one], Policy())
    assert isinstance(found, Serving)


def test_a_key_without_a_path_takes_the_uris() -> None:
    found = choose_artifact("2", [artifact(storage_path=None, uri="s3://b/dir/m.onnx")], Policy())
    assert isinstance(found, Serving)
    assert (found.storage_key, found.storage_path, found.uri) == ("k", "dir/m.onnx", None)
