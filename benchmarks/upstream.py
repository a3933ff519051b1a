"""Model servers that cost next to nothing: `python -m benchmarks.upstream N` serves N of them.

Each answers any request at once with the same small JSON, and /metrics in vLLM's format.
"""

import argparse
import asyncio
from typing import cast

import uvloop

_JSON = b'{"id":"1","object":"chat.completion","choices":[{"message":{"content":"ok"}}]}'
_PAGE = (
    b'vllm:num_requests_running{model_name="m"} 1.0\n'
    b'vllm:num_requests_waiting{model_name="m"} 0.0\n'
    b'vllm:kv_cache_usage_perc{model_name="m"} 0.25\n'
)


def _response(content_type: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (content_type, len(body)) + body


_ANSWER = _response(b"application/json", _JSON)
_METRICS = _response(b"text/plain; version=0.0.4", _PAGE)


class _Server(asyncio.Protocol):
    """One connection; requests come one after the other."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0
        self._chunked = False
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._chunked:
            self._tail = (self._tail + data)[-5:]
            if self._tail == b"0\r\n\r\n":
                self._chunked = False
                self._transport.write(_ANSWER)
        elif self._left:
            self._left -= len(data)
            if self._left <= 0:
                self._left = 0
                self._transport.write(_ANSWER)
        else:
            self._begin(data)

    def _begin(self, data: bytes) -> None:
        self._head += data
        head, end, body = self._head.partition(b"\r\n\r\n")
        if not end:
            return
        self._head = b""
        lower = head.lower()
        if lower.startswith(b"get /metrics"):
            self._transport.write(_METRICS)
            return
        self._chunked = b"transfer-encoding: chunked" in lower
        if self._chunked:
            self._tail = b""
            if body:
                self.data_received(body)
            return
        _, found, length = lower.partition(b"\r\ncontent-length:")
        self._left = int(length.partition(b"\r\n")[0]) - len(body) if found else 0
        if self._left <= 0:
            self._left = 0
            self._transport.write(_ANSWER)


async def _serve(count: int) -> None:
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(_Server, "127.0.0.1", 0) for _ in range(count)]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(parser.parse_args().count))


if __name__ == "__main__":
    main()
