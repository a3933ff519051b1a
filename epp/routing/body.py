"""Find `model` in a request's body, and put another name in its place.

msgspec validates the whole document in C and hands back the raw bytes of the top-level `model`.
A rename touches these bytes and nothing else.  Where the key is spelled once, they follow it; a
body in which it could stand twice is read a second time to count, and the address of the bytes
tells their place.
"""

import re
from collections.abc import Iterator
from itertools import islice

import msgspec
from cffi import FFI

from epp.errors import DuplicateModel, InvalidJson, MissingModel

_BOM = b"\xef\xbb\xbf"
_KEY = b'"model"'
_ESCAPED_LETTER = re.compile(rb"\\u00(?:6[dDfF45cC])")
"""An escape that can be a letter of `model`, so that the key can be spelled otherwise."""
_POSITION = re.compile(r"\(byte (\d+)\)$")

_ffi = FFI()


class _Probe(msgspec.Struct):
    model: msgspec.Raw = msgspec.Raw()


class _Value:
    """Stands for any value of `model`; the decoder asks for one at every occurrence of the key."""


class _Occurrences(msgspec.Struct):
    model: _Value | msgspec.UnsetType = msgspec.UNSET


_decoder = msgspec.json.Decoder(_Probe)


class ModelField:
    """The model that a body asks for, and where its name stands.

    `name` is never empty.
    """

    __slots__ = ("_body", "_place", "name")

    def __init__(self, name: str, body: bytes, place: tuple[int, int]) -> None:
        self.name = name
        self._body = body
        self._place = place

    def renamed(self, name: str) -> bytes:
        """Return the body with `name` as its model; every other byte stays."""
        start, end = self._place
        view = memoryview(self._body)
        return b"".join((view[:start], msgspec.json.encode(name), view[end:]))

    def within(self, body: bytes, offset: int) -> "ModelField":
        """Return the same field of a body in which the document begins at `offset`."""
        start, end = self._place
        return ModelField(self.name, body, (start + offset, end + offset))


def read_model(body: bytes) -> ModelField:
    """Return the model that a JSON body asks for.

    Raises InvalidJson, MissingModel and DuplicateModel.
    """
    if body[:3] != _BOM:
        return _read(body, 0)
    return _read(body[len(_BOM) :], len(_BOM)).within(body, len(_BOM))


def _read(document: bytes, offset: int) -> ModelField:
    """Read a document that begins `offset` bytes into the body."""
    raw = _top_level_model(document, offset)
    value = bytes(raw)
    key = document.find(_KEY)
    # Searching from both ends is thrice as fast as counting: models stand early.
    if key == document.rfind(_KEY) and not _may_be_escaped(document):
        start = document.find(value, key + len(_KEY))  # between the two are a colon and spaces
        place = start, start + len(value)
    else:
        _refuse_repeated(document)
        place = _located(raw, document)
    return ModelField(_text(value), document, place)


def _located(raw: msgspec.Raw, document: bytes) -> tuple[int, int]:
    """Return where the parser's view lies in the document."""
    view = memoryview(raw)
    start = _address(view) - _address(document) if view else 0
    end = start + len(view)
    assert document[start:end] == view, "the parser's view does not lie in the body"
    return start, end


def _top_level_model(body: bytes, offset: int) -> msgspec.Raw:
    try:
        if not body.isascii():
            body.decode()
        return _decoder.decode(body).model
    except UnicodeDecodeError as error:
        at = error.start + offset
        raise InvalidJson(f"The body is not UTF-8: invalid byte at {at}.") from error
    except msgspec.ValidationError as error:
        raise InvalidJson("The body is not a JSON object.") from error
    except msgspec.DecodeError as error:
        raise InvalidJson(_explained(str(error), body, offset)) from error
    except RecursionError as error:
        raise InvalidJson("The body is nested too deeply.") from error


def _explained(problem: str, body: bytes, offset: int) -> str:
    if not body.strip():
        return "The body is empty: a JSON object with a model is needed."
    position = _POSITION.search(problem)
    if position is None:
        return (
            f"The body is not valid JSON: it ends too early (after byte {len(body) + offset}),"
            " or has an unpaired surrogate."
        )
    what = problem[: position.start()].removeprefix("JSON is malformed: ").strip()
    return f"The body is not valid JSON: {what} at byte {int(position.group(1)) + offset}."


