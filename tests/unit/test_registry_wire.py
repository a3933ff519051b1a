"""The registry's answers, read: both spellings, and nothing that is half."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry import wire
from registry.errors import RegistryMalformed
from registry.pages import MAX_PAGES, Pages


@pytest.mark.parametrize(
    "item",
    [
        {"desiredState": "UNDEPLOYED", "registeredModelId": "7"},
        {"state": "UNDEPLOYED", "registeredModelID": "7"},
    ],
)
def test_both_spellings_of_an_intent(item: dict[str, str]) -> None:
    found = wire.read_intent({"id": "4", "name": "m", **item})
    assert (found.deployed, found.model_id) == (False, "7")


def test_a_state_that_is_not_told_is_deployed() -> None:
    assert wire.read_intent({"id": "4"}).deployed


def test_an_unknown_state_is_no_undeployed() -> None:
    with pytest.raises(RegistryMalformed):
        wire.read_intent({"id": "4", "desiredState": "PAUSED"})


def test_properties_of_every_plain_kind() -> None:
    item = {
        "customProperties": {
            "s": {"metadataType": "MetadataStringValue", "string_value": "x"},
            "i": {"metadataType": "MetadataIntValue", "int_value": "5"},
            "d": {"metadataType": "MetadataDoubleValue", "double_value": 0.5},
            "b": {"metadataType": "MetadataBoolValue", "bool_value": True},
            "p": {"metadataType": "MetadataProtoValue", "type": "t", "proto_value": "e30="},
        }
    }
    assert wire.read_properties(item) == {"s": "x", "i": "5", "d": "0.5", "b": "true"}


def test_half_a_surrogate_pair_is_replaced() -> None:
    """JSON can spell it, and nothing can encode it."""
    assert wire.read_intent({"id": "4", "name": "m\ud83d"}).name == "m?"


def test_other_kinds_of_artifact_are_passed_over() -> None:
    assert wire.read_artifact({"id": "1", "artifactType": "doc-artifact"}) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = (
    "id", "name", "state", "desiredState", "lastKnownState", "customProperties", "modelVersionId",
    "createTimeSinceEpoch", "items", "size", "nextPageToken", "artifactType", "runtime",
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(KEYS), json_values, max_size=6))
def test_whatever_comes_is_read_or_refused(item: dict[str, Any]) -> None:
    """No other exception leaves the reading of an answer."""
    readers: Any = (
        wire.read_environment, wire.read_intent, wire.read_version, wire.read_artifact,
        wire.read_record, wire.read_page,
    )  # fmt: skip
    for read in readers:
        try:
            read(item)
        except RegistryMalformed:
            continue


def page(ids: range, token: str, size: int | None = None) -> dict[str, Any]:
    items = [{"id": str(number)} for number in ids]
    return {"items": items, "nextPageToken": token, "size": len(items) if size is None else size}


def read_all(told: Iterable[Any]) -> None:
    pages = Pages()
    for answer in told:
        pages.add(answer)


@pytest.mark.parametrize(
    "told",
    [
        [page(range(40), "a"), page(range(40, 50), "")],
        [page(range(40), "a"), page(range(40, 50), "b"), page(range(40), "a")],
        [
            page(range(20), "a"),
            page(range(20, 40), "b"),
            page(range(40, 50), "c"),
            page(range(20), "a"),
        ],
        [page(range(25), "a"), page(range(25, 50), "b"), page(range(25), "a")],
    ],
    ids=["empty-token", "wraps", "wraps-at-20", "wraps-after-full-pages"],
)
def test_pages_that_end(told: list[dict[str, Any]]) -> None:
    """An empty token ends a list, and so does beginning again."""
    pages = Pages()
    for answer in told:
        assert pages.more
        pages.add(answer)
    assert not pages.more
    assert len(pages.items) == 50


@pytest.mark.parametrize(
    "told",
    [
        [page(range(20), "a"), page(range(20), "a")],
        [page(range(20), "a"), page(range(20, 40), "b"), page(range(20, 40), "b")],
        [page(range(20), "a", size=50)],
        [page(range(20), "a"), page(range(10, 30), "b")],
        [{"items": [{"id": "1"}, {"id": "1"}], "nextPageToken": ""}],
        [{"nextPageToken": ""}, {}],
        [["items"]],
    ],
    ids=["stuck-on-first", "stuck-on-second", "short", "overlap", "twice", "nothing", "list"],
)
def test_pages_that_are_no_list(told: list[Any]) -> None:
    """What cannot be known to be whole is refused."""
    with pytest.raises(RegistryMalformed):
        read_all(told)


def test_pages_without_end() -> None:
    """A server that always has one more is not followed for ever."""
    with pytest.raises(RegistryMalformed):
        read_all(page(range(n, n + 1), f"t{n}") for n in range(MAX_PAGES + 1))
