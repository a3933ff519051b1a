"""What a watch decides after each kind of ending."""

from dataclasses import replace
from random import Random

import pytest

from datastore.kube_errors import (
    Call,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    NotFound,
    ResourceMissing,
    TooManyRequests,
    TooNew,
    Unauthorized,
    Unavailable,
    refusal,
)
from datastore.manifests import INFERENCE_MODEL, POD
from datastore.reflect import Pace, Progress, Step, after, backoff, is_quiet, newer

PACE = Pace()
AT = Progress(version="7")


def decide(
    progress: Progress, error: KubeError | None, lived_s: float = 0.0, now: float = 0.0
) -> tuple[Progress, float]:
    return after(progress, error, lived_s, PACE, now, Random(1))


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (None, Step.WATCH),
        (Unavailable("cut"), Step.WATCH),
        (Unauthorized("token", status=401), Step.WATCH),
        (Forbidden("rbac", status=403), Step.WATCH),
        (TooManyRequests("slow down", status=429), Step.WATCH),
        (ResourceMissing("crd", status=404), Step.WATCH),
        (Gone("old", status=410), Step.WATCH_LIST),
        (TooNew("new", status=504), Step.WATCH_LIST),
        (Invalid("bad", status=400), Step.WATCH_LIST),
    ],
)
def test_place_is_kept_unless_it_is_lost(error: KubeError | None, step: Step) -> None:
    """Only a revision that the server does not have makes us list anew."""
    assert decide(AT, error)[0].step is step


@pytest.mark.parametrize("error", [None, *(kind("x") for kind in (Gone, Unavailable, Forbidden))])
def test_every_second_failure_waits(error: KubeError | None) -> None:
    """Nothing that fails at once, again and again, is tried without a pause."""
    progress, _ = decide(AT, error)
    for _ in range(10):
        progress, pause_s = decide(replace(progress, version="7"), error)
        assert pause_s > 0.3


def test_a_lost_place_is_listed_at_once() -> None:
    """410 is an everyday event after an outage: no pause before the first list."""
    assert decide(AT, Gone("old"))[1] == 0.0


def test_an_agreed_end_is_no_failure() -> None:
    """A watch that the server ended in time goes on at once, and ends a series of failures."""
    assert decide(replace(AT, failures=5), None, lived_s=300.0) == (AT, 0.0)


def test_health_resets_the_pauses() -> None:
    """After a long healthy connection the first pause is short again."""
    progress, pause_s = decide(replace(AT, failures=9), Unavailable("cut"), lived_s=121.0)
    assert (progress.failures, pause_s <= PACE.backoff_min_s) == (1, True)


def test_a_server_without_watch_list_is_asked_once() -> None:
    """A refused sendInitialEvents means: list the old way, at once, from now on."""
    progress, pause_s = decide(Progress(), Invalid("sendInitialEvents", status=422))
    assert (progress.step, pause_s) == (Step.LIST, 0.0)
    assert decide(progress, Unavailable("down"))[0].step is Step.LIST


@pytest.mark.parametrize(("asked_s", "least_s"), [(7.0, 7.0), (1e9, 300.0), (None, 0.4)])
def test_retry_after_is_heeded_within_reason(asked_s: float | None, least_s: float) -> None:
    """The server's wish counts where it is longer than our pause, up to a limit."""
    _, pause_s = decide(AT, TooManyRequests("slow", retry_after_s=asked_s))
    assert least_s <= pause_s <= max(least_s, 0.8)


def test_a_missing_kind_is_timed() -> None:
    """The time since a kind is missing runs until something else happens."""
    progress, _ = decide(AT, ResourceMissing("crd"), now=5.0)
    progress, _ = decide(progress, ResourceMissing("crd"), now=9.0)
    assert progress.missing_since == 5.0
    assert decide(progress, Unavailable("down"))[0].missing_since is None


def test_pauses_grow_and_are_bounded() -> None:
    """0.8 s, doubling to 30 s, with up to half taken off at random; no overflow ever."""
    top = [max(backoff(n, PACE, Random(seed)) for seed in range(200)) for n in (0, 1, 2, 9, 10_000)]
    low = [min(backoff(n, PACE, Random(seed)) for seed in range(200)) for n in (0, 1, 2, 9, 10_000)]
    assert all(
        0.9 * full <= high <= full
        for high, full in zip(top, (0.8, 1.6, 3.2, 30.0, 30.0), strict=True)
    )
    assert all(low_s >= high_s / 2.1 for low_s, high_s in zip(low, top, strict=True))


def test_failures_are_said_once() -> None:
    """A missing permission or CRD is said once, however often it is met; news are said."""
    rbac, crd, down = Forbidden("a"), ResourceMissing("b"), Unavailable("c")
    assert not is_quiet(rbac, None)
    assert is_quiet(Forbidden("a again"), rbac)
    assert not is_quiet(crd, rbac)
    assert not is_quiet(down, None)
    assert is_quiet(Unavailable("c"), down)
    assert is_quiet(Gone("d"), None)


@pytest.mark.parametrize(
    ("version", "than", "expected"),
    [("10", "9", True), ("9", "10", False), ("9", "9", False), ("b", "a", True), ("a", "a", False)],
)
def test_versions_are_numbers(version: str, than: str, expected: bool) -> None:
    """Revisions compare as numbers; where they are none, any difference is news."""
    assert newer(version, than) is expected


@pytest.mark.parametrize(
    ("code", "body", "kind"),
    [
        (401, b'{"kind":"Status","code":401}', Unauthorized),
        (403, b'{"kind":"Status","code":403}', Forbidden),
        (404, b"404 page not found", ResourceMissing),
        (404, b'{"kind":"Status","message":"not found"}', NotFound),
        (410, b'{"kind":"Status","reason":"Expired"}', Gone),
        (
            504,
            b'{"kind":"Status","details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}}',
            TooNew,
        ),
        (429, b"", TooManyRequests),
        (500, b"\xff\xfe", Unavailable),
        (503, b'{"details":null}', Unavailable),
        (418, b"[" * 100_000, Unavailable),
    ],
)
def test_refusals_are_read(code: int, body: bytes, kind: type[KubeError]) -> None:
    """Whatever comes with a status code, it becomes the error that says what to do."""
    error = refusal(code, body, Call("get", POD, "default", "a"))
    assert (type(error), error.status) == (kind, code)


def test_a_forbidden_call_names_its_rule() -> None:
    """The message can be pasted into a Role."""
    error = refusal(403, b"", Call("watch", INFERENCE_MODEL, "prod"))
    assert (
        'Role in namespace prod: {apiGroups: ["inference.networking.x-k8s.io"], '
        'resources: ["inferencemodels"], verbs: ["list", "watch"]}'
    ) in error.message


def test_retry_after_header_wins() -> None:
    """The header is what proxies set; nonsense in it is passed over."""
    body = b'{"details":{"retryAfterSeconds":3}}'
    call = Call("list", POD)
    assert refusal(429, body, call, "9").retry_after_s == 9.0
    assert refusal(429, body, call, "Wed, 21 Oct 2026 07:28:00 GMT").retry_after_s == 3.0
    assert refusal(429, b"", call, "-1").retry_after_s is None
