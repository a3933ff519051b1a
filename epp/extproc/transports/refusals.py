"""How the transports themselves end a call; the application's own statuses are its own."""

from epp.extproc.calls import (
    DEADLINE_EXCEEDED,
    INTERNAL,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    UNIMPLEMENTED,
    Status,
)
from epp.extproc.transports.framing import RESPONSE_HEADERS, Headers, is_grpc, trailers

FAILED = Status(INTERNAL, "the server failed on this call")
CUT_SHORT = Status(INTERNAL, "the stream ended inside a message")
BAD_TIMEOUT = Status(INTERNAL, "malformed grpc-timeout")
FULL = Status(RESOURCE_EXHAUSTED, "the server holds as many unfinished messages as it may")
CROWDED = Status(RESOURCE_EXHAUSTED, "the server has as many open streams as it may")
WORDY = Status(RESOURCE_EXHAUSTED, "the metadata of the call is over the limit")
STALLED = Status(RESOURCE_EXHAUSTED, "too much output waits for the peer")
EXPIRED = Status(DEADLINE_EXCEEDED, "the deadline of the call has passed")
IDLE = Status(UNAVAILABLE, "no message came in time")


def unknown_method(path: str) -> Status:
    """Nobody serves the method."""
    return Status(UNIMPLEMENTED, f"unknown method {path}")


_NOT_POST: Headers = ((b":status", b"405"), (b"allow", b"POST"))
_NOT_GRPC: Headers = ((b":status", b"415"), (b"accept", b"application/grpc"))


def unfit(fields: dict[bytes, bytes], max_header_list_bytes: int) -> Headers | None:
    """What answers a request that is no gRPC call, or one with too long headers; else None."""
    if fields.get(b":method") != b"POST":
        return _NOT_POST
    if not is_grpc(fields.get(b"content-type")):
        return _NOT_GRPC
    if sum(map(len, fields.values())) > max_header_list_bytes:
        return RESPONSE_HEADERS + trailers(WORDY)
    return None
