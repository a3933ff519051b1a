"""Bytes between a client and the in-process grpcio server, with back pressure both ways.

A relayed connection is HTTP/2 that somebody else speaks.  The relay changes nothing in it, but
for one frame: where our own SETTINGS greeted the client before it was handed over, the client's
acknowledgement of them must not reach a server that never sent them (`AckFilter`).
"""

import asyncio
import logging
from typing import Protocol, cast

from epp.extproc.transports.grpcio import GrpcioServer
from epp.extproc.transports.serving import Serving

log = logging.getLogger(__name__)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD = 9
SETTINGS = 4
ACK = 1


class Look(Protocol):
    """Something that learns the authority from the client's first bytes."""

    def feed(self, data: bytes) -> bool:
        """Take the next bytes; True once there is nothing more to learn."""

    @property
    def authority(self) -> bytes:
        """The `:authority` of the first request, empty if it could not be read."""


class AckFilter:
    """Passes a client's HTTP/2 bytes on, without the first SETTINGS acknowledgement."""

    def __init__(self) -> None:
        self.done = False
        self._skip = len(PREFACE)  # bytes of the current frame, or of the preface, still to pass
        self._head = b""

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes at any cut, return what is to be passed on."""
        if self.done:
            return data
        out = bytearray()
        data, self._head = self._head + data, b""
        at = 0
        while at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                out += data[at : at + step]
                self._skip -= step
                at += step
                continue
            head = data[at : at + FRAME_HEAD]
            if len(head) < FRAME_HEAD:
                self._head = head
                break
            at += FRAME_HEAD
            if head[3] == SETTINGS and head[4] & ACK:
                self.done = True
                return bytes(out + data[at:])
            out += head
            self._skip = int.from_bytes(head[:3], "big")
        return bytes(out)


class _Upstream(asyncio.Protocol):
    """The grpcio side of a relay."""

    def __init__(self, relay: "Relay") -> None:
        self._relay = relay
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._relay.to_client(data)

    def pause_writing(self) -> None:
        self._relay.pause_client()

    def resume_writing(self) -> None:
        self._relay.resume_client()

    def connection_lost(self, exc: Exception | None) -> None:
        self._relay.upstream_lost()


class Relay(asyncio.Protocol):
    """The client's side: takes a connection, finds it a grpcio connection, joins the two."""

    def __init__(self, serving: Serving, server: GrpcioServer, look: Look | None = None) -> None:
        self._serving = serving
        self._server = server
        self._look = look
        self._filter: AckFilter | None = None
        self._transport: asyncio.Transport
        self._upstream: _Upstream | None = None
        self._name = ""
        self._early = bytearray()
        self._born = serving.now
        self._paused_at: float | None = None
        self._closed_at: float | None = None
        self._lost = False
        self._joining: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a fresh connection; its authority is learnt in passing."""
        self._serving.opened(self)
        self._begin(transport)

    def adopt(self, transport: asyncio.BaseTransport, data: bytes, look: Look) -> None:
        """Take a connection over that has been greeted already, with what it has sent so far."""
        self._filter = AckFilter()
        self._early += self._filter.feed(data)
        self._look = look
        self._begin(transport)

    def _begin(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.pause_reading()
        self._joining = asyncio.get_running_loop().create_task(self._join(), name="relay")

    async def _join(self) -> None:
        try:
            sock, self._name = await self._server.connect()
            upstream = _Upstream(self)
            loop = asyncio.get_running_loop()
            await loop.create_unix_connection(lambda: upstream, sock=sock)
        except OSError as error:
            log.error("a connection could not be handed to grpcio: %s", error)
            self.abort()
            return
        self._upstream = upstream
        if self._lost:
            upstream.transport.abort()
            return
        self._learn()
        if self._early:
            upstream.transport.write(bytes(self._early))
            self._early.clear()
        self._transport.resume_reading()

    def _learn(self) -> None:
        if self._look is not None and self._look.authority:
            self._server.authorities[self._name] = self._look.authority
            self._look = None

    def data_received(self, data: bytes) -> None:
        """Client to server."""
        if self._upstream is None:  # a read that was under way when reading was paused
            self._early += self._filter.feed(data) if self._filter is not None else data
            if self._look is not None:
                self._look.feed(data)
            return
        if self._look is not None:
            over = self._look.feed(data)
            self._learn()
            if over:
                self._look = None
        if self._filter is not None:
            data = self._filter.feed(data)
            if self._filter.done:
                self._filter = None
        if data:
            self._upstream.transport.write(data)

    def to_client(self, data: bytes) -> None:
        """Server to client."""
        if not self._lost:
            self._transport.write(data)

    def pause_client(self) -> None:
        """The server is behind: take no more from the client."""
        if not self._lost:
            self._transport.pause_reading()

    def resume_client(self) -> None:
        """The server has caught up."""
        if not self._lost:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """The client does not read: take no more from the server."""
        self._paused_at = self._serving.now
        if self._upstream is not None:
            self._upstream.transport.pause_reading()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._paused_at = None
        if self._upstream is not None:
            self._upstream.transport.resume_reading()

    def upstream_lost(self) -> None:
        """grpcio has ended the connection: so do we, after what it said last."""
        if self._closed_at is None:
            self._closed_at = self._serving.now
        if not self._lost:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._lost = True
        self._server.authorities.pop(self._name, None)
        if self._upstream is not None:
            self._upstream.transport.close()
        self._serving.closed(self)

    def sweep(self, now: float) -> None:
        """End a connection that never asked for anything, or takes nothing."""
        limits, stats = self._serving.limits, self._serving.stats
        waiting_since = self._paused_at if self._closed_at is None else self._closed_at
        if waiting_since is not None:
            if now - waiting_since > (limits.send_timeout_s or float("inf")):
                stats.refused_stalls_total += 1
                self.abort()
        elif self._look is not None:
            allowed = limits.first_headers_timeout_s
            if allowed and now - self._born > allowed:
                stats.refused_handshakes_total += 1
                self.abort()

    def drain(self) -> None:
        """grpcio's own `stop` ends every connection but those that never asked for anything."""
        if self._look is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once; grpcio cancels the open calls."""
        self._transport.abort()
