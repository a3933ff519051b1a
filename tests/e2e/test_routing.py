"""Which model, pool and endpoint: the picker's decisions as they come out of a real Envoy."""

import asyncio
import json
import math
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from epp.demo.modelserver import ModelServer
from epp.envoyconfig import BodyMode, EndpointMode, EnvoyOptions, bootstrap
from epp.envoyconfig.options import eds_file_name
from tests.builders import a_model, a_pool, a_slice
from tests.e2e.world import World, eventually, free_ports
from tests.fakes.rawhttp import CountingServer, post_many

pytestmark = pytest.mark.asyncio(loop_scope="session")

REQUESTS = 20_000


def filters(config: dict[str, Any]) -> list[Any]:
    """Return the HTTP filters of a configuration, to be changed in place."""
    return manager(config)["http_filters"]  # type: ignore[no-any-return]  # YAML


def manager(config: dict[str, Any]) -> dict[str, Any]:
    listener = config["static_resources"]["listeners"][0]
    return listener["filter_chains"][0]["filters"][0]["typed_config"]  # type: ignore[no-any-return]  # YAML


async def test_the_split_is_as_asked(world: World) -> None:
    """3:1 over 20 000 requests with a seed; fewer where the machine is too busy for that many.

    Within four standard deviations, which is about a percent for all of them.
    """
    async with CountingServer() as server:
        world.write(
            "split.yaml",
            a_pool("split").manifest,
            a_slice("split", "127.0.0.1", ports=[server.port], app="split"),
            a_model("split").in_pool("split").to("three", 3).to("one", 1).manifest,
        )
        envoy = await world.envoy(response_body=BodyMode.NONE)
        body = b'{"model": "split", "prompt": "x"}'

        async def is_there() -> bool:
            return (await world.ask(envoy, body)).status == 200

        await eventually(is_there)
        server.counts.clear()
        statuses = await post_many(envoy.url, [body] * REQUESTS, connections=16, within_s=20)

    sent = statuses.total()
    assert set(statuses) == {200}
    assert sent >= 500
    assert set(server.counts) == {"three", "one"}
    assert abs(server.counts["three"] / sent - 0.75) < 4 * math.sqrt(0.75 * 0.25 / sent)


async def test_requests_spread_over_the_endpoints(world: World) -> None:
    envoy = await world.envoy()

    replies = await asyncio.gather(*(world.ask(envoy, {"model": "llama"}) for _ in range(60)))

    assert {reply.served_by for reply in replies} == {"s1", "s2", "s3"}


async def test_the_upstream_is_told_model_and_pool_once(world: World) -> None:
    """Exactly one value each, and nothing that the client has sent under these names."""
    picker = await world.picker()
    config = bootstrap(world.options(picker))
    # Without Envoy's own precaution it is up to the picker alone.
    del manager(config)["early_header_mutation_extensions"]
    envoy = await world.envoy_with(config)
    spoofed = {
        "x-gateway-destination-endpoint": "192.0.2.1:1",
        "x-gateway-destination-endpoint-subset": "192.0.2.1:1",
        "x-gateway-destination-endpoint-served": "192.0.2.1:1",
        "x-gateway-model-name": "spoofed",
        "x-gateway-inference-pool": "spoofed/spoofed",
        "x-gateway-model-name-rewrite": "spoofed",
    }

    reply = await world.ask(envoy, {"model": "renamed"}, headers=spoofed)

    assert reply.status == 200
    received = world.received(reply)
    server = world.servers[reply.served_by]
    assert received.values("x-gateway-destination-endpoint") == [server.authority]
    assert received.values("x-gateway-model-name") == ["renamed"]
    assert received.values("x-gateway-inference-pool") == ["default/llama"]
    assert not [v for _, v in received.headers if "spoofed" in v or "192.0.2.1" in v]


async def test_other_headers_pass_as_they_came(world: World) -> None:
    envoy = await world.envoy()
    sent = {"authorization": "Bearer abc", "traceparent": "00-1-2-01", "accept": "text/x, */*"}

    received = world.received(await world.ask(envoy, {"model": "llama"}, headers=sent))

    for name, value in sent.items():
        assert received.values(name) == [value]


