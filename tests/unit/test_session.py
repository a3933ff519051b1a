"""Every state of a stream meets every event, and the laws of a stream hold throughout."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.errors import BodyTooLarge, RequestError, UnsupportedBodyMode
from epp.extproc.events import (
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
    Modes,
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
from epp.extproc.session import CHUNK_BYTES, ProtocolViolation, Session, State

ROUTE = Route("10.0.0.1:8000", "default/vllm", "llama")
RENAMED = Route("10.0.0.1:8000", "default/vllm", "llama", body=b"<the body, renamed>")
REFUSAL = Answer(404, b"{}", "model_not_found")
MODES = [
    Modes(BodyMode.FULL_DUPLEX_STREAMED),
    Modes(BodyMode.BUFFERED, BodyMode.BUFFERED),
    Modes(BodyMode.BUFFERED_PARTIAL, BodyMode.STREAMED),
    Modes(BodyMode.STREAMED, BodyMode.STREAMED, early_body=True),
    Modes(BodyMode.STREAMED, BodyMode.NONE),
    Modes(BodyMode.NONE, BodyMode.NONE),
    Modes(BodyMode.GRPC, BodyMode.GRPC),
    Modes(BodyMode.UNKNOWN, BodyMode.UNKNOWN),
]
BUFFERED = (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)
PLAIN = {":method": b"POST", ":path": b"/v1/completions"}
UPGRADE = {":method": b"GET", "connection": b"keep-alive, Upgrade", "upgrade": b"websocket"}


def mode_name(modes: Modes) -> str:
    return modes.request.name + ("_EARLY" if modes.early_body else "")


# --- a stream, played and watched ---------------------------------------------------------------


@dataclass
class Stream:
    """Plays events to a session as the service does, and keeps what came of it."""

    decision: Route | Answer
    session: Session
    actions: list[Action] = field(default_factory=list)
    heard: list[Event] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    broken: bool = False

    @property
    def closed(self) -> bool:
        return Close() in self.actions

    def play(self, event: Event) -> tuple[Action, ...]:
        """Give the session one event; decide when it asks; return what it does."""
        self.heard.append(event)
        try:
            actions = self._answered(self.session.receive(event))
        except RequestError as error:
            self.refused.append(error.reason)
            actions = self.session.answer(Answer(error.status, b"{}", error.reason))
        except ProtocolViolation:
            self.broken = True
            self.session.abandon()
            actions = ()
        self.actions.extend(actions)
        return actions

    def _answered(self, answer: Ask | tuple[Action, ...]) -> tuple[Action, ...]:
        if not isinstance(answer, Ask):
            return answer
        self.asks.append(answer)
        if isinstance(self.decision, Answer):
            return self.session.answer(self.decision)
        return self.session.route(self.decision)


def opened(decision: Route | Answer = ROUTE, *, passing: bool = False, limit: int = 1000) -> Stream:
    return Stream(decision, Session(max_body_bytes=limit, pass_response=passing))


def played(
    events: Sequence[Event],
    decision: Route | Answer = ROUTE,
    *,
    passing: bool = False,
    limit: int = 1000,
) -> Stream:
    stream = opened(decision, passing=passing, limit=limit)
    for event in events:
        closed = stream.closed or stream.broken
        actions = stream.play(event)
        assert not (closed and actions), "something was said after the end"
    return stream


def check_laws(stream: Stream, modes: Modes) -> None:
    """What must be true of any stream, whatever came in and whatever was decided."""
    session, actions = stream.session, stream.actions
    assert len(stream.asks) <= 1
    assert len([route for route in map(routed, actions) if route]) <= 1
    assert len([a for a in actions if isinstance(a, Answer)]) <= 1
    assert actions.count(Close()) <= 1
    assert not stream.closed or actions[-1] == Close()
    assert not (stream.closed or stream.broken) or session.state is State.DONE
    assert session.state is State.BODY or session.buffered_bytes == 0
    assert session.state is not State.ASKED
    assert all(len(c.data) <= CHUNK_BYTES for c in actions if isinstance(c, chunks))
    check_request(stream, modes)


chunks = (RequestChunk, ResponseChunk)


def routed(action: Action) -> Route | None:
    if isinstance(action, AnswerRequestHeaders | AnswerRequestBody):
        return action.route
    return None


def check_request(stream: Stream, modes: Modes) -> None:
    """Nothing of the body is lost, added or reordered; the end is passed on once, before Close."""
    if stream.broken or not any(map(routed, stream.actions)):
        return
    sent, ended, trailers = request_sent(stream)
    at_headers = isinstance(stream.heard[0], RequestHeaders) and stream.heard[0].end
    out = [a for a in stream.actions if isinstance(a, RequestChunk)]
    if modes.request is BodyMode.FULL_DUPLEX_STREAMED:
        replaced = stream.decision.body if isinstance(stream.decision, Route) else None
        collected = stream.asks[0].body is not None
        want = replaced if replaced is not None and collected else sent
        assert b"".join(chunk.data for chunk in out) == want
        by_chunk = ended and not trailers and not at_headers
        assert [chunk.end for chunk in out].count(True) == by_chunk
        assert not any(chunk.end for chunk in out[:-1])
        assert all(chunk.data or chunk.end for chunk in out)
    else:
        assert not out, "a streamed response is an error to Envoy in this mode"
    response_over = any(
        isinstance(e, ResponseTrailers) or (isinstance(e, ResponseHeaders | ResponseBody) and e.end)
        for e in stream.heard
    )
    if stream.closed and not response_over and relays(modes):
        assert ended or (isinstance(stream.heard[0], RequestHeaders) and stream.heard[0].end)


def relays(modes: Modes) -> bool:
    """Tell whether Envoy would lose bytes if the stream were closed before the request's end."""
    return modes.request not in (BodyMode.NONE, *BUFFERED)


