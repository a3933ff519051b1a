"""`model` in a body: read as any JSON parser reads it, and renamed without touching the rest."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from epp.errors import DuplicateModel, InvalidJson, MissingModel, RequestError
from epp.routing.body import ModelField, read_model, read_model_in_prefix

SPELLINGS = ['"model"', '"m\\u006fdel"', '"\\u006dodel"', '"\\u006D\\u006F\\u0064\\u0065\\u006C"']
SPACES = ["", " ", "\t", "\r\n", " \n\t "]
BOM = b"\xef\xbb\xbf"
SECRET = "my-prompt-is-secret"

Outcome = tuple[str, str | None]


# --- the oracle: Python's own parser ------------------------------------------------------------


def expected(body: bytes) -> Outcome:
    """Return what a strict, duplicate-aware reading by Python's json module gives."""
    body = body.removeprefix(BOM)
    seen: list[Any] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        seen[:] = [items]  # the outermost object is the last to be finished
        json.dumps(items, ensure_ascii=False).encode()  # a lone surrogate is no character
        return dict(items)

    def constant(name: str) -> float:
        raise ValueError(name)

    try:
        document = json.loads(
            body.decode(), object_pairs_hook=pairs, parse_constant=constant, parse_int=lambda _: 0
        )
    except (ValueError, RecursionError):
        return "invalid_json", None
    if not isinstance(document, dict):
        return "invalid_json", None
    named = [value for key, value in seen[0] if key == "model"]
    if len(named) > 1:
        return "duplicate_model", None
    if not named or not isinstance(named[0], str) or not named[0]:
        return "missing_model", None
    return "ok", named[0]


def read(reader: Callable[[bytes], ModelField | None], body: bytes) -> Outcome:
    """Return what our reader makes of it, in the oracle's terms."""
    try:
        field = reader(body)
    except RequestError as error:
        return error.reason, None
    return ("ok", field.name) if field is not None else ("unknown", None)


# --- generators ---------------------------------------------------------------------------------

texts = st.text(max_size=8)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.sampled_from(['"model":', 'model"', '{"model":"x"}', '\\"model\\":"x"', "\\u006dodel"])
)
keys = texts | st.sampled_from(["model", "Model", "models", "", '"model"'])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=10,
)


@st.composite
def bodies(draw: Callable[..., Any], models: tuple[int, int] = (0, 2)) -> str:
    """A JSON object in text, with `model` in any spelling, number and place, spaced anyhow."""
    members = [
        (json.dumps(key, ensure_ascii=draw(st.booleans())), value)
        for key, value in draw(
            st.lists(st.tuples(keys.filter(lambda k: k != "model"), values), max_size=4)
        )
    ]
    for _ in range(draw(st.integers(*models))):
        spelling = draw(st.sampled_from(SPELLINGS))
        name = draw(texts | st.sampled_from(["llama", "a/b:c", "é", "😀"]) | values)
        members.insert(draw(st.integers(0, len(members))), (spelling, name))
    gap = st.sampled_from(SPACES)
    parts = [
        f"{draw(gap)}{key}{draw(gap)}:{draw(gap)}"
        f"{json.dumps(value, ensure_ascii=draw(st.booleans()))}{draw(gap)}"
        for key, value in members
    ]
    return f"{draw(gap)}{{{','.join(parts) or draw(gap)}}}{draw(gap)}"


relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
few = settings(relaxed, max_examples=40)


# --- reading ------------------------------------------------------------------------------------


@relaxed
@given(bodies(), st.booleans())
@example('{"model":null,"model":"x"}', False)
@example('{"model":"x","model":null}', False)
@example('{"model":null,"m\\u006fdel":null}', False)
@example('{"a":{"model":"x","model":"y"},"model":"z"}', False)
@example('{"a":"\\"model\\":","model":"z"}', True)
def test_the_model_is_what_a_strict_parser_reads(text: str, bom: bool) -> None:
    """Same name, or the same refusal, as Python's json with duplicates seen."""
    body = (BOM if bom else b"") + text.encode()

    assert read(read_model, body) == expected(body)