async def test_models_are_listed_from_the_bound_pool(world: World) -> None:
    bound = await world.envoy(bind_pool="mistral")
    unbound = await world.envoy()

    few = await world.ask(bound, method="GET", path="/v1/models?x=1")
    many = await world.ask(unbound, method="GET", path="/v1/models")
    one = await world.ask(unbound, method="GET", path="/v1/models/llama")
    none = await world.ask(unbound, method="GET", path="/v1/models/gpt")

    assert [entry["id"] for entry in few.document["data"]] == ["mistral"]
    assert few.headers["content-type"] == "application/json"
    names = [entry["id"] for entry in many.document["data"]]
    assert {"llama", "weighted", "renamed", "mistral"} <= set(names)
    assert "theirs" not in names
    assert one.document["id"] == "llama"
    assert one.document["object"] == "model"
    assert (none.status, none.code) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("options", "model", "status"),
    [
        ({"bind_pool": "mistral"}, "mistral", 200),
        ({"bind_pool": "mistral"}, "llama", 404),
        ({"bind_namespace": "other"}, "theirs", 200),
        ({"bind_namespace": "other"}, "llama", 404),
        ({"bind_namespace": "other", "bind_pool": "llama"}, "theirs", 200),
        ({"bind_pool": "gone"}, "orphan", 503),
        ({"authority": "epp-mistral"}, "mistral", 200),
        ({"authority": "epp-mistral.default"}, "llama", 404),
        ({"authority": "epp-mistral.default.svc.cluster.local:9002"}, "llama", 404),
        ({"authority": "epp.other.svc"}, "theirs", 200),
        ({"authority": "epp.other.svc"}, "llama", 404),
        # Named by a pool in each of two namespaces: it binds to neither.
        ({"authority": "epp"}, "mistral", 200),
        ({"authority": "nobody.default.svc"}, "llama", 200),
        ({"authority": "nobody.default.svc"}, "mistral", 200),
        # What a client of the gateway cannot set wins over what names a Service.
        ({"authority": "epp-mistral", "bind_pool": "llama"}, "llama", 200),
    ],
    ids=str,
)
async def test_a_gateway_binds_its_requests(
    world: World, options: dict[str, Any], model: str, status: int
) -> None:
    envoy = await world.envoy(**options)

    assert (await world.ask(envoy, {"model": model})).status == status


@pytest.mark.parametrize(("model", "status"), [("mistral", 200), ("llama", 404)])
async def test_the_authority_that_istio_sends_binds_too(
    world: World, request: pytest.FixtureRequest, model: str, status: int
) -> None:
    """`|` is refused by libnghttp2: such a connection is served by grpcio."""
    transport = request.config.getoption("--transport", default="auto")
    picker = await world.picker(**({"transport": "auto"} if transport == "http2" else {}))
    envoy = await world.envoy(
        picker, authority="outbound|9002||epp-mistral.default.svc.cluster.local"
    )

    reply = await world.ask(envoy, {"model": model, "prompt": "x" * 300_000})

    assert reply.status == status


async def test_a_client_cannot_bind_itself(world: World) -> None:
    envoy = await world.envoy()
    headers = {"x-epp-pool": "mistral", "x-epp-namespace": "other"}

    assert (await world.ask(envoy, {"model": "llama"}, headers=headers)).status == 200


async def test_a_picker_of_one_pool_serves_that_pool_only(world: World) -> None:
    envoy = await world.envoy(await world.picker(pool_name="mistral"))

    assert (await world.ask(envoy, {"model": "mistral"})).served_by == "s4"
    assert (await world.ask(envoy, {"model": "llama"})).status == 404
    assert (await world.ask(envoy, method="GET", path="/health")).served_by == "s4"


async def test_unknown_models_pass_where_they_may(world: World) -> None:
    picker = await world.picker(pool_name="mistral", unknown_models="passthrough")
    envoy = await world.envoy(picker)

    reply = await world.ask(envoy, {"model": "never/heard of"})

    assert reply.served_by == "s4"
    assert reply.headers["x-served-model"] == "never/heard of"