def request_sent(stream: Stream) -> tuple[bytes, bool, bool]:
    """Return the body up to the request's first end, whether it ended, and by trailers."""
    data = b""
    begin = stream.heard[0]
    if isinstance(begin, RequestHeaders) and begin.end:
        return data, True, False
    for event in stream.heard:
        if isinstance(event, RequestBody):
            data += event.data
            if event.end:
                return data, True, False
        elif isinstance(event, RequestTrailers):
            return data, True, True
    return data, False, False


# --- every state, every event -------------------------------------------------------------------

BODIES: list[Event] = [RequestBody(b"ab", False), RequestBody(b"c", True), RequestBody(b"", True)]
LATER: list[Event] = [
    *BODIES,
    RequestHeaders(PLAIN, False),
    RequestTrailers(),
    ResponseHeaders({":status": b"200"}, False),
    ResponseHeaders({":status": b"200"}, True),
    ResponseBody(b"xy", False),
    ResponseBody(b"z", True),
    ResponseTrailers(),
]


@pytest.mark.parametrize("modes", MODES, ids=mode_name)
@pytest.mark.parametrize("passing", [False, True], ids=["close", "pass"])
def test_every_conversation_of_four_events_keeps_the_laws(modes: Modes, passing: bool) -> None:
    """Headers (with a body, without, of an upgrade), then any three events, and any decision."""
    beginnings = [
        RequestHeaders(PLAIN, False, modes),
        RequestHeaders(PLAIN, True, modes),
        RequestHeaders(UPGRADE, False, modes),
    ]
    for begin, *rest in product(beginnings, LATER, LATER, LATER):
        for decision in (ROUTE, RENAMED, REFUSAL):
            check_laws(played([begin, *rest], decision, passing=passing, limit=4), modes)


@pytest.mark.parametrize(
    "event",
    [event for event in LATER if not isinstance(event, RequestHeaders)],
    ids=lambda e: type(e).__name__,
)
def test_a_stream_that_does_not_begin_with_headers(event: Event) -> None:
    """Request bodies alone are refused with the setting to change; responses pass."""
    stream = played([event])

    if isinstance(event, RequestBody | RequestTrailers):
        assert stream.refused == ["unsupported_body_mode"]
        assert stream.closed
    else:
        assert stream.actions
        assert not stream.refused


