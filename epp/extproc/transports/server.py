"""A listening socket, its connections, and their common end.

Connections are accepted one by one, so that the limit on them, the TLS handshake and a
certificate that has just been replaced are all decided here, before a protocol sees a byte.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from epp.extproc.transports.limits import TransportStats
from epp.extproc.transports.serving import Serving

log = logging.getLogger(__name__)

_BACKLOG = 1024
_ACCEPT_RETRY_S = 0.2
_ABORT_WAIT_S = 1.0


class TlsSource(Protocol):
    """Where the certificate comes from."""

    def context(self) -> ssl.SSLContext:
        """The context for the next connection."""


class Backend(Protocol):
    """A second server in this process, which serves connections handed to it."""

    def sweep(self, now: float) -> None:
        """Once a second: end the calls that have outlived their limits."""

    async def stop(self, grace_s: float) -> bool:
        """Finish the open calls within `grace_s`, end, and return whether all finished."""


class Server:
    """An open port.  `drain` or `close` ends it; both may be called more than once."""

    def __init__(
        self,
        serving: Serving,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        *,
        tls: TlsSource | None = None,
        backend: Backend | None = None,
    ) -> None:
        self._serving = serving
        self._listener = listener
        self._protocol = protocol
        self._tls = tls
        self._backend = backend
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accept_error_logged = False
        self.port: int = listener.getsockname()[1]
        self._accepting = self._spawn(self._accept(), "accept")
        self._sweep_s = serving.limits.sweep_interval_s
        self._sweep_handle = self._loop.call_later(self._sweep_s, self._sweep)

    @property
    def stats(self) -> TransportStats:
        """The counts of this server."""
        return self._serving.stats

    def _spawn(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        return self._loop.create_task(work, name=f"{what} on port {self.port}")

    async def _accept(self) -> None:
        while True:
            try:
                sock, _ = await self._loop.sock_accept(self._listener)
            except OSError as error:
                await self._accept_failed(error)
                continue
            self._accept_error_logged = False
            self._admit(sock)

    async def _accept_failed(self, error: OSError) -> None:
        """Out of file descriptors, as a rule: those connected go on, the others wait."""
        self.stats.accept_errors_total += 1
        if not self._accept_error_logged:
            self._accept_error_logged = True
            log.error("port %d takes no connections for now: %s", self.port, error)
        await asyncio.sleep(_ACCEPT_RETRY_S)

    def _admit(self, sock: socket.socket) -> None:
        stats = self.stats
        if stats.connections >= self._serving.limits.max_connections:
            stats.refused_connections_total += 1
            sock.close()
            return
        self._serving.now = self._loop.time()
        stats.connections += 1
        stats.connections_total += 1
        task = self._spawn(self._establish(sock), "handshake")
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _establish(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        options: dict[str, Any] = {}
        if self._tls is not None:
            options["ssl"] = self._tls.context()
            options["ssl_handshake_timeout"] = self._serving.limits.handshake_timeout_s or None
            # Few peers say goodbye in TLS; a closed connection need not wait for it.
            options["ssl_shutdown_timeout"] = self._serving.limits.linger_timeout_s or None
        made = False

        def protocol() -> asyncio.Protocol:
            nonlocal made
            made = True
            return self._protocol()

        try:
            await self._loop.connect_accepted_socket(protocol, sock, **options)
        except OSError as error:  # ssl.SSLError and TimeoutError among them
            self.stats.connections -= 1
            self.stats.tls_failures_total += 1
            log.debug("no connection came of a handshake: %s", error)
            sock.close()
        except asyncio.CancelledError:
            self.stats.connections -= 1
            sock.close()
            raise

    def _sweep(self) -> None:
        serving = self._serving
        serving.now = self._loop.time()
        self._sweep_handle = self._loop.call_later(self._sweep_s, self._sweep)
        for connection in tuple(serving.connections):
            connection.sweep(serving.now)
        if self._backend is not None:
            self._backend.sweep(serving.now)

    async def drain(self, timeout_s: float) -> bool:
        """Take no more calls, let those open finish, close; returns whether all finished."""
        await self._stop_accepting()
        for connection in tuple(self._serving.connections):
            connection.drain()
        backend_finished = True
        try:
            async with asyncio.timeout(timeout_s):
                if self._backend is not None:
                    backend_finished = await self._backend.stop(timeout_s)
                await self._serving.empty.wait()
        except TimeoutError:
            await self.close()
            return False
        await self.close()
        return backend_finished

    async def close(self) -> None:
        """Close at once; calls still open are cancelled."""
        await self._stop_accepting()
        for connection in tuple(self._serving.connections):
            connection.abort()
        if self._backend is not None:
            await self._backend.stop(0.0)
        try:
            async with asyncio.timeout(_ABORT_WAIT_S):
                await self._serving.empty.wait()
        except TimeoutError:
            log.warning("port %d: some sockets did not close in time", self.port)
        self._sweep_handle.cancel()

    async def _stop_accepting(self) -> None:
        tasks = (self._accepting, *self._handshakes)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()


def open_listener(host: str, port: int) -> socket.socket:
    """Bind and listen.  Without a host: every address of the machine, IPv6 and IPv4."""
    if host:
        info = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, address = info[0][0], info[0][4]
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    elif socket.has_dualstack_ipv6():
        listener = socket.create_server(
            ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG
        )
    else:
        listener = socket.create_server(("", port), backlog=_BACKLOG)
    listener.setblocking(False)
    return listener