@relaxed
@given(bodies(models=(1, 1)), st.data())
def test_damage_anywhere_is_seen_as_a_strict_parser_sees_it(text: str, data: st.DataObject) -> None:
    """One byte removed, replaced or put in, anywhere: no other reading and no other exception."""
    body = bytearray(text.encode())
    at = data.draw(st.integers(0, len(body)))
    junk = data.draw(st.binary(max_size=2) | st.sampled_from([b"NaN", b"\\ud800", b'"', b"\xc3"]))
    body[at : at + data.draw(st.integers(0, 2))] = junk

    assert read(read_model, bytes(body)) == expected(bytes(body))


@relaxed
@given(st.binary(max_size=40))
def test_any_bytes_have_a_model_or_a_refusal(body: bytes) -> None:
    """Nothing but a refusal comes out, whatever goes in."""
    assert read(read_model, body) == expected(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" \r\n\t",
        BOM,
        b"null",
        b"[]",
        b'"model"',
        b"7",
        b'[{"model":"m"}]',
        b'{"model":"m"',
        b'{"model":"m",}',
        b'{"model":"m"}}',
        b'{"model":"m"}{"model":"m"}',
        b'{"model":"m"}\x00',
        b'{"model":"m"} //',
        b"{'model':'m'}",
        b'{model:"m"}',
        b'{"model":"m","x":NaN}',
        b'{"model":"m","x":Infinity}',
        b'{"model":"m","x":-Infinity}',
        b'{"model":"m","x":[{"y":nan}]}',
        b'{"model":"m","x":01}',
        b'{"model":"m","x":1.}',
        b'{"model":"m","x":0x1}',
        b'{"model":"m","x":"a\tb"}',
        b'{"model":"m","x":"\\x41"}',
        b'{"model":"m","x":"\\ud800"}',
        b'{"model":"\\udc00"}',
        b'{"model":"m","\\ud800":1}',
        b'{"model":"m\xff"}',
        b'{"model":"m","x":{"y":["\xc3\x28"]}}',
        b'{"model":"m","x":"\xed\xa0\x80"}',
        b'{"model":"m","\xff":1}',
        b"\xff\xfe" + '{"model":"m"}'.encode("utf-16-le"),
        '{"model":"m"}'.encode("utf-16-be"),
        '{"model":"m"}'.encode("utf-32"),
        '{"model":"m"}'.encode("utf-32-le"),
    ],
)
def test_what_is_no_json_object_in_utf_8(body: bytes) -> None:
    """400 invalid_json, whatever is wrong with it."""
    with pytest.raises(InvalidJson):
        read_model(body)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"x":1}',
        b'{"Model":"m"}',
        b'{"MODEL":"m"}',
        b'{"models":"m"}',
        b'{"model ":"m"}',
        b'{"model":""}',
        b'{"model":null}',
        b'{"model":7}',
        b'{"model":true}',
        b'{"model":["m"]}',
        b'{"model":{"model":"m"}}',
        b'{"x":{"model":"m"}}',
        b'{"x":"{\\"model\\":\\"m\\"}"}',
    ],
)
def test_an_object_without_a_usable_model(body: bytes) -> None:
    """400 missing_model, with the field named."""
    with pytest.raises(MissingModel) as caught:
        read_model(body)

    assert caught.value.param == "model"


@pytest.mark.parametrize("first", SPELLINGS)
@pytest.mark.parametrize("second", SPELLINGS)
@pytest.mark.parametrize(
    "values_of_both",
    [
        ("1", "2"),
        ("null", '"x"'),
        ('"x"', "null"),
        ("null", "null"),
        ('""', '"x"'),
        ('"x"', '"x"'),
        ("{}", '"x"'),
        ("[]", "[]"),
    ],
)
def test_a_repeated_model_is_refused_in_every_spelling(
    first: str, second: str, values_of_both: tuple[str, str]
) -> None:
    """400 duplicate_model, whatever the two values are."""
    one, other = values_of_both
    body = f'{{{first}:{one},"x":{{"model":3}},{second}:{other}}}'.encode()

    with pytest.raises(DuplicateModel):
        read_model(body)