@pytest.mark.parametrize("event", LATER, ids=lambda e: type(e).__name__)
def test_nothing_of_a_request_may_come_while_the_session_waits(event: Event) -> None:
    """Between Ask and its answer only a response (a local reply) can be told."""
    session = Session(max_body_bytes=10, pass_response=False)
    assert isinstance(session.receive(RequestHeaders(PLAIN, True)), Ask)

    if isinstance(event, ResponseHeaders | ResponseBody | ResponseTrailers):
        assert session.receive(event)
    else:
        with pytest.raises(ProtocolViolation, match="while ASKED"):
            session.receive(event)
        assert session.state is State.DONE


@pytest.mark.parametrize("event", LATER, ids=lambda e: type(e).__name__)
def test_late_frames_are_swallowed(event: Event) -> None:
    """After our answer, whatever was in flight is neither an error nor answered."""
    stream = played([RequestHeaders(PLAIN, True)], REFUSAL)

    assert stream.play(event) == ()
    assert not stream.broken


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Modes, list[Event]]:
    """A request as Envoy may send it in some mode, cut anyhow, with a response or part of one."""
    modes = draw(st.sampled_from(MODES))
    headers = draw(st.sampled_from([PLAIN, PLAIN, UPGRADE]))
    sizes = st.sampled_from([0, 1, 3, 61_999, 62_000, 62_001, 124_000, 150_000])
    events: list[Event] = [RequestHeaders(headers, False, modes)]
    events += [RequestBody(draw(body(sizes)), False) for _ in range(draw(st.integers(0, 4)))]
    request_ends: list[Event] = [RequestTrailers(), *BODIES[1:]]
    events.append(draw(st.sampled_from(request_ends)))
    events += draw(st.lists(st.sampled_from(BODIES), max_size=1))
    events.append(ResponseHeaders({":status": b"200"}, draw(st.booleans())))
    events += [ResponseBody(draw(body(sizes)), False) for _ in range(draw(st.integers(0, 2)))]
    response_ends: list[Event] = [ResponseBody(b"", True), ResponseTrailers()]
    events.append(draw(st.sampled_from(response_ends)))
    return modes, events[: draw(st.integers(1, len(events)))]


def body(sizes: st.SearchStrategy[int]) -> st.SearchStrategy[bytes]:
    return st.builds(lambda size, letter: bytes([letter]) * size, sizes, st.integers(65, 90))


@settings(deadline=None, max_examples=50)
@given(conversations(), st.booleans(), st.sampled_from([ROUTE, RENAMED, REFUSAL]))
def test_a_long_conversation_keeps_the_laws(
    told: tuple[Modes, list[Event]], passing: bool, decision: Route | Answer
) -> None:
    """Large bodies in pieces of any size: same bytes out, in messages that fit."""
    modes, events = told

    check_laws(played(events, decision, passing=passing, limit=10**6), modes)


@pytest.mark.parametrize("modes", MODES, ids=mode_name)
@pytest.mark.parametrize("stop", range(4))
def test_a_stream_that_goes_away_leaves_nothing(modes: Modes, stop: int) -> None:
    """Abandoned at any time, a session holds no bytes and swallows what still comes."""
    events = [RequestHeaders(PLAIN, False, modes), *BODIES]
    stream = played(events[: stop + 1])
    stream.session.abandon()

    assert stream.session.buffered_bytes == 0
    assert stream.session.receive(BODIES[0]) == ()


# --- bodies -------------------------------------------------------------------------------------


def test_the_body_is_asked_for_whole_and_sent_on_in_order() -> None:
    """Full duplex: nothing until the end, then headers and body; then the stream is closed."""
    begin = RequestHeaders(PLAIN, False)
    stream = opened()

    assert stream.play(begin) == ()
    assert stream.play(RequestBody(b"ab", False)) == ()
    assert stream.session.buffered_bytes == 2
    assert stream.play(RequestBody(b"c", True)) == (
        AnswerRequestHeaders(ROUTE),
        RequestChunk(b"abc", True),
        Close(),
    )
    assert stream.asks == [Ask(PLAIN, b"abc")]


def test_a_long_body_leaves_in_chunks_that_fit() -> None:
    """62 000 bytes at most in a message, the end on the last one only."""
    data = bytes(range(250)) * 500
    stream = played(
        [RequestHeaders(PLAIN, False), RequestBody(data, True)], limit=len(data), passing=True
    )
    out = [a for a in stream.actions if isinstance(a, RequestChunk)]

    assert [(len(c.data), c.end) for c in out] == [(62_000, False), (62_000, False), (1000, True)]
    assert b"".join(c.data for c in out) == data


