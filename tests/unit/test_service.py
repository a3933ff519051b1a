"""What joins wire and router: each request is told of once, counted, and never fails silently."""

import json
import logging
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datastore.events import Deleted, Kind, Upserted
from datastore.model import InferenceModel, ObjectName, PoolView
from datastore.store import Store
from epp.extproc import codec
from epp.extproc.calls import INVALID_ARGUMENT, OK, Metadata, Reply
from epp.extproc.service import ExtProc, Limits, Stream
from epp.outcome import LISTED, PICKED, Outcome, Served
from epp.routing.router import ONLY_ENDPOINT, Policy, Router
from protos.gen import ext_proc_pb2 as pb
from tests.builders import a_model, a_pod, a_pool, a_store, named

SECRET = "my-prompt-is-secret"
LLAMA = json.dumps({"model": "llama", "prompt": SECRET}).encode()


class Notebook:
    """Keeps what it is told; `fails` makes it a broken one."""

    def __init__(self, *, fails: bool = False) -> None:
        self.outcomes: list[Outcome] = []
        self.responses: list[Served] = []
        self._fails = fails

    def picked(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if self._fails:
            raise RuntimeError("the notebook is full")

    def served(self, response: Served) -> None:
        self.responses.append(response)
        if self._fails:
            raise RuntimeError("the notebook is full")


class Clock:
    """A clock that the test turns."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class World:
    """A service, and what it tells."""

    def __init__(
        self,
        store: Store | None = None,
        *,
        passing: bool = False,
        broken_notebook: bool = False,
        limits: Limits | None = None,
        **policy: Any,
    ) -> None:
        self.notebook = Notebook(fails=broken_notebook)
        self.clock = Clock()
        self.store = store if store is not None else a_world()
        self.service = ExtProc(
            Router(Policy(**policy), Random(1)),
            self.store,
            self.notebook,
            clock=self.clock,
            pass_response=passing,
            limits=limits or Limits(max_body_bytes=10_000, max_buffered_bytes=20_000),
        )

    def open(self, *metadata: tuple[bytes, bytes]) -> Stream:
        stream = self.service.open(codec.METHOD, metadata, lambda reply: None)
        assert stream is not None
        return stream

    def ask(self, *messages: bytes, metadata: Metadata = ()) -> pb.ProcessingResponse:
        """Play messages on a stream of their own; return the first answer."""
        stream = self.open(*metadata)
        replies = [reply for m in messages if (reply := stream.receive(m)) is not None]
        return answers(replies[0])[0]

    @property
    def outcome(self) -> Outcome:
        (outcome,) = self.notebook.outcomes
        return outcome


def a_world() -> Store:
    return a_store(
        a_pool("vllm").picked_by("epp"),
        a_pod("one").at("10.0.0.1"),
        a_model("llama").to("meta/Llama-3"),
        a_model("lost").in_pool("gone"),
    )


def answers(reply: Reply | None) -> list[pb.ProcessingResponse]:
    assert reply is not None
    return [pb.ProcessingResponse.FromString(message) for message in reply.messages]


def headers(
    path: str = "/v1/chat/completions", *, end: bool = False, method: str = "POST", **fields: str
) -> bytes:
    every = {":method": method, ":path": path, "x-request-id": "id-1"}
    every |= {key.replace("_", "-"): value for key, value in fields.items()}
    values = [pb.HeaderValue(key=k, raw_value=v.encode()) for k, v in every.items()]
    message = pb.HttpHeaders(headers=pb.HeaderMap(headers=values), end_of_stream=end)
    return pb.ProcessingRequest(request_headers=message).SerializeToString()


def body(data: bytes, *, end: bool = True) -> bytes:
    message = pb.HttpBody(body=data, end_of_stream=end)
    return pb.ProcessingRequest(request_body=message).SerializeToString()


def response_headers(status: str = "200", *, end: bool = False) -> bytes:
    value = pb.HeaderValue(key=":status", raw_value=status.encode())
    message = pb.HttpHeaders(headers=pb.HeaderMap(headers=[value]), end_of_stream=end)
    return pb.ProcessingRequest(response_headers=message).SerializeToString()


def response_body(data: bytes, *, end: bool = False) -> bytes:
    message = pb.HttpBody(body=data, end_of_stream=end)
    return pb.ProcessingRequest(response_body=message).SerializeToString()


def set_headers(answer: pb.ProcessingResponse) -> dict[str, str]:
    mutation = answer.request_headers.response.header_mutation
    return {o.header.key: o.header.raw_value.decode() for o in mutation.set_headers}


# --- told once ----------------------------------------------------------------------------------


def test_a_pick_is_told() -> None:
    """Who asked, for what, where it went, on which state of the datastore, and how long it took."""
    world = World()
    stream = world.open()
    stream.receive(headers())
    reply = stream.receive(body(LLAMA))

    assert reply is not None
    assert reply.status == OK
    assert world.outcome == Outcome(
        request_id="id-1",
        namespace="default",
        model="llama",
        target="meta/Llama-3",
        pool="default/vllm",
        endpoint="10.0.0.1:8000",
        choice=ONLY_ENDPOINT,
        reason=PICKED,
        revision=world.store.revision,
        body_bytes=len(LLAMA),
    )


@pytest.mark.parametrize(
    ("messages", "status", "reason", "model", "known", "pool"),
    [
        ([headers(), body(b"junk")], 400, "invalid_json", "", False, "default/vllm"),
        (
            [headers(), body(b'{"model":"no"}')],
            404,
            "model_not_found",
            "unknown",
            False,
            "default/vllm",
        ),
        (
            [headers(), body(b'{"model":"lost"}')],
            404,
            "model_not_found",
            "lost",
            True,
            "default/vllm",
        ),
        ([headers(content_length="10001")], 413, "body_too_large", "", False, "default/vllm"),
        ([headers(), body(b"x" * 10_001)], 413, "body_too_large", "", False, "default/vllm"),
        ([body(b"x")], 500, "unsupported_body_mode", "", False, "default/vllm"),
        ([headers("/v1/models", end=True, method="GET")], 200, LISTED, "", True, ""),
    ],
    ids=["json", "unknown", "other pool", "announced", "sent", "no headers", "listed"],
)
def test_an_answer_is_told(
    messages: list[bytes], status: int, reason: str, model: str, known: bool, pool: str
) -> None:
    """Exactly once, with the pool that the stream is bound to and the model if it is ours."""
    world = World()
    answer = world.ask(*messages, metadata=((b":authority", b"epp.default.svc:9002"),))
    told = world.outcome

    assert answer.immediate_response.status.code == status
    assert (told.status, told.reason) == (status, reason)
    assert (told.model, told.known, told.pool) == (model, known, pool)
    assert told.namespace == "default"


def test_a_refusal_about_a_pool_that_no_gateway_bound() -> None:
    """The model's own pool is told."""
    world = World()
    world.ask(headers(), body(b'{"model":"lost"}'))

    assert (world.outcome.model, world.outcome.pool) == ("lost", "default/gone")
    assert world.outcome.reason == "pool_not_found"


def test_a_stream_that_goes_away_unanswered_is_not_told() -> None:
    """Nothing was decided, so nothing is counted; and nothing stays."""
    world = World()
    for leave in (Stream.cancel, Stream.end):
        stream = world.open()
        stream.receive(headers())
        stream.receive(body(b"x" * 100, end=False))
        assert world.service.buffered_bytes == 100
        leave(stream)
        assert world.service.buffered_bytes == 0

    assert world.notebook.outcomes == []


def test_the_picker_s_own_time() -> None:
    """From the message that completes the request, not from the first one."""
    world = World()
    stream = world.open()
    stream.receive(headers())
    world.clock.now += 5
    stream.receive(body(LLAMA))

    assert world.outcome.picker_s == 0


def test_a_half_closed_stream_is_closed() -> None:
    """Envoy will tell nothing more; OK is the answer, once."""
    assert World().open().end() == Reply((), OK)


# --- unknown models that pass -------------------------------------------------------------------


def test_an_unknown_model_that_passes_is_told_as_unknown() -> None:
    """Its name travels as a header, and is marked as none of ours."""
    world = World(pass_unknown_models=True)
    answer = world.ask(headers(), body(b'{"model":"nobody/7b:x"}'))

    assert set_headers(answer)["x-gateway-model-name"] == "nobody/7b:x"
    assert not world.outcome.known


@pytest.mark.parametrize(
    "name",
    ["a\nx-evil: 1", "a\r\n", "\x00", "\x7f", "é", "😀", " padded ", "\t", "x" * 257, "x" * 9000],
)
def test_a_name_that_is_no_header_s_value_is_left_out(name: str) -> None:
    """Envoy would answer 500 to the whole pick; other gateways may let it split the header."""
    world = World(pass_unknown_models=True)
    answer = world.ask(headers(), body(json.dumps({"model": name}).encode()))
    mutation = answer.request_headers.response.header_mutation

    assert set_headers(answer)["x-gateway-destination-endpoint"] == "10.0.0.1:8000"
    assert "x-gateway-model-name" not in set_headers(answer)
    assert "x-gateway-model-name" in mutation.remove_headers


# --- bytes held ---------------------------------------------------------------------------------


def test_too_many_bodies_at_once_are_refused() -> None:
    """503 for the chunk that crosses the limit; those that are under way go on."""
    world = World()
    first, second, third = world.open(), world.open(), world.open()
    for stream in (first, second):
        stream.receive(headers())
        assert stream.receive(body(b"x" * 9_000, end=False)) is None
    third.receive(headers())
    refused = answers(third.receive(body(b"x" * 2_001, end=False)))[0]

    assert refused.immediate_response.status.code == 503
    assert world.outcome.reason == "overloaded"
    assert world.service.buffered_bytes == 18_000
    first.cancel()
    fourth = world.open()
    fourth.receive(headers())
    assert answers(fourth.receive(body(LLAMA)))[0].HasField("request_headers")


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.sampled_from(["headers", "chunk", "end", "large", "junk", "cancel", "close"]),
        ),
        max_size=60,
    ),
    st.booleans(),
)
def test_the_bytes_held_are_those_of_the_open_streams(
    steps: list[tuple[int, str]], passing: bool
) -> None:
    """Whatever many streams do at once; and nothing is left when all are gone."""
    world = World(passing=passing)
    streams = [world.open() for _ in range(5)]
    messages = {
        "headers": headers(),
        "chunk": body(b"x" * 700, end=False),
        "end": body(LLAMA),
        "large": body(b"x" * 9_999, end=False),
        "junk": b"\xff",
    }
    for number, step in steps:
        stream = streams[number]
        over = step in ("cancel", "close")
        if step == "cancel":
            stream.cancel()
        elif step == "close":
            stream.end()
        else:
            reply = stream.receive(messages[step])
            over = reply is not None and reply.status is not None
        if over:
            streams[number] = world.open()
        assert 0 <= world.service.buffered_bytes <= world.service.limits.max_buffered_bytes
    for stream in streams:
        stream.cancel()

    assert world.service.buffered_bytes == 0
    assert all(
        outcome.passes for outcome in world.notebook.outcomes if outcome.reason == PICKED
    ) in (
        passing,
        True,
    )


