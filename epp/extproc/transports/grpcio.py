"""The second transport: grpcio's own server, in front of the same application.

It serves the connections that libnghttp2 would refuse, and everything with `--transport grpcio`:
the day `ngh2` has to go, nothing else changes.

It listens on a Unix socket in a directory that only this user may enter, and connections reach it
through `relay`, in `grpcio` mode too.  That costs two copies of each byte, which is little beside
what grpcio itself costs.  In return TLS and its hot reload, the limit on connections and their
time-outs exist once, in `server`, and hold for every transport.

grpcio does not tell a handler the call's `:authority`, and pools are bound by it.  The relay
knows it from the connection's first request, and gives each connection a client address of its
own, which the handler sees as its peer.
"""

import asyncio
import logging
import os
import shutil
import socket
import tempfile
from collections import deque
from typing import Any

import grpc
import grpc.aio

from epp.extproc.calls import ENDS_APART, Call, Metadata, Reply, Status
from epp.extproc.transports import refusals
from epp.extproc.transports.limits import Limits
from epp.extproc.transports.serving import Serving

log = logging.getLogger(__name__)

_CODES = {code.value[0]: code for code in grpc.StatusCode}
_FOREVER = float("inf")


def _options(limits: Limits) -> list[tuple[str, int]]:
    milliseconds = 1000
    options = [
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", limits.max_concurrent_streams),
        ("grpc.max_metadata_size", limits.max_header_list_bytes),
        ("grpc.absolute_max_metadata_size", limits.max_header_list_bytes),
        ("grpc.http2.lookahead_bytes", limits.stream_window_bytes),
        # Gateways ping idle connections; grpcio would take one a minute for abuse.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1 * milliseconds),
        ("grpc.http2.max_ping_strikes", 100),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.so_reuseport", 0),
    ]
    for name, seconds in (
        ("grpc.max_connection_age_ms", limits.max_connection_age_s),
        ("grpc.max_connection_age_grace_ms", limits.max_connection_age_grace_s),
        ("grpc.max_connection_idle_ms", limits.connection_idle_timeout_s),
    ):
        if seconds:
            options.append((name, int(seconds * milliseconds)))
    return options


class GrpcioServer:
    """grpcio on a private Unix socket."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.runs: set[_Run] = set()
        self.idle = asyncio.Event()
        self.idle.set()
        self.authorities: dict[str, bytes] = {}
        self._folder = tempfile.mkdtemp(prefix="epp-")  # mode 0700
        self._path = os.path.join(self._folder, "grpc")
        self._clients = 0
        self._server: Any = None
        self._stopping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen."""
        self._server = grpc.aio.server(options=_options(self.serving.limits))
        self._server.add_generic_rpc_handlers((_Handlers(self),))
        self._server.add_insecure_port(f"unix:{self._path}")
        await self._server.start()

    async def connect(self) -> tuple[socket.socket, str]:
        """Open a connection; returns it with the name by which handlers know it."""
        self._clients += 1
        own_path = os.path.join(self._folder, str(self._clients))
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.setblocking(False)
            sock.bind(own_path)
            try:
                await asyncio.get_running_loop().sock_connect(sock, self._path)
            finally:
                os.unlink(own_path)  # the name stays known to the other end
        except BaseException:
            sock.close()
            raise
        return sock, f"unix:{own_path}"

    def sweep(self, now: float) -> None:
        """End the calls that have outlived their limits."""
        for run in tuple(self.runs):
            run.sweep(now)

    async def stop(self, grace_s: float) -> bool:
        """Finish the open calls within `grace_s`, end, and return whether all finished."""
        if self._stopping is None:
            # Once only: a second `stop` beside the first crashes grpcio.
            self._stopping = asyncio.get_running_loop().create_task(
                self._server.stop(grace_s), name="grpcio stop"
            )
        try:
            async with asyncio.timeout(grace_s):
                await self.idle.wait()
        except TimeoutError:
            pass
        finished = not self.runs
        for run in tuple(self.runs):
            run.abandon()
        await asyncio.shield(self._stopping)
        shutil.rmtree(self._folder, ignore_errors=True)
        return finished


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc] # grpcio has no types
    """Every method of every service: the application decides which it knows."""

    def __init__(self, server: GrpcioServer) -> None:
        self._server = server

    def service(self, handler_call_details: Any) -> Any:
        path = handler_call_details.method

        async def handle(_: object, context: Any) -> None:
            await _Run(self._server, path, context).run()

        return grpc.stream_stream_rpc_method_handler(handle)


