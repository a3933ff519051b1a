"""gRPC's framing, without a socket."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.extproc.calls import INTERNAL, OK, RESOURCE_EXHAUSTED, UNIMPLEMENTED, Status
from epp.extproc.transports.framing import (
    Deframer,
    frame,
    frames,
    is_grpc,
    timeout_s,
    trailers,
)

MESSAGES = st.lists(st.binary(max_size=40), max_size=8)


def _cut(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted(cut % (len(data) + 1) for cut in cuts)
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]


@given(MESSAGES, st.lists(st.integers(0, 10_000), max_size=10))
def test_messages_survive_any_cut(messages: list[bytes], cuts: list[int]) -> None:
    """However the bytes are cut, the same messages come out, and nothing is held afterwards."""
    deframer = Deframer(1000)
    got = [each for part in _cut(frames(tuple(messages)), cuts) for each in deframer.feed(part)]

    assert got == messages
    assert deframer.refusal is None
    assert deframer.pending == 0


@given(MESSAGES)
def test_bytes_one_at_a_time(messages: list[bytes]) -> None:
    """One byte at a time is a cut like any other; an unfinished message is what is pending."""
    deframer = Deframer(1000)
    for message in messages:
        data = frame(message)
        for count, byte in enumerate(data[:-1], start=1):
            assert list(deframer.feed(bytes((byte,)))) == []
            assert deframer.pending == count
        assert list(deframer.feed(data[-1:])) == [message]


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (b"\1\0\0\0\1", UNIMPLEMENTED),
        (b"\2\0\0\0\1", INTERNAL),
        (b"\xff\xff\xff\xff\xff", INTERNAL),
        (b"\0\0\0\0\x0b", RESOURCE_EXHAUSTED),
        (b"\0\xff\xff\xff\xff", RESOURCE_EXHAUSTED),
    ],
)
@pytest.mark.parametrize("tail", [b"", b"x", frame(b"late") * 3])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_what_cannot_be_read_is_refused(head: bytes, code: int, tail: bytes, size: int) -> None:
    """The messages before it come out; it is refused by its head, and what follows is dropped."""
    deframer = Deframer(10)
    data = frame(b"first") + frame(b"") + head + tail
    got = [m for at in range(0, len(data), size) for m in deframer.feed(data[at : at + size])]

    assert got == [b"first", b""]
    assert deframer.refusal is not None
    assert deframer.refusal.code == code
    assert deframer.pending == 0
    assert list(deframer.feed(frame(b"after"))) == []


def test_a_message_at_the_limit_is_taken() -> None:
    """The limit is inclusive, on both ways through the code."""
    whole, split = Deframer(4), Deframer(4)

    assert list(whole.feed(frame(b"1234"))) == [b"1234"]
    assert [*split.feed(frame(b"1234")[:7]), *split.feed(frame(b"1234")[7:])] == [b"1234"]
    assert list(whole.feed(frame(b"12345"))) == []
    assert whole.refusal is not None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"1S", 1.0),
        (b"250m", 0.25),
        (b"99999999H", 99999999 * 3600.0),
        (b"7M", 420.0),
        (b"5u", 5e-6),
        (b"0n", 0.0),
        (b"", None),
        (b"S", None),
        (b"1", None),
        (b"1s", None),
        (b"-1S", None),
        (b"1.5S", None),
        (b" 1S", None),
        (b"100000000S", None),
        ("\u0661S".encode(), None),
    ],
)
def test_timeouts(value: bytes, seconds: float | None) -> None:
    """Eight digits and a unit, and nothing else."""
    assert timeout_s(value) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("content_type", "is_call"),
    [
        (b"application/grpc", True),
        (b"application/grpc+proto", True),
        (b"Application/GRPC+proto", True),
        (b"application/grpc;charset=utf-8", True),
        (b"application/grpc-web", False),
        (b"application/grpcx", False),
        (b"application/json", False),
        (b"", False),
        (None, False),
    ],
)
def test_content_types(content_type: bytes | None, is_call: bool) -> None:
    """gRPC, with any codec; gRPC-Web is another protocol."""
    assert is_grpc(content_type) is is_call


def test_trailers_tell_the_status() -> None:
    """Code and message; the message is percent-encoded, and cut to what any client takes."""
    assert trailers(OK) == ((b"grpc-status", b"0"),)
    assert trailers(Status(5)) == ((b"grpc-status", b"5"),)
    assert trailers(Status(5, "50 % ä\n\ud800"))[1] == (b"grpc-message", b"50 %25 %C3%A4%0A?")
    assert len(trailers(Status(5, "ä" * 10_000))[1][1]) < 8192
