"""Where a request goes, or why it does not: every row that the router decides."""

import gzip
import json
import zlib
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datastore.events import Deleted, Kind
from datastore.model import ObjectName
from datastore.store import Store
from epp.errors import (
    ArtifactMismatch,
    BodyTooLarge,
    DuplicateModel,
    InvalidJson,
    MissingModel,
    ModelInvalid,
    ModelNotFound,
    NoReadyEndpoint,
    PoolNotFound,
    RequestError,
    RouteNotFound,
    SubsetUnmatched,
    UnsupportedBodyMode,
    UnsupportedEncoding,
)
from epp.routing.request import UNBOUND, Binding, Listing, Pick, Request
from epp.routing.router import (
    IN_SUBSET,
    LESS_LOADED,
    ONLY_ENDPOINT,
    Policy,
    Router,
    ServeModels,
)
from tests.builders import DIGEST_A, DIGEST_B, a_model, a_pod, a_pool, a_store, named

CHAT = {":method": b"POST", ":path": b"/v1/chat/completions?stream=1"}
LLAMA = b'{"model":"llama"}'


def a_world() -> Store:
    """Pool vllm with two pods, pool empty with none; models of each, and of none."""
    return a_store(
        a_pool("vllm"),
        a_pool("empty"),
        a_pod("one").at("10.0.0.1"),
        a_pod("two").at("10.0.0.2"),
        a_model("llama").to("meta/Llama-3"),
        a_model("plain"),
        a_model("idle").in_pool("empty"),
        a_model("lost").in_pool("gone"),
        a_model("broken").invalid("weights on some targets only"),
        a_model("pinned").to("p", digest=DIGEST_A),
    )


def one_pool() -> Store:
    """A single pool with one pod and one model."""
    return a_store(a_pool("vllm"), a_pod("one"), a_model("llama"))


def route(
    body: bytes | None = LLAMA,
    *,
    store: Store | None = None,
    binding: Binding = UNBOUND,
    headers: dict[str, bytes] | None = None,
    seed: int = 1,
    policy: dict[str, Any] | None = None,
    **request: Any,
) -> Pick | Listing:
    """Route one request as the service does."""
    router = Router(Policy(**(policy or {})), Random(seed))
    snapshot = store if store is not None else a_world()
    asked = Request(headers if headers is not None else CHAT, body, **request)
    return router.route(asked, router.scope(binding, snapshot), snapshot, 0.0)


def pick(*args: Any, **kwargs: Any) -> Pick:
    found = route(*args, **kwargs)
    assert isinstance(found, Pick)
    return found


def refused(*args: Any, **kwargs: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        route(*args, **kwargs)
    return caught.value


def get(path: str, method: bytes = b"GET") -> dict[str, bytes]:
    return {":method": method, ":path": path.encode()}


BOUND = Binding(pool="vllm")


# --- a pick by model ----------------------------------------------------------------------------


def test_a_model_is_renamed_and_sent_to_its_pool() -> None:
    """The client's name, the target's name, the pool, a ready endpoint and the new body."""
    found = pick(b'{ "model" : "llama" }')

    assert found.pool == named("vllm")
    assert (found.model, found.target) == ("llama", "meta/Llama-3")
    assert found.body == b'{ "model" : "meta/Llama-3" }'
    assert found.destination in ("10.0.0.1:8000", "10.0.0.2:8000")
    assert found.choice == LESS_LOADED
    assert not found.drop_encoding


def test_a_target_of_the_same_name_leaves_the_body() -> None:
    """None means: not a byte changes."""
    assert pick(b'{"model":"plain"}').body is None


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/embeddings", "/v1/messages", "/score", "/", "/v1/models"]
)
def test_any_path_with_a_model_in_its_body(path: str) -> None:
    """The body decides, not the path; a query string is no part of it."""
    for method in (b"POST", b"PUT", b"GET"):
        assert pick(headers=get(path + "?a=b", method)).model == "llama"


def test_a_pick_is_load() -> None:
    """The first choice carries the request until the next scrape; the fallbacks do not."""
    found = pick(policy={"fallbacks": 1})

    assert [endpoint.load.value(0.0) for endpoint in found.endpoints] == [1.0, 0.0]