# --- the subset hint ------------------------------------------------------------------------------

LUA_LIST = """
function envoy_on_request(handle)
  local hint = handle:headers():get("x-test-list")
  if hint then
    local entries = {}
    for entry in string.gmatch(hint, "[^ ]+") do table.insert(entries, entry) end
    handle:streamInfo():dynamicMetadata():set(
      "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", entries)
  end
  local text = handle:headers():get("x-test-text")
  if text then
    handle:streamInfo():dynamicMetadata():set(
      "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", text)
  end
end
"""


@pytest.mark.parametrize("kind", ["list", "text"])
async def test_the_subset_hint_is_obeyed(world: World, kind: str) -> None:
    """As a list of endpoints and as one string, with ports and without."""
    config = bootstrap(world.options(await world.picker()))
    lua = "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua"
    hinted = {"@type": lua, "default_source_code": {"inline_string": LUA_LIST}}
    filters(config).insert(0, {"name": "envoy.filters.http.lua", "typed_config": hinted})
    envoy = await world.envoy_with(config)
    separator = " " if kind == "list" else ", "

    async def served(*endpoints: str) -> set[str]:
        headers = {f"x-test-{kind}": separator.join(endpoints) or " "}
        replies = [await world.ask(envoy, {"model": "llama"}, headers=headers) for _ in range(40)]
        return {r.served_by if r.status == 200 else f"{r.status} {r.code}" for r in replies}

    servers = world.servers
    assert await served(servers["s1"].authority) == {"s1"}
    assert await served(servers["s1"].authority, servers["s3"].authority) == {"s1", "s3"}
    assert await served("127.0.0.1") == {"s1", "s2", "s3"}
    assert await served("192.0.2.1:80") == {"503 subset_unmatched"}
    assert await served(servers["s4"].authority) == {"503 subset_unmatched"}
    assert await served("127.0.0.1:1", servers["s2"].authority) == {"s2"}
    assert await served() == {"503 subset_unmatched"}


# --- changes --------------------------------------------------------------------------------------


async def test_an_edit_is_live_within_a_second(world: World) -> None:
    envoy = await world.envoy()
    world.write("edit.yaml", a_model("edited").in_pool("mistral").manifest)

    async def is_served() -> bool:
        return (await world.ask(envoy, {"model": "edited"})).served_by == "s4"

    await eventually(is_served)
    world.write("edit.yaml", a_model("edited").in_pool("llama").to("two").manifest)
    changed_at = asyncio.get_running_loop().time()

    async def is_changed() -> bool:
        reply = await world.ask(envoy, {"model": "edited"})
        return reply.headers.get("x-served-model") == "two"

    await eventually(is_changed)
    assert asyncio.get_running_loop().time() - changed_at < 5.0  # the law says 1 s, on a free core
    world.write("edit.yaml")

    async def is_gone() -> bool:
        return (await world.ask(envoy, {"model": "edited"})).status == 404

    await eventually(is_gone)


async def test_a_broken_file_changes_nothing(world: World) -> None:
    envoy = await world.envoy()
    (world.manifests / "broken.yaml").write_text("kind: InferenceModel\nspec: [")
    try:
        await asyncio.sleep(0.6)
        assert (await world.ask(envoy, {"model": "llama"})).status == 200
    finally:
        (world.manifests / "broken.yaml").unlink()


async def test_an_endpoint_that_is_removed_is_not_picked_again(world: World) -> None:
    envoy = await world.envoy()
    pool = a_pool("shrinking").manifest
    model = a_model("shrinking").manifest
    model["spec"]["poolRef"]["name"] = "shrinking"
    slices = [world.slice_of(server, "shrinking") for server in ("s1", "s2")]
    world.write("shrinking.yaml", pool, model, *slices)

    async def serves(expected: set[str]) -> bool:
        replies = [await world.ask(envoy, {"model": "shrinking"}) for _ in range(16)]
        return {reply.served_by for reply in replies} == expected

    await eventually(lambda: serves({"s1", "s2"}))
    world.write("shrinking.yaml", pool, model, slices[1])
    await eventually(lambda: serves({"s2"}))
    for _ in range(5):
        assert await serves({"s2"})
    world.write("shrinking.yaml", pool, model)

    async def is_empty() -> bool:
        return (await world.ask(envoy, {"model": "shrinking"})).status == 503

    await eventually(is_empty)
    world.write("shrinking.yaml")


