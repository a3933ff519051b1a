"""The look at a connection's first request, without a socket."""

import hpack
import ngh2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.extproc.transports.relay import AckFilter
from epp.extproc.transports.select import Opening, is_refused
from tests.fakes.raw_http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    settings,
)

ISTIO = b"outbound|9002||picker.models.svc.cluster.local"
ACK_FRAME = frame(SETTINGS, ACK)
PADDED, PRIORITY = 0x8, 0x20


def _block(authority: bytes = ISTIO) -> bytes:
    fields = [(b":method", b"POST"), (b":path", b"/a.B/C"), (b":authority", authority)]
    return bytes(hpack.Encoder().encode([*fields, (b"te", b"trailers")]))


GREETING = PREFACE + settings({4: 100}) + frame(WINDOW_UPDATE, payload=b"\0\0\1\0")
REQUEST = frame(HEADERS, END_HEADERS, 1, _block())


def _feed(data: bytes, size: int) -> tuple[Opening, int]:
    """Feed in parts; returns how many bytes it took to decide."""
    opening = Opening(16_384)
    for at in range(0, len(data), size):
        if opening.feed(data[at : at + size]):
            return opening, min(at + size, len(data))
    return opening, -1


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
@pytest.mark.parametrize(
    "request_frames",
    [
        REQUEST,
        frame(HEADERS, END_HEADERS | PADDED, 1, b"\3" + _block() + b"\0\0\0"),
        frame(HEADERS, END_HEADERS | PRIORITY, 1, b"\0\0\0\0\x10" + _block()),
        frame(HEADERS, END_HEADERS | PADDED | PRIORITY, 1, b"\1\0\0\0\0\x10" + _block() + b"\0"),
        frame(HEADERS, 0, 1, _block()[:3])
        + frame(CONTINUATION, 0, 1, _block()[3:4])
        + frame(CONTINUATION, END_HEADERS, 1, _block()[4:]),
    ],
)
def test_the_authority_is_read(request_frames: bytes, size: int) -> None:
    """In every form that a block of headers can have, however the bytes are cut."""
    data = GREETING + ACK_FRAME + request_frames
    opening, taken = _feed(data, size)

    assert opening.authority == ISTIO
    assert taken == len(data)
    assert opening.kept == data


def test_bytes_after_the_request_are_kept() -> None:
    """Whoever serves the connection gets all of them, those not looked at too."""
    data = GREETING + REQUEST + frame(DATA, 0, 1, b"abc") + b"\0\0"
    opening, _ = _feed(data, 10_000)

    assert opening.kept == data


def test_pings_are_answered_and_not_kept() -> None:
    """A gateway may ping a connection long before its first request."""
    ping = frame(PING, payload=b"12345678")
    opening = Opening(16_384)

    assert not opening.feed(GREETING + ping)
    assert opening.take_pongs() == frame(PING, ACK, payload=b"12345678")
    assert opening.take_pongs() == b""
    assert opening.feed(REQUEST)
    assert opening.kept == GREETING + REQUEST


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        PREFACE[:20] + b"XXXX",
        PREFACE + b"\xff" * 9,
        PREFACE + frame(SETTINGS) * 65,
        PREFACE + frame(PING, payload=b"12345678") * 65,
        PREFACE + frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff\xff"),
        PREFACE + frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff"),
        PREFACE + frame(HEADERS, END_HEADERS | PADDED, 1, b""),
        PREFACE + frame(HEADERS, END_HEADERS | PRIORITY, 1, b""),
        PREFACE + frame(CONTINUATION, END_HEADERS, 1, b""),
        PREFACE + frame(HEADERS, 0, 1, b"x" * 9000) + frame(CONTINUATION, 0, 1, b"x" * 9000),
    ],
)
def test_nonsense_is_left_to_libnghttp2(data: bytes) -> None:
    """What is no request is decided at once, without an authority, and every byte is handed on."""
    opening, _ = _feed(data, 1 << 20)

    assert opening.feed(b"")
    assert not is_refused(opening.authority)


@given(st.binary(max_size=200), st.booleans(), st.integers(1, 50))
def test_no_bytes_raise(data: bytes, greeted: bool, size: int) -> None:
    """Whatever comes, nothing raises, and nothing is kept twice or lost but answered pings."""
    data = GREETING + data if greeted else data
    opening, _ = _feed(data, size)

    assert len(opening.kept) <= len(data)


def _accepts(authority: bytes) -> bool:
    """Ask libnghttp2 itself."""
    connection = ngh2.Connection(ngh2.Role.SERVER)
    connection.initiate_connection()
    block = hpack.Encoder().encode(
        [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", authority)]
    )
    connection.receive_data(PREFACE + frame(SETTINGS) + frame(HEADERS, END_HEADERS, 1, block))
    return any(isinstance(event, ngh2.RequestReceived) for event in connection.events())


@pytest.mark.parametrize("byte", range(0x21, 0x7F))
def test_the_alphabet_is_libnghttp2s(byte: int) -> None:
    """A connection is handed over exactly if libnghttp2 would refuse its authority."""
    authority = b"a%cb:1" % byte

    assert is_refused(authority) is not _accepts(authority)


@pytest.mark.parametrize("size", [1, 3, 8, 9, 10, 10_000])
def test_the_first_acknowledgement_is_swallowed(size: int) -> None:
    """The first SETTINGS acknowledgement goes, and no other byte, wherever the cuts are."""
    before = GREETING + frame(HEADERS, END_HEADERS, 1, _block()) + frame(DATA, 0, 1, b"x" * 100)
    after = ACK_FRAME + frame(DATA, 1, 1, ACK_FRAME) + b"\0\0"
    data = before + ACK_FRAME + after
    ack_filter = AckFilter()
    out = b"".join(ack_filter.feed(data[at : at + size]) for at in range(0, len(data), size))

    assert out == before + after
    assert ack_filter.done