def test_two_targets_of_three_to_one() -> None:
    """Chi-square over 20 000 draws of weights 3, 1 and 6: below 13.82, the 0.1 % point."""
    store = a_store(a_pool("vllm"), a_pod("one"), a_model("m").to("a", 3).to("b", 1).to("c", 6))
    router, scope = Router(Policy(), Random(11)), Router(Policy(), Random()).scope(UNBOUND, store)
    counts: Counter[str] = Counter()
    for _ in range(20_000):
        found = router.route(Request(CHAT, b'{"model":"m"}'), scope, store, 0.0)
        assert isinstance(found, Pick)
        counts[found.target] += 1
    wanted = {"a": 6000, "b": 2000, "c": 12000}

    assert sum((counts[t] - n) ** 2 / n for t, n in wanted.items()) < 13.82


def test_targets_without_weights_share_evenly() -> None:
    """Chi-square over 4 000 draws of four."""
    model = a_model("m").to("a").to("b").to("c").to("d")
    store = a_store(a_pool("vllm"), a_pod("one"), model)
    router = Router(Policy(), Random(2))
    scope = router.scope(UNBOUND, store)
    counts = Counter(
        found.target
        for _ in range(4_000)
        if isinstance(
            found := router.route(Request(CHAT, b'{"model":"m"}'), scope, store, 0.0), Pick
        )
    )

    assert sum((n - 1000) ** 2 / 1000 for n in counts.values()) < 16.27
    assert len(counts) == 4


@given(st.lists(st.integers(1, 1_000_000), min_size=1, max_size=10), st.integers(0, 2**32))
@settings(deadline=None, max_examples=50)
def test_the_same_seed_draws_the_same(weights: list[int], seed: int) -> None:
    """A run can be repeated; and every draw is one of the targets."""
    model = a_model("m")
    for number, weight in enumerate(weights):
        model.to(f"t{number}", weight)
    store = a_store(a_pool("vllm"), a_pod("one"), model)
    first, second = (pick(b'{"model":"m"}', store=store, seed=seed) for _ in range(2))

    assert first.target == second.target
    assert int(first.target.removeprefix("t")) < len(weights)


def test_a_pinned_target_goes_only_to_its_bytes() -> None:
    """Among the pods of the pool, those that say they serve the digest."""
    store = a_store(
        a_pool("vllm"),
        a_pod("one").at("10.0.0.1").serving(DIGEST_B),
        a_pod("two").at("10.0.0.2").serving(DIGEST_A),
        a_model("pinned").to("p", digest=DIGEST_A),
    )
    found = pick(b'{"model":"pinned"}', store=store)

    assert found.destination == "10.0.0.2:8000"
    assert found.choice == ONLY_ENDPOINT
    assert isinstance(refused(b'{"model":"pinned"}'), ArtifactMismatch)


# --- the hint -----------------------------------------------------------------------------------


def test_a_subset_narrows_the_pick() -> None:
    """The reason says so while there is a choice."""
    assert pick(subset=("10.0.0.2:8000",)).destination == "10.0.0.2:8000"
    assert pick(subset=("10.0.0.2:8000",)).choice == ONLY_ENDPOINT
    assert pick(subset=("10.0.0.1", "10.0.0.2")).choice == IN_SUBSET


def test_a_subset_can_be_ignored() -> None:
    """For gateways whose hint is stale when a pool scales from zero."""
    assert pick(subset=(), policy={"use_subset": False}).choice == LESS_LOADED


# --- what bad input gets ------------------------------------------------------------------------

