"""The state of one stream in the http2 transport, apart from HTTP/2 itself."""

import asyncio
from typing import Protocol

from epp.extproc.calls import Call, Reply
from epp.extproc.transports.framing import Deframer


class Sender(Protocol):
    """What a stream needs of its connection."""

    def send(self, stream: "Stream", reply: Reply) -> None:
        """Queue a reply."""

    def flush_soon(self) -> None:
        """Write what is queued within this turn of the event loop."""


class Stream:
    """One open call on its HTTP/2 stream.  Written by its connection only."""

    __slots__ = (
        "call",
        "charged",
        "connection",
        "deadline",
        "deframer",
        "ended",
        "heard",
        "id",
        "peer_ended",
        "responded",
        "timer",
    )

    def __init__(
        self, connection: Sender, stream_id: int, *, deadline: float, max_message_bytes: int
    ) -> None:
        self.connection = connection
        self.id = stream_id
        self.deadline = deadline
        self.deframer = Deframer(max_message_bytes)
        self.call: Call | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.charged = 0
        self.heard = False
        self.ended = False
        self.peer_ended = False
        self.responded = False

    def push(self, reply: Reply) -> None:
        """The application's `Push`."""
        if not self.ended:
            self.connection.send(self, reply)
            self.connection.flush_soon()


class Backlog:
    """Output of one stream that HTTP/2's flow control holds back.  Written by its connection."""

    __slots__ = ("_gone", "_owed", "moved_at", "withheld")

    def __init__(self, now: float, left: int) -> None:
        self.moved_at = now
        self.withheld = 0
        """Bytes received and not acknowledged, so that the peer stops sending."""
        self._owed = left
        self._gone = 0

    def add(self, size: int) -> None:
        """More output was queued."""
        self._owed += size

    def update(self, now: float, left: int) -> None:
        """Take note of what is still unsent."""
        gone = self._owed - left
        if gone > self._gone:
            self._gone = gone
            self.moved_at = now

    def release(self) -> int:
        """How much may be acknowledged now."""
        size, self.withheld = self.withheld, 0
        return size
