"""A gRPC call as the transports see it: metadata at the start, messages in, replies out.

This is the seam between sockets and meaning.  A transport knows HTTP/2 and gRPC framing and has
never heard of ext_proc; an application knows what messages mean and never sees a byte of HTTP/2.
Calls never await: a reply is a return value, or comes later through `push`.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

Metadata = tuple[tuple[bytes, bytes], ...]
"""Initial metadata in order, keys in lower case, `:authority` and `:path` included."""


ENDS_APART = b":ends-apart"
"""In a call's metadata: this transport sends a last message and the end of the call as two writes.

A peer may act on the one before it has the other, and what it sends in between is lost.  No peer
can set it: it is a pseudo-header that HTTP/2 does not know.
"""


class Status(msgspec.Struct, frozen=True, gc=False):
    """How a call ends: a gRPC status code (0 = OK) and a message for a person."""

    code: int
    message: str = ""


OK = Status(0)
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
NOT_FOUND = 5
RESOURCE_EXHAUSTED = 8
UNIMPLEMENTED = 12
INTERNAL = 13
UNAVAILABLE = 14


class Reply(msgspec.Struct, frozen=True, gc=False):
    """Messages to send, in order, and then, unless `status` is None, the end of the call."""

    messages: tuple[bytes, ...] = ()
    status: Status | None = None


Push = Callable[[Reply], None]
"""Send a reply that no incoming message caused.  After the call has ended it does nothing."""


class Call(Protocol):
    """One open call.  After a reply with a status, or after `cancel`, nothing more is called."""

    def receive(self, message: bytes) -> Reply | None:
        """Take one message of the peer; None means: nothing to send yet."""

    def end(self) -> Reply | None:
        """The peer has half-closed: no further message will come.  None leaves the call open."""

    def cancel(self) -> None:
        """The peer reset the call, or its connection is gone: nothing can be sent any more."""


class Application(Protocol):
    """What a transport serves."""

    def open(self, path: str, metadata: Metadata, push: Push) -> Call | None:
        """Begin a call of the method `path` (`/package.Service/Method`); None = unimplemented."""