ROWS: list[tuple[bytes, type[RequestError], int]] = [
    (b"", InvalidJson, 400),
    (b"not json", InvalidJson, 400),
    (b"[]", InvalidJson, 400),
    (b'{"model":"llama","x":NaN}', InvalidJson, 400),
    (b'{"model":"llama","x":"\xff"}', InvalidJson, 400),
    (b'{"model":"llama","x":' + b"[" * 100_000, InvalidJson, 400),
    (b'{"model":"llama","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", InvalidJson, 400),
    ('{"model":"llama"}'.encode("utf-16"), InvalidJson, 400),
    (b'{"model":"llama"', InvalidJson, 400),
    (b"{}", MissingModel, 400),
    (b'{"model":1}', MissingModel, 400),
    (b'{"model":""}', MissingModel, 400),
    (b'{"Model":"llama"}', MissingModel, 400),
    (b'{"model":"llama","model":"llama"}', DuplicateModel, 400),
    (b'{"model":"llama","m\\u006fdel":"plain"}', DuplicateModel, 400),
    (b'{"model":"nobody"}', ModelNotFound, 404),
    (b'{"model":"LLAMA"}', ModelNotFound, 404),
    (b'{"model":"lost"}', PoolNotFound, 503),
    (b'{"model":"idle"}', NoReadyEndpoint, 503),
    (b'{"model":"broken"}', ModelInvalid, 503),
]


@pytest.mark.parametrize(("body", "error", "status"), ROWS)
def test_what_bad_input_gets(body: bytes, error: type[RequestError], status: int) -> None:
    """Each row of the table: the class, and the status on it."""
    caught = refused(body)

    assert type(caught) is error
    assert caught.status == status


def test_a_byte_order_mark_is_accepted() -> None:
    """And stays where it is."""
    assert pick(b"\xef\xbb\xbf" + LLAMA).body == b'\xef\xbb\xbf{"model":"meta/Llama-3"}'


def test_a_deleted_model_is_gone() -> None:
    """The next request after the delete gets 404."""
    store = a_world()
    assert pick(store=store).model == "llama"
    store.apply([Deleted(Kind.MODEL, named("llama"))])

    assert isinstance(refused(store=store), ModelNotFound)


@pytest.mark.parametrize(
    ("body", "model", "pool"),
    [
        (b'{"model":"lost"}', "lost", "default/gone"),
        (b'{"model":"idle"}', "idle", "default/empty"),
        (b'{"model":"pinned"}', "pinned", "default/vllm"),
        (b'{"model":"broken"}', "broken", "default/vllm"),
        (b'{"model":"nobody"}', "unknown", ""),
        (b'{"model":1}', "", ""),
        (b"junk", "", ""),
    ],
)
def test_a_refusal_knows_what_it_is_about(body: bytes, model: str, pool: str) -> None:
    """The model, if it is one of ours, and its pool; clients cannot make up label values."""
    error = refused(body)

    assert (error.model, error.pool) == (model, pool)


def test_a_refusal_in_a_subset_knows_too() -> None:
    """Whichever filter it was."""
    error = refused(subset=("10.9.9.9",))

    assert isinstance(error, SubsetUnmatched)
    assert (error.model, error.pool) == ("llama", "default/vllm")


def test_a_model_of_another_pool_knows_its_own_name() -> None:
    """It is one of ours, and the request is about the pool that it was bound to."""
    error = refused(b'{"model":"idle"}', binding=BOUND)

    assert isinstance(error, ModelNotFound)
    assert error.model == "idle"


def test_a_bodyless_refusal_knows_its_pool() -> None:
    """The only pool of the namespace is the one that it is about."""
    error = refused(None, store=a_store(a_pool("vllm")), headers=get("/metrics"))

    assert isinstance(error, NoReadyEndpoint)
    assert (error.model, error.pool) == ("", "default/vllm")


# --- encodings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "pack"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
def test_an_encoded_body(name: bytes, pack: Any) -> None:
    """Read decoded; unchanged it stays encoded, renamed it is sent plain."""
    headers = {**CHAT, "content-encoding": name}
    renamed = pick(pack(LLAMA), headers=headers)
    same = pick(pack(b'{"model":"plain"}'), headers=headers)

    assert (renamed.body, renamed.drop_encoding) == (b'{"model":"meta/Llama-3"}', True)
    assert (same.body, same.drop_encoding) == (None, False)


def test_the_identity_encoding_is_none() -> None:
    """There is no header to drop."""
    found = pick(headers={**CHAT, "content-encoding": b"identity"})

    assert (found.body, found.drop_encoding) == (b'{"model":"meta/Llama-3"}', False)


@pytest.mark.parametrize(
    ("body", "encoding", "error", "status"),
    [
        (LLAMA, b"br", UnsupportedEncoding, 415),
        (LLAMA, b"gzip", InvalidJson, 400),
        (gzip.compress(b"{}", mtime=0), b"gzip", MissingModel, 400),
        (gzip.compress(bytes(2000), mtime=0), b"gzip", BodyTooLarge, 413),
        (gzip.compress(LLAMA, mtime=0)[:-1], b"gzip", InvalidJson, 400),
        (gzip.compress(LLAMA, mtime=0), b"identity", InvalidJson, 400),
        (b"", b"gzip", InvalidJson, 400),
    ],
    ids=["unknown", "damaged", "no_model", "bomb", "cut", "not_said", "empty"],
)
def test_what_bad_encodings_get(
    body: bytes, encoding: bytes, error: type[RequestError], status: int
) -> None:
    """Unknown 415, damaged 400, a bomb 413."""
    caught = refused(
        body, headers={**CHAT, "content-encoding": encoding}, policy={"max_body_bytes": 1000}
    )

    assert isinstance(caught, error)
    assert caught.status == status


# --- a body of which only the beginning may be known --------------------------------------------


def test_a_partial_body() -> None:
    """Whole after all, or a beginning that names the model."""
    assert pick(LLAMA, partial=True).body == b'{"model":"meta/Llama-3"}'
    assert pick(LLAMA[:-1] + b',"x":"', partial=True).body == b'{"model":"meta/Llama-3","x":"'


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b'{"x":"', BodyTooLarge),
        (b'{"model":"lla', BodyTooLarge),
        (b"", BodyTooLarge),
        (b"nonsense", InvalidJson),
        (b'{"model":1,"x":"', MissingModel),
        (b'{"x":1}', MissingModel),
        (b'{"model":"a","model":"b","x":"', DuplicateModel),
        (b'{"model":"nobody","x":"', ModelNotFound),
    ],
)
def test_a_partial_body_that_does_not_tell(body: bytes, error: type[RequestError]) -> None:
    """413 where the rest might, the body's own fault where it cannot."""
    assert type(refused(body, partial=True)) is error


