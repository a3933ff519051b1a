"""The store against a naive one, and the laws that its readers count on."""

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from datastore.events import Deleted, Event, Kind, Replaced, Upserted
from datastore.model import (
    Backend,
    InferenceModel,
    InferencePool,
    Load,
    ObjectName,
    PoolView,
    TargetModel,
)
from datastore.store import Changes, Store
from tests.builders import DIGEST_A, a_model, a_pod, a_pool, a_store, named

# A loaded machine is slow to generate and slow to run; neither is a failure of the law.
LAW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

Value = InferenceModel | InferencePool | Backend
V1, X = "inference.networking.k8s.io", "inference.networking.x-k8s.io"

names = st.builds(ObjectName, st.sampled_from(["ns1", "ns2"]), st.sampled_from(["a", "b", "c"]))
sources = st.sampled_from(["", "one", "two"])
labels = st.dictionaries(st.sampled_from("xyz"), st.sampled_from("12"), max_size=3)
ports = st.lists(st.sampled_from([80, 81, 82]), max_size=2).map(tuple)

models = st.builds(
    InferenceModel,
    name=names,
    pool=names,
    targets=st.just((TargetModel("t"),)),
    cumulative=st.just((1,)),
    generation=st.integers(0, 1),
)
pools = st.builds(
    InferencePool,
    name=names,
    selector=labels.map(lambda chosen: tuple(sorted(chosen.items()))),
    ports=ports,
    group=st.sampled_from([V1, X]),
    picker_service=st.sampled_from([None, "epp", "other"]),
    invalid=st.sampled_from([None, None, None, "broken"]),
)
backends = st.builds(
    Backend,
    name=names,
    uid=st.sampled_from(["u1", "u2", "u3"]),
    address=st.sampled_from(["10.0.0.1", "10.0.0.2", "::1"]),
    ready=st.sampled_from([True, True, False]),
    labels=labels,
    ports=ports,
    active_ports=st.none() | ports,
    artifact_digest=st.sampled_from([None, DIGEST_A]),
)
values: st.SearchStrategy[Value] = models | pools | backends
OF_KIND: dict[Kind, st.SearchStrategy[list[Value]]] = {
    Kind.MODEL: st.lists(models, max_size=4),
    Kind.POOL: st.lists(pools, max_size=4),
    Kind.BACKEND: st.lists(backends, max_size=4),
}
events: st.SearchStrategy[Event] = (
    st.builds(Upserted, values, sources)
    | st.builds(Deleted, st.sampled_from(Kind), names, sources)
    | st.sampled_from(Kind).flatmap(
        lambda kind: st.builds(Replaced, st.just(kind), OF_KIND[kind], sources)
    )
)
batches = st.lists(st.lists(events, max_size=5), max_size=6)


def kind_of(value: Value) -> Kind:
    """Return the kind of a value."""
    match value:
        case InferenceModel():
            return Kind.MODEL
        case InferencePool():
            return Kind.POOL
        case Backend():
            return Kind.BACKEND


def rank_of(value: Value) -> int:
    """Return where a value stands among those of the same name."""
    return 1 if isinstance(value, InferencePool) and value.group == X else 0


