"""What a peer may make us hold, do or wait for, and the numbers that tell when it tried more.

Every bound of the request path stands here with its default and the reason for it.  No module
below this one invents a limit of its own.
"""

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one server.  Zero switches a timeout off; every other bound stays finite."""

    max_message_bytes: int = 17 * MIB
    """One gRPC message.  Envoy's BUFFERED mode sends a whole body (16 MiB at most) in one."""

    max_buffered_bytes: int = 256 * MIB
    """Unfinished messages and unsent output of all connections together: a pod's memory."""

    max_stream_output_bytes: int = 64 * MIB
    """Unsent output of one stream; more than a body of 16 MiB relayed, so only a dead peer."""

    pause_output_bytes: int = 256 * KIB
    """Unsent output of one stream from which on its input is no longer acknowledged."""

    max_connections: int = 1024
    """Open connections; Envoy opens one per worker thread: 64 gateways of 16 cores."""

    max_concurrent_streams: int = 16_384
    """Open streams of one connection: the HTTP requests in flight behind one Envoy thread."""

    max_streams: int = 50_000
    """Open streams of all connections together, at about 10 KB each."""

    max_header_list_bytes: int = 16 * KIB
    """One block of headers, as HTTP/2 counts it; grpc's own hard limit."""

    resets: tuple[int, int] = (200_000, 50_000)
    """RST_STREAM of a peer (burst, per second).  Envoy ends every stream so: the rate is above
    what one core serves, and only the CPU that such a peer takes is bounded by it."""

    unanswered_resets: tuple[int, int] = (2_000, 200)
    """Streams reset before their first message (burst, per second): nothing in Envoy does that
    often, and it is what a rapid-reset attack consists of."""

    control_frames: tuple[int, int] = (2_000, 200)
    """PING, SETTINGS and empty DATA frames of a connection (burst, per second)."""

    handshake_timeout_s: float = 10.0
    """From accept to the end of the TLS handshake, and again to the HTTP/2 preface."""

    first_headers_timeout_s: float = 60.0
    """From accept to the first request; gateways that connect ahead simply connect again."""

    first_message_timeout_s: float = 10.0
    """From the opening of a stream to its first whole message, and for each message begun."""

    stream_idle_timeout_s: float = 3600.0
    """Between two messages of a stream; a model may think for minutes before it answers."""

    connection_idle_timeout_s: float = 3600.0
    """A connection without streams; Envoy's own default."""

    send_timeout_s: float = 30.0
    """A peer that takes nothing of what waits for it: its stream, or connection, is cut."""

    linger_timeout_s: float = 2.0
    """From our end of a stream to the peer's; then it is reset, so that it is not kept."""

    max_connection_age_s: float = 0.0
    """After this, give or take a tenth, GOAWAY: a new replica gets its share of connections.
    Off, as no single replica needs it."""

    max_connection_age_grace_s: float = 900.0
    """How long the calls of a connection past its age may go on."""

    stream_window_bytes: int = 1 * MIB
    """What a stream may send ahead of us.  HTTP/2's 64 KiB would stall every larger body."""

    connection_window_bytes: int = 256 * MIB
    """The same of a connection: so large that some stalled streams never stop the others."""

    @property
    def sweep_interval_s(self) -> float:
        """How often the time limits are looked at: at least four times within the shortest."""
        timeouts = (
            self.handshake_timeout_s,
            self.first_headers_timeout_s,
            self.first_message_timeout_s,
            self.stream_idle_timeout_s,
            self.connection_idle_timeout_s,
            self.send_timeout_s,
            self.linger_timeout_s,
            self.max_connection_age_s,
            self.max_connection_age_grace_s,
        )
        return min(1.0, max(0.02, min(each for each in timeouts if each) / 4))


class TokenBucket:
    """A rate with a burst.  Time is an argument; written by the one connection that owns it."""

    __slots__ = ("_at", "_burst", "_per_s", "_tokens")

    def __init__(self, burst_and_rate: tuple[int, int], now: float) -> None:
        self._burst, self._per_s = burst_and_rate
        self._tokens = float(self._burst)
        self._at = now

    def take(self, now: float) -> bool:
        """Take one token; False when there is none."""
        if now > self._at:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_s)
            self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


@dataclass(slots=True)
class TransportStats:
    """Plain counts of the request path.

    Written by the connections of the server that it was given to, on the event loop and nowhere
    else; read by the metrics at any time.  `*_total` only ever grow.
    """

    connections: int = 0
    """Open now, those still in the TLS handshake included."""
    connections_total: int = 0
    handed_over_total: int = 0
    """Connections that grpcio serves because libnghttp2 would refuse their `:authority`."""
    streams: int = 0
    """Open now."""
    streams_total: int = 0
    messages_received_total: int = 0
    messages_sent_total: int = 0
    buffered_bytes: int = 0
    """Unfinished messages and unsent output, now."""
    resets_total: int = 0
    """Streams that the peer reset: for Envoy, the ordinary end."""
    application_errors_total: int = 0
    """Calls that ended with INTERNAL because the application raised: our bugs."""
    tls_failures_total: int = 0
    certificate_reloads_total: int = 0
    certificate_errors_total: int = 0
    """Replaced by a pair that cannot be served; the one before it is kept."""
    accept_errors_total: int = 0
    """`accept` failed, as a rule for want of file descriptors."""
    protocol_errors_total: int = 0
    """Connections ended because the peer broke HTTP/2 or a limit of libnghttp2."""
    deadlines_total: int = 0
    """Calls ended by their own `grpc-timeout`."""
    drained_by_age_total: int = 0
    refused_connections_total: int = 0
    """Closed at once: `max_connections`."""
    refused_streams_total: int = 0
    """RESOURCE_EXHAUSTED: `max_streams`."""
    refused_requests_total: int = 0
    """Requests that are no gRPC call, or that HTTP/2 forbids, or of an unknown method."""
    refused_messages_total: int = 0
    """RESOURCE_EXHAUSTED: `max_message_bytes` or `max_buffered_bytes`; or compressed."""
    refused_floods_total: int = 0
    """Connections ended: `unanswered_resets` or `control_frames`."""
    refused_handshakes_total: int = 0
    """Connections ended: `handshake_timeout_s` or `first_headers_timeout_s`."""
    refused_idle_total: int = 0
    """Streams or connections ended: `first_message_timeout_s` or one of the idle timeouts."""
    refused_stalls_total: int = 0
    """Streams or connections cut: `send_timeout_s`, or too much unsent output."""
