"""The fast transport: gRPC framing over libnghttp2 (`ngh2`), on an asyncio protocol.

`ngh2` holds the HTTP/2 state and knows no socket; this module moves bytes between it and the
event loop's transport, and calls between it and the application.  Whatever one read brought is
answered with one write.  It refuses to know what a message means.

Every path by which a peer could make us hold bytes, do work or wait has its bound in
`limits.Limits`; `sweep` is where those that depend on time bite.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, ClassVar, cast

import ngh2

from epp.extproc.calls import Reply, Status
from epp.extproc.transports import refusals
from epp.extproc.transports.backlogs import Backlogs
from epp.extproc.transports.framing import RESPONSE_HEADERS, Headers, frames, timeout_s, trailers
from epp.extproc.transports.limits import TokenBucket
from epp.extproc.transports.serving import Serving
from epp.extproc.transports.streams import Stream

log = logging.getLogger(__name__)

_WRITE_BYTES = 256 * 1024
"""The most that one `write` takes: the transport can say "enough" between two of them."""

_CLOSE_DELAY_S = 0.25
"""Between the last byte of a drained connection and its end.  A peer still sending would get a
TCP reset otherwise, which can overtake what it has not read yet."""

_HEADER_SLACK = 4

_FOREVER = float("inf")


class Http2Connection(asyncio.Protocol):
    """One connection: an HTTP/2 session, its streams, and the limits on both."""

    def __init__(self, serving: Serving) -> None:
        limits = serving.limits
        self._serving, self._limits, self._stats = serving, limits, serving.stats
        self._h2 = ngh2.Connection(
            ngh2.Role.SERVER,
            ngh2.Configuration(
                auto_window_update=False,
                stream_reset_rate_limit=limits.resets,
                # Beyond this the connection ends; a list that is merely too long has an answer.
                max_inbound_header_list_size=_HEADER_SLACK * limits.max_header_list_bytes,
            ),
        )
        self._transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, Stream] = {}
        self._lingering: dict[int, float] = {}  # ended by us, not yet by the peer: since when
        self._backlogs = Backlogs(self._h2, serving)
        self._last_id = 0
        self._in_batch = False
        self._flush_handle: asyncio.Handle | None = None
        self._paused_at: float | None = None
        self._preface_seen = False
        self._draining_at: float | None = None
        self._refuses_streams = False  # the last GOAWAY has been sent, or the peer's has come
        self._finished_at: float | None = None  # HTTP/2 is over, the socket may not be yet
        now = self._born = self._busy_at = serving.now
        self._unanswered = TokenBucket(limits.unanswered_resets, now)
        self._control = TokenBucket(limits.control_frames, now)
        self._message_s = limits.first_message_timeout_s or _FOREVER
        self._idle_s = limits.stream_idle_timeout_s or _FOREVER
        age_s = limits.max_connection_age_s * serving.rng.uniform(0.9, 1.1)
        self._expires = now + (age_s or _FOREVER)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet, and serve."""
        self.greet(transport)
        self._serving.opened(self)
        self.widen()

    def greet(self, transport: asyncio.BaseTransport) -> None:
        """Send SETTINGS that another server could stand by if it took the connection over."""
        self._transport = cast(asyncio.Transport, transport)
        settings = {
            ngh2.Setting.MAX_CONCURRENT_STREAMS: self._limits.max_concurrent_streams,
            ngh2.Setting.MAX_HEADER_LIST_SIZE: self._limits.max_header_list_bytes,
        }
        self._h2.initiate_connection(settings)
        self._flush()

    def widen(self) -> None:
        """Open the flow-control windows; the connection is ours."""
        self._h2.update_settings(
            {ngh2.Setting.INITIAL_WINDOW_SIZE: self._limits.stream_window_bytes}
        )
        self._h2.set_local_window_size(self._limits.connection_window_bytes)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Take one read's bytes, answer them with one write."""
        if self._finished_at is not None:
            return
        try:
            self._h2.receive_data(data)
        except ngh2.NGH2Error as error:
            self._fail(error)
            return
        self._in_batch = True
        self._dispatch()
        self._in_batch = False
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel what was open."""
        self._finish()
        self._serving.closed(self)

    def pause_writing(self) -> None:
        """The peer does not read: take nothing more from it either."""
        self._paused_at = self._serving.now
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._paused_at = None
        if self._finished_at is None:
            self._transport.resume_reading()
            self.flush_soon()

    # --- HTTP/2's side ---

    def _dispatch(self) -> None:
        for event in self._h2.events():
            handler = self._ON.get(type(event))
            if handler is not None and self._finished_at is None:
                handler(self, event)

    def _on_request(self, event: ngh2.RequestReceived) -> None:
        headers = event.headers
        stream_id = self._last_id = event.stream_id
        fields = dict(headers)
        refusal = refusals.unfit(fields, self._limits.max_header_list_bytes)
        if refusal is not None:
            return self._refuse(event, refusal)
        if self._stats.streams >= self._limits.max_streams:
            self._stats.refused_streams_total += 1
            return self._refuse(event, RESPONSE_HEADERS + trailers(refusals.CROWDED))
        stream = Stream(
            self,
            stream_id,
            deadline=self._serving.now + self._message_s,
            max_message_bytes=self._limits.max_message_bytes,
        )
        stream.peer_ended = event.end_stream
        self._streams[stream_id] = stream
        self._stats.streams += 1
        self._stats.streams_total += 1
        timeout = fields.get(b"grpc-timeout")
        if timeout is None or self._arm(stream, timeout):
            self._open(stream, fields[b":path"].decode("latin-1"), headers)
        return None

    def _refuse(self, event: ngh2.RequestReceived, headers: Headers) -> None:
        self._stats.refused_requests_total += 1
        self._h2.send_response(event.stream_id, headers, end_stream=True)
        if not event.end_stream:
            self._lingering[event.stream_id] = self._serving.now

    def _arm(self, stream: Stream, timeout: bytes) -> bool:
        seconds = timeout_s(timeout)
        if seconds is None:
            self.send(stream, Reply(status=refusals.BAD_TIMEOUT))
            return False
        stream.timer = self._loop.call_later(seconds, self._expire, stream)
        return True

    def _expire(self, stream: Stream) -> None:
        if not stream.ended:
            self._stats.deadlines_total += 1
            self._cut(stream, refusals.EXPIRED)
            self.flush_soon()

    def _open(self, stream: Stream, path: str, headers: Headers) -> None:
        try:
            call = self._serving.app.open(path, headers, stream.push)
        except Exception:  # noqa: BLE001 -- whatever it is, the other calls go on
            self._serving.blame("open")
            self.send(stream, Reply(status=refusals.FAILED))
            return
        if stream.ended:
            return
        if call is None:
            self._stats.refused_requests_total += 1
            self.send(stream, Reply(status=refusals.unknown_method(path)))
            return
        stream.call = call
        if stream.peer_ended:
            self._half_close(stream)

    def _on_data(self, event: ngh2.DataReceived) -> None:
        stream_id, data = event.stream_id, event.data
        stream = self._streams.get(stream_id)
        if stream is not None and event.end_stream:
            stream.peer_ended = True
        if data:
            if stream is not None:
                self._receive(stream, data)
            if stream_id in self._backlogs.blocking:
                self._backlogs.withhold(stream_id, len(data))
            else:
                self._h2.acknowledge_received_data(len(data), stream_id)
        elif not event.end_stream:
            self._on_control(event)
        if stream is not None and stream.peer_ended and not stream.ended:
            self._half_close(stream)

    def _receive(self, stream: Stream, data: bytes) -> None:
        deframer = stream.deframer
        messages = deframer.feed(data)
        if messages:
            self._stats.messages_received_total += len(messages)
            stream.heard = True
            stream.deadline = self._serving.now + self._idle_s
            for message in messages:
                self._deliver(stream, message)
                if stream.ended:
                    return
        if deframer.refusal is not None:
            self._stats.refused_messages_total += 1
            self._cut(stream, deframer.refusal)
        elif (pending := deframer.pending) != stream.charged:
            self._charge(stream, pending)

    def _deliver(self, stream: Stream, message: bytes | None) -> None:
        """Give the call a message, or, with None, the peer's end."""
        call = stream.call
        assert call is not None
        try:
            reply = call.end() if message is None else call.receive(message)
        except Exception:  # noqa: BLE001 -- whatever it is, the other calls go on
            self._serving.blame("end" if message is None else "receive")
            self._cut(stream, refusals.FAILED)
            return
        if reply is not None:
            self.send(stream, reply)

    def _charge(self, stream: Stream, pending: int) -> None:
        """Hold an unfinished message, if there is room; it has to be finished in time."""
        more = pending - stream.charged
        if more > 0 and not self._serving.has_room(more):
            self._stats.refused_messages_total += 1
            self._cut(stream, refusals.FULL)
            return
        if pending and not stream.charged:
            stream.deadline = min(stream.deadline, self._serving.now + self._message_s)
        self._stats.buffered_bytes += more
        stream.charged = pending

    def _half_close(self, stream: Stream) -> None:
        if stream.deframer.pending:
            self._cut(stream, refusals.CUT_SHORT)
        else:
            self._deliver(stream, None)

    def _on_trailers(self, event: ngh2.TrailersReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.peer_ended = True
            self._half_close(stream)

    def _on_reset(self, event: ngh2.StreamReset) -> None:
        self._stats.resets_total += 1
        stream = self._streams.get(event.stream_id)
        if stream is not None and not stream.heard and not self._unanswered.take(self._serving.now):
            self._abuse("streams reset before their first message")

    def _on_stream_closed(self, event: ngh2.StreamClosed) -> None:
        stream_id = event.stream_id
        self._lingering.pop(stream_id, None)
        self._backlogs.drop(stream_id)
        stream = self._streams.get(stream_id)
        if stream is not None:
            call = stream.call
            self._forget(stream)
            if call is not None:
                self._serving.cancel(call)
        elif stream_id > self._last_id:
            self._last_id = stream_id
            self._stats.refused_requests_total += 1
            log.debug("libnghttp2 refused the headers of stream %d", stream_id)

    def _on_control(self, event: ngh2.Event) -> None:
        self._preface_seen = True
        if not self._control.take(self._serving.now):
            self._abuse(f"too many frames of the kind {type(event).__name__}")

    def _on_ping_acknowledged(self, event: ngh2.PingAcknowledged) -> None:
        if self._draining_at is not None:
            self._say_goodbye()

    def _on_goaway(self, event: ngh2.GoAwayReceived) -> None:
        self._refuses_streams = True

    def _on_connection_closed(self, event: ngh2.ConnectionClosed) -> None:
        if event.error_code:
            self._stats.protocol_errors_total += 1
        self._finish()
        self._transport.close()

    _ON: ClassVar[dict[type[ngh2.Event], Callable[[Any, Any], None]]] = {
        ngh2.RequestReceived: _on_request,
        ngh2.DataReceived: _on_data,
        ngh2.TrailersReceived: _on_trailers,
        ngh2.StreamReset: _on_reset,
        ngh2.StreamClosed: _on_stream_closed,
        ngh2.SettingsReceived: _on_control,
        ngh2.PingReceived: _on_control,
        ngh2.PingAcknowledged: _on_ping_acknowledged,
        ngh2.GoAwayReceived: _on_goaway,
        ngh2.ConnectionClosed: _on_connection_closed,
    }

    def send(self, stream: Stream, reply: Reply) -> None:
        """Queue a reply of the stream; with a status the stream is over for us."""
        h2, stream_id, status = self._h2, stream.id, reply.status
        try:
            if reply.messages:
                if not stream.responded:
                    stream.responded = True
                    h2.send_response(stream_id, RESPONSE_HEADERS)
                data = frames(reply.messages)
                h2.send_data(stream_id, data)
                self._backlogs.add(stream_id, len(data))
                self._stats.messages_sent_total += len(reply.messages)
            if status is None:
                return
            if stream.responded:
                h2.send_trailers(stream_id, trailers(status))
            else:
                h2.send_response(stream_id, RESPONSE_HEADERS + trailers(status), end_stream=True)
        except ngh2.StreamProtocolError:
            return  # The peer reset it in the same read; the event that says so is on its way.
        if not stream.peer_ended:
            self._lingering[stream_id] = self._serving.now
        self._forget(stream)

    def _cut(self, stream: Stream, status: Status) -> None:
        """End a call for a reason of ours."""
        call = stream.call
        self.send(stream, Reply(status=status))
        if call is not None:
            stream.call = None
            self._serving.cancel(call)

    def _forget(self, stream: Stream) -> None:
        stream.ended = True
        stream.call = None
        if stream.timer is not None:
            stream.timer.cancel()
            stream.timer = None
        self._streams.pop(stream.id, None)
        self._stats.streams -= 1
        self._stats.buffered_bytes -= stream.charged
        stream.charged = 0

    def flush_soon(self) -> None:
        """Write what is queued within this turn of the event loop."""
        if self._flush_handle is None and not self._in_batch:
            self._flush_handle = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_handle = None
        if self._finished_at is not None:
            return
        try:
            while self._paused_at is None:
                data = self._h2.data_to_send(_WRITE_BYTES)
                if data:
                    self._transport.write(data)
                if len(data) < _WRITE_BYTES // 2:
                    break
        except ngh2.NGH2Error as error:
            self._fail(error)
            return
        self._dispatch()  # streams can end with what was just written
        if self._backlogs:
            self._give_up(self._backlogs.weigh())
        if self._refuses_streams:
            self._close_when_done()

    def _give_up(self, stream_ids: list[int]) -> None:
        """Reset streams whose peer does not take what it asked for."""
        for stream_id in stream_ids:
            self._stats.refused_stalls_total += 1
            self._h2.reset_stream(stream_id, ngh2.ErrorCode.ENHANCE_YOUR_CALM)
            self._backlogs.drop(stream_id)
        if self._h2.want_write:
            self.flush_soon()

    # --- the end of a connection ---

    def sweep(self, now: float) -> None:
        """End what has outlived its limits."""
        limits = self._limits
        if self._finished_at is not None or self._paused_at is not None:
            since = min(self._finished_at or now, self._paused_at or now)
            if now - since > limits.send_timeout_s:
                self._stats.refused_stalls_total += 1
                self.abort()
            return
        if not self._last_id and self._serving.is_late(self._born, greeted=self._preface_seen):
            self._stats.refused_handshakes_total += 1
            self._terminate(ngh2.ErrorCode.NO_ERROR)
            return
        self._sweep_age(now)
        self._sweep_streams(now)
        self._flush()

    def _sweep_age(self, now: float) -> None:
        limits = self._limits
        if self._streams:
            self._busy_at = now
        idle_s = limits.connection_idle_timeout_s
        if self._draining_at is not None:
            self._say_goodbye()
            if now - self._draining_at > limits.max_connection_age_grace_s:
                self.abort()
        elif now > self._expires:
            self._stats.drained_by_age_total += 1
            self.drain()
        elif idle_s and now - self._busy_at > idle_s:
            self._stats.refused_idle_total += 1
            self.drain()

    def _sweep_streams(self, now: float) -> None:
        late = [stream for stream in self._streams.values() if now > stream.deadline]
        for stream in late:
            self._stats.refused_idle_total += 1
            self._cut(stream, refusals.IDLE)
        self._give_up(self._backlogs.sweep(now))
        linger_s = self._limits.linger_timeout_s
        over = [i for i, since in self._lingering.items() if now - since > linger_s]
        for stream_id in over:
            if stream_id not in self._backlogs:
                del self._lingering[stream_id]
                self._h2.reset_stream(stream_id, ngh2.ErrorCode.NO_ERROR)

    def drain(self) -> None:
        """Take no new calls, finish those that are open, then close."""
        if self._draining_at is None and self._finished_at is None:
            self._draining_at = self._serving.now
            self._h2.send_shutdown_notice()
            # What the peer sent before it heard of it has come once the ping is answered.
            self._h2.ping()
            self._flush()

    def _say_goodbye(self) -> None:
        if not self._refuses_streams:
            self._refuses_streams = True
            self._h2.send_goaway()
            self.flush_soon()

    def _close_when_done(self) -> None:
        if not self._streams and not self._backlogs.queued and self._finished_at is None:
            self._finish()
            self._loop.call_later(_CLOSE_DELAY_S, self._transport.close)

    def _abuse(self, what: str) -> None:
        log.warning("connection ended: %s", what)
        self._stats.refused_floods_total += 1
        self._terminate(ngh2.ErrorCode.ENHANCE_YOUR_CALM)

    def _fail(self, error: ngh2.NGH2Error) -> None:
        log.debug("connection ended: %s", error)
        self._stats.protocol_errors_total += 1
        self._finish()
        self._transport.close()

    def _terminate(self, code: ngh2.ErrorCode) -> None:
        self._h2.terminate_connection(code)
        self._transport.write(self._h2.data_to_send())
        self._finish()
        self._transport.close()

    def abort(self) -> None:
        """Close at once; open calls are cancelled."""
        self._finish()
        self._transport.abort()

    def _finish(self) -> None:
        if self._finished_at is not None:
            return
        self._finished_at = self._serving.now
        self._backlogs.clear()
        for stream in list(self._streams.values()):
            call = stream.call
            self._forget(stream)
            if call is not None:
                self._serving.cancel(call)