@pytest.mark.parametrize(
    "deep",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"model":' * 100_000,
        '{"model":"m","x":' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"model":' + '{"model":' * 100_000 + "1" + "}" * 100_001,
        '{"x":' + '{"a":[' * 50_000 + "]}" * 50_000 + ',"model":"m"}',
    ],
)
def test_depth_is_refused_and_not_a_crash(deep: str) -> None:
    """100 000 levels are 400, never a RecursionError."""
    with pytest.raises(InvalidJson):
        read_model(deep.encode())


def test_numbers_of_any_size_are_nobody_s_business() -> None:
    """Values other than the model's are not converted."""
    body = b'{"x":' + b"9" * 100_000 + b',"y":-1e99999,"model":"m"}'

    assert read_model(body).name == "m"


@given(bodies(models=(1, 1)))
@few
def test_a_body_cut_anywhere_is_invalid(text: str) -> None:
    """No beginning of an object is taken for the object."""
    body = text.rstrip(" \t\r\n").encode()

    for stop in range(len(body)):
        assert read(read_model, body[:stop])[0] == "invalid_json"


# --- what a refusal says ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "position"),
    [
        (b'{"model":"m","x":"my-prompt-is-secret\xff"}', 37),
        (b'{"x":"my-prompt-is-secret",,"model":"m"}', 27),
        (b'{"model":"m","x":"my-prompt-is-secret"', 38),
        (BOM + b'{"model":"m","x":"my-prompt-is-secret\xff"}', 40),
        (BOM + b'{"x":"my-prompt-is-secret",,"model":"m"}', 30),
        (BOM + b'{"model":"m","x":"my-prompt-is-secret"', 41),
    ],
)
def test_an_invalid_body_is_told_where_and_never_what(body: bytes, position: int) -> None:
    """The message names the byte at fault, counted from the body's first, and repeats nothing."""
    with pytest.raises(InvalidJson) as caught:
        read_model(body)

    assert str(position) in caught.value.message
    assert SECRET not in caught.value.message


# --- renaming -----------------------------------------------------------------------------------

names = st.text(min_size=1, max_size=12) | st.sampled_from(
    ['"', "\\", '"},"x":{"', "\n", "\x00", "é", "😀", "meta/Llama-3.1:8b", "\u2028"]
)


@relaxed
@given(bodies(models=(1, 1)), names, st.booleans())
def test_renaming_changes_the_value_s_bytes_and_no_others(text: str, name: str, bom: bool) -> None:
    """What stands before and after the old value stands there still, and the new one reads back."""
    body = (BOM if bom else b"") + text.encode()
    if expected(body)[0] != "ok":
        return
    field = read_model(body)
    renamed = field.renamed(name)
    start, end = span(body)

    assert json.loads(body[start:end]) == field.name
    assert renamed.startswith(body[:start])
    assert renamed.endswith(body[end:])
    assert json.loads(renamed[start : len(renamed) - (len(body) - end)]) == name
    assert read(read_model, renamed) == ("ok", name) == expected(renamed)


def span(body: bytes) -> tuple[int, int]:
    """Return where the model's value stands in `body`, by a decoder that tells positions."""
    text = body.removeprefix(BOM).decode()
    offset = len(body) - len(text.encode())
    decoder = json.JSONDecoder()
    at = text.index("{") + 1
    while True:
        at = skip(text, at)
        key, at = decoder.raw_decode(text, at)
        at = skip(text, skip(text, at) + 1)
        _, end = decoder.raw_decode(text, at)
        if key == "model":
            start = offset + len(text[:at].encode())
            stop = offset + len(text[:end].encode())
            return start, stop
        at = skip(text, end) + 1


