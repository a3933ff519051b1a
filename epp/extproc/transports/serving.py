"""What all connections of one server share.

A connection is a protocol object of its own; what it has in common with the others (what is
served, the bounds, the counts, the coarse clock) is one value that each of them holds.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from epp.extproc.calls import Application, Call
from epp.extproc.transports.limits import Limits, TransportStats

log = logging.getLogger(__name__)


class Connection(Protocol):
    """What a server asks of each open connection."""

    def sweep(self, now: float) -> None:
        """Once a second: end what has outlived its limits."""

    def drain(self) -> None:
        """Take no new calls, finish those that are open, then close."""

    def abort(self) -> None:
        """Close at once; open calls are cancelled."""


@dataclass(slots=True)
class Serving:
    """The shared state.  `now` is written by the server's sweep, the rest by the connections."""

    app: Application
    limits: Limits
    stats: TransportStats
    rng: Random
    now: float
    connections: set[Connection] = field(default_factory=set)
    empty: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no connection is open."""

    def __post_init__(self) -> None:
        """Begin without a connection."""
        self.empty.set()

    def opened(self, connection: Connection) -> None:
        """Count a connection that has a protocol now."""
        self.connections.add(connection)
        self.empty.clear()

    def replaced(self, connection: Connection, by: Connection) -> None:
        """Let another protocol stand for the same socket."""
        self.connections.discard(connection)
        self.connections.add(by)

    def closed(self, connection: Connection) -> None:
        """Forget a connection whose socket is gone."""
        self.connections.discard(connection)
        self.stats.connections -= 1
        if not self.connections:
            self.empty.set()

    def is_late(self, born: float, *, greeted: bool) -> bool:
        """Whether a connection without any request has had time enough for one."""
        limits = self.limits
        allowed = limits.first_headers_timeout_s if greeted else limits.handshake_timeout_s
        return bool(allowed) and self.now - born > allowed

    def has_room(self, more_bytes: int = 0) -> bool:
        """Whether so many more bytes may be held."""
        return self.stats.buffered_bytes + more_bytes <= self.limits.max_buffered_bytes

    def cancel(self, call: Call) -> None:
        """Tell a call that its peer is gone; a bug in it stays its own."""
        try:
            call.cancel()
        except Exception:  # noqa: BLE001 -- whatever it is, the other calls go on
            self.blame("cancel")

    def blame(self, step: str) -> None:
        """Record, from within the `except`, that the application raised."""
        self.stats.application_errors_total += 1
        log.exception(  # noqa: LOG004 -- the caller stands in its `except`
            "the application failed at %s; its call ends, the connection lives on", step
        )