@pytest.mark.parametrize(
    ("events", "body"),
    [
        ([RequestBody(b"", True)], b""),
        ([RequestTrailers()], b""),
        ([RequestBody(b"ab", False), RequestBody(b"", True)], b"ab"),
        ([RequestBody(b"ab", False), RequestTrailers()], b"ab"),
        ([RequestBody(b"", False), RequestBody(b"ab", True), RequestBody(b"", True)], b"ab"),
    ],
)
def test_each_way_for_a_body_to_end(events: list[Event], body: bytes) -> None:
    """By its last chunk, an empty one, trailers, or with a second end-of-stream after it."""
    stream = played([RequestHeaders(PLAIN, False), *events], passing=True)
    by_trailers = RequestTrailers() in events
    chunk = [RequestChunk(body, not by_trailers)] if body or not by_trailers else []

    assert [ask.body for ask in stream.asks] == [body]
    assert stream.actions == [
        AnswerRequestHeaders(ROUTE),
        *chunk,
        *([AnswerRequestTrailers()] if by_trailers else []),
    ]
    assert not stream.broken


def test_streamed_answers_as_many_bodies_as_came() -> None:
    """STREAMED with early bodies: one answer for each message, the new body among them."""
    modes = Modes(BodyMode.STREAMED, early_body=True)
    events: list[Event] = [
        RequestHeaders(PLAIN, False, modes),
        RequestBody(b"a", False),
        RequestBody(b"b", True),
    ]

    assert played(events, passing=True).actions == [
        AnswerRequestHeaders(ROUTE),
        AnswerRequestBody(),
        AnswerRequestBody(),
    ]
    renamed = played(events, RENAMED, passing=True).actions
    assert renamed[0] == AnswerRequestHeaders(RENAMED)
    assert len(renamed) == 3
    assert b"".join(new_bytes(renamed[1:])) == RENAMED.body


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 61_999, 120_001, 186_000])
def test_a_new_streamed_body_is_spread_over_the_answers(length: int) -> None:
    """A renamed body is about as long as the old one, so no answer is longer than it must be."""
    modes = Modes(BodyMode.STREAMED, early_body=True)
    parts = [RequestBody(b"x" * 62_000, False)] * 2 + [RequestBody(b"x" * 62_000, True)]
    route = Route("a:1", "ns/p", "m", body=bytes(i % 251 for i in range(length)))
    stream = played([RequestHeaders(PLAIN, False, modes), *parts], route, limit=200_000)
    pieces = new_bytes(stream.actions[1:-1])

    assert len(pieces) == 3
    assert b"".join(pieces) == route.body
    assert max(map(len, pieces)) <= CHUNK_BYTES


def new_bytes(actions: Sequence[Action]) -> list[bytes]:
    return list(_new_bytes(actions))


def _new_bytes(actions: Sequence[Action]) -> Iterator[bytes]:
    for action in actions:
        assert isinstance(action, AnswerRequestBody)
        assert action.data is not None
        yield action.data


def test_streamed_ended_by_trailers() -> None:
    """STREAMED with early bodies and trailers: they are answered last."""
    modes = Modes(BodyMode.STREAMED, early_body=True)
    events: list[Event] = [
        RequestHeaders(PLAIN, False, modes),
        RequestBody(b"a", False),
        RequestTrailers(),
    ]

    assert played(events).actions == [
        AnswerRequestHeaders(ROUTE),
        AnswerRequestBody(),
        AnswerRequestTrailers(),
        Close(),
    ]


@pytest.mark.parametrize("mode", BUFFERED)
def test_buffered_picks_at_the_one_body_message(mode: BodyMode) -> None:
    """The headers are let through first; the pick is in the answer to the body."""
    modes = Modes(mode)
    stream = opened(passing=True)

    assert stream.play(RequestHeaders(PLAIN, False, modes)) == (AnswerRequestHeaders(),)
    assert stream.play(RequestBody(b"ab", True)) == (AnswerRequestBody(ROUTE),)
    assert stream.asks == [Ask(PLAIN, b"ab")]


