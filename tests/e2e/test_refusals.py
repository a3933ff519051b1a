"""What bad input gets: exact status, content type and shape, through a real Envoy."""

import gzip
import json
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from epp.envoyconfig import BodyMode, EnvoyOptions, bootstrap
from tests.e2e.world import MAX_BODY, World, free_ports

pytestmark = pytest.mark.asyncio(loop_scope="session")

DEEP = b'{"model": "llama", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"

ROWS: list[tuple[str, bytes, int, str]] = [
    ("empty", b"", 400, "invalid_json"),
    ("blank", b"   ", 400, "invalid_json"),
    ("not JSON", b"model=llama", 400, "invalid_json"),
    ("truncated", b'{"model": "llama"', 400, "invalid_json"),
    ("trailing bytes", b'{"model": "llama"} x', 400, "invalid_json"),
    ("an array", b'["model"]', 400, "invalid_json"),
    ("a string", b'"llama"', 400, "invalid_json"),
    ("null", b"null", 400, "invalid_json"),
    ("NaN", b'{"model": "llama", "t": NaN}', 400, "invalid_json"),
    ("invalid UTF-8", b'{"model": "llama", "x": "\xff"}', 400, "invalid_json"),
    ("nested invalid UTF-8", b'{"model": "llama", "x": [{"y": "\xc3("}]}', 400, "invalid_json"),
    ("100 000 levels", DEEP, 400, "invalid_json"),
    ("UTF-16", '{"model": "llama"}'.encode("utf-16"), 400, "invalid_json"),
    ("no model", b'{"prompt": "secret words"}', 400, "missing_model"),
    ("model is a number", b'{"model": 1}', 400, "missing_model"),
    ("model is null", b'{"model": null}', 400, "missing_model"),
    ("model is a list", b'{"model": ["llama"]}', 400, "missing_model"),
    ("model is empty", b'{"model": ""}', 400, "missing_model"),
    ("Model", b'{"Model": "llama"}', 400, "missing_model"),
    ("model inside", b'{"x": {"model": "llama"}}', 400, "missing_model"),
    ("two models", b'{"model": "llama", "model": "llama"}', 400, "duplicate_model"),
    ("escaped twin", rb'{"model": "llama", "\u006dodel": "x"}', 400, "duplicate_model"),
    ("escaped twin first", rb'{"mode\u006c": "llama", "model": "x"}', 400, "duplicate_model"),
    ("unknown model", b'{"model": "gpt-9"}', 404, "model_not_found"),
    ("another namespace's", b'{"model": "theirs"}', 404, "model_not_found"),
    ("pool missing", b'{"model": "orphan"}', 503, "pool_not_found"),
    ("no ready endpoint", b'{"model": "hollow"}', 503, "no_ready_endpoint"),
]