# --- bugs ---------------------------------------------------------------------------------------


class BrokenModels(Store):
    """A datastore with a bug where models are looked up."""

    def model(self, name: ObjectName) -> InferenceModel | None:
        raise ZeroDivisionError("a bug")


class BrokenServices(Store):
    """A datastore with a bug where a stream's scope is found."""

    def pools_of_service(self, namespace: str | None, service: str) -> list[ObjectName]:
        raise ZeroDivisionError("a bug")

    def pool(self, name: ObjectName) -> PoolView | None:
        raise ZeroDivisionError("a bug")


@pytest.mark.parametrize("store", [BrokenModels, BrokenServices])
def test_a_bug_costs_one_request(store: type[Store], caplog: pytest.LogCaptureFixture) -> None:
    """500 with the request's id; the log has the traceback, and never the body."""
    world = World(store())
    with caplog.at_level(logging.DEBUG):
        answer = world.ask(headers(), body(LLAMA), metadata=((b":authority", b"epp"),))
    read = json.loads(answer.immediate_response.body)

    assert answer.immediate_response.status.code == 500
    assert "id-1" in read["error"]["message"]
    assert read["error"]["code"] == "internal_error"
    assert "ZeroDivisionError: a bug" in caplog.text
    assert "id-1" in caplog.text
    assert SECRET not in caplog.text
    assert world.service.buffered_bytes == 0