def test_buffered_tells_the_new_length() -> None:
    """BUFFERED keeps content-length, so a new body comes with it; PARTIAL has none."""
    ends = RequestBody(b"ab", True)
    whole = played([RequestHeaders(PLAIN, False, Modes(BodyMode.BUFFERED)), ends], RENAMED)
    partial = played(
        [RequestHeaders(PLAIN, False, Modes(BodyMode.BUFFERED_PARTIAL)), ends], RENAMED
    )

    assert RENAMED.body is not None
    assert whole.actions[1] == AnswerRequestBody(RENAMED, RENAMED.body, len(RENAMED.body))
    assert partial.actions[1] == AnswerRequestBody(RENAMED, RENAMED.body)


def test_buffered_with_trailers_answers_the_body_and_then_the_trailers() -> None:
    """The one message of a body that ends in trailers does not carry the end of stream."""
    begin = RequestHeaders(PLAIN, False, Modes(BodyMode.BUFFERED))
    stream = played([begin, RequestBody(b"ab", False)], passing=True)

    assert stream.actions[1:] == [AnswerRequestBody(ROUTE)]
    assert stream.asks == [Ask(PLAIN, b"ab")]
    assert stream.play(RequestTrailers()) == (AnswerRequestTrailers(),)


def test_partial_over_the_limit_is_asked_about_as_a_beginning() -> None:
    """BUFFERED_PARTIAL's one message without an end may be only the beginning of the body."""
    begin = RequestHeaders(PLAIN, False, Modes(BodyMode.BUFFERED_PARTIAL))
    stream = played([begin, RequestBody(b"ab", False)])

    assert stream.asks == [Ask(PLAIN, b"ab", partial=True)]
    assert stream.closed


@pytest.mark.parametrize("mode", BUFFERED)
def test_buffered_trailers_without_a_body_are_refused(mode: BodyMode) -> None:
    """The headers are gone by then, and trailers cannot carry a pick."""
    stream = played([RequestHeaders(PLAIN, False, Modes(mode)), RequestTrailers()])

    assert stream.refused == ["unsupported_body_mode"]
    assert stream.closed


@pytest.mark.parametrize(
    "modes",
    [
        Modes(BodyMode.NONE),
        Modes(BodyMode.STREAMED),
        Modes(BodyMode.GRPC),
        Modes(BodyMode.UNKNOWN),
    ],
    ids=mode_name,
)
def test_a_mode_that_hides_the_body_is_asked_about_at_the_headers(modes: Modes) -> None:
    """NONE and plain STREAMED: a decision without a body, and the mode named."""
    stream = played([RequestHeaders(PLAIN, False, modes)])

    assert stream.asks == [Ask(PLAIN, None, unseen_mode=modes.request)]
    assert stream.actions[0] == AnswerRequestHeaders(ROUTE)
    assert stream.closed == (modes.request is BodyMode.NONE)


@pytest.mark.parametrize("modes", MODES, ids=mode_name)
def test_a_request_without_a_body_is_decided_at_its_headers(modes: Modes) -> None:
    """Whatever the mode: no body, no reason to wait, nothing to relay."""
    stream = played([RequestHeaders(PLAIN, True, modes, ("10.0.0.1:8000",))])

    assert stream.asks == [Ask(PLAIN, None, ("10.0.0.1:8000",))]
    assert stream.actions == [AnswerRequestHeaders(ROUTE), Close()]


# --- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "modes", [m for m in MODES if m.request in BUFFERED or m.early_body] + [Modes()], ids=mode_name
)
def test_a_body_over_the_limit_is_refused_before_it_is_held(modes: Modes) -> None:
    """413 at the chunk that crosses the limit; nothing stays behind."""
    begin = RequestHeaders(PLAIN, False, modes)
    within = played([begin, RequestBody(b"x" * 10, True)], limit=10)
    beyond = played([begin, RequestBody(b"x" * 11, True)], limit=10)

    assert within.refused == []
    assert beyond.refused == ["body_too_large"]
    assert beyond.session.buffered_bytes == 0