# --- override_host: many pools behind one picker --------------------------------------------------


async def override_host(world: World, tmp: Path, *pools: str, **flags: object) -> Any:
    """Return an Envoy with one cluster per pool, and the EDS folder that its picker writes."""
    eds = tmp / "eds"
    picker = await world.picker(eds_dir=str(eds), **flags)

    async def are_there() -> bool:
        return all((eds / eds_file_name(pool)).exists() for pool in pools)

    await eventually(are_there)
    options = {"endpoint": EndpointMode.OVERRIDE_HOST, "pools": pools, "eds_dir": str(eds)}
    return await world.envoy(picker, **options), eds


async def test_one_picker_serves_many_pools_by_route(world: World, tmp_path: Path) -> None:
    pools = ("default/llama", "default/mistral", "default/empty")
    envoy, _ = await override_host(world, tmp_path, *pools)

    replies = [await world.ask(envoy, {"model": "llama"}) for _ in range(30)]

    assert {reply.served_by for reply in replies} == {"s1", "s2", "s3"}
    for reply in replies:
        picked = world.received(reply).values("x-gateway-destination-endpoint")
        assert picked == [world.servers[reply.served_by].authority]
    assert (await world.ask(envoy, {"model": "mistral"})).served_by == "s4"
    assert (await world.ask(envoy, {"model": "hollow"})).code == "no_ready_endpoint"


async def test_a_dead_endpoint_is_passed_over_for_a_fallback(world: World, tmp_path: Path) -> None:
    """The list of fallbacks is tried in order: a client sees no error while one of them lives."""
    (dead,) = free_ports(1)
    pool = a_pool("fragile").manifest
    model = a_model("fragile").in_pool("fragile").manifest
    gone = a_slice("fragile-dead", "127.0.0.1", ports=[dead], app="fragile")
    world.write("fragile.yaml", pool, model, gone, world.slice_of("s2", "fragile"))
    envoy, _ = await override_host(world, tmp_path, "default/fragile", fallbacks=2)

    replies = [await world.ask(envoy, {"model": "fragile"}) for _ in range(20)]
    retries = await envoy.stats("upstream_rq_retry$")
    world.write("fragile.yaml")

    assert {(reply.status, reply.served_by) for reply in replies} == {(200, "s2")}
    assert retries["cluster.pool_default/fragile.upstream_rq_retry"] > 0


async def test_a_new_member_is_reached_through_the_eds_file(world: World, tmp_path: Path) -> None:
    pool = a_pool("growing").manifest
    model = a_model("growing").in_pool("growing").manifest
    world.write("growing.yaml", pool, model, world.slice_of("s1", "growing"))
    envoy, _ = await override_host(world, tmp_path, "default/growing")

    async def serves(server: str) -> bool:
        reply = await world.ask(envoy, {"model": "growing"})
        if reply.status == 200:  # never somewhere else than picked, once Envoy knows the member
            return reply.served_by == server
        return False

    await eventually(lambda: serves("s1"))
    world.write("growing.yaml", pool, model, world.slice_of("s5", "growing"))
    await eventually(lambda: serves("s5"))
    world.write("growing.yaml")


async def test_no_pool_is_an_error_in_openais_shape(world: World, tmp_path: Path) -> None:
    """With failure_mode_allow and the picker away, several pools leave nowhere to go."""
    (nobody,) = free_ports(1)
    for pool in ("a/b", "c/d"):
        (tmp_path / eds_file_name(pool)).write_text("{}")
    options = EnvoyOptions(
        endpoint=EndpointMode.OVERRIDE_HOST,
        pools=("a/b", "c/d"),
        eds_dir=str(tmp_path),
        picker_port=nobody,
        picker_health_check=False,
        failure_mode_allow=True,
        listener_host="127.0.0.1",
        listener_port=0,
        admin_port=0,
    )
    envoy = await world.envoy_with(bootstrap(options))

    # Once a chunk of a body has gone to the picker, Envoy does not fail open any more.
    reply = await world.ask(envoy, method="GET", path="/v1/models")

    assert (reply.status, reply.code) == (503, "no_pool")