def test_a_bug_is_told() -> None:
    """As a refusal like any other."""
    world = World(BrokenModels())
    world.ask(headers(), body(LLAMA))

    assert (world.outcome.status, world.outcome.reason) == (500, "internal_error")


def test_a_bug_in_a_request_without_an_id(caplog: pytest.LogCaptureFixture) -> None:
    """The message says that there was none."""
    message = pb.HttpHeaders(headers=pb.HeaderMap())
    world = World(BrokenModels())
    answer = world.ask(
        pb.ProcessingRequest(request_headers=message).SerializeToString(), body(LLAMA)
    )

    assert b"no x-request-id" in answer.immediate_response.body


@pytest.mark.parametrize("passing", [False, True], ids=["close", "pass"])
def test_a_broken_observer_costs_nothing(passing: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever is told of requests cannot keep them from being routed, refused or listed."""
    world = World(broken_notebook=True, passing=passing)
    asked = (headers(), body(LLAMA))

    assert world.ask(*asked).HasField("request_headers")
    assert world.ask(headers(), body(b"junk")).immediate_response.status.code == 400
    assert world.ask(headers("/v1/models", end=True, method="GET")).HasField("immediate_response")
    assert caplog.text.count("RuntimeError: the notebook is full") == 3
    assert world.service.buffered_bytes == 0


# --- responses ----------------------------------------------------------------------------------


def passed(world: World) -> Stream:
    stream = world.open()
    stream.receive(headers())
    stream.receive(body(LLAMA))
    return stream


def test_a_response_is_told_when_it_is_complete() -> None:
    """Status, first byte and duration, by the service's clock; once, whatever follows."""
    world = World(passing=True)
    stream = passed(world)
    world.clock.now += 1
    stream.receive(response_headers())
    world.clock.now += 1
    stream.receive(response_body(b"x"))
    world.clock.now += 1
    reply = stream.receive(response_body(b"yz", end=True))
    stream.cancel()
    (told,) = world.notebook.responses

    assert reply is not None
    assert reply.status == OK
    assert world.outcome.passes
    assert told.outcome == world.outcome
    assert (told.status, told.body_bytes, told.complete) == (200, 3, True)
    assert (told.first_byte_s, told.duration_s) == (2.0, 3.0)
    assert told.endpoint == "10.0.0.1:8000"


@pytest.mark.parametrize("heard", range(3))
@pytest.mark.parametrize("leave", [Stream.cancel, Stream.end], ids=["cancel", "end"])
def test_a_response_that_breaks_off_is_told_too(heard: int, leave: Any) -> None:
    """A `Served` for each pick that passes: what was seen, and that it was not all."""
    world = World(passing=True)
    stream = passed(world)
    for message in [response_headers("503"), response_body(b"x")][:heard]:
        stream.receive(message)
    leave(stream)
    (told,) = world.notebook.responses

    assert not told.complete
    assert told.status == (503 if heard else 0)
    assert told.body_bytes == (1 if heard == 2 else 0)
    assert (told.first_byte_s is None) == (heard < 2)


def test_a_response_without_a_number_for_its_status() -> None:
    """It is told as 0, not as a failure of ours."""
    world = World(passing=True)
    passed(world).receive(response_headers("2xx", end=True))

    assert [told.status for told in world.notebook.responses] == [0]


def test_a_response_ends_with_its_trailers() -> None:
    """They complete it."""
    world = World(passing=True)
    stream = passed(world)
    stream.receive(response_headers())
    end = pb.ProcessingRequest(response_trailers=pb.HttpTrailers())
    reply = stream.receive(end.SerializeToString())

    assert reply is not None
    assert reply.status == OK
    assert [told.complete for told in world.notebook.responses] == [True]


def test_a_refused_request_has_no_response() -> None:
    """Where responses pass, only a pick is followed by a `Served`."""
    world = World(passing=True)
    world.ask(headers(), body(b"junk"))

    assert not world.outcome.passes
    assert world.notebook.responses == []


def test_nonsense_while_a_response_passes() -> None:
    """The call ends with an error, and the response is told as broken off."""
    world = World(passing=True)
    reply = passed(world).receive(headers())

    assert reply is not None
    assert reply.status is not None
    assert reply.status.code == INVALID_ARGUMENT
    assert [told.complete for told in world.notebook.responses] == [False]


@pytest.mark.parametrize("leave", [Stream.cancel, Stream.end], ids=["cancel", "end"])
def test_a_broken_observer_of_responses(leave: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The response passes to its end, or breaks off, and is told of once."""
    world = World(passing=True, broken_notebook=True)
    whole, broken = passed(world), passed(world)
    whole.receive(response_headers())
    reply = whole.receive(response_body(b"x", end=True))
    leave(broken)

    assert answers(reply)[0].HasField("response_body")
    assert reply is not None
    assert reply.status == OK
    assert [told.complete for told in world.notebook.responses] == [True, False]
    assert caplog.text.count("was not counted") == 4


def test_a_bug_while_a_response_passes(caplog: pytest.LogCaptureFixture) -> None:
    """The request is on its way: the stream is closed, and Envoy goes on without us."""
    world = World(passing=True)
    stream = passed(world)
    reply = stream.receive(response_headers("9" * 5000))  # more digits than int() will read

    assert reply == Reply((), OK)
    assert "ValueError" in caplog.text
    assert [told.complete for told in world.notebook.responses] == [False]


# --- calls and bindings -------------------------------------------------------------------------


def test_other_methods_are_not_served() -> None:
    """One method; whatever else is asked is unimplemented."""
    service = World().service

    for path in ("/x", "", codec.METHOD + "/", "/grpc.health.v1.Health/Check"):
        assert service.open(path, (), lambda reply: None) is None


def test_each_way_of_binding_reaches_the_router() -> None:
    """The metadata of the call says which pool its requests are about."""
    store = a_store(
        a_pool("vllm", "a").picked_by("epp"), a_pod("one", "a").at("10.0.0.1"), a_model("m", "a")
    )
    for metadata in (
        ((b":authority", b"epp:9002"),),
        ((b":authority", b"outbound|9002||epp.a.svc.cluster.local"),),
        ((b"x-epp-namespace", b"a"), (b"x-epp-pool", b"vllm")),
        ((b"x-epp-namespace", b"a"), (b":path", b"/"), (b"user-agent", b"envoy")),
    ):
        world = World(store)
        answer = world.ask(headers(), body(b'{"model":"m"}'), metadata=metadata)
        assert set_headers(answer)["x-gateway-inference-pool"] == "a/vllm"
    world = World(store)
    assert world.ask(headers(), body(b'{"model":"m"}')).immediate_response.status.code == 404


def test_a_change_of_the_datastore_reaches_the_next_request() -> None:
    """What a binding means is looked up in the state that the request sees."""
    world = World(a_store(a_pool("vllm", "a"), a_pod("one", "a"), a_model("m", "a")))
    authority = ((b":authority", b"epp"),)
    asked = (headers(), body(b'{"model":"m"}'))

    assert world.ask(*asked, metadata=authority).immediate_response.status.code == 404
    world.store.apply([Upserted(a_pool("vllm", "a").picked_by("epp").value)])
    assert world.ask(*asked, metadata=authority).HasField("request_headers")
    world.store.apply([Deleted(Kind.MODEL, named("m", "a"))])
    assert world.ask(*asked, metadata=authority).immediate_response.status.code == 404


def test_many_different_authorities_cost_no_memory() -> None:
    """A peer that makes up a new name for each call does not make the picker grow."""
    world = World()
    for number in range(3000):
        world.ask(
            headers("/x", end=True, method="GET"),
            metadata=((b":authority", f"epp-{number}".encode()),),
        )

    assert len(world.service._bindings) <= 1024
    assert len(world.service._scopes) <= 1024


def test_nothing_is_decided_before_the_datastore_is_whole() -> None:
    """503 until then: what is not held yet may well exist."""
    world = World()
    world.service.synced = False
    asked = (headers(), body(LLAMA))

    assert world.ask(*asked).immediate_response.status.code == 503
    assert world.outcome.status == 503
    world.service.become_synced()
    assert world.ask(*asked).HasField("request_headers")
