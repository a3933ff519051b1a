"""Undo a body's content-encoding, within a bound: a few bytes can unpack to gigabytes."""

import zlib

from epp.errors import BodyTooLarge, InvalidJson, UnsupportedEncoding

_GZIP = 31
"""zlib's window bits for a gzip header and trailer."""
_ZLIB = 15
_RAW = -15
_MAX_LAYERS = 2
_MAX_MEMBERS = 64
"""Gzip members that one body may consist of: each costs a look at all that follows it."""


class CutShort(InvalidJson):
    """The compressed data is sound and ends before its end."""


def decoded(body: bytes, content_encoding: str, *, limit: int) -> bytes:
    """Return the body without its content-encoding, at most `limit` bytes long.

    Raises UnsupportedEncoding, BodyTooLarge and, for damaged data, InvalidJson.
    """
    names = [name.strip().lower() for name in content_encoding.split(",")]
    layers = [name for name in names if name not in ("", "identity")]
    if len(layers) > _MAX_LAYERS:
        raise UnsupportedEncoding(f"More than {_MAX_LAYERS} content-encodings are not read here.")
    for name in reversed(layers):
        body = _inflated(body, name, limit)
    return body


def _inflated(body: bytes, name: str, limit: int) -> bytes:
    match name:
        case "gzip" | "x-gzip":
            return _unpacked(body, _GZIP, limit)
        case "deflate":  # RFC 9110 means zlib's format; some clients send the bare stream
            return _unpacked(body, _ZLIB if _has_zlib_header(body) else _RAW, limit)
        case _:
            raise UnsupportedEncoding(
                f"The content-encoding {name[:40]!r} is not read here: send gzip, deflate or none."
            )


def _has_zlib_header(body: bytes) -> bool:
    return len(body) >= 2 and body[0] & 0x0F == 8 and int.from_bytes(body[:2], "big") % 31 == 0


def _unpacked(body: bytes, window_bits: int, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while body:  # gzip allows several members in a row
        if len(parts) == _MAX_MEMBERS:
            raise BodyTooLarge(f"The body has more than {_MAX_MEMBERS} gzip members.")
        unpacker = zlib.decompressobj(window_bits)
        try:
            part = unpacker.decompress(body, limit - size + 1)
        except zlib.error as error:
            raise InvalidJson("The body's compressed data is damaged.") from error
        size += len(part)
        if size > limit:
            raise BodyTooLarge(f"The request's body unpacks to more than {limit} bytes.")
        parts.append(part)
        if not unpacker.eof:
            raise CutShort("The body's compressed data ends too early.")
        body = unpacker.unused_data
        if body and window_bits != _GZIP:
            raise InvalidJson("The body's compressed data goes on after its end.")
    return b"".join(parts)
