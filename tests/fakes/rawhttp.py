"""HTTP/1.1 at its barest, for thousands of requests a second: a counting server and a client.

Neither is correct in general; both are for small requests between a test and Envoy.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from typing import Self
from urllib.parse import urlsplit

_MODEL = re.compile(rb'"model": ?"([^"]*)"')
_LENGTH = re.compile(rb"content-length: ?(\d+)", re.IGNORECASE)
_REPLY = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class CountingServer:
    """Answers `{}` and counts the model names that it was asked for."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.port = 0
        self._server: asyncio.Server

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Served(self.counts), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._server.close()


class _Served(asyncio.Protocol):
    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._data = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._is_whole():
            found = _MODEL.search(self._data)
            self._counts[found[1].decode() if found else ""] += 1
            self._data = b""
            self._transport.write(_REPLY)

    def _is_whole(self) -> bool:
        head, end, body = self._data.partition(b"\r\n\r\n")
        if not end:
            return False
        length = _LENGTH.search(head)
        return len(body) >= int(length[1]) if length else body.endswith(b"0\r\n\r\n")


class HastyServer(asyncio.Protocol):
    """Answers 413 with `BODY` at the first bytes of a request, and reads on."""

    BODY = b"too much " * 400

    def __init__(self, connections: list[asyncio.Transport]) -> None:
        self._answered = False
        self._connections = connections
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.append(transport)

    def data_received(self, data: bytes) -> None:
        if not self._answered:
            self._answered = True
            head = b"HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
            self._transport.write(head % len(self.BODY) + self.BODY)


class _Client(asyncio.Protocol):
    """Sends one request after the other; `statuses` are what it got."""

    def __init__(self, requests: Sequence[bytes], statuses: Counter[int], stop_at: float) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests = iter(requests)
        self._statuses = statuses
        self._stop_at = stop_at
        self._data = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._next()

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if end and length and len(body) >= int(length[1]):
            self._statuses[int(head[9:12])] += 1
            self._data = b""
            self._next()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionResetError("closed between two requests"))

    def _next(self) -> None:
        request = next(self._requests, None)
        if request is None or self.done.get_loop().time() > self._stop_at:
            self.done.set_result(None)
            self._transport.close()
        else:
            self._transport.write(request)


async def post_many(
    url: str,
    bodies: Sequence[bytes],
    *,
    connections: int,
    within_s: float,
    path: str = "/v1/completions",
) -> Counter[int]:
    """POST the bodies over so many connections at once; return how often each status came.

    What is not sent within the time is left out.
    """
    parts = urlsplit(url)
    requests = [
        b"POST %b HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (path.encode(), len(body), body)
        for body in bodies
    ]
    statuses: Counter[int] = Counter()
    loop = asyncio.get_running_loop()
    stop_at = loop.time() + within_s
    clients = []
    for i in range(connections):
        share = requests[i::connections]
        _, client = await loop.create_connection(
            lambda share=share: _Client(share, statuses, stop_at),  # type: ignore[misc]  # bound now
            parts.hostname or "",
            parts.port or 80,
        )
        clients.append(client)
    await asyncio.gather(*(client.done for client in clients))
    return statuses