class Naive:
    """A store that works everything out anew, each time it is asked."""

    def __init__(self) -> None:
        self.held: dict[tuple[Kind, ObjectName, int, str], Value] = {}

    def apply(self, event: Event) -> None:
        """Take one event."""
        match event:
            case Upserted(value, source):
                self.held[kind_of(value), value.name, rank_of(value), source] = value
            case Deleted(kind, name, source):
                for rank in (0, 1):
                    self.held.pop((kind, name, rank, source), None)
            case Replaced(kind, objects, source):
                for key in [k for k in self.held if k[0] is kind and k[3] == source]:
                    del self.held[key]
                for value in objects:
                    self.apply(Upserted(value, source))

    def current(self, kind: Kind) -> dict[ObjectName, Value]:
        """Return what counts: the first in order of rank and source."""
        found: dict[ObjectName, Value] = {}
        for key in sorted(self.held, key=lambda k: (k[1], k[2], k[3])):
            if key[0] is kind:
                found.setdefault(key[1], self.held[key])
        return found

    def endpoints(self, pool: InferencePool) -> list[tuple[str, int, str, str | None]]:
        """Return a pool's endpoints as (address, port, uid, digest)."""
        found: dict[tuple[str, int], tuple[str, int, str, str | None]] = {}
        for name, value in sorted(self.current(Kind.BACKEND).items()):
            assert isinstance(value, Backend)
            if (
                name.namespace == pool.name.namespace
                and value.ready
                and pool.invalid is None
                and pool.selector
                and all(value.labels.get(k) == v for k, v in pool.selector)
            ):
                for port in value.ports or pool.ports:
                    if value.active_ports is None or port in value.active_ports:
                        place = (value.address, port)
                        found.setdefault(place, (*place, value.uid, value.artifact_digest))
        return [found[place] for place in sorted(found)]


def assert_same(store: Store, naive: Naive) -> None:
    """Compare everything that can be asked."""
    held = naive.current(Kind.MODEL)
    assert store.model_count == len(held)
    assert {name: store.model(name) for name in held} == held
    for namespace in ("ns1", "ns2", "ns3"):
        expected = [held[name] for name in sorted(held) if name.namespace == namespace]
        assert list(store.models_in(namespace)) == expected
    held = naive.current(Kind.POOL)
    assert list(store.pool_names()) == sorted(held)
    assert [view.pool for view in store.pools()] == [held[name] for name in sorted(held)]
    for view in store.pools():
        shown = [(e.address, e.port, e.uid, e.artifact_digest) for e in view.endpoints]
        assert shown == naive.endpoints(view.pool)
    for service in ("epp", "other", "none"):
        expected_names = [
            name
            for name, pool in sorted(held.items())
            if isinstance(pool, InferencePool) and pool.picker_service == service
        ]
        assert list(store.pools_of_service(None, service)) == expected_names
        assert list(store.pools_of_service("ns1", service)) == [
            name for name in expected_names if name.namespace == "ns1"
        ]
    assert store.backend_count == len(naive.current(Kind.BACKEND))


def state_of(store: Store) -> list[object]:
    """Return everything that a reader can see, for comparison."""
    return [
        [store.models_in(namespace) for namespace in ("ns1", "ns2")],
        [
            (view.pool, [(e.authority, e.uid, e.backend) for e in view.endpoints])
            for view in store.pools()
        ],
    ]


def view_of(store: Store, name: str = "vllm") -> PoolView:
    """Return a pool that must exist."""
    view = store.pool(named(name))
    assert view is not None
    return view


def load_of(store: Store, name: str = "vllm") -> Load:
    """Return the load of the pool's only endpoint."""
    (endpoint,) = view_of(store, name).endpoints
    return endpoint.load


@LAW
@given(batches)
def test_is_what_a_naive_store_would_be(history: list[list[Event]]) -> None:
    """However the news is batched, the state is that of the news one by one, worked out anew."""
    store, naive = Store(), Naive()
    for batch in history:
        before = store.revision
        seen = {view.pool.name: view for view in store.pools()}
        changes = store.apply(batch)
        for event in batch:
            naive.apply(event)
        assert_same(store, naive)
        assert store.revision == before + bool(changes)
        for view in store.pools():
            touched = view.pool.name in changes.pools | changes.endpoints
            assert touched or seen[view.pool.name] is view


@LAW
@given(batches, events)
def test_an_event_said_twice_changes_nothing_more(history: list[list[Event]], event: Event) -> None:
    """Apply is idempotent, and the views of the first time stay."""
    store = Store()
    for batch in history:
        store.apply(batch)
    store.apply([event])
    views, revision = store.pools(), store.revision

    # One name in a list twice is said twice: the second one may differ from the first.
    if isinstance(event, Replaced):
        assume(len({(v.name, rank_of(v)) for v in event.objects}) == len(event.objects))

    assert store.apply([event]) == Changes()
    assert store.revision == revision
    assert all(a is b for a, b in zip(views, store.pools(), strict=True))


