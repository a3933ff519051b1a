"""YAML and JSON text to values with lines: what it means to Kubernetes, within bounds."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datastore.documents import MAX_DEPTH, BadDocument, Node, read_documents

# A loaded machine is slow to generate and slow to run; neither is a failure of the law.
LAW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def values_of(text: str, *, as_json: bool = False) -> list[Any]:
    """Return the documents of a text."""
    return [node.value for node in read_documents(text, json=as_json)]


def test_yaml_means_what_it_means_to_kubernetes() -> None:
    """YAML 1.1 without dates and base-60 numbers, which the Kubernetes tools do not have either."""
    text = "a: [1, -1, 0x1f, 010, 0o17, 1e3, 2026-01-01, 1:30, yes, Off, ~, '1', !!str 1, -, 0x]"

    assert values_of(text) == [
        {
            "a": [
                *(1, -1, 31, 8, 15, 1000.0, "2026-01-01", "1:30"),
                *(True, False, None, "1", "1", "-", "0x"),
            ]
        }
    ]


def test_merges_and_aliases_are_followed() -> None:
    text = "a: &a {x: 1, y: 1}\nb: {<<: *a, y: 2}\nc: {<<: [*a, {z: 3}]}\nd: *a\n"

    (value,) = values_of(text)

    assert value["b"] == {"x": 1, "y": 2}
    assert value["c"] == {"x": 1, "y": 1, "z": 3}
    assert value["d"] == value["a"]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("ab<é\t", min_size=1), inner)
    ),
    max_leaves=12,
)


@LAW
@given(json_values, st.sampled_from([None, "\t", 2]), st.booleans())
def test_json_is_read_as_json(value: Any, indent: str | int | None, ascii_only: bool) -> None:
    """Whatever a JSON file holds means the same here, surrogate pairs and tabs included."""
    text = json.dumps({"k": value}, indent=indent, ensure_ascii=ascii_only)
    if "\x7f" in text or any("\x80" <= c <= "\x9f" or c in "\ufeff\ufffe\uffff" for c in text):
        return  # YAML refuses unescaped control characters, and says so

    assert values_of(text, as_json=True) == [{"k": value}]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: {c: 1,\n c: 2}", 3, "'c' twice, first on line 2"),
        ("a: 1\n'a': 2", 2, "twice"),
        ("a:\n - b\n - {", 3, "is not YAML"),
        ("\n" + "[" * 200, 2, f"{MAX_DEPTH} levels"),
        ("- " * 200, 1, f"{MAX_DEPTH} levels"),
        ("? " * 200 + "a", 1, "key that is not text"),
        ("1: a", 1, "key that is not text"),
        ("a: *b", 1, "no anchor"),
        ("a: &a [*a]", 1, "no anchor"),
        ("a: &a b\n---\nc: *a", 3, "no anchor"),
        ("a: !!python/name:os.system", 1, "tag"),
        ("a: !x {}", 1, "tag"),
        ("a: {<<: 5}", 1, "merges"),
        ("a: " + "9" * 5000, 1, "number"),
        ("a: b\n\x01", 2, "control characters"),
    ],
)
def test_bad_yaml_names_its_line(text: str, line: int, words: str) -> None:
    with pytest.raises(BadDocument) as caught:
        values_of(text)

    assert caught.value.line == line
    assert words in caught.value.message


def test_aliases_cannot_make_much_of_little() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)
    )

    with pytest.raises(BadDocument, match="aliases expanded"):
        values_of(text)


@LAW
@given(st.text("abc:{}[]&*!-?<|>'\"\n \t#%@`,~1.", max_size=40) | st.text(max_size=20))
def test_no_text_is_any_other_error(text: str) -> None:
    with contextlib.suppress(BadDocument):
        assert all(isinstance(node, Node) for node in read_documents(text))