@pytest.mark.parametrize("mode", [BodyMode.FULL_DUPLEX, BodyMode.BUFFERED], ids=str)
@pytest.mark.parametrize(
    ("body", "status", "code"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
async def test_bad_input(world: World, mode: BodyMode, body: bytes, status: int, code: str) -> None:
    envoy = await world.envoy(request_body=mode)

    reply = await world.ask(envoy, body)

    assert (reply.status, reply.code) == (status, code)
    assert reply.served_by == ""
    assert "secret words" not in reply.body.decode()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{", "invalid_request_error"),
        (b'{"model": "gpt-9"}', "not_found_error"),
        (b'{"model": "hollow"}', "overloaded_error"),
    ],
)
async def test_the_messages_api_is_refused_in_its_own_shape(
    world: World, body: bytes, kind: str
) -> None:
    envoy = await world.envoy()

    reply = await world.ask(envoy, body, path="/v1/messages?beta=true")

    assert reply.headers["content-type"] == "application/json"
    assert set(reply.document) == {"type", "error"}
    assert reply.document["type"] == "error"
    assert set(reply.document["error"]) == {"type", "message"}
    assert reply.document["error"]["type"] == kind


async def test_invalid_json_is_told_with_its_position(world: World) -> None:
    envoy = await world.envoy()

    reply = await world.ask(envoy, b'{"model": "llama", oops}')

    assert "19" in reply.document["error"]["message"]


async def test_a_model_of_another_pool_is_not_found_with_both_pools_named(world: World) -> None:
    envoy = await world.envoy(bind_pool="mistral")

    reply = await world.ask(envoy, {"model": "llama"})

    assert (reply.status, reply.code) == (404, "model_not_found")
    message = reply.document["error"]["message"]
    assert "default/llama" in message
    assert "default/mistral" in message


async def test_a_byte_order_mark_is_accepted(world: World) -> None:
    envoy = await world.envoy()

    reply = await world.ask(envoy, b'\xef\xbb\xbf{"model": "llama"}')

    # The model server here does not take the mark; that it was asked at all is the point.
    assert reply.served_by


async def chunks(total: int) -> AsyncIterator[bytes]:
    yield b'{"model": "llama", "prompt": "'
    for _ in range(total // 65_536):
        yield b"x" * 65_536
    yield b'"}'


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_over_the_limit_is_too_large(world: World, announced: bool) -> None:
    """Announced, it is refused at its headers; chunked, as soon as it is over."""
    envoy = await world.envoy()
    body: Any = b"x" * (MAX_BODY + 1) if announced else chunks(MAX_BODY + 1_000_000)

    reply = await world.ask(envoy, body)

    assert (reply.status, reply.code) == (413, "body_too_large")


BOMB = b'{"model": "llama", "x": "' + b"a" * (64 * 1024 * 1024) + b'"}'


@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
async def test_a_decompression_bomb_is_too_large(
    world: World, encoding: str, compress: Any
) -> None:
    envoy = await world.envoy()

    reply = await world.ask(envoy, compress(BOMB), headers={"content-encoding": encoding})

    assert (reply.status, reply.code) == (413, "body_too_large")


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip, br", "nonsense"])
async def test_an_unknown_encoding_is_unsupported(world: World, encoding: str) -> None:
    envoy = await world.envoy()

    reply = await world.ask(envoy, b"\x00\x01", headers={"content-encoding": encoding})

    assert (reply.status, reply.code) == (415, "unsupported_content_encoding")


@pytest.mark.parametrize(
    "body", [b"not gzip", gzip.compress(b'{"model": "llama"}')[:-4]], ids=["not gzip", "cut off"]
)
async def test_a_body_that_is_not_what_its_encoding_says_is_invalid(
    world: World, body: bytes
) -> None:
    envoy = await world.envoy()

    reply = await world.ask(envoy, body, headers={"content-encoding": "gzip"})

    assert (reply.status, reply.code) == (400, "invalid_json")


async def test_a_bodyless_request_with_no_single_pool_is_not_found(world: World) -> None:
    envoy = await world.envoy()

    reply = await world.ask(envoy, method="GET", path="/metrics")

    assert (reply.status, reply.code) == (404, "not_found")


async def test_a_picker_that_is_away_is_an_error_or_nothing_as_configured(world: World) -> None:
    """failure_mode_allow: without it a request is never sent on unpicked."""
    (nobody,) = free_ports(1)
    options = EnvoyOptions(
        listener_host="127.0.0.1",
        listener_port=0,
        admin_port=0,
        picker_port=nobody,
        picker_health_check=False,
    )
    envoy = await world.envoy_with(bootstrap(options))

    reply = await world.ask(envoy, {"model": "llama"})

    assert reply.status == 500
    assert reply.served_by == ""


async def test_a_request_after_many_refusals_is_served(world: World) -> None:
    """A refusal costs one request and no connection."""
    envoy = await world.envoy()
    for _ in range(200):
        await world.ask(envoy, b"{")

    reply = await world.ask(envoy, json.dumps({"model": "llama"}).encode())

    assert reply.status == 200
