"""Bodies of every kind, and responses: whatever passes the gateway passes unchanged."""

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from epp.envoyconfig import BodyMode
from tests.builders import a_model, a_pool, a_slice
from tests.e2e.http2client import Http2Client
from tests.e2e.world import UNSPELLABLE, World, eventually, sha256
from tests.fakes.rawhttp import HastyServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

RESPONSE_MODES = ["close", "pass"]


def prompt(model: str, size: int) -> bytes:
    return b'{"model": "%s", "prompt": "%s"}' % (model.encode(), b"x" * size)


async def pieces(body: bytes, size: int, pause_s: float = 0.0) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]
        await asyncio.sleep(pause_s)


@pytest.mark.parametrize("mode", RESPONSE_MODES)
@pytest.mark.parametrize("size", [300_000, 5_000_000])
async def test_a_large_body_is_whole_although_the_picker_closes_early(
    world: World, mode: str, size: int
) -> None:
    """Closed before every chunk was echoed, Envoy would lose the rest and still answer 200."""
    envoy = await world.envoy(await world.picker(response_mode=mode))
    body = prompt("llama", size)

    replies = await asyncio.gather(*(world.ask(envoy, body) for _ in range(8)))

    assert {reply.status for reply in replies} == {200}
    assert {reply.headers["x-body-sha256"] for reply in replies} == {sha256(body)}


@pytest.mark.parametrize("model", ["llama", "renamed"])
@pytest.mark.parametrize("piece", [1, 7, 65_536])
async def test_an_upload_of_unknown_length(world: World, piece: int, model: str) -> None:
    envoy = await world.envoy()
    body = prompt(model, 40 if piece < 10 else 300_000)

    reply = await world.ask(envoy, pieces(body, piece))

    assert reply.status == 200
    arrived = world.received(reply).body
    assert json.loads(arrived) == {
        **json.loads(body),
        "model": UNSPELLABLE if model == "renamed" else model,
    }


async def test_a_slow_upload_is_waited_for(world: World) -> None:
    envoy = await world.envoy(message_timeout_s=0.2)
    body = prompt("llama", 30)

    reply = await world.ask(envoy, pieces(body, 20, pause_s=0.3))

    assert reply.status == 200
    assert reply.headers["x-body-sha256"] == sha256(body)


@pytest.mark.parametrize("mode", [BodyMode.FULL_DUPLEX, BodyMode.BUFFERED], ids=str)
@pytest.mark.parametrize("model", ["llama", "renamed"])
@pytest.mark.parametrize("size", [10, 200_000])
async def test_a_body_that_ends_in_trailers(
    world: World, mode: BodyMode, model: str, size: int
) -> None:
    envoy = await world.envoy(request_body=mode)
    body = prompt(model, size)
    async with Http2Client(envoy.url) as client:
        reply = await client.ask(body, trailers=[("x-checksum", "abc")])

    assert reply.status == 200
    assert len(json.loads(world.received(reply).body)["prompt"]) == size


async def test_a_body_ended_by_an_empty_frame(world: World) -> None:
    envoy = await world.envoy()
    body = prompt("llama", 100)
    async with Http2Client(envoy.url) as client:
        reply = await client.ask(body, end_with_empty_frame=True)

    assert reply.status == 200
    assert reply.headers["x-body-sha256"] == sha256(body)


async def test_many_requests_on_one_http2_connection(world: World) -> None:
    envoy = await world.envoy()
    async with Http2Client(envoy.url) as client:
        replies = await asyncio.gather(
            *(client.ask(prompt("llama", size)) for size in range(0, 100_000, 2_000))
        )

    assert {reply.status for reply in replies} == {200}
    for size, reply in zip(range(0, 100_000, 2_000), replies, strict=True):
        assert reply.headers["x-body-sha256"] == sha256(prompt("llama", size))


@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
async def test_a_compressed_body_is_relayed_as_it_came(
    world: World, encoding: str, compress: Any
) -> None:
    envoy = await world.envoy()
    body = compress(prompt("llama", 100_000))

    reply = await world.ask(envoy, body, headers={"content-encoding": encoding})

    assert reply.status == 200, reply.body
    assert reply.headers["x-body-sha256"] == sha256(body)
    assert world.received(reply).values("content-encoding") == [encoding]


@pytest.mark.parametrize("mode", [BodyMode.FULL_DUPLEX, BodyMode.BUFFERED], ids=str)
async def test_a_compressed_body_that_is_renamed_goes_on_decompressed(
    world: World, mode: BodyMode
) -> None:
    envoy = await world.envoy(request_body=mode)
    plain = prompt("renamed", 100_000)

    reply = await world.ask(envoy, gzip.compress(plain), headers={"content-encoding": "gzip"})

    assert reply.status == 200, reply.body
    received = world.received(reply)
    assert received.values("content-encoding") == []
    assert json.loads(received.body) == {**json.loads(plain), "model": UNSPELLABLE}


