"""JSON bodies, held against the standard library's parser."""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from epp.errors import RequestError
from epp.routing.body import ModelField, read_model, read_model_in_prefix
from tests.fuzz.corpus import seeds

keys = st.sampled_from(["model", "Model", "x", "\u0000", 'model"', "messages"]) | st.text(
    max_size=6
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("model"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
pairs = st.lists(st.tuples(keys, values), max_size=5)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """An object, perhaps with repeated keys, escapes and odd spaces, and perhaps then damaged."""
    told = draw(pairs)
    if draw(st.booleans()):
        told.insert(draw(st.integers(0, len(told))), ("model", draw(st.text(max_size=8))))
    ascii_only = draw(st.booleans())
    space = draw(st.sampled_from(["", " ", "\n\t"]))
    parts = [
        f"{space}{_spelt(key, draw(st.booleans()))}{space}:{json.dumps(v, ensure_ascii=ascii_only)}"
        for key, v in told
    ]
    body = ("{" + ",".join(parts) + "}").encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 3)) == 0 and body:
        at = draw(st.integers(0, len(body) - 1))
        body = body[:at] + draw(st.binary(max_size=2)) + body[at + 1 :]
    return body


def _spelt(key: str, escaped: bool) -> str:
    if not escaped:
        return json.dumps(key)
    return '"' + "".join(f"\\u{ord(c):04x}" for c in key if ord(c) < 0x10000) + '"'


def _pairs(body: bytes) -> list[tuple[str, Any]] | None:
    """Return the top-level pairs as the standard parser reads them; None if it refuses."""

    def refuse(_: str) -> Any:
        raise ValueError

    try:
        text = body.removeprefix(b"\xef\xbb\xbf").decode()
        found = json.loads(text, object_pairs_hook=_Pairs, parse_constant=refuse)
    except (ValueError, RecursionError):
        return None
    return list(found) if isinstance(found, _Pairs) else None


class _Pairs(list[tuple[str, Any]]):
    """An object, told from a list."""


def check(body: bytes) -> None:
    told = _pairs(body)
    found = _read(read_model, body)
    if isinstance(found, RequestError):
        assert found.status in (400, 413)
        if told is not None:
            models = [value for key, value in told if key == "model"]
            # The body may be deeper or odder than the strict parser takes.
            unfit = len(models) != 1 or not isinstance(models[0], str) or not models[0]
            assert unfit or found.reason == "invalid_json"
        return
    assert found is not None
    renamed = found.renamed("other/名")
    assert read_model(renamed).name == "other/名"
    if told is not None:
        assert [value for key, value in told if key == "model"] == [found.name]
        others = [pair for pair in _pairs(renamed) or [] if pair[0] != "model"]
        assert others == [pair for pair in told if pair[0] != "model"]


def _read(
    read: Callable[[bytes], ModelField | None], body: bytes
) -> ModelField | RequestError | None:
    try:
        return read(body)
    except RequestError as error:
        return error


@given(bodies() | st.binary(max_size=40))
def test_a_body_is_read_as_the_standard_parser_reads_it(body: bytes) -> None:
    """One model is found, two are refused, and a rename changes nothing else."""
    check(body)


def test_the_corpus_is_read_as_the_standard_parser_reads_it() -> None:
    for body in seeds("json"):
        check(body)


@given(bodies(), st.integers(0, 60))
def test_a_prefix_never_names_another_model(body: bytes, cut: int) -> None:
    """Whatever part of a body is shown, its model is the whole body's, or none."""
    whole, part = _read(read_model, body), _read(read_model_in_prefix, body[:cut])

    if isinstance(whole, ModelField) and isinstance(part, ModelField):
        assert part.name == whole.name


@given(st.binary(max_size=60))
@example(b'{"model":')
def test_any_prefix_is_read_or_refused(prefix: bytes) -> None:
    found = _read(read_model_in_prefix, prefix)

    assert not isinstance(found, RequestError) or found.status in (400, 413)
