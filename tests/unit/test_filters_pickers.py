"""Which endpoints a request may use, and which of them it gets."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datastore.model import Endpoint, InferencePool, Load, PoolView, TargetModel, join_host_port
from epp.errors import ArtifactMismatch, NoReadyEndpoint, SubsetUnmatched
from epp.routing.filters import in_subset, ready, with_artifact
from epp.routing.pickers import pick_two_choices
from tests.builders import DIGEST_A, DIGEST_B, named


def an_endpoint(
    address: str, port: int = 8000, *, load: float = 0.0, digest: str | None = None
) -> Endpoint:
    of_its_own = Load()
    if load:
        of_its_own.set_scrape(waiting=load, running=0, kv_cache_utilization=0, now=0)
    return Endpoint(
        named(address),
        f"uid-{address}",
        address,
        port,
        join_host_port(address, port),
        of_its_own,
        digest,
    )


def shown(endpoints: Sequence[Endpoint]) -> list[str]:
    return [endpoint.authority for endpoint in endpoints]


# --- ready --------------------------------------------------------------------------------------


def test_ready_endpoints_or_503() -> None:
    """An empty pool is named."""
    pool = InferencePool(named("vllm"), (("app", "vllm"),), (8000,))
    endpoint = an_endpoint("10.0.0.1")

    assert ready(PoolView(pool, (endpoint,))) == (endpoint,)
    with pytest.raises(NoReadyEndpoint, match="default/vllm has no ready endpoint"):
        ready(PoolView(pool, ()))


# --- the subset ---------------------------------------------------------------------------------

POOL = [
    an_endpoint("10.0.0.1", 8000),
    an_endpoint("10.0.0.1", 8001),
    an_endpoint("10.0.0.11", 8000),
    an_endpoint("fd00::1", 8000),
    an_endpoint("fd00::1", 8001),
]


@pytest.mark.parametrize(
    ("subset", "matched"),
    [
        (["10.0.0.1:8000"], ["10.0.0.1:8000"]),
        (["10.0.0.1"], ["10.0.0.1:8000", "10.0.0.1:8001"]),
        (["10.0.0.1:8001", "10.0.0.11"], ["10.0.0.1:8001", "10.0.0.11:8000"]),
        (["10.0.0.1:9", "10.0.0.11:8000"], ["10.0.0.11:8000"]),
        (["[fd00::1]:8000"], ["[fd00::1]:8000"]),
        (["[fd00::1]"], ["[fd00::1]:8000", "[fd00::1]:8001"]),
        (["fd00::1"], ["[fd00::1]:8000", "[fd00::1]:8001"]),
        (["FD00::1"], ["[fd00::1]:8000", "[fd00::1]:8001"]),
        (["[FD00:0:0::1]:8000"], ["[fd00::1]:8000"]),
        (["fd00:0:0:0:0:0:0:1"], ["[fd00::1]:8000", "[fd00::1]:8001"]),
        (["nonsense", "10.0.0.11"], ["10.0.0.11:8000"]),
    ],
)
def test_the_subset_s_forms(subset: list[str], matched: list[str]) -> None:
    """ip:port means that port, an ip each of its ports; an IPv6 address however it is written."""
    assert shown(in_subset(POOL, subset)) == matched


@pytest.mark.parametrize(
    "subset",
    [
        [],
        ["10.0.0.2"],
        ["10.0.0.1:80"],
        ["10.0.0"],
        ["10.0.0.1:"],
        ["[10.0.0.1]:8000"],
        ["fd00::1:8000"],
        ["fd00::g"],
        ["[10.0.0.1:8000]:1"],
        ["[fd00::1"],
        ["[]"],
        ["["],
        [":8000"],
        ["x" * 100_000],
    ],
)
def test_a_subset_that_leaves_nothing_is_503(subset: list[str]) -> None:
    """Empty, unknown or unreadable: the hint is never ignored."""
    with pytest.raises(SubsetUnmatched, match=f"5 ready endpoints.*{len(subset)} that"):
        in_subset(POOL, subset)


@given(st.lists(st.text(max_size=20), max_size=3))
def test_no_subset_is_an_error_of_ours(subset: list[str]) -> None:
    """Whatever a gateway writes there is a match or a 503."""
    try:
        assert in_subset(POOL, subset)
    except SubsetUnmatched:
        return


# --- pinned bytes -------------------------------------------------------------------------------


def test_only_endpoints_that_serve_the_pinned_bytes() -> None:
    """A target without a pin goes anywhere; a pin that nobody serves is 503 with both named."""
    endpoints = [
        an_endpoint("10.0.0.1", digest=DIGEST_A),
        an_endpoint("10.0.0.2", digest=DIGEST_B),
        an_endpoint("10.0.0.3"),
    ]

    assert with_artifact(endpoints, TargetModel("t")) is endpoints
    pinned = TargetModel("t", artifact_digest=DIGEST_B)
    assert shown(with_artifact(endpoints, pinned)) == ["10.0.0.2:8000"]
    with pytest.raises(ArtifactMismatch, match=f"{DIGEST_B}.*target t"):
        with_artifact([endpoints[0], endpoints[2]], pinned)


# --- the pick -----------------------------------------------------------------------------------


def idle(count: int) -> list[Endpoint]:
    return [an_endpoint(f"10.0.0.{number}") for number in range(1, count + 1)]


def test_a_single_endpoint_needs_no_dice() -> None:
    """Nor does it get any fallback."""
    rng = Random(1)
    before = rng.getstate()
    endpoints = idle(1)

    assert pick_two_choices(endpoints, count=3, now=0, rng=rng) == (endpoints[0],)
    assert rng.getstate() == before


def test_each_is_picked_as_often_when_all_are_alike() -> None:
    """Chi-square over 10 000 picks of five: below 18.47, the 0.1 % point of 4 degrees."""
    endpoints, rng = idle(5), Random(7)
    counts = Counter(
        pick_two_choices(endpoints, count=1, now=0, rng=rng)[0].authority for _ in range(10_000)
    )

    assert sum((count - 2000) ** 2 / 2000 for count in counts.values()) < 18.47
    assert len(counts) == 5


def test_the_less_loaded_of_two_different_ones() -> None:
    """With loads 1 < 2 < ... < 5, the k-th is picked when it meets one of those above it.

    The best of n is in 2/n of the pairs, the worst in none that it wins.
    """
    endpoints = [an_endpoint(f"10.0.0.{k}", load=k) for k in range(1, 6)]
    rng = Random(3)
    counts = Counter(
        pick_two_choices(endpoints, count=1, now=0, rng=rng)[0].authority for _ in range(10_000)
    )
    wanted = {f"10.0.0.{k}:8000": 10_000 * (5 - k) / 10 for k in range(1, 5)}

    assert counts.keys() == wanted.keys()
    assert sum((counts[a] - n) ** 2 / n for a, n in wanted.items()) < 16.27  # 0.1 %, 3 degrees


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(1, 10), st.integers(0, 2**32)
)
def test_a_pick_with_fallbacks(loads: list[int], count: int, seed: int) -> None:
    """As many as asked for, if there are; all different, best first; the same for the same seed."""
    endpoints = [an_endpoint(f"10.0.1.{k}", load=load) for k, load in enumerate(loads)]
    chosen = pick_two_choices(endpoints, count=count, now=0, rng=Random(seed))
    again = pick_two_choices(endpoints, count=count, now=0, rng=Random(seed))
    of_each = [endpoint.load.value(0) for endpoint in chosen]

    assert chosen == again
    assert len(chosen) == min(count, len(endpoints)) == len(set(shown(chosen)))
    assert of_each == sorted(of_each)
    assert set(chosen) <= set(endpoints)


def test_the_worst_of_all_is_first_only_where_there_is_no_choice() -> None:
    """With fallbacks too, the first is the best of at least two."""
    endpoints = [*idle(4), an_endpoint("10.0.0.9", load=100)]
    rng = Random(5)
    firsts = {
        pick_two_choices(endpoints, count=count, now=0, rng=rng)[0].authority
        for count in (1, 2, 3)
        for _ in range(300)
    }

    assert "10.0.0.9:8000" not in firsts
    assert len(firsts) == 4


def test_picks_count_as_load_until_they_fade() -> None:
    """Never scraped: a pick weighs one request and half of it a second later."""
    one, other = idle(2)
    one.load.add_pick(0.0)
    rng = Random(1)

    assert {pick_two_choices([one, other], count=1, now=0.0, rng=rng)[0] for _ in range(20)} == {
        other
    }
    assert one.load.value(1.0) == pytest.approx(0.5)