def _may_be_escaped(body: bytes) -> bool:
    """Tell whether a key could be `model` without being spelled so."""
    # One letter is found ten times as fast as a word; from the end, a word twice as fast.
    return b"\\" in body and body.rfind(b"\\u00") >= 0 and _ESCAPED_LETTER.search(body) is not None


def _refuse_repeated(body: bytes) -> None:
    count = 0

    def occurrence(_type: type, _value: object) -> _Value:
        nonlocal count
        count += 1
        if count > 1:
            raise DuplicateModel("The body has `model` more than once.", param="model")
        return _Value()

    msgspec.json.Decoder(_Occurrences, dec_hook=occurrence).decode(body)


def _text(value: bytes) -> str:
    if not value:
        raise MissingModel("The body has no `model`.", param="model")
    if value[:1] != b'"':
        raise MissingModel("`model` must be a string.", param="model")
    name = value[1:-1].decode() if b"\\" not in value else msgspec.json.decode(value, type=str)
    if not name:
        raise MissingModel("`model` must not be empty.", param="model")
    return name


def _address(buffer: bytes | memoryview) -> int:
    return int(_ffi.cast("uintptr_t", _ffi.from_buffer(buffer)))


# --- a body of which only the beginning is known ----------------------------------------------

_SPACE = rb"[ \t\r\n]*+"
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TOKEN = re.compile(rb"(" + _STRING + rb")|[{}\[\]\"]", re.DOTALL)
"""A string, a bracket, or the quote of a string that does not end in the prefix."""
_SPACES = re.compile(_SPACE)
_AFTER_KEY = re.compile(_SPACE + rb":" + _SPACE)
_VALUE = re.compile(_STRING, re.DOTALL)
_MAX_TOKENS = 200_000
"""A prefix is not searched beyond this many strings and brackets."""


def read_model_in_prefix(prefix: bytes) -> ModelField | None:
    """Return the first top-level `model` of a JSON object whose end is not known.

    None when it does not stand in the prefix.  What follows it cannot be validated.
    Raises InvalidJson when the prefix cannot be the beginning of an object, MissingModel, and
    DuplicateModel when the prefix shows a second one.
    """
    if _BOM.startswith(prefix):
        return None
    begin = _after_spaces(prefix, len(_BOM) if prefix.startswith(_BOM) else 0)
    if begin == len(prefix):
        return None
    if prefix[begin] != ord("{"):
        raise InvalidJson("The body is not a JSON object.")
    field = None
    for start in _model_values(prefix, begin):
        if field is not None:
            raise DuplicateModel("The body has `model` more than once.", param="model")
        field = _value_in_prefix(prefix, start)
        if field is None or not (prefix.count(_KEY) > 1 or _may_be_escaped(prefix)):
            break
    return field


def _model_values(prefix: bytes, begin: int) -> Iterator[int]:
    """Yield where the value of each top-level `model` starts."""
    depth = 0
    for token in islice(_TOKEN.finditer(prefix, begin), _MAX_TOKENS):
        text = token.group(1)
        if text is not None:
            after = _AFTER_KEY.match(prefix, token.end()) if depth == 1 and _is_key(text) else None
            if after is not None:
                yield after.end()
            continue
        if token.group() == b'"':
            return
        depth += 1 if token.group() in b"{[" else -1
        if depth == 0:
            end = _after_spaces(prefix, token.end())
            if end < len(prefix):
                raise InvalidJson(f"The body is not valid JSON: it goes on at byte {end}.")


def _after_spaces(prefix: bytes, start: int) -> int:
    match = _SPACES.match(prefix, start)
    assert match is not None, "no space at all is a match too"
    return match.end()


def _is_key(text: bytes) -> bool:
    return text == _KEY or (b"\\" in text and _unescaped(text) == "model")


def _unescaped(text: bytes) -> str | None:
    try:
        return msgspec.json.decode(text, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _value_in_prefix(prefix: bytes, start: int) -> ModelField | None:
    if start >= len(prefix):
        return None
    value = _VALUE.match(prefix, start)
    if value is None:
        if prefix[start : start + 1] == b'"':
            return None
        raise MissingModel("`model` must be a string.", param="model")
    name = _unescaped(value.group())
    if name is None:
        raise InvalidJson(f"The body is not valid JSON: invalid string at byte {start}.")
    if not name:
        raise MissingModel("`model` must not be empty.", param="model")
    return ModelField(name, prefix, (start, value.end()))