def skip(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at


def test_a_large_body_is_spliced_too() -> None:
    """A value far into a large body is found at its place."""
    filler = b"x" * 1_000_000
    body = b'{"a":"' + filler + b'", "model" : "m" , "b":"' + filler + b'"}'

    assert read_model(body).renamed("n") == body.replace(b'"m"', b'"n"')


# --- a prefix -----------------------------------------------------------------------------------


@few
@given(bodies(models=(1, 1)), st.booleans())
def test_a_prefix_says_what_the_whole_says_or_nothing(text: str, bom: bool) -> None:
    """On every prefix of a valid body: the same model, or not known yet; never a refusal."""
    body = (BOM if bom else b"") + text.encode()
    if expected(body)[0] != "ok":
        return
    answers = [read(read_model_in_prefix, body[:stop]) for stop in range(len(body) + 1)]
    known = [answer for answer in answers if answer != ("unknown", None)]

    assert set(known) == {expected(body)}
    assert answers[len(answers) - len(known) :] == known, "once known, always known"


@few
@given(bodies(models=(1, 1)), names, st.data())
def test_a_prefix_is_renamed_at_the_same_place(text: str, name: str, data: st.DataObject) -> None:
    """The renamed prefix, followed by the rest, is the renamed whole."""
    body = text.encode()
    assume(expected(body)[0] == "ok")
    stop = data.draw(st.integers(0, len(body)))
    field = read_model_in_prefix(body[:stop])
    assume(field is not None)

    assert field is not None
    assert field.renamed(name) + body[stop:] == read_model(body).renamed(name)


@given(st.binary(max_size=60) | bodies().map(str.encode), st.integers(0, 60))
@relaxed
def test_any_prefix_has_a_model_a_refusal_or_nothing(prefix: bytes, stop: int) -> None:
    """No other exception comes out."""
    read(read_model_in_prefix, prefix[:stop])


@pytest.mark.parametrize(
    ("prefix", "outcome"),
    [
        (b"", "unknown"),
        (BOM[:2], "unknown"),
        (b" " * 5000, "unknown"),
        (b" " * 5000 + b'{"model":"m"', "ok"),
        (b"[", "invalid_json"),
        (b"model", "invalid_json"),
        (b'{"model":"m\xff"', "invalid_json"),
        (b'{"model":"m\n"', "invalid_json"),
        (b'{"model":7', "missing_model"),
        (b'{"model":""', "missing_model"),
        (b'{"model":{"a', "missing_model"),
        (b'{"x":{"model":"m"}', "unknown"),
        (b'{"x":["model","m"]', "unknown"),
        (b'{"x":"\\"model\\":\\"m\\"', "unknown"),
        (b'{"\\q":1,"model":"m"', "ok"),
        (b'{"model"', "unknown"),
        (b'{"model" ', "unknown"),
        (b'{"model":', "unknown"),
        (b'{"model":"m', "unknown"),
        (b'{"m\\u006fdel" : "m"', "ok"),
        (b'{"x":1}{"model":"m"}', "invalid_json"),
        (b'{"x":1]"model":"m"}', "invalid_json"),
        (b'{"x":1} x', "invalid_json"),
        (b'{"model":"m","model":"n","x":"', "duplicate_model"),
        (b'{"model":"m","m\\u006fdel":7,"x":"', "duplicate_model"),
        (b'{"model":"m","x":{"model":"n"},"y":"model","z":"', "ok"),
    ],
)
def test_what_a_prefix_tells(prefix: bytes, outcome: str) -> None:
    """The first top-level model counts, if nothing seen contradicts it."""
    assert read(read_model_in_prefix, prefix)[0] == outcome


@pytest.mark.parametrize(
    "prefix",
    [
        b'{"x":"' + b'\\"' * 200_000,
        b'{"x":"' + b"{[" * 200_000,
        b'{"x":' + b"[" * 400_000,
        b'{"x":[' + b'"",' * 400_000,
        b'{"' + b'\\"' * 200_000,
        b" " * 1_000_000,
        b'{"\\u006dodel' + b" " * 400_000,
    ],
)
@pytest.mark.timeout(20)
def test_searching_a_prefix_takes_time_in_proportion(prefix: bytes) -> None:
    """No prefix makes the search quadratic: each of these would take hours if it did."""
    assert read_model_in_prefix(prefix) is None


def test_the_search_of_a_prefix_gives_up() -> None:
    """More tokens than any real request has before its model are not searched."""
    prefix = b'{"x":[' + b'"",' * 250_000 + b'],"model":"m"'

    assert read_model_in_prefix(prefix) is None


def test_deep_recursion_of_the_caller_is_no_matter() -> None:
    """A body of common depth is read even far down the stack."""

    def at_depth(levels: int) -> str:
        return at_depth(levels - 1) if levels else read_model(b'{"x":[[[[1]]]],"model":"m"}').name

    assert at_depth(sys.getrecursionlimit() // 2) == "m"