def test_a_partial_body_that_is_encoded() -> None:
    """Whole, it is read; cut, it is not damaged but too large for this mode: 413 that says so."""
    headers = {**CHAT, "content-encoding": b"gzip"}
    data = gzip.compress(LLAMA, mtime=0)
    cut = refused(data[:-4], headers=headers, partial=True)

    assert pick(data, headers=headers, partial=True).drop_encoding
    assert type(cut) is BodyTooLarge
    assert "FULL_DUPLEX_STREAMED" in cut.message
    assert type(refused(LLAMA, headers=headers, partial=True)) is InvalidJson
    plain = {**CHAT, "content-encoding": b"identity"}
    assert pick(LLAMA[:-1] + b',"x":"', headers=plain, partial=True).model == "llama"


# --- modes that hide the body -------------------------------------------------------------------


def test_an_unseen_body_goes_to_the_only_pool() -> None:
    """Bound, or the only one of the namespace; otherwise Envoy is set up wrongly."""
    assert pick(None, unseen_mode="NONE", binding=BOUND).model == ""
    assert pick(None, unseen_mode="NONE", store=one_pool()).target == ""
    error = refused(None, unseen_mode="NONE")

    assert type(error) is UnsupportedBodyMode
    assert "NONE" in error.message
    assert "request_body_mode" in error.message


# --- without a body -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"OPTIONS", b"DELETE", b"POST", b"get"])
def test_a_request_without_a_body_goes_to_the_only_pool(method: bytes) -> None:
    """Bound, or the only one of the namespace; otherwise 404."""
    headers = get("/metrics?x=1", method)

    assert pick(None, headers=headers, binding=BOUND).pool == named("vllm")
    assert pick(None, headers=headers, store=one_pool()).model == ""
    error = refused(None, headers=headers)
    assert type(error) is RouteNotFound
    assert "/metrics names no model" in error.message
    assert "x=1" not in error.message


def test_an_empty_body_counts_as_none_only_where_none_is_usual() -> None:
    """A GET that ends in an empty chunk has no body; a POST has one that is not JSON."""
    assert pick(b"", headers=get("/metrics"), store=one_pool()).model == ""
    assert type(refused(b"", store=one_pool())) is InvalidJson


def test_a_long_path_is_not_repeated_whole() -> None:
    """A client cannot make an error as long as it likes."""
    error = refused(None, headers=get("/" + "x" * 60_000, b"Y" * 60_000))

    assert len(error.message) < 1000


def test_a_bound_pool_that_is_missing() -> None:
    """The gateway names a pool that is not there: 503, not another pool."""
    gone = Binding(pool="gone")

    assert type(refused(None, headers=get("/x"), binding=gone)) is PoolNotFound
    assert type(refused(None, unseen_mode="NONE", binding=gone)) is PoolNotFound


def test_pools_of_other_namespaces_do_not_count() -> None:
    """The single pool is that of the stream's namespace."""
    store = a_store(a_pool("vllm", "a"), a_pool("vllm", "b"), a_pod("one", "a"))

    assert pick(None, headers=get("/x"), store=store, binding=Binding("a")).pool == named(
        "vllm", "a"
    )
    assert type(refused(None, headers=get("/x"), store=store)) is RouteNotFound


# --- unknown models -----------------------------------------------------------------------------


PASS = {"pass_unknown_models": True}


def test_unknown_models_may_pass_to_a_single_pool() -> None:
    """As they came; the name is the server's business, and no label value."""
    for arguments in ({"store": one_pool()}, {"binding": BOUND}):
        found = pick(b'{"model":"nobody"}', policy=PASS, **arguments)

        assert found.pool == named("vllm")
        assert found.body is None
        assert found.model == found.target == "nobody"
        assert not found.is_ours
    assert pick(policy=PASS).is_ours