@pytest.mark.parametrize(
    ("length", "refused"),
    [
        (b"10", False),
        (b"11", True),
        (b"9" * 30, True),
        (b"", False),
        (b"-1", False),
        (b"11, 11", False),
        (b"0x20", False),
        (b"\xb2", False),
    ],
)
def test_a_declared_length_over_the_limit_is_refused_at_once(length: bytes, refused: bool) -> None:
    """What content-length announces need not be waited for; what it cannot mean is ignored."""
    stream = opened(limit=10)
    stream.play(RequestHeaders({**PLAIN, "content-length": length}, False))

    assert stream.refused == (["body_too_large"] if refused else [])


def test_the_limit_is_named() -> None:
    """The refusal says what the limit is and which setting it is."""
    session = Session(max_body_bytes=10, pass_response=False)
    session.receive(RequestHeaders(PLAIN, False))

    with pytest.raises(BodyTooLarge, match=r"10 bytes.*--max-request-body-bytes"):
        session.receive(RequestBody(b"x" * 11, False))


def test_the_setting_to_change_is_named() -> None:
    """Without request headers the filter is set up wrongly, and the refusal says how."""
    session = Session(max_body_bytes=10, pass_response=False)

    with pytest.raises(UnsupportedBodyMode, match="request_header_mode to SEND"):
        session.receive(RequestBody(b"x", True))


# --- upgrades -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "is_upgrade"),
    [
        (UPGRADE, True),
        ({":method": b"CONNECT"}, True),
        ({"connection": b"UPGRADE", "upgrade": b"x"}, True),
        ({"connection": b" upgrade ,close", "upgrade": b"x"}, True),
        ({"connection": b"not-an-upgrade", "upgrade": b"x"}, False),
        ({"connection": b"close", "upgrade": b"x"}, False),
        ({"connection": b"upgrade"}, False),
        ({"upgrade": b"websocket"}, False),
        ({":method": b"connect"}, False),
    ],
)
def test_an_upgrade_is_decided_at_its_headers(headers: dict[str, bytes], is_upgrade: bool) -> None:
    """What Envoy itself takes for an upgrade has no body to wait for; nothing else skips it."""
    stream = played([RequestHeaders({":method": b"POST", **headers}, False)])

    assert (len(stream.asks) == 1) == is_upgrade


def test_the_bytes_of_an_upgrade_are_relayed() -> None:
    """Full duplex: each chunk passes as it comes; the stream ends with the response.

    It has been on its way all the while, so that a close at the request's end would cut into it.
    """
    stream = played([RequestHeaders(UPGRADE, False)])

    assert stream.actions == [AnswerRequestHeaders(ROUTE)]
    assert stream.play(RequestBody(b"ping", False)) == (RequestChunk(b"ping", False),)
    assert stream.play(RequestBody(b"", True)) == (RequestChunk(b"", True),)
    assert stream.play(ResponseBody(b"pong", False)) == (ResponseChunk(b"pong", False),)
    assert stream.play(ResponseBody(b"", True)) == (ResponseChunk(b"", True), Close())


def test_an_upgrade_whose_response_is_not_in_full_duplex_ends_with_its_request() -> None:
    """What Envoy has queued for us there, it forwards when the stream closes."""
    modes = Modes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.STREAMED)
    stream = played([RequestHeaders(UPGRADE, False, modes)])

    assert stream.play(RequestBody(b"", True)) == (RequestChunk(b"", True), Close())


def test_an_upgrade_whose_bytes_are_not_sent_to_us_needs_no_stream() -> None:
    """NONE shows no bytes, and BUFFERED would hold them back for an end that never comes."""
    for mode in (BodyMode.NONE, *BUFFERED):
        stream = played([RequestHeaders(UPGRADE, False, Modes(mode))])

        assert stream.actions == [AnswerRequestHeaders(ROUTE), Close()]


@pytest.mark.parametrize("mode", [BodyMode.STREAMED, *BUFFERED])
def test_an_upgrade_outside_full_duplex_is_let_through(mode: BodyMode) -> None:
    """Where the response passes, each body message of an upgrade is answered as its mode wants."""
    stream = played([RequestHeaders(UPGRADE, False, Modes(mode))], passing=True)

    assert stream.play(RequestBody(b"ping", True)) == (AnswerRequestBody(),)


