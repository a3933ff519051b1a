"""Which transport serves a connection, and `listen`, the way in for the rest of the program.

`auto` serves with `http2`, which is an order of magnitude faster, all but the connections that
libnghttp2 would refuse: it follows the RFC on `:authority`, and Istio sends
`outbound|9002||service.namespace.svc.cluster.local`.  So the first request of each connection is
looked at, once, and such a connection is handed to grpcio with all its bytes.

gRPC clients send no request before they have the server's SETTINGS, so ours go out at once, and
say nothing that grpcio would not stand by.  The client's acknowledgement of them is kept from
grpcio.  Everything else that cannot be understood here is left to libnghttp2 to refuse.
"""

import asyncio
import logging
from collections.abc import Callable
from random import Random
from typing import cast

import hpack

from epp.extproc.calls import Application
from epp.extproc.transports.grpcio import GrpcioServer
from epp.extproc.transports.http2 import Http2Connection
from epp.extproc.transports.limits import Limits, TransportStats
from epp.extproc.transports.relay import ACK, FRAME_HEAD, PREFACE, Relay
from epp.extproc.transports.server import Server, TlsSource, open_listener
from epp.extproc.transports.serving import Serving

logging.getLogger("hpack").setLevel(logging.WARNING)  # it would log every header it decodes

TRANSPORTS = ("auto", "http2", "grpcio")

_HEADERS, _PING, _CONTINUATION = 1, 6, 9
_END_HEADERS, _PADDED, _PRIORITY = 0x4, 0x8, 0x20
_PRIORITY_BYTES = 5
_MAX_FRAME = 16_384
_MAX_FRAMES = 64
"""Before its first request a client sends three or four frames."""

_AUTHORITY_BYTES = frozenset(
    b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~%!$&'()*+,;=:[]"
)
"""What libnghttp2 takes in an `:authority`: RFC 3986's alphabet for it, without user names."""


def is_refused(authority: bytes) -> bool:
    """Whether libnghttp2 would refuse a request with this `:authority`."""
    return not _AUTHORITY_BYTES.issuperset(authority)


class Opening:
    """The first bytes of a connection, until its first request can be read; no socket.

    Pings are answered here, as they may come long before a request, and are not kept.
    """

    def __init__(self, max_header_list_bytes: int) -> None:
        self.authority = b""
        self.kept = bytearray()
        """What whoever serves the connection has to be given first."""
        self.started = False
        """The client has sent the preface of HTTP/2."""
        self._pongs = bytearray()
        self._data = bytearray()
        self._frames = 0
        self._block = bytearray()
        self._max_header_list_bytes = max_header_list_bytes
        self._over = False

    def feed(self, data: bytes) -> bool:
        """Take the next bytes; True once the first request, or nonsense, has been seen."""
        self._data += data
        if not self._over:
            self._over = self._advance()
        if self._over:
            self.kept += self._data
            self._data.clear()
        return self._over

    def take_pongs(self) -> bytes:
        """Answers to pings, to be written now."""
        pongs = bytes(self._pongs)
        self._pongs.clear()
        return pongs

    def _advance(self) -> bool:
        if not self.started:
            size = len(PREFACE)
            if self._data[:size] != PREFACE[: len(self._data)]:
                return True
            if len(self._data) < size:
                return False
            self.started = True
            self._keep(size)
        while len(self._data) >= FRAME_HEAD:
            size = int.from_bytes(self._data[:3], "big")
            if size > _MAX_FRAME or self._frames >= _MAX_FRAMES:
                return True
            if len(self._data) < FRAME_HEAD + size:
                return False
            self._frames += 1
            if self._read_frame(self._data[3], self._data[4], FRAME_HEAD + size):
                return True
        return False

    def _keep(self, size: int) -> None:
        self.kept += self._data[:size]
        del self._data[:size]

    def _read_frame(self, kind: int, flags: int, size: int) -> bool:
        payload = bytes(self._data[FRAME_HEAD:size])
        if kind == _PING and not flags & ACK and len(payload) == 8:
            self._pongs += b"\0\0\x08\x06\x01\0\0\0\0" + payload
            del self._data[:size]
            return False
        self._keep(size)
        if kind == _HEADERS:
            self._block += _fragment(payload, flags)
        elif kind == _CONTINUATION:
            self._block += payload
        else:
            return False
        if not flags & _END_HEADERS:
            return len(self._block) > self._max_header_list_bytes
        self._decode()
        return True

    def _decode(self) -> None:
        decoder = hpack.Decoder(max_header_list_size=self._max_header_list_bytes)
        try:
            for name, value in decoder.decode(bytes(self._block), raw=True):
                if name == b":authority":
                    self.authority = value
        except hpack.HPACKError:
            self.authority = b""