class _Run:
    """One call.  Written by its own task and by the application's pushes."""

    def __init__(self, server: GrpcioServer, path: str, context: Any) -> None:
        self._server = server
        self._serving = server.serving
        self._limits = server.serving.limits
        self._path = path
        self._context = context
        self._call: Call | None = None
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        self._status: Status | None = None
        self._reading = False
        self._over = False
        self._writing = asyncio.Lock()
        self._writing_since: float | None = None
        self._pushing: asyncio.Task[None] | None = None
        self._task = asyncio.current_task()
        self._deadline = self._serving.now + (self._limits.first_message_timeout_s or _FOREVER)

    async def run(self) -> None:
        """Serve the call to its end."""
        stats = self._serving.stats
        stats.streams += 1
        stats.streams_total += 1
        self._server.runs.add(self)
        self._server.idle.clear()
        try:
            self._open()
            await self._converse()
        except asyncio.CancelledError:
            # CANCELLED is how Envoy ends every call.  Swallowed, it would leak in grpcio.
            if self._status is None or not self._reading:
                stats.resets_total += 1
                raise
        finally:
            self._leave()
        self._say(self._status)

    def _open(self) -> None:
        serving = self._serving
        if serving.stats.streams > self._limits.max_streams:
            serving.stats.refused_streams_total += 1
            self._status = refusals.CROWDED
            return
        try:
            self._call = serving.app.open(self._path, self._metadata(), self.push)
        except Exception:  # noqa: BLE001 -- whatever it is, the other calls go on
            serving.blame("open")
            self._status = refusals.FAILED
            return
        if self._call is None and self._status is None:
            serving.stats.refused_requests_total += 1
            self._status = refusals.unknown_method(self._path)

    def _metadata(self) -> Metadata:
        authority = self._server.authorities.get(self._context.peer(), b"")
        return (
            (b":path", self._path.encode("latin-1", "replace")),
            (b":authority", authority),
            (ENDS_APART, b""),
            *(
                (key.encode(), value if isinstance(value, bytes) else value.encode())
                for key, value in self._context.invocation_metadata()
            ),
        )

    async def _converse(self) -> None:
        await self._flush()
        while self._status is None:
            self._reading = True
            message = await self._context.read()
            self._reading = False
            if message is grpc.aio.EOF:
                # A reset looks like the peer's end here, and mostly shows itself one turn later.
                # Where it does not, the call is told `end` before `cancel`, which is harmless.
                self._reading = True
                await asyncio.sleep(0)
                self._reading = False
                self._step("end", None)
                break
            self._step("receive", message)
            await self._flush()
        await self._flush()
        if self._status is None:
            self._reading = True
            await asyncio.Event().wait()  # until a push, a limit or the peer ends it

    def _step(self, name: str, message: bytes | None) -> None:
        call, stats = self._call, self._serving.stats
        assert call is not None
        self._deadline = self._serving.now + (self._limits.stream_idle_timeout_s or _FOREVER)
        try:
            if message is None:
                reply = call.end()
            else:
                stats.messages_received_total += 1
                reply = call.receive(message)
        except Exception:  # noqa: BLE001 -- whatever it is, the other calls go on
            self._serving.blame(name)
            self._status = refusals.FAILED
            return
        if reply is not None:
            self._take(reply)

    def _take(self, reply: Reply) -> None:
        if self._status is not None:
            return
        self._outbox.extend(reply.messages)
        self._hold(sum(map(len, reply.messages)))
        self._status = reply.status
        if reply.status is not None:
            self._call = None

    def _hold(self, more_bytes: int) -> None:
        self._outbox_bytes += more_bytes
        self._serving.stats.buffered_bytes += more_bytes

    def push(self, reply: Reply) -> None:
        """The application's `Push`."""
        if self._over or self._status is not None:
            return
        self._take(reply)
        if self._outbox_bytes > self._limits.max_stream_output_bytes:
            self._serving.stats.refused_stalls_total += 1
            self._end(refusals.STALLED)
        elif self._reading and self._pushing is None:
            self._pushing = asyncio.get_running_loop().create_task(
                self._flush_pushed(), name=f"push {self._path}"
            )

    async def _flush_pushed(self) -> None:
        try:
            await self._flush()
        finally:
            self._pushing = None
        if self._status is not None:
            self._interrupt()

    async def _flush(self) -> None:
        async with self._writing:
            while self._outbox:
                message = self._outbox.popleft()
                self._writing_since = self._serving.now
                await self._context.write(message)
                self._writing_since = None
                self._hold(-len(message))
                self._serving.stats.messages_sent_total += 1

    def sweep(self, now: float) -> None:
        """End the call if it has outlived a limit."""
        since = self._writing_since
        if since is not None and now - since > (self._limits.send_timeout_s or _FOREVER):
            self._serving.stats.refused_stalls_total += 1
            self._end(refusals.STALLED)
        elif now > self._deadline:
            self._serving.stats.refused_idle_total += 1
            self._end(refusals.IDLE)

    def abandon(self) -> None:
        """End the call because the server does; the peer sees it cancelled."""
        if self._task is not None:
            self._task.cancel()

    def _end(self, status: Status) -> None:
        """End the call for a reason of ours."""
        self._status = status
        self._deadline = _FOREVER
        self._hold(-self._outbox_bytes)
        self._outbox.clear()
        if self._task is not None:
            self._task.cancel()

    def _interrupt(self) -> None:
        if self._reading and self._task is not None:
            self._task.cancel()

    def _leave(self) -> None:
        self._over = True
        self._serving.stats.streams -= 1
        self._hold(-self._outbox_bytes)
        self._outbox.clear()
        if self._pushing is not None:
            self._pushing.cancel()
        self._server.runs.discard(self)
        if not self._server.runs:
            self._server.idle.set()
        call, self._call = self._call, None
        if call is not None:
            self._serving.cancel(call)

    def _say(self, status: Status | None) -> None:
        assert status is not None
        if status.code:
            self._context.set_code(_CODES.get(status.code, grpc.StatusCode.UNKNOWN))
        self._context.set_details(status.message)
