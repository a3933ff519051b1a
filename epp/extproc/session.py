"""The life of one ext_proc stream, without the stream: one HTTP request, as Envoy tells it.

Feed it events and do what the returned actions say.  When it returns an `Ask`, find out where
the request goes and say so with `route`, or with `answer` to respond in the upstream's place.
It never reads a clock, a socket or the datastore.

What Envoy does with a body depends on its mode, and so does when we may answer (measured with
Envoy 1.40):

| mode                        | the pick is in the answer to …                                  |
|-----------------------------|-----------------------------------------------------------------|
| FULL_DUPLEX_STREAMED        | the headers, given once the body is complete                    |
| BUFFERED, BUFFERED_PARTIAL  | the one body message; the headers must be answered before it     |
| STREAMED with early_body    | the headers, given once the body is complete                    |
| NONE, STREAMED              | the headers, without having seen the body                       |

A stream that wants nothing of the response is closed with OK, but only after the request's end
and with every chunk of it echoed: closed earlier, Envoy drops what it had already sent us.  So it
does with a FULL_DUPLEX_STREAMED response that has begun before the close arrives: where that can
happen (a long echo, a transport whose close comes apart), the response passes instead.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from typing import Any

from epp.errors import BodyTooLarge, RequestError, UnsupportedBodyMode
from epp.extproc.events import (
    FULL_DUPLEX,
    Action,
    Answer,
    AnswerRequestBody,
    AnswerRequestHeaders,
    AnswerRequestTrailers,
    AnswerResponseBody,
    AnswerResponseHeaders,
    AnswerResponseTrailers,
    Ask,
    BodyMode,
    Close,
    Event,
    RequestBody,
    RequestChunk,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseChunk,
    ResponseHeaders,
    ResponseTrailers,
    Route,
)

CHUNK_BYTES = 62_000
"""The longest body that one message to Envoy carries; some gateways refuse 64 KiB and more."""

ONE_PIECE_BYTES = 12 * 1024
"""The longest body whose echo and the close after it are one TLS record (16 KiB), headers too."""

_CONTINUE_HEADERS = AnswerRequestHeaders()
_CONTINUE_BODY = AnswerRequestBody()
_CONTINUE_TRAILERS = AnswerRequestTrailers()
_CONTINUE_RESPONSE_HEADERS = AnswerResponseHeaders()
_CONTINUE_RESPONSE_BODY = AnswerResponseBody()
_CONTINUE_RESPONSE_TRAILERS = AnswerResponseTrailers()
_CLOSE = Close()


class ProtocolViolation(Exception):
    """The peer sent what no Envoy sends in this state; the stream cannot go on."""


class State(Enum):
    """Where a stream is."""

    OPEN = auto()
    """Nothing has come yet."""
    BODY = auto()
    """The request's body is being collected."""
    ASKED = auto()
    """A decision is outstanding."""
    RELAY = auto()
    """Answered, and the request still has bytes to come that pass unread."""
    RESPONSE = auto()
    """The request is complete and answered; the response may come."""
    DONE = auto()
    """Nothing more will be said; late frames are swallowed."""