def test_the_end_of_an_upgraded_response_does_not_cut_the_request() -> None:
    """One direction may end first; the other one is still relayed."""
    stream = played([RequestHeaders(UPGRADE, False)], passing=True)

    assert stream.play(ResponseHeaders({":status": b"101"}, False)) == (AnswerResponseHeaders(),)
    assert stream.play(ResponseBody(b"", True)) == (ResponseChunk(b"", True),)
    assert stream.play(RequestBody(b"bye", False)) == (RequestChunk(b"bye", False),)


# --- responses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "answers"),
    [
        (BodyMode.FULL_DUPLEX_STREAMED, [ResponseChunk(b"a", False), ResponseChunk(b"b", True)]),
        (BodyMode.STREAMED, [AnswerResponseBody(), AnswerResponseBody()]),
        (BodyMode.BUFFERED, [AnswerResponseBody(), AnswerResponseBody()]),
        (BodyMode.GRPC, [AnswerResponseBody(), AnswerResponseBody()]),
    ],
)
def test_a_response_passes_unchanged(mode: BodyMode, answers: list[Action]) -> None:
    """Each message is answered as its mode wants; the last one ends the stream."""
    stream = played([RequestHeaders(PLAIN, True, Modes(response=mode))], passing=True)
    rest: list[Event] = [
        ResponseHeaders({":status": b"200"}, False),
        ResponseBody(b"a", False),
        ResponseBody(b"b", True),
    ]

    assert [action for event in rest for action in stream.play(event)] == [
        AnswerResponseHeaders(),
        *answers,
        Close(),
    ]


def test_a_response_ends_with_its_headers_or_its_trailers() -> None:
    """No body, no body mode, or trailers: each is an end."""
    begin = RequestHeaders(PLAIN, True)
    unseen = RequestHeaders(PLAIN, True, Modes(response=BodyMode.NONE))
    status = {":status": b"200"}

    assert played([begin, ResponseHeaders(status, True)], passing=True).closed
    assert played([unseen, ResponseHeaders(status, False)], passing=True).closed
    ended = played([begin, ResponseHeaders(status, False), ResponseTrailers()], passing=True)
    assert ended.actions[-2:] == [AnswerResponseTrailers(), Close()]


def test_a_response_may_overtake_its_request() -> None:
    """A local reply while the body is still collected ends the stream and frees the body."""
    events: list[Event] = [
        RequestHeaders(PLAIN, False),
        RequestBody(b"ab", False),
        ResponseHeaders({":status": b"408"}, True),
    ]
    stream = played(events)

    assert stream.actions == [AnswerResponseHeaders(), Close()]
    assert stream.session.buffered_bytes == 0


@pytest.mark.parametrize(
    ("response_mode", "passes"),
    [
        (BodyMode.FULL_DUPLEX_STREAMED, True),
        (BodyMode.STREAMED, False),
        (BodyMode.BUFFERED, False),
        (BodyMode.NONE, False),
    ],
)
def test_a_close_that_could_come_late_is_not_sent_into_a_streamed_response(
    response_mode: BodyMode, passes: bool
) -> None:
    """Envoy would drop what it has sent us of the response before it sees the close."""
    modes = Modes(BodyMode.FULL_DUPLEX_STREAMED, response_mode)
    session = Session(max_body_bytes=10, pass_response=False, ends_apart=True)
    session.receive(RequestHeaders({":path": b"/"}, end=True, modes=modes))

    actions = session.route(ROUTE)

    assert session.passes_response is passes
    assert (Close() in actions) is not passes


@pytest.mark.parametrize(("size", "passes"), [(10, False), (12 * 1024, False), (13_000, True)])
def test_after_a_long_echo_the_response_passes(size: int, passes: bool) -> None:
    """A server that answers before it has read it all would lose its answer to our close."""
    session = Session(max_body_bytes=100_000, pass_response=False)
    session.receive(RequestHeaders({":path": b"/"}, end=False))
    session.receive(RequestBody(b"x" * size, True))

    actions = session.route(ROUTE)

    assert session.passes_response is passes
    assert (Close() in actions) is not passes