@LAW
@given(st.lists(values, max_size=8), st.randoms())
def test_the_order_of_different_objects_does_not_matter(objects: list[Value], rng: object) -> None:
    """Objects that differ in kind, name, rank or source may come in any order."""
    said = {
        (kind_of(value), value.name, rank_of(value), str(i % 2)): Upserted(value, str(i % 2))
        for i, value in enumerate(objects)
    }
    one, other = Store(), Store()
    one.apply(said.values())
    for event in sorted(said.values(), key=lambda _: rng.random()):  # type: ignore[attr-defined] # a Random
        other.apply([event])

    assert state_of(one) == state_of(other)


@LAW
@given(batches, st.sampled_from(Kind), sources, st.data())
def test_replaced_is_deletes_and_upserts(
    history: list[list[Event]], kind: Kind, source: str, data: st.DataObject
) -> None:
    """A relist is the same as deleting what it does not name and upserting what it does."""
    objects = data.draw(OF_KIND[kind])
    one, other, naive = Store(), Store(), Naive()
    for batch in history:
        one.apply(batch)
        other.apply(batch)
        for event in batch:
            naive.apply(event)

    one.apply([Replaced(kind, objects, source)])
    gone = [Deleted(k, name, s) for k, name, _, s in naive.held if k is kind and s == source]
    other.apply([*gone, *(Upserted(value, source) for value in objects)])

    assert state_of(one) == state_of(other)


@LAW
@given(batches)
def test_nothing_is_left_when_everything_is_gone(history: list[list[Event]]) -> None:
    """No load, index or list outlives what it belonged to."""
    store = Store()
    for batch in history:
        store.apply(batch)
        store.pools()
    store.apply([Replaced(kind, (), source) for kind in Kind for source in ("", "one", "two")])

    assert (store.model_count, store.backend_count, store.load_count) == (0, 0, 0)
    assert (list(store.pools()), list(store.models_in("ns1"))) == ([], [])
    assert store.pool(ObjectName("ns1", "a")) is None
    empty = vars(Store()) | {"revision": store.revision}
    assert {k for k, v in vars(store).items() if isinstance(v, dict) and v != empty[k]} == set()


def test_a_load_survives_everything_but_its_pod() -> None:
    """Labels, readiness, other pods and the pool itself may change: the load is the same object."""
    store = a_store(a_pool(), a_pod("p"))
    load = load_of(store)

    for event in (
        Upserted(a_pod("p").labelled(app="vllm", more="x").value),
        Upserted(a_pod("p").at("10.0.0.9").value),
        Upserted(a_pod("q").at("10.0.0.2").not_ready().value),
        Upserted(a_pool().selecting(app="vllm").picked_by("x").value),
    ):
        store.apply([event])
        assert load_of(store) is load
    store.apply([Upserted(a_pod("p").not_ready().value)])
    assert view_of(store).endpoints == ()
    store.apply([Upserted(a_pod("p").value)])
    assert load_of(store) is load
    store.apply([Deleted(Kind.POOL, named("vllm")), Upserted(a_pool().value)])
    assert load_of(store) is load

    store.apply([Deleted(Kind.BACKEND, named("p")), Upserted(a_pod("p").value)])
    assert load_of(store) is not load


def test_a_pod_created_anew_under_its_old_name_starts_without_load() -> None:
    store = a_store(a_pool(), a_pod("p"))
    load = load_of(store)

    store.apply([Upserted(a_pod("p").with_uid("another").value)])

    assert load_of(store) is not load
    assert store.load_count == 1


def test_two_pools_share_the_load_of_an_endpoint() -> None:
    store = a_store(
        a_pool("a").selecting(app="vllm"), a_pool("b").selecting(app="vllm"), a_pod("p")
    )

    assert load_of(store, "a") is load_of(store, "b")


