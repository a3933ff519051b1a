"""Each of Envoy's body modes: what it can carry, byte for byte, and how it fails when it cannot."""

import json

import pytest

from epp.envoyconfig import BodyMode, bootstrap
from tests.e2e.world import UNSPELLABLE, World, sha256

pytestmark = pytest.mark.asyncio(loop_scope="session")

CARRIES = [m for m in BodyMode if m is not BodyMode.NONE]
SIZES = [10, 70_000, 300_000, 3_000_000]


def prompt(model: str, size: int) -> bytes:
    """A body whose formatting no JSON library would reproduce."""
    return b'{"messages" : [1.50, "%s"],\n\t"model":  "%s" , "big": 12345678901234567890}' % (
        b"x" * size,
        model.encode(),
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", CARRIES, ids=str)
async def test_the_body_arrives_byte_for_byte(world: World, mode: BodyMode, size: int) -> None:
    envoy = await world.envoy(request_body=mode)
    body = prompt("llama", size)

    reply = await world.ask(envoy, body)

    assert reply.status == 200, reply.body
    assert reply.served_by in {"s1", "s2", "s3"}
    assert reply.headers["x-body-sha256"] == sha256(body)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", CARRIES, ids=str)
async def test_a_rename_touches_the_names_bytes_only(
    world: World, mode: BodyMode, size: int
) -> None:
    envoy = await world.envoy(request_body=mode)
    body = prompt("renamed", size)

    reply = await world.ask(envoy, body)

    assert reply.status == 200, reply.body
    arrived = world.received(reply).body
    start = body.index(b'"renamed"')
    end = start + len(b'"renamed"')
    spelled = arrived[start : len(arrived) - (len(body) - end)]
    assert arrived[:start] == body[:start]
    assert arrived[start + len(spelled) :] == body[end:]
    assert json.loads(spelled) == UNSPELLABLE


@pytest.mark.parametrize("model", ["llama", "renamed"])
async def test_buffered_keeps_one_exact_content_length(world: World, model: str) -> None:
    envoy = await world.envoy(request_body=BodyMode.BUFFERED)

    received = world.received(await world.ask(envoy, prompt(model, 100)))

    assert received.values("content-length") == [str(len(received.body))]
    assert received.values("transfer-encoding") == []


@pytest.mark.parametrize("mode", CARRIES, ids=str)
async def test_a_request_without_a_body_is_answered_at_its_headers(
    world: World, mode: BodyMode
) -> None:
    envoy = await world.envoy(request_body=mode, bind_pool="mistral")

    reply = await world.ask(envoy, method="GET", path="/anything?q=1")

    assert reply.status == 200
    assert reply.served_by == "s4"


async def test_none_gives_a_pick_without_a_model_where_one_pool_is_bound(world: World) -> None:
    envoy = await world.envoy(request_body=BodyMode.NONE, bind_pool="mistral")
    body = prompt("whatever", 100_000)

    reply = await world.ask(envoy, body)

    assert reply.status == 200
    assert reply.served_by == "s4"
    assert reply.headers["x-body-sha256"] == sha256(body)


async def test_none_without_a_pool_says_which_setting_to_change(world: World) -> None:
    envoy = await world.envoy(request_body=BodyMode.NONE)

    reply = await world.ask(envoy, prompt("llama", 10))

    assert reply.status == 500
    assert reply.code == "unsupported_body_mode"
    assert "request_body_mode" in reply.document["error"]["message"]


@pytest.mark.parametrize("bound", [True, False])
async def test_streamed_that_waits_cannot_see_the_model(world: World, bound: bool) -> None:
    """Without send_body_without_waiting_for_header_response Envoy holds the body back."""
    binding = {"bind_pool": "mistral"} if bound else {}
    picker = await world.picker()
    config = bootstrap(world.options(picker, request_body=BodyMode.STREAMED, **binding))
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
    ext_proc = manager["typed_config"]["http_filters"][0]["typed_config"]
    del ext_proc["send_body_without_waiting_for_header_response"]
    envoy = await world.envoy_with(config)
    body = prompt("whatever", 200_000)

    reply = await world.ask(envoy, body)

    if bound:
        assert reply.status == 200
        assert reply.headers["x-body-sha256"] == sha256(body)
    else:
        assert reply.status == 500
        assert reply.code == "unsupported_body_mode"


async def test_partial_over_the_limit_sees_the_model_in_the_prefix(world: World) -> None:
    envoy = await world.envoy(request_body=BodyMode.BUFFERED_PARTIAL, buffer_limit_bytes=65_536)
    body = b'{"model": "llama", "prompt": "%s"}' % (b"x" * 1_000_000)

    reply = await world.ask(envoy, body)

    assert reply.status == 200
    assert reply.headers["x-body-sha256"] == sha256(body)


async def test_partial_over_the_limit_renames_in_the_prefix(world: World) -> None:
    envoy = await world.envoy(request_body=BodyMode.BUFFERED_PARTIAL, buffer_limit_bytes=65_536)
    body = b'{"model": "renamed", "prompt": "%s"}' % (b"x" * 1_000_000)

    reply = await world.ask(envoy, body)

    assert reply.status == 200
    arrived = world.received(reply).body
    assert json.loads(arrived)["model"] == UNSPELLABLE
    assert arrived.partition(b",")[2] == body.partition(b",")[2]


async def test_partial_over_the_limit_without_the_model_is_too_large(world: World) -> None:
    envoy = await world.envoy(request_body=BodyMode.BUFFERED_PARTIAL, buffer_limit_bytes=65_536)
    body = b'{"prompt": "%s", "model": "llama"}' % (b"x" * 1_000_000)

    reply = await world.ask(envoy, body)

    assert reply.status == 413
    assert reply.code == "body_too_large"