@pytest.mark.parametrize("mode", RESPONSE_MODES)
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]
)
async def test_a_streamed_response_is_byte_for_byte_the_servers(
    world: World, mode: str, path: str
) -> None:
    envoy = await world.envoy(await world.picker(response_mode=mode))
    body = json.dumps({"model": "llama", "stream": True, "max_tokens": 2000}).encode()

    reply = await world.ask(envoy, body, path=path)
    direct = await world.ask_server(reply.served_by, body, path=path)

    assert reply.headers["content-type"] == "text/event-stream"
    assert reply.body == direct.body


@pytest.mark.parametrize("transport", ["http2", "grpcio"])
async def test_no_response_loses_its_first_bytes_to_the_close(world: World, transport: str) -> None:
    """A close that arrives after Envoy has shown us a chunk of the response would cost that chunk.

    grpcio cannot send the close with the last echo: lost here was one response in ten.
    """
    envoy = await world.envoy(await world.picker(transport=transport))
    body = json.dumps({"model": "llama", "stream": True, "max_tokens": 2}).encode()
    direct = [await world.ask_server(f"s{i}", body, path="/v1/completions") for i in (1, 2, 3)]
    whole = {reply.served_by: reply.body for reply in direct}

    async def ask_often() -> None:
        for _ in range(40):
            reply = await world.ask(envoy, body, path="/v1/completions")
            assert reply.body == whole[reply.served_by]

    await asyncio.gather(*(ask_often() for _ in range(8)))


async def test_an_answer_before_the_request_is_read_arrives_whole(world: World) -> None:
    """The refusal of a long prompt, say: it begins while our echo of the prompt is on its way."""
    envoy = await world.envoy()
    loop = asyncio.get_running_loop()
    connections: list[asyncio.Transport] = []
    server = await loop.create_server(lambda: HastyServer(connections), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    world.write(
        "hasty.yaml",
        a_pool("hasty").manifest,
        a_slice("hasty", "127.0.0.1", ports=[port], app="hasty"),
        a_model("hasty").in_pool("hasty").manifest,
    )

    async def is_there() -> bool:
        return (await world.ask(envoy, prompt("hasty", 1))).status == 413

    await eventually(is_there)
    sizes = [10, 10_000, 13_000, 300_000, 3_000_000]
    replies = [await world.ask(envoy, prompt("hasty", size)) for size in sizes for _ in range(8)]
    world.write("hasty.yaml")
    server.close()
    for connection in connections:
        connection.close()

    assert {(reply.status, reply.body) for reply in replies} == {(413, HastyServer.BODY)}


@pytest.mark.parametrize("mode", RESPONSE_MODES)
async def test_tokens_come_as_they_are_made(world: World, mode: str) -> None:
    """Nothing on the way waits for the end: the first event is there before the last is made."""
    envoy = await world.envoy(await world.picker(response_mode=mode))
    ask = {"model": "llama", "stream": True, "max_tokens": 5}
    for server in world.servers.values():
        server.token_delay_s = 0.2
    try:
        async with world.session.post(envoy.url + "/v1/completions", json=ask) as response:
            assert response.headers["x-served-by"]
            first = await response.content.readuntil(b"\n\n")
            running = sum(server.running for server in world.servers.values())
            await response.read()
    finally:
        for server in world.servers.values():
            server.token_delay_s = 0.0

    assert first.startswith(b"data: ")
    assert running == 1


@pytest.mark.parametrize("mode", RESPONSE_MODES)
async def test_a_response_without_a_body_and_head(world: World, mode: str) -> None:
    envoy = await world.envoy(await world.picker(response_mode=mode), bind_pool="mistral")

    reply = await world.ask(envoy, method="HEAD", path="/anything")

    assert reply.status == 200
    assert reply.served_by == "s4"
    assert reply.body == b""


@pytest.mark.parametrize("mode", RESPONSE_MODES)
@pytest.mark.parametrize("response_body", list(BodyMode), ids=str)
async def test_every_mode_of_response_body(
    world: World, mode: str, response_body: BodyMode
) -> None:
    """However the gateway is set, a response passes: in one piece, or closed to the picker."""
    picker = await world.picker(response_mode=mode)
    envoy = await world.envoy(picker, response_body=response_body)
    body = json.dumps({"model": "llama", "max_tokens": 20_000}).encode()

    reply = await world.ask(envoy, body)
    direct = await world.ask_server(reply.served_by, body, path="/v1/chat/completions")

    assert reply.status == 200
    assert reply.body == direct.body


async def test_a_client_that_leaves_in_the_middle_harms_nobody(world: World) -> None:
    envoy = await world.envoy()

    async def never_ending() -> AsyncIterator[bytes]:
        yield b'{"model": "llama", "prompt": "'
        await asyncio.sleep(60)

    for _ in range(20):
        task = asyncio.ensure_future(world.ask(envoy, never_ending()))
        await asyncio.sleep(0.01)
        task.cancel()

    assert (await world.ask(envoy, prompt("llama", 10))).status == 200