def test_unknown_models_do_not_pass_to_one_of_many() -> None:
    """There must be one pool that it can be."""
    assert type(refused(b'{"model":"nobody"}', policy=PASS)) is ModelNotFound


def test_known_models_are_held_to_what_they_are() -> None:
    """Passing is for unknown names: another pool's or a broken one is refused as ever."""
    other = refused(b'{"model":"idle"}', policy=PASS, binding=BOUND)
    broken = refused(b'{"model":"broken"}', policy=PASS, binding=BOUND)

    assert type(other) is ModelNotFound
    assert type(broken) is ModelInvalid


def test_an_unknown_model_and_no_endpoint() -> None:
    """The refusal is about the pool; the name is none of ours."""
    error = refused(b'{"model":"nobody"}', policy=PASS, store=a_store(a_pool("vllm")))

    assert type(error) is NoReadyEndpoint
    assert (error.model, error.pool) == ("unknown", "default/vllm")


# --- the list of models -------------------------------------------------------------------------


def listing(path: str, **kwargs: Any) -> Any:
    found = route(None, headers=get(path), **kwargs)
    assert isinstance(found, Listing)
    return json.loads(found.body)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/", "/v1/models?limit=5"])
def test_the_list(path: str) -> None:
    """OpenAI's shape: every model of the namespace, sorted by name."""
    store = a_store(a_pool("vllm"), a_model("b"), a_model("a"), a_model("c", "other"))

    assert listing(path, store=store) == {
        "object": "list",
        "data": [
            {"id": name, "created": 0, "owned_by": "vllm", "object": "model"} for name in ("a", "b")
        ],
    }


def test_the_list_of_a_pool() -> None:
    """Bound, only that pool's models can be asked for, so only they are listed."""
    read = listing("/v1/models", binding=Binding(pool="empty"))

    assert [model["id"] for model in read["data"]] == ["idle"]


@pytest.mark.parametrize("path", ["/v1/models/llama", "/v1/models/ll%61ma", "/v1/models/llama?x=y"])
def test_one_model(path: str) -> None:
    """By its name, quoted or not."""
    assert listing(path)["id"] == "llama"


@pytest.mark.parametrize(
    "path", ["/v1/models/nobody", "/v1/models/meta%2FLlama-3", "/v1/models/a/b", "/v1/models/%ff"]
)
def test_one_model_that_is_not_there(path: str) -> None:
    """404, as for a request to it."""
    assert type(refused(None, headers=get(path))) is ModelNotFound


@pytest.mark.parametrize(
    "path", ["/v1/modelsx", "/v1/model", "/models", "/v2/v1/models", "/v1//models"]
)
def test_other_paths_are_not_the_list(path: str) -> None:
    """They are requests without a body as any other."""
    assert isinstance(route(None, headers=get(path), store=one_pool()), Pick)


def test_whether_the_picker_lists() -> None:
    """auto: when it knows a model here; always; never: then the model server answers."""
    bare = a_store(a_pool("vllm"), a_pod("one"))

    def answer(mode: ServeModels, store: Store) -> str:
        found = route(None, headers=get("/v1/models"), store=store, policy={"serve_models": mode})
        return type(found).__name__

    assert answer(ServeModels.AUTO, one_pool()) == "Listing"
    assert answer(ServeModels.AUTO, bare) == "Pick"
    assert answer(ServeModels.ALWAYS, bare) == "Listing"
    assert answer(ServeModels.NEVER, one_pool()) == "Pick"
    assert (
        type(
            refused(
                None,
                headers=get("/v1/models/x"),
                store=bare,
                policy={"serve_models": ServeModels.ALWAYS},
            )
        )
        is ModelNotFound
    )


@pytest.mark.parametrize("method", [b"POST", b"DELETE", b"HEAD", b"OPTIONS"])
def test_only_get_lists(method: bytes) -> None:
    """Other methods on that path are the model server's."""
    assert isinstance(route(None, headers=get("/v1/models", method), store=one_pool()), Pick)


# --- the request --------------------------------------------------------------------------------


def test_a_request_without_pseudo_headers() -> None:
    """Not every gateway sends them: a POST to the root is assumed."""
    request = Request({})

    assert (request.method, request.path) == ("POST", "/")
    assert Request({":method": b"get", ":path": b"/a?b?c"}).path == "/a"


def test_the_destination_lists_endpoints_in_order() -> None:
    """`ip:port[,ip:port...]`, as it goes on the wire."""
    found = pick(policy={"fallbacks": 1})

    assert found.destination == ",".join(endpoint.authority for endpoint in found.endpoints)
    assert found.destination.count(",") == 1
    assert isinstance(found.pool, ObjectName)
