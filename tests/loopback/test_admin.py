"""The admin pages over real sockets: metrics, health, and a state that only localhost sees."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import msgspec
import pytest
import yaml

from datastore.events import Upserted
from datastore.model import Backend, InferenceModel, InferencePool, ObjectName, TargetModel
from datastore.store import Store
from epp.admin import Admin, Allowed
from epp.cli import main
from epp.metrics import PickerMetrics
from epp.state import State, describe, take


class AdminPorts(NamedTuple):
    """Where the pages are; `debug` is 0 where that listener is off."""

    metrics: int
    debug: int


def store() -> Store:
    """One pool of two pods, a model that it serves, and one whose pool is missing."""
    known = Store()
    gpus = ObjectName("prod", "gpus")
    targets = (TargetModel("llama-v1", 3), TargetModel("llama-v2", 1, "sha256:" + "0" * 64))
    pool = InferencePool(gpus, (("app", "vllm"),), (8000,), picker_service="epp")
    known.apply(
        [
            Upserted(pool),
            Upserted(InferenceModel(ObjectName("prod", "llama"), gpus, targets, (3, 4))),
            Upserted(
                InferenceModel(
                    ObjectName("dev", "lost"), ObjectName("dev", "none"), (TargetModel("x"),), (1,)
                )
            ),
            *(
                Upserted(Backend(ObjectName("prod", f"vllm-{n}"), f"u{n}", f"10.0.0.{n}", True,
                                 {"app": "vllm"}))
                for n in (1, 2)
            ),
        ]
    )  # fmt: skip
    views = known.pools()
    views[0].endpoints[0].load.set_scrape(
        waiting=4, running=2, kv_cache_utilization=0.25, now=100.0
    )
    return known


class Missing:
    """What readiness waits for; a test changes it."""

    def __init__(self) -> None:
        self.what: Sequence[str] = ()

    def __call__(self) -> Sequence[str]:
        return self.what


@asynccontextmanager
async def served(
    *, missing: Missing | None = None, allowed: Allowed | None = None, debug: int | None = 0
) -> AsyncIterator[AdminPorts]:
    metrics = PickerMetrics(version="1.2.3")
    known = store()
    metrics.watch(known)
    admin = Admin(
        metrics, known, missing=missing or Missing(), clock=lambda: 100.5, allowed=allowed
    )
    async with AsyncExitStack() as stack:
        metrics_port = await stack.enter_async_context(admin.serve(host="127.0.0.1", port=0))
        if debug is None:
            yield AdminPorts(metrics_port, 0)
            return
        debug_port = await stack.enter_async_context(admin.serve_debug(port=debug))
        yield AdminPorts(metrics_port, debug_port)


async def fetch(port: int, path: str, **headers: str) -> tuple[int, str, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}", headers=headers) as response,
    ):
        return response.status, response.headers["Content-Type"], await response.text()


async def test_metrics_are_served_in_the_format_asked_for() -> None:
    async with served() as ports:
        status, kind, text = await fetch(ports.metrics, "/metrics")
        _, wanted, _ = await fetch(
            ports.metrics, "/metrics", Accept="application/openmetrics-text;version=1.0.0"
        )

    assert status == 200
    assert kind.startswith("text/plain; version=")
    assert 'inference_pool_ready_pods{name="gpus",namespace="prod"} 2\n' in text
    assert "process_resident_memory_bytes" in text
    assert wanted.startswith("application/openmetrics-text")


async def test_readiness_says_what_it_waits_for_and_health_does_not_care() -> None:
    missing = Missing()
    async with served(missing=missing) as ports:
        assert (await fetch(ports.metrics, "/readyz"))[0] == 200
        missing.what = ("InferencePool", "pods of prod/gpus")
        status, _, text = await fetch(ports.metrics, "/readyz")
        assert (await fetch(ports.metrics, "/healthz"))[0] == 200

    assert status == 503
    assert text == "waiting for InferencePool\nwaiting for pods of prod/gpus\n"


async def allow_good(token: str) -> bool:
    return token == "good"


async def cannot_ask(token: str) -> bool:
    raise ConnectionRefusedError("no cluster")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, 401),
        ("Basic Z29vZA==", 401),
        ("Bearer", 401),
        ("Bearer  ", 401),
        ("Bearer bad", 403),
        ("Bearer good", 200),
        ("bearer good", 200),
    ],
)
async def test_metrics_are_guarded_when_asked_to(header: str | None, expected: int) -> None:
    """The probes are not: the kubelet has no token."""
    async with served(allowed=allow_good) as ports:
        headers = {"Authorization": header} if header is not None else {}
        status, _, _ = await fetch(ports.metrics, "/metrics", **headers)
        probe, _, _ = await fetch(ports.metrics, "/readyz")

    assert status == expected
    assert probe == 200


async def test_a_cluster_that_cannot_be_asked_shows_nothing() -> None:
    async with served(allowed=cannot_ask) as ports:
        status, _, text = await fetch(ports.metrics, "/metrics", Authorization="Bearer good")

    assert status == 503
    assert "good" not in text


async def test_the_state_is_not_on_the_public_port() -> None:
    async with served() as ports:
        assert (await fetch(ports.metrics, "/debug/state"))[0] == 404
        assert (await fetch(ports.debug, "/metrics"))[0] == 404


async def test_the_state_listener_can_be_off() -> None:
    async with served(debug=None) as ports:
        assert ports.debug == 0


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost:9091", 200), ("127.0.0.1", 200), ("[::1]:9091", 200), ("[::1]", 200),
     ("evil.example", 403), ("evil.example:9091", 403), ("127.0.0.1.evil.example", 403)],
)  # fmt: skip
async def test_a_web_page_cannot_read_the_state(host: str, expected: int) -> None:
    """A name that an attacker points at 127.0.0.1 is not localhost."""
    async with served() as ports:
        assert (await fetch(ports.debug, "/debug/state", Host=host))[0] == expected


async def test_the_state_says_what_is_served_and_what_is_not() -> None:
    async with served() as ports:
        _, kind, text = await fetch(ports.debug, "/debug/state")
    state = json.loads(text)

    assert kind.startswith("application/json")
    assert state["revision"] == 1
    lost, llama = state["models"]
    assert lost["problem"] == "no InferencePool dev/none"
    assert "problem" not in llama
    assert [target["weight"] for target in llama["targets"]] == [3, 1]
    assert state["pools"][0]["ready"] == 2
    scraped, unscraped = state["endpoints"]
    assert scraped["waiting"] == 4
    assert scraped["scrapeAgeSeconds"] == 0.5
    assert "waiting" not in unscraped


async def test_a_long_page_holds_up_nobody() -> None:
    """While a page of a thousand series is written, the loop answers probes."""
    metrics = PickerMetrics(version="1")
    for number in range(1000):
        metrics.series("prod", f"m{number}", "t", "prod/gpus")
    admin = Admin(metrics, store(), missing=Missing(), clock=lambda: 0.0)
    async with admin.serve(host="127.0.0.1", port=0) as port:
        page = asyncio.ensure_future(fetch(port, "/metrics"))
        probes = 0
        while not page.done():
            await fetch(port, "/healthz")
            probes += 1
        assert (await page)[0] == 200

    assert probes >= 2


def run_get(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as info:
        main(["get", *args], {})
    out, err = capsys.readouterr()
    assert isinstance(info.value.code, int)
    return info.value.code, out, err


async def got(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    async with served() as ports:
        server = f"127.0.0.1:{ports.debug}"
        return await asyncio.to_thread(run_get, capsys, *args, "--server", server)


async def test_get_models_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = await got(capsys, "models")

    assert (code, err) == (0, "")
    assert out == (
        "NAMESPACE  NAME   POOL  STATE                      TARGETS\n"
        "dev        lost   none  no InferencePool dev/none  x\n"
        "prod       llama  gpus  served                     llama-v1=3, llama-v2=1\n"
    )


async def test_get_endpoints_wide(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = await got(capsys, "endpoints", "-o", "wide")

    assert out.splitlines()[0].split() == [
        "NAMESPACE", "POOL", "ADDRESS", "POD", "LOAD", "WAITING", "RUNNING", "KV", "CACHE",
        "SCRAPED", "DIGEST",
    ]  # fmt: skip
    first, second = out.splitlines()[1:]
    assert first.split() == [
        "prod", "gpus", "10.0.0.1:8000", "vllm-1", "6", "4", "2", "25%", "0.5s", "-",
    ]  # fmt: skip
    assert second.split() == ["prod", "gpus", "10.0.0.2:8000", "vllm-2", "0", *"-----"]


async def test_get_pools_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    _, as_json, _ = await got(capsys, "pools", "-o", "json")
    _, as_yaml, _ = await got(capsys, "pools", "-o", "yaml")

    items: list[dict[str, Any]] = json.loads(as_json)
    assert items == yaml.safe_load(as_yaml)
    assert items[0]["pickerService"] == "epp"


async def test_get_narrows_to_a_name_and_a_namespace(capsys: pytest.CaptureFixture[str]) -> None:
    _, by_name, _ = await got(capsys, "models", "llama")
    _, by_namespace, _ = await got(capsys, "models", "-n", "dev")
    code, out, err = await got(capsys, "models", "nobody")

    assert "lost" not in by_name
    assert "llama" not in by_namespace
    assert (code, out) == (2, "")
    assert "the picker knows no model 'nobody'" in err


async def test_get_of_something_else_s_port_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    async with served() as ports:
        server = f"127.0.0.1:{ports.metrics}"
        code, _, err = await asyncio.to_thread(run_get, capsys, "pools", "--server", server)

    assert code == 2
    assert "answered 404" in err


@pytest.mark.parametrize("server", ["127.0.0.1:1", "https://x", "http://", "[::1", "x:y"])
def test_get_without_a_picker_says_what_to_do(
    capsys: pytest.CaptureFixture[str], server: str
) -> None:
    code, out, err = run_get(capsys, "models", "--server", server)

    assert (code, out) == (2, "")
    assert server in err
    assert "fix: " in err


def test_the_state_survives_its_own_round_trip() -> None:
    state = describe(take(store(), 100.5))

    assert state == msgspec.json.decode(msgspec.json.encode(state), type=State)
