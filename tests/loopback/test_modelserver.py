"""The simulated model server keeps its word, or no test against it would mean anything."""

import asyncio
import gzip
import hashlib
import json
import sys
from collections.abc import AsyncIterator

import aiohttp
import pytest

from epp.demo.modelserver import APIS, ModelServer

Served = tuple[ModelServer, aiohttp.ClientSession]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with (
        ModelServer("s1", models={"llama", "名"}) as server,
        aiohttp.ClientSession(f"http://{server.authority}") as client,
    ):
        yield server, client


@pytest.mark.parametrize("path", APIS)
async def test_each_api_answers_with_the_model_and_what_arrived(served: Served, path: str) -> None:
    server, client = served
    body = json.dumps({"model": "llama", "input": "x"}).encode()

    async with client.post(path, data=body) as response:
        document = await response.json()

    assert response.status == 200
    assert response.headers["x-served-by"] == "s1"
    assert response.headers["x-served-model"] == "llama"
    assert response.headers["x-body-sha256"] == hashlib.sha256(body).hexdigest()
    assert document["model"] == "llama"
    assert document["received"]["length"] == len(body)
    assert "usage" in document
    assert server.counts == {"llama": 1}


@pytest.mark.parametrize("path", [path for path, (_, streamed) in APIS.items() if streamed])
async def test_a_stream_has_a_word_per_event_and_usage_at_the_end(
    served: Served, path: str
) -> None:
    _, client = served
    ask = {"model": "llama", "stream": True, "max_tokens": 5}

    async with client.post(path, json=ask) as response:
        text = await response.text()

    assert response.content_type == "text/event-stream"
    assert text.count("data: ") >= 5
    assert '"usage"' in "".join(text.rstrip().split("\n\n")[-2:])


async def test_a_model_that_is_not_served_is_not_found(served: Served) -> None:
    _, client = served

    async with client.post("/v1/completions", json={"model": "gpt"}) as response:
        assert response.status == 404


async def test_a_compressed_body_is_hashed_as_it_came(served: Served) -> None:
    _, client = served
    body = gzip.compress(b'{"model": "llama"}')

    async with client.post(
        "/v1/completions", data=body, headers={"content-encoding": "gzip"}
    ) as response:
        assert response.status == 200
        assert response.headers["x-body-sha256"] == hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
async def test_a_bad_body_is_a_client_error(served: Served, body: bytes) -> None:
    _, client = served

    async with client.post("/v1/completions", data=body) as response:
        assert response.status == 400


async def test_metrics_are_vllms(served: Served) -> None:
    server, client = served
    server.waiting, server.kv_cache_usage = 3, 0.5

    async with client.get("/metrics") as response:
        text = await response.text()

    assert 'vllm:num_requests_waiting{engine="0",model_name="llama"} 3.0' in text
    assert 'vllm:kv_cache_usage_perc{engine="0",model_name="llama"} 0.5' in text
    assert 'block_size="16"' in text


async def test_a_websocket_is_echoed(served: Served) -> None:
    _, client = served

    async with client.ws_connect("/ws") as socket:
        await socket.send_str("hello")
        await socket.send_bytes(b"\x00" * 100_000)
        assert await socket.receive_str() == "hello"
        assert await socket.receive_bytes() == b"\x00" * 100_000


async def test_a_stopped_server_comes_back_on_its_port() -> None:
    server = ModelServer("s1")
    await server.start()
    port = server.port
    await server.stop()
    await server.start()
    await server.stop()

    assert server.port == port


async def test_as_a_program_it_prints_its_port() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "epp.demo.modelserver", "--name", "child"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        port = int(await process.stdout.readline())
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"http://127.0.0.1:{port}/health") as response,
        ):
            assert response.headers["x-served-by"] == "child"
    finally:
        process.terminate()
        await process.wait()
