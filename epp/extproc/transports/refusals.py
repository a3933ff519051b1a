"""How the transports themselves end a call; the application's own statuses are its own."""

from epp.extproc.calls import (
    DEADLINE_EXCEEDED,
    INTERNAL,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    UNIMPLEMENTED,
    Status,
)

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
