"""A simulated model server: OpenAI's API, vLLM's metrics, no model.

It says what it received (sha256 and length of the body, before any decoding), so that whoever sits
between a client and it can be proven to change nothing.  In process::

    async with ModelServer("server-1", models={"llama"}) as server:
        ...  # server.authority is `127.0.0.1:<port>`

or as a program that prints its port: `python -m epp.demo.modelserver --port 0`.
"""

import argparse
import asyncio
import gzip
import hashlib
import json
import sys
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from aiohttp import WSMsgType, web

from epp.demo import replies

Whole = Callable[[replies.Asked], dict[str, Any]]
Streamed = Callable[[replies.Asked], Iterator[bytes]]

APIS: Mapping[str, tuple[Whole, Streamed | None]] = {
    "/v1/chat/completions": (replies.chat, replies.chat_events),
    "/v1/completions": (replies.completion, replies.completion_events),
    "/v1/embeddings": (replies.embedding, None),
    "/v1/responses": (replies.response, replies.response_events),
    "/v1/messages": (replies.message, replies.message_events),
}
REMEMBERED = 256
SHOWN_CHARACTERS = 512
BLOCK_SIZE, BLOCKS = 16, 2048


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it arrived."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def sha256(self) -> str:
        """The digest of the body as it came over the wire."""
        return hashlib.sha256(self.body).hexdigest()

    def values(self, name: str) -> list[str]:
        """Return every value of a header."""
        return [value for key, value in self.headers if key.lower() == name]

    def summary(self) -> dict[str, Any]:
        """Return what goes into the response."""
        return {"sha256": self.sha256, "length": len(self.body), "path": self.path}