def _fragment(payload: bytes, flags: int) -> bytes:
    """The header block in a HEADERS frame, without padding and priority."""
    start, end = 0, len(payload)
    if flags & _PADDED and payload:
        start, end = 1, end - payload[0]
    if flags & _PRIORITY:
        start += _PRIORITY_BYTES
    return payload[start:end]


class Front(asyncio.Protocol):
    """A connection of `auto` until its first request: greeted by http2, then kept or handed on."""

    def __init__(self, serving: Serving, grpcio: GrpcioServer) -> None:
        self._serving = serving
        self._grpcio = grpcio
        self._http2 = Http2Connection(serving)
        self._opening = Opening(serving.limits.max_header_list_bytes)
        self._born = serving.now
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet, and wait for the first request."""
        self._transport = cast(asyncio.Transport, transport)
        self._serving.opened(self)
        self._http2.greet(transport)

    def data_received(self, data: bytes) -> None:
        """Look at the first bytes, until it is clear who serves the connection."""
        opening = self._opening
        over = opening.feed(data)
        if pongs := opening.take_pongs():
            self._transport.write(pongs)
        if not over:
            return
        kept = bytes(opening.kept)
        if is_refused(opening.authority):
            self._serving.stats.handed_over_total += 1
            relay = Relay(self._serving, self._grpcio)
            self._serving.replaced(self, relay)
            self._transport.set_protocol(relay)
            relay.adopt(self._transport, kept, opening)
        else:
            self._serving.replaced(self, self._http2)
            self._transport.set_protocol(self._http2)
            self._http2.widen()
            self._http2.data_received(kept)

    def connection_lost(self, exc: Exception | None) -> None:
        """It never asked for anything."""
        self._serving.closed(self)

    def sweep(self, now: float) -> None:
        """End a connection that says nothing."""
        if self._serving.is_late(self._born, greeted=self._opening.started):
            self._serving.stats.refused_handshakes_total += 1
            self._transport.close()

    def drain(self) -> None:
        """Nothing has been asked for yet, so nothing is lost."""
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()


async def listen(
    app: Application,
    *,
    host: str = "",
    port: int = 0,
    transport: str = "auto",
    tls: TlsSource | None = None,
    limits: Limits | None = None,
    stats: TransportStats | None = None,
    rng: Random | None = None,
) -> Server:
    """Serve `app` on a port; 0 takes a free one, no host takes every address of the machine."""
    serving = Serving(
        app=app,
        limits=limits or Limits(),
        stats=stats or TransportStats(),
        rng=rng or Random(),
        now=asyncio.get_running_loop().time(),
    )
    listener = open_listener(host, port)
    try:
        protocol, grpcio = await _protocol(serving, transport)
    except BaseException:
        listener.close()
        raise
    return Server(serving, listener, protocol, tls=tls, backend=grpcio)


async def _protocol(
    serving: Serving, transport: str
) -> tuple[Callable[[], asyncio.Protocol], GrpcioServer | None]:
    if transport == "http2":
        return (lambda: Http2Connection(serving)), None
    if transport not in TRANSPORTS:
        raise ValueError(f"transport {transport!r} is none of {', '.join(TRANSPORTS)}")
    grpcio = GrpcioServer(serving)
    await grpcio.start()
    if transport == "auto":
        return (lambda: Front(serving, grpcio)), grpcio
    header_bytes = serving.limits.max_header_list_bytes
    return (lambda: Relay(serving, grpcio, Opening(header_bytes))), grpcio