def test_endpoints_that_did_not_change_stay_the_same_objects() -> None:
    """What a reader has worked out for an endpoint stays true, and stays."""
    store = a_store(a_pool(), a_pod("p"), a_pod("q").at("10.0.0.2"))
    first, second = view_of(store).endpoints

    changes = store.apply([Upserted(a_pod("q").at("10.0.0.3").value)])

    assert changes.endpoints == {named("vllm")}
    assert view_of(store).endpoints[0] is first
    assert view_of(store).endpoints[1] is not second


def test_a_view_is_rebuilt_once_between_changes_and_not_for_what_it_does_not_show() -> None:
    store = a_store(a_pool(), a_pod("p"), a_pool("other"))
    view = view_of(store)
    assert view_of(store) is view

    for event in (
        Upserted(a_pod("x").labelled(app="other").value),
        Upserted(a_pod("q").at("10.0.0.2").not_ready().value),
        Upserted(a_pod("r", "elsewhere").value),
        Upserted(a_model("m").value),
    ):
        assert store.apply([event])
        assert view_of(store) is view


def test_ports_of_the_backend_come_first_and_active_ports_narrow_them() -> None:
    store = a_store(a_pool().on(8000, 8001), a_pod("p").active_on(8001, 9999))

    assert [e.authority for e in view_of(store).endpoints] == ["10.0.0.1:8001"]
    store.apply([Upserted(a_pod("p").active_on().value)])
    assert view_of(store).endpoints == ()


def test_endpoints_are_in_order_and_ipv6_is_bracketed() -> None:
    store = a_store(
        a_pool().on(8001, 8000),
        a_pod("c").at("::1"),
        a_pod("b").at("10.0.0.1"),
        a_pod("a").at("10.0.0.2"),
    )

    assert [e.authority for e in view_of(store).endpoints] == [
        "10.0.0.1:8000",
        "10.0.0.1:8001",
        "10.0.0.2:8000",
        "10.0.0.2:8001",
        "[::1]:8000",
        "[::1]:8001",
    ]


def test_one_place_is_one_endpoint() -> None:
    """A pod known twice (as a Pod and by an EndpointSlice) is not drawn twice as often."""
    store = a_store(a_pool(), a_pod("p"), a_pod("p2").with_uid("uid-p"))

    assert [e.backend.name for e in view_of(store).endpoints] == ["p"]
    store.apply([Deleted(Kind.BACKEND, named("p"))])
    assert [e.backend.name for e in view_of(store).endpoints] == ["p2"]
    assert store.load_count == 1


@pytest.mark.parametrize("first", [0, 1])
def test_a_v1_pool_wins_over_one_of_the_older_group(first: int) -> None:
    said: Sequence[Event] = (
        Upserted(a_pool().on(1).value, "z-v1"),
        Upserted(a_pool().v1alpha2().on(2).value, "a-x"),
    )
    store = Store()
    store.apply([said[first], said[1 - first]])
    assert view_of(store).pool.group == V1

    changes = store.apply([Replaced(Kind.POOL, (), "z-v1")])

    assert changes.pools == {named("vllm")}
    assert view_of(store).pool.group == X


def test_an_empty_batch_and_a_deletion_of_nothing_change_nothing() -> None:
    store = a_store(a_model("m"))

    assert not store.apply([])
    assert not store.apply([Deleted(Kind.MODEL, named("x")), Deleted(Kind.POOL, named("m"))])
    assert not store.apply([Deleted(Kind.MODEL, named("m"), "somebody else")])
    assert store.revision == 1


def test_changes_name_what_changed() -> None:
    store = a_store(a_pool())

    assert store.apply([Upserted(a_model("m").value), Upserted(a_pod("p").value)]) == Changes(
        models=frozenset({named("m")}),
        endpoints=frozenset({named("vllm")}),
        backends=frozenset({named("p")}),
    )
