"""gRPC over HTTP/2, without HTTP/2 and without a socket: messages, statuses, timeouts.

A gRPC message is five bytes (a compression flag and a length) and then itself.  DATA frames cut
that sequence anywhere, so the receiving side is a small buffer with a bound.
"""

from epp.extproc.calls import INTERNAL, RESOURCE_EXHAUSTED, UNIMPLEMENTED, Status

Headers = tuple[tuple[bytes, bytes], ...]

_PREFIX = 5
_COMPRESSED = 1
_TIMEOUT_UNITS_S = {
    ord("H"): 3600.0,
    ord("M"): 60.0,
    ord("S"): 1.0,
    ord("m"): 1e-3,
    ord("u"): 1e-6,
    ord("n"): 1e-9,
}
_TIMEOUT_DIGITS = 8
_MAX_STATUS_MESSAGE = 512
"""Characters; a client takes 8 KiB of trailers at least, and a character can become 12 bytes."""

RESPONSE_HEADERS: Headers = (
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", b"identity"),
)
_TRAILERS_OK: Headers = ((b"grpc-status", b"0"),)
_PRINTABLE = frozenset(range(0x20, 0x7F)) - {ord("%")}


class Deframer:
    """Bytes in at any cut, whole messages out.

    `refusal` is set once the peer has sent what cannot be read on; the messages before it are
    still returned, and everything after it is dropped.
    """

    __slots__ = ("_buffer", "_limit", "refusal")

    def __init__(self, max_message_bytes: int) -> None:
        self._buffer: bytearray | None = None
        self._limit = max_message_bytes
        self.refusal: Status | None = None

    @property
    def pending(self) -> int:
        """Bytes of an unfinished message that are held."""
        return len(self._buffer) if self._buffer is not None else 0

    def feed(self, data: bytes) -> tuple[bytes, ...] | list[bytes]:
        """Take the next bytes, return the messages that they complete."""
        if self._buffer is None and self.refusal is None:
            size = len(data) - _PREFIX
            # The common case by far: one DATA frame holds exactly one message.
            if 0 <= size <= self._limit and int.from_bytes(data[:_PREFIX], "big") == size:
                return (data[_PREFIX:],)
        return self._feed(data)

    def _feed(self, data: bytes) -> list[bytes]:
        if self.refusal is not None:
            return []
        buffer = self._buffer
        if buffer is None:
            messages, at = self._split(data)
            if at < len(data):
                self._buffer = bytearray(data[at:])
            return messages
        buffer += data
        messages, at = self._split(buffer)
        if at == len(buffer):
            self._buffer = None
        elif at:
            del buffer[:at]
        return messages

    def _split(self, data: bytes | bytearray) -> tuple[list[bytes], int]:
        """Return the whole messages at the beginning, and where what is to be kept begins."""
        messages: list[bytes] = []
        at, end = 0, len(data)
        view = memoryview(data)
        while end - at >= _PREFIX:
            start = at + _PREFIX
            # A head is one number: the flag is its highest byte, and uncompressed is zero.
            stop = start + int.from_bytes(view[at:start], "big")
            if stop - start > self._limit:
                self.refusal = self._judge(data[at], _length(data, at))
                at = end
                break
            if stop > end:
                break
            messages.append(bytes(view[start:stop]))
            at = stop
        view.release()
        return messages, at

    def _judge(self, flag: int, size: int) -> Status | None:
        if flag == _COMPRESSED:
            return Status(UNIMPLEMENTED, "compressed messages are not supported; send identity")
        if flag:
            return Status(INTERNAL, f"a message begins with flag {flag}, which gRPC does not know")
        if size > self._limit:
            return Status(
                RESOURCE_EXHAUSTED, f"a message of {size} bytes is over the limit of {self._limit}"
            )
        return None


def _length(buffer: bytes | bytearray, at: int) -> int:
    return int.from_bytes(buffer[at + 1 : at + _PREFIX], "big")


def frame(message: bytes) -> bytes:
    """One message as it stands in DATA frames."""
    return len(message).to_bytes(_PREFIX, "big") + message


def frames(messages: tuple[bytes, ...]) -> bytes:
    """Several messages in a row."""
    if len(messages) == 1:
        return frame(messages[0])
    return b"".join(
        part for each in messages for part in (len(each).to_bytes(_PREFIX, "big"), each)
    )


def trailers(status: Status) -> Headers:
    """The fields that end a call."""
    if not status.code and not status.message:
        return _TRAILERS_OK
    code = (b"grpc-status", str(status.code).encode())
    if not status.message:
        return (code,)
    return (code, (b"grpc-message", _percent_encode(status.message[:_MAX_STATUS_MESSAGE])))


def _percent_encode(text: str) -> bytes:
    raw = text.encode("utf-8", "replace")
    if _PRINTABLE.issuperset(raw):
        return raw
    return b"".join(bytes((c,)) if c in _PRINTABLE else b"%%%02X" % c for c in raw)


def is_grpc(content_type: bytes | None) -> bool:
    """Whether a request with this content-type is a gRPC call (`application/grpc[+codec]`)."""
    if content_type == b"application/grpc":
        return True
    if content_type is None:
        return False
    return content_type.lower().startswith((b"application/grpc+", b"application/grpc;"))


def timeout_s(value: bytes) -> float | None:
    """What a `grpc-timeout` says, in seconds; None when it says nothing that gRPC allows."""
    digits, unit = value[:-1], value[-1:]
    if not unit or unit[0] not in _TIMEOUT_UNITS_S:
        return None
    if not digits.isdigit() or len(digits) > _TIMEOUT_DIGITS:
        return None
    return int(digits) * _TIMEOUT_UNITS_S[unit[0]]