class Session:
    """One HTTP request.  Written only by the stream that owns it."""

    __slots__ = (
        "_ask_trailers",
        "_chunks",
        "_early_chunks",
        "_ends_apart",
        "_headers",
        "_max_body_bytes",
        "_modes",
        "_pass_response",
        "_relays",
        "_subset",
        "buffered_bytes",
        "state",
    )

    def __init__(
        self, *, max_body_bytes: int, pass_response: bool, ends_apart: bool = False
    ) -> None:
        self.state = State.OPEN
        self.buffered_bytes = 0
        self._max_body_bytes = max_body_bytes
        self._pass_response = pass_response
        self._ends_apart = ends_apart
        self._modes = FULL_DUPLEX
        self._headers: Mapping[str, bytes] = {}
        self._subset: tuple[str, ...] | None = None
        self._chunks: list[bytes] = []
        self._ask_trailers = False
        self._relays = False
        self._early_chunks = 0

    @property
    def passes_response(self) -> bool:
        """Whether the response of a routed request comes through this stream."""
        return self._pass_response

    def receive(self, event: Event) -> Ask | tuple[Action, ...]:
        """Take one event; return the actions that answer it, or an `Ask`.

        Raises RequestError (tell it with `answer`) and ProtocolViolation.
        """
        return _ON[type(event)](self, event)

    def _on_request_headers(self, event: RequestHeaders) -> Ask | tuple[Action, ...]:
        match self.state:
            case State.OPEN:
                return self._begin(event)
            case State.DONE:
                return ()  # frames that were in flight when we answered
            case _:
                raise self._violated(event)

    def _on_request_body(self, event: RequestBody) -> Ask | tuple[Action, ...]:
        match self.state:
            case State.BODY:
                return self._collect(event.data, event.end)
            case State.RELAY:
                return self._relay(event.data, event.end)
            case State.RESPONSE:
                return ()  # a second end-of-stream: Envoy sends one after some large bodies
            case State.DONE:
                return ()
            case State.OPEN:
                raise self._unannounced()
            case _:
                raise self._violated(event)

    def _on_request_trailers(self, event: RequestTrailers) -> Ask | tuple[Action, ...]:
        match self.state:
            case State.BODY:
                self._ask_trailers = True
                return self._ask_with_body()
            case State.RELAY:
                return self._relay_ended((_CONTINUE_TRAILERS,))
            case State.RESPONSE:
                return (_CONTINUE_TRAILERS,)  # they follow the one body message when BUFFERED
            case State.DONE:
                return ()
            case State.OPEN:
                raise self._unannounced()
            case _:
                raise self._violated(event)

    # The response passes, whatever the state: it can overtake the end of its request.

    def _on_response_headers(self, event: ResponseHeaders) -> tuple[Action, ...]:
        self._modes = event.modes or self._modes
        last = event.end or self._modes.response is BodyMode.NONE
        return self._response_actions((_CONTINUE_RESPONSE_HEADERS,), last=last)

    def _on_response_body(self, event: ResponseBody) -> tuple[Action, ...]:
        data, end = event.data, event.end
        if self._modes.response is not BodyMode.FULL_DUPLEX_STREAMED:
            return self._response_actions((_CONTINUE_RESPONSE_BODY,), last=end)
        if not end and 0 < len(data) <= CHUNK_BYTES and self.state is not State.DONE:
            return (ResponseChunk(data, False),)  # by far the most frequent message of all
        chunks = tuple(ResponseChunk(d, e) for d, e in _cut(data, end))
        return self._response_actions(chunks, last=end)

    def _on_response_trailers(self, event: ResponseTrailers) -> tuple[Action, ...]:
        return self._response_actions((_CONTINUE_RESPONSE_TRAILERS,), last=True)

    def _violated(self, event: Event) -> ProtocolViolation:
        where = self.state.name
        self.state = State.DONE
        return ProtocolViolation(f"{type(event).__name__} while {where}")

    def _unannounced(self) -> RequestError:
        self.state = State.DONE
        return UnsupportedBodyMode(
            "The picker has not been sent the request's headers: set"
            " processing_mode.request_header_mode to SEND in Envoy's ext_proc filter."
        )

    def route(self, route: Route) -> tuple[Action, ...]:
        """Answer the pending `Ask`: the request goes there."""
        assert self.state is State.ASKED
        mode = self._modes.request
        if self._can_be_overtaken():
            self._pass_response = True
        if not self._chunks:
            return self._route_headers(route)
        if mode is BodyMode.FULL_DUPLEX_STREAMED:
            return self._route_full_duplex(route)
        if mode is BodyMode.STREAMED:
            return self._route_streamed(route)
        return self._route_buffered(route)

    def answer(self, answer: Answer) -> tuple[Action, ...]:
        """Respond in the upstream's place, at any time before the request is routed."""
        self._forget_body()
        self.state = State.DONE
        return (answer, _CLOSE)

    def abandon(self) -> None:
        """The stream is gone: forget what was collected."""
        if self.state is not State.DONE or self.buffered_bytes:
            self._forget_body()
            self.state = State.DONE

    # --- the request ----------------------------------------------------------------------

    def _begin(self, event: RequestHeaders) -> Ask | tuple[Action, ...]:
        self._headers = event.headers
        self._subset = event.subset
        self._modes = event.modes
        if self._ends_apart and event.modes.response is BodyMode.FULL_DUPLEX_STREAMED:
            self._pass_response = True
        if event.end:
            return self._ask(None)
        if _is_upgrade(event.headers):
            self._relays = self._shows_upgrade(event.modes.request)
            return self._ask(None)
        match event.modes.request:
            case BodyMode.FULL_DUPLEX_STREAMED:
                return self._expect_body(())
            case BodyMode.BUFFERED | BodyMode.BUFFERED_PARTIAL:
                return self._expect_body((_CONTINUE_HEADERS,))
            case BodyMode.STREAMED if event.modes.early_body:
                return self._expect_body(())
            case mode:
                self._relays = mode is not BodyMode.NONE  # the chunks come, once answered
                return self._ask(None, unseen_mode=mode)

    def _shows_upgrade(self, mode: BodyMode) -> bool:
        """Tell whether bytes of an upgrade will come that need an answer.

        NONE sends none.  BUFFERED would hold them back for an end that may never come, so there
        the stream is closed, if it can be, and Envoy lets them pass.
        """
        if mode in (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL):
            return self._pass_response
        return mode is not BodyMode.NONE

    def _expect_body(self, actions: tuple[Action, ...]) -> tuple[Action, ...]:
        length = self._headers.get("content-length", b"")
        if length.isdigit() and int(length[:19]) > self._max_body_bytes:
            raise self._too_large()
        self.state = State.BODY
        return actions

    def _collect(self, data: bytes, end: bool) -> Ask | tuple[Action, ...]:
        self.buffered_bytes += len(data)
        if self.buffered_bytes > self._max_body_bytes:
            raise self._too_large()
        self._chunks.append(data)
        if end:
            return self._ask_with_body()
        mode = self._modes.request
        if mode is BodyMode.BUFFERED or mode is BodyMode.BUFFERED_PARTIAL:  # there will be no more
            return self._ask_with_body(partial=mode is BodyMode.BUFFERED_PARTIAL)
        return ()

    def _ask_with_body(self, *, partial: bool = False) -> Ask:
        chunks = self._chunks
        self._early_chunks = len(chunks)
        if len(chunks) != 1:
            chunks = self._chunks = [b"".join(chunks)]
        self.state = State.ASKED
        return Ask(self._headers, chunks[0], self._subset, partial)

    def _ask(
        self,
        body: bytes | None,
        *,
        partial: bool = False,
        unseen_mode: BodyMode | None = None,
    ) -> Ask:
        self.state = State.ASKED
        return Ask(self._headers, body, self._subset, partial, unseen_mode)

    # --- the pick -------------------------------------------------------------------------

    def _can_be_overtaken(self) -> bool:
        """Tell whether the response can begin before our close of the stream arrives.

        A model server may answer before it has read the whole request; only what reaches Envoy in
        one piece leaves no time for that.
        """
        if self._modes.response is not BodyMode.FULL_DUPLEX_STREAMED:
            return False
        echoes = self._modes.request is BodyMode.FULL_DUPLEX_STREAMED and self._chunks
        return bool(echoes) and len(self._chunks[0]) > ONE_PIECE_BYTES

    def _route_headers(self, route: Route) -> tuple[Action, ...]:
        answer = AnswerRequestHeaders(route)
        if self._relays:
            self.state = State.RELAY
            return (answer,)
        return self._request_ended((answer,))

    def _route_full_duplex(self, route: Route) -> tuple[Action, ...]:
        body = self._chunks[0] if route.body is None else route.body
        answer = AnswerRequestHeaders(route)
        if self._ask_trailers:
            chunks = tuple(RequestChunk(data, end) for data, end in _cut(body, False))
            return self._request_ended((answer, *chunks, _CONTINUE_TRAILERS))
        if len(body) <= CHUNK_BYTES:
            return self._request_ended((answer, RequestChunk(body, True)))
        chunks = tuple(RequestChunk(data, end) for data, end in _cut(body, True))
        return self._request_ended((answer, *chunks))

    def _route_streamed(self, route: Route) -> tuple[Action, ...]:
        answers: list[Action] = [_CONTINUE_BODY] * self._early_chunks
        if route.body is not None and answers:  # about as long as the old one: so are the pieces
            size = -(-len(route.body) // len(answers))
            starts = [size * number for number in range(len(answers))]
            answers = [AnswerRequestBody(data=route.body[at : at + size]) for at in starts]
        if self._ask_trailers:
            answers.append(_CONTINUE_TRAILERS)
        return self._request_ended((AnswerRequestHeaders(route), *answers))

    def _route_buffered(self, route: Route) -> tuple[Action, ...]:
        if self._ask_trailers and not self._early_chunks:
            self.state = State.DONE
            raise UnsupportedBodyMode(
                "A request without a body that ends in trailers cannot be routed in"
                " BUFFERED mode: set request_body_mode to FULL_DUPLEX_STREAMED."
            )
        length: int | None = None
        if route.body is not None and self._modes.request is BodyMode.BUFFERED:
            length = len(route.body)
        return self._request_ended((AnswerRequestBody(route, route.body, length),))

    def _relay(self, data: bytes, end: bool) -> tuple[Action, ...]:
        if self._modes.request is BodyMode.FULL_DUPLEX_STREAMED:
            actions: tuple[Action, ...] = tuple(RequestChunk(d, e) for d, e in _cut(data, end))
        else:
            actions = (_CONTINUE_BODY,)
        return self._relay_ended(actions) if end else actions

    def _relay_ended(self, actions: tuple[Action, ...]) -> tuple[Action, ...]:
        """The response has been on its way all the while: a close now would cut into it."""
        if self._modes.response is BodyMode.FULL_DUPLEX_STREAMED:
            self._pass_response = True
        return self._request_ended(actions)

    def _request_ended(self, actions: tuple[Action, ...]) -> tuple[Action, ...]:
        self._forget_body()
        if self._pass_response:
            self.state = State.RESPONSE
            return actions
        self.state = State.DONE
        return (*actions, _CLOSE)

    # --- the response ---------------------------------------------------------------------

    def _response_actions(self, actions: tuple[Action, ...], *, last: bool) -> tuple[Action, ...]:
        if self.state is State.DONE:
            return ()
        if not last or self.state is State.RELAY:
            return actions
        self.abandon()
        return (*actions, _CLOSE)

    # --- small parts ----------------------------------------------------------------------

    def _too_large(self) -> RequestError:
        return BodyTooLarge(
            f"The request's body is larger than {self._max_body_bytes} bytes,"
            " the limit of this gateway (--max-request-body-bytes)."
        )

    def _forget_body(self) -> None:
        self._chunks = []
        self.buffered_bytes = 0


_ON: Mapping[type, Callable[[Session, Any], Ask | tuple[Action, ...]]] = {
    RequestHeaders: Session._on_request_headers,
    RequestBody: Session._on_request_body,
    RequestTrailers: Session._on_request_trailers,
    ResponseHeaders: Session._on_response_headers,
    ResponseBody: Session._on_response_body,
    ResponseTrailers: Session._on_response_trailers,
}


def _cut(data: bytes, end: bool) -> Iterator[tuple[bytes, bool]]:
    """Yield `data` in pieces of at most CHUNK_BYTES; the last one carries `end`.

    Nothing at all is no piece, unless it carries the end.
    """
    if len(data) <= CHUNK_BYTES:
        if data or end:
            yield data, end
        return
    for start in range(0, len(data), CHUNK_BYTES):
        stop = start + CHUNK_BYTES
        yield data[start:stop], end and stop >= len(data)


def _is_upgrade(headers: Mapping[str, bytes]) -> bool:
    """Tell whether what follows these headers is no body: an upgrade as Envoy sees it, or CONNECT.

    Envoy also turns an HTTP/2 extended CONNECT into this HTTP/1 form before its filters run.
    """
    if headers.get(":method") == b"CONNECT":
        return True
    if "upgrade" not in headers:
        return False
    options = headers.get("connection", b"").lower().split(b",")
    return any(option.strip() == b"upgrade" for option in options)
