"""The messages that nearly every stream consists of, read by hand.

Every Envoy sends a request's headers and the pieces of a body in one shape.  Building protobuf's
objects for them would cost more than deciding where the request goes.  What looks different in any
way is left to the generated code, and tests hold the two equal.
"""

from collections.abc import Iterator, Mapping

from google.protobuf.message import DecodeError

from protos.gen import ext_proc_pb2 as pb

REQUEST_HEADERS = 0x12
REQUEST_BODY = 0x22
RESPONSE_BODY = 0x2A
"""Tags of ProcessingRequest's fields."""

_FIRST = 0x0A
"""Tag of HttpHeaders.headers, HeaderMap.headers, HeaderValue.key and HttpBody.body."""
_RAW_VALUE = 0x1A
_HEADERS_END = b"\x18\x01"
_BODY_END = b"\x10\x01"
_SHORTEST = 8
_NAMES = 256


class Headers(Mapping[str, bytes]):
    """The fields of an encoded HeaderMap, each found when it is asked for.

    A request brings any number of fields, of which the picker reads half a dozen.  A search for the
    encoded name cannot mistake anything else for it, since HTTP allows no control characters in
    names and values, and an encoded name begins with one.  Fields that repeat are joined with a
    comma (RFC 9110, 5.3).
    """

    __slots__ = ("_block", "_fields")

    def __init__(self, block: bytes) -> None:
        self._block = block
        self._fields: dict[str, bytes] | None = None

    def __getitem__(self, name: str) -> bytes:
        found = self._find(name)
        if found is None:
            raise KeyError(name)
        return found

    def get(self, name: str, default: bytes | None = None) -> bytes | None:  # type: ignore[override] # the usual default has the values' type
        """Return the value of a field."""
        found = self._find(name)
        return default if found is None else found

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _find(self, name: str) -> bytes | None:
        block = self._block
        encoded = _names.get(name) or _encoded(name)
        at = block.find(encoded)
        if at < 0:
            return None
        at += len(encoded)
        tag_and_size = block[at : at + 2]
        if len(tag_and_size) == 2 and tag_and_size[0] == _RAW_VALUE:
            size = tag_and_size[1]
            if size < 0x80 and block.find(encoded, at) < 0:
                return block[at + 2 : at + 2 + size]
        return self._all().get(name)

    def _all(self) -> dict[str, bytes]:
        if self._fields is None:
            try:
                self._fields = joined(pb.HeaderMap.FromString(self._block))
            except DecodeError:  # damaged on its way: nothing can be read
                self._fields = {}
        return self._fields


_names: dict[str, bytes] = {}
"""How the names that are asked for stand on the wire."""


def _encoded(name: str) -> bytes:
    raw = name.encode()
    if len(_names) >= _NAMES:
        _names.clear()
    encoded = _names[name] = bytes((_FIRST, len(raw))) + raw
    return encoded


def joined(headers: pb.HeaderMap) -> dict[str, bytes]:
    """Return the fields of a HeaderMap; those that repeat are joined with a comma."""
    fields: dict[str, bytes] = {}
    for field in headers.headers:
        key = field.key
        value = field.raw_value or field.value.encode()
        fields[key] = value if key not in fields else fields[key] + b", " + value
    return fields


def read_headers(message: bytes) -> tuple[bytes, bool, bytes] | None:
    """Return a request's HeaderMap, whether the request ends there, and the bytes after it.

    None: it has another shape.
    """
    if len(message) < _SHORTEST:
        return None
    size, at = message[1], 2
    if size >= 0x80:
        size, at = _long(message, 1)
    end = at + size
    if message[at] != _FIRST or end > len(message):
        return None
    size, at = message[at + 1], at + 2
    if size >= 0x80:
        size, at = _long(message, at - 1)
    stop = at + size
    if stop == end:
        return message[at:stop], False, message[end:]
    if message[stop:end] == _HEADERS_END:
        return message[at:stop], True, message[end:]
    return None


def read_body(message: bytes) -> tuple[bytes, bool] | None:
    """Return a piece of a body, and whether it is the last; None: the message has another shape."""
    if len(message) < _SHORTEST:
        return None
    size, at = message[1], 2
    if size >= 0x80:
        size, at = _long(message, 1)
    if at + size != len(message) or message[at] != _FIRST:
        return None
    size, at = message[at + 1], at + 2
    if size >= 0x80:
        size, at = _long(message, at - 1)
    stop = at + size
    if stop == len(message):
        return message[at:], False
    if message[stop:] == _BODY_END:
        return message[at:stop], True
    return None


def _long(message: bytes, at: int) -> tuple[int, int]:
    """Return the varint of two to four bytes that stands there, and where it ends.

    Longer than that is no size of a message; what is returned then does not fit any.
    """
    low, high = message[at : at + 2]
    if high < 0x80:
        return low & 0x7F | high << 7, at + 2
    number = shift = 0
    for byte in message[at : at + 4]:
        number |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if byte < 0x80:
            return number, at
    return len(message), 0
