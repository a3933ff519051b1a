"""Output that waits: how much of it each stream has, and what that means for its input.

HTTP/2's flow control lets a peer read slowly.  A stream whose output piles up takes no more
input, so that the peer stops sending; one that piles up further, or stays, is given up.
"""

from typing import Protocol

from epp.extproc.transports.serving import Serving
from epp.extproc.transports.streams import Backlog


class FlowControl(Protocol):
    """What is asked of an HTTP/2 session."""

    def queued_body_size(self, stream_id: int | None = None) -> int:
        """Output not sent yet, of a stream or of all."""

    def acknowledge_received_data(self, amount: int, stream_id: int) -> None:
        """Let the peer send so much more."""


class Backlogs:
    """The backlogs of one connection.  Written by it only."""

    def __init__(self, session: FlowControl, serving: Serving) -> None:
        self._session = session
        self._serving = serving
        self._backlogs: dict[int, Backlog] = {}
        self._touched: list[int] = []  # streams sent to since the last look
        self.blocking: set[int] = set()
        """Streams that no more input is taken for."""
        self.queued = 0
        """Bytes of all streams."""

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._backlogs

    def __bool__(self) -> bool:
        return bool(self._touched or self.queued)

    def add(self, stream_id: int, size: int) -> None:
        """So much was queued for a stream."""
        self._touched.append(stream_id)
        if self._backlogs and (backlog := self._backlogs.get(stream_id)) is not None:
            backlog.add(size)

    def withhold(self, stream_id: int, size: int) -> None:
        """Do not acknowledge this input of a blocking stream yet."""
        self._backlogs[stream_id].withheld += size

    def weigh(self) -> list[int]:
        """Look at what was written to, and at what blocks; returns the streams to give up."""
        touched, self._touched = self._touched, []
        queued = self._session.queued_body_size()
        if not queued and not self.queued:
            return []
        self._serving.stats.buffered_bytes += queued - self.queued
        self.queued = queued
        # Those that only wait are looked at by the sweep: there can be very many of them.
        return [i for i in {*touched, *self.blocking} if self._weigh_stream(i)]

    def sweep(self, now: float) -> list[int]:
        """Look at all; returns the streams to give up, those that stay among them."""
        send_s = self._serving.limits.send_timeout_s
        lost = []
        for stream_id, backlog in list(self._backlogs.items()):
            too_much = self._weigh_stream(stream_id)
            if too_much or (send_s and now - backlog.moved_at > send_s):
                lost.append(stream_id)
        return [stream_id for stream_id in lost if stream_id in self._backlogs]

    def _weigh_stream(self, stream_id: int) -> bool:
        limits, now = self._serving.limits, self._serving.now
        left = self._session.queued_body_size(stream_id)
        backlog = self._backlogs.get(stream_id)
        if backlog is None:
            if not left:
                return False
            backlog = self._backlogs[stream_id] = Backlog(now, left)
        backlog.update(now, left)
        if left > limits.pause_output_bytes:
            self.blocking.add(stream_id)
        elif stream_id in self.blocking:
            self.blocking.discard(stream_id)
            self._session.acknowledge_received_data(backlog.release(), stream_id)
        if not left:
            del self._backlogs[stream_id]
            return False
        return left > limits.max_stream_output_bytes or not self._serving.has_room()

    def drop(self, stream_id: int) -> None:
        """The stream is over."""
        backlog = self._backlogs.pop(stream_id, None)
        if backlog is not None:
            self.blocking.discard(stream_id)
            # The connection's window is shared: what this stream took of it has to come back.
            self._session.acknowledge_received_data(backlog.release(), stream_id)

    def clear(self) -> None:
        """The connection is over."""
        self._serving.stats.buffered_bytes -= self.queued
        self.queued = 0