class ModelServer:
    """One simulated server.  `models` empty = it serves any name.

    Written by its own handlers: `received` (the last requests) and `counts` (per model name).
    `waiting`, `kv_cache_usage` and `token_delay_s` may be set by whoever owns it.
    """

    def __init__(
        self,
        name: str,
        *,
        models: frozenset[str] | set[str] = frozenset(),
        host: str = "127.0.0.1",
        port: int = 0,
        token_delay_s: float = 0.0,
    ) -> None:
        self.name = name
        self.models = frozenset(models)
        self.host = host
        self.port = port
        self.token_delay_s = token_delay_s
        self.waiting = 0
        self.running = 0
        self.kv_cache_usage = 0.0
        self.received: deque[Received] = deque(maxlen=REMEMBERED)
        self.counts: Counter[str] = Counter()
        self._runner: web.AppRunner | None = None

    @property
    def authority(self) -> str:
        """`host:port`, IPv6 in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop."""
        await self.stop()

    async def start(self) -> None:
        """Listen; `port` is then the real one, and stays the same when started again."""
        # The body is wanted as it came, so nothing may decompress it on the way.
        runner = web.AppRunner(
            self._application(), access_log=None, auto_decompress=False, shutdown_timeout=0.5
        )
        await runner.setup()
        await web.TCPSite(runner, self.host, self.port, backlog=1024).start()
        self.port = runner.addresses[0][1]
        self._runner = runner

    async def stop(self) -> None:
        """Refuse connections from now on."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=0)
        for path in APIS:
            application.router.add_post(path, self._generate)
        application.router.add_get("/v1/models", self._list_models)
        application.router.add_get("/health", self._health)
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/ws", self._echo)
        application.router.add_route("*", "/{tail:.*}", self._anything)
        return application

    async def _note(self, request: web.Request) -> Received:
        """Read the body and remember the request."""
        received = Received(
            request.method,
            request.raw_path,
            tuple(request.headers.items()),
            await request.read(),
        )
        self.received.append(received)
        return received

    def _headers(self, received: Received, model: str = "") -> dict[str, str]:
        return {
            "x-served-by": self.name,
            "x-served-model": model.encode("unicode_escape").decode()[:SHOWN_CHARACTERS],
            "x-body-sha256": received.sha256,
            "x-body-length": str(len(received.body)),
        }

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        received = await self._note(request)
        try:
            document = json.loads(decoded(received.body, request.headers))
            if not isinstance(document, dict):
                raise TypeError("not an object")
        except (ValueError, TypeError, OSError, zlib.error, RecursionError) as error:
            return self._refuse(400, f"invalid body: {error}", received)
        asked = replies.read(document, {**received.summary(), "server": self.name})
        if self.models and asked.model not in self.models:
            return self._refuse(404, f"model {asked.model!r} is not served here", received)
        self.counts[asked.model] += 1
        whole, streamed = APIS[request.path]
        self.running += 1
        try:
            if document.get("stream") is True and streamed is not None:
                return await self._stream(request, received, asked, streamed)
            await asyncio.sleep(self.token_delay_s)
            return web.json_response(whole(asked), headers=self._headers(received, asked.model))
        finally:
            self.running -= 1

    async def _stream(
        self, request: web.Request, received: Received, asked: replies.Asked, streamed: Streamed
    ) -> web.StreamResponse:
        headers = {**self._headers(received, asked.model), "content-type": "text/event-stream"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        for event in streamed(asked):
            await response.write(event)
            if self.token_delay_s:
                await asyncio.sleep(self.token_delay_s)
        await response.write_eof()
        return response

    def _refuse(self, status: int, message: str, received: Received) -> web.Response:
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        return web.json_response({"error": error}, status=status, headers=self._headers(received))

    async def _list_models(self, request: web.Request) -> web.Response:
        received = await self._note(request)
        data = [{"id": name, "object": "model", "created": 0} for name in sorted(self.models)]
        return web.json_response({"object": "list", "data": data}, headers=self._headers(received))

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(headers={"x-served-by": self.name})

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(text=self.exposition(), content_type="text/plain")

    async def _anything(self, request: web.Request) -> web.Response:
        """Say what came, whatever it was."""
        received = await self._note(request)
        return web.json_response(
            {"received": received.summary(), "server": self.name}, headers=self._headers(received)
        )

    async def _echo(self, request: web.Request) -> web.StreamResponse:
        """Send every websocket message back."""
        self.received.append(
            Received(request.method, request.raw_path, tuple(request.headers.items()), b"")
        )
        socket = web.WebSocketResponse(max_msg_size=0)
        socket.headers["x-served-by"] = self.name
        await socket.prepare(request)
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                await socket.send_str(message.data)
            elif message.type is WSMsgType.BINARY:
                await socket.send_bytes(message.data)
        return socket

    def exposition(self) -> str:
        """Return the metrics in Prometheus' text format, under vLLM's names."""
        label = f'{{engine="0",model_name="{min(self.models, default="any")}"}}'
        cache = f'{{block_size="{BLOCK_SIZE}",engine="0",num_gpu_blocks="{BLOCKS}"}}'
        rows = (
            ("num_requests_running", "Requests in execution.", label, self.running),
            ("num_requests_waiting", "Requests in the queue.", label, self.waiting),
            ("kv_cache_usage_perc", "KV cache in use, 1 = full.", label, self.kv_cache_usage),
            ("cache_config_info", "The cache's configuration.", cache, 1),
        )
        return "".join(
            f"# HELP vllm:{name} {about}\n# TYPE vllm:{name} gauge\n"
            f"vllm:{name}{labels} {float(value)}\n"
            for name, about, labels, value in rows
        )


def decoded(body: bytes, headers: Mapping[str, str]) -> bytes:
    """Undo the body's content-encoding."""
    match headers.get("content-encoding", "identity").lower():
        case "gzip":
            return gzip.decompress(body)
        case "deflate":
            return zlib.decompress(body)
        case _:
            return body


async def _serve(options: argparse.Namespace) -> None:
    server = ModelServer(
        options.name,
        models=set(options.model),
        host=options.host,
        port=options.port,
        token_delay_s=options.token_delay_s,
    )
    async with server:
        sys.stdout.write(f"{server.port}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main() -> None:
    """Run one model server until it is interrupted."""
    parser = argparse.ArgumentParser(description="A simulated model server; prints its port.")
    parser.add_argument("--name", default="model-server")
    parser.add_argument("--model", action="append", default=[], help="a name it serves; none = any")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token-delay-s", type=float, default=0.0)
    try:
        asyncio.run(_serve(parser.parse_args()))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