# --- upgrades -------------------------------------------------------------------------------------


@pytest.mark.parametrize("own_chain", [True, False])
@pytest.mark.parametrize("response_mode", ["close", "pass"])
@pytest.mark.parametrize("mode", [BodyMode.FULL_DUPLEX, BodyMode.STREAMED], ids=str)
async def test_a_websocket_passes(
    world: World, mode: BodyMode, response_mode: str, own_chain: bool
) -> None:
    """Also where the filter that reads bodies is on the way of the upgraded connection."""
    picker = await world.picker(response_mode=response_mode)
    config = bootstrap(world.options(picker, request_body=mode, bind_pool="mistral"))
    if not own_chain:
        manager(config)["upgrade_configs"] = [{"upgrade_type": "websocket"}]
    envoy = await world.envoy_with(config)

    async with (
        aiohttp.ClientSession() as client,
        client.ws_connect(envoy.url + "/ws") as socket,
    ):
        for size in (1, 1_000, 200_000):
            await socket.send_bytes(b"x" * size)
            assert await socket.receive_bytes() == b"x" * size
        await socket.send_str("bye")
        assert await socket.receive_str() == "bye"

    received = world.servers["s4"].received[-1]
    assert received.values("x-gateway-inference-pool") == ["default/mistral"]


# --- what is told of it ---------------------------------------------------------------------------


async def test_each_request_is_a_line_that_holds_no_prompt(world: World) -> None:
    picker = await world.picker()
    envoy = await world.envoy()
    headers = {"x-request-id": "told-1"}
    ask = {"model": "renamed", "prompt": "a secret of mine"}

    reply = await world.ask(envoy, ask, headers=headers)

    async def is_told() -> bool:
        return any(line["request_id"] == "told-1" for line in picker.requests())

    await eventually(is_told)
    (line,) = (each for each in picker.requests() if each["request_id"] == "told-1")
    assert line["model"] == "renamed"
    assert line["pool"] == "default/llama"
    assert line["endpoint"] == world.servers[reply.served_by].authority
    assert line["status"] == 200
    assert line["picker_ms"] > 0
    assert "secret" not in json.dumps(picker.requests()) + picker.errors
    page = await picker.metrics()
    assert re.search(r'inference_objective_request_total\{.*model_name="renamed".*\} [1-9]', page)


async def test_unknown_names_never_become_labels(world: World) -> None:
    picker = await world.picker()
    envoy = await world.envoy()
    for i in range(20):
        await world.ask(envoy, {"model": f"nobody-{i}"})

    page = await picker.metrics()

    assert "nobody-" not in page


async def test_pass_mode_reads_usage_from_the_response(world: World) -> None:
    picker = await world.picker(response_mode="pass")
    envoy = await world.envoy(picker)
    async with ModelServer("unused"):
        await world.ask(envoy, {"model": "llama", "max_tokens": 7})
        await world.ask(envoy, {"model": "llama", "max_tokens": 9, "stream": True})

    async def is_counted() -> bool:
        page = await picker.metrics()
        found = re.search(r'inference_objective_output_tokens_count\{.*"llama".*\} (\S+)', page)
        return found is not None and float(found[1]) >= 2

    await eventually(is_counted)


async def test_an_open_websocket_holds_no_call_to_the_picker(world: World) -> None:
    """It may stay open for days; where its bytes do not pass the picker, the pick is the end."""
    envoy = await world.envoy(bind_pool="mistral")

    async with (
        aiohttp.ClientSession() as client,
        client.ws_connect(envoy.url + "/ws") as socket,
    ):
        await socket.send_str("hello")
        assert await socket.receive_str() == "hello"
        open_calls = await envoy.stats("cluster.endpoint_picker.upstream_rq_active$")

    assert list(open_calls.values()) == [0]
