"""What Envoy tells a session, and what a session answers, as values.

The codec turns wire messages into events and actions into wire messages; nothing here knows
protobuf.  Header names are in lower case, header values are bytes as they came.
"""

from collections.abc import Mapping
from enum import Enum

import msgspec


class BodyMode(Enum):
    """How Envoy sends a body to us (`ProcessingMode.BodySendMode` of its API)."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5
    UNKNOWN = -1


class Modes(msgspec.Struct, frozen=True, gc=False):
    """How the filter is configured; the default is what an absent `protocol_config` means."""

    request: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    response: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    early_body: bool = False
    """`send_body_without_waiting_for_header_response`."""


FULL_DUPLEX = Modes()


# --- events: from Envoy ---------------------------------------------------------------------


class RequestHeaders(msgspec.Struct, frozen=True):
    """The request begins; with `end` it is already complete.

    `subset` is the gateway's subset hint: None = no hint, empty = nothing may be picked.
    """

    headers: Mapping[str, bytes]
    end: bool
    modes: Modes = FULL_DUPLEX
    subset: tuple[str, ...] | None = None


class RequestBody(msgspec.Struct, frozen=True, gc=False):
    """A piece of the request's body."""

    data: bytes
    end: bool


class RequestTrailers(msgspec.Struct, frozen=True, gc=False):
    """The request ends with trailers."""


class ResponseHeaders(msgspec.Struct, frozen=True):
    """The response begins.  `served` is the endpoint that the gateway says has served it.

    `modes` is told where this is the stream's first message: the request was not shown.
    """

    headers: Mapping[str, bytes]
    end: bool
    served: str | None = None
    modes: Modes | None = None


class ResponseBody(msgspec.Struct, frozen=True, gc=False):
    """A piece of the response's body."""

    data: bytes
    end: bool


class ResponseTrailers(msgspec.Struct, frozen=True, gc=False):
    """The response ends with trailers."""


Event = (
    RequestHeaders
    | RequestBody
    | RequestTrailers
    | ResponseHeaders
    | ResponseBody
    | ResponseTrailers
)


# --- actions: to Envoy ----------------------------------------------------------------------


class Route(msgspec.Struct, frozen=True, gc=False):
    """Where the request goes.

    `destination` is `ip:port[,ip:port…]`, `pool` is `namespace/name`, `model` the client's name
    for the model ("" = the request has none).  `body` replaces the request's body; None leaves
    it as it is.  `drop_encoding` removes content-encoding, because `body` is no longer encoded.
    """

    destination: str
    pool: str
    model: str = ""
    body: bytes | None = None
    drop_encoding: bool = False


class AnswerRequestHeaders(msgspec.Struct, frozen=True, gc=False):
    """Answer the request headers; `route` None lets them pass unchanged."""

    route: Route | None = None


class AnswerRequestBody(msgspec.Struct, frozen=True, gc=False):
    """Answer one body message outside full duplex; `data` replaces it, None leaves it.

    With a `route`, this answer also carries the pick (BUFFERED modes); `content_length` is then
    the exact new length, when the header must be set.
    """

    route: Route | None = None
    data: bytes | None = None
    content_length: int | None = None


class RequestChunk(msgspec.Struct, frozen=True, gc=False):
    """Body bytes to forward upstream, in full duplex."""

    data: bytes
    end: bool


class AnswerRequestTrailers(msgspec.Struct, frozen=True, gc=False):
    """Let the request's trailers pass."""


class AnswerResponseHeaders(msgspec.Struct, frozen=True, gc=False):
    """Let the response's headers pass."""


class AnswerResponseBody(msgspec.Struct, frozen=True, gc=False):
    """Let one body message of the response pass, outside full duplex."""


class ResponseChunk(msgspec.Struct, frozen=True, gc=False):
    """Body bytes to forward to the client, in full duplex."""

    data: bytes
    end: bool


class AnswerResponseTrailers(msgspec.Struct, frozen=True, gc=False):
    """Let the response's trailers pass."""


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A whole HTTP response of our own (ImmediateResponse): a refusal, or the list of models.

    `body` is JSON; `reason` is a word for Envoy's access log.
    """

    status: int
    body: bytes
    reason: str


class Close(msgspec.Struct, frozen=True, gc=False):
    """End the stream with OK: Envoy goes on without asking us again."""


Action = (
    AnswerRequestHeaders
    | AnswerRequestBody
    | RequestChunk
    | AnswerRequestTrailers
    | AnswerResponseHeaders
    | AnswerResponseBody
    | ResponseChunk
    | AnswerResponseTrailers
    | Answer
    | Close
)


class Ask(msgspec.Struct, frozen=True):
    """The session needs a decision: call `route` or `answer` on it next.

    `body` None means that none will be seen.  `partial`: it may be only the beginning of the
    body.  `unseen_mode` names the body mode when there is a body that it keeps from us.
    """

    headers: Mapping[str, bytes]
    body: bytes | None
    subset: tuple[str, ...] | None = None
    partial: bool = False
    unseen_mode: BodyMode | None = None
