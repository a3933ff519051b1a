"""An HTTP/2 client with prior knowledge, for what aiohttp cannot send: HTTP/2, and trailers."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

import h2.config
import h2.connection
import h2.events

from tests.e2e.world import Reply


@dataclass(slots=True)
class _Exchange:
    done: asyncio.Future[Reply]
    window: asyncio.Event = field(default_factory=asyncio.Event)
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)


class Http2Client:
    """One connection; `ask` may be called many times at once."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self._connection = h2.connection.H2Connection(config)
        self._exchanges: dict[int, _Exchange] = {}
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._reading: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        self._connection.initiate_connection()
        self._connection.increment_flow_control_window(16 * 1024 * 1024)
        self._flush()
        self._reading = asyncio.ensure_future(self._read())
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._writer.close()
        await self._writer.wait_closed()

    async def ask(
        self,
        body: bytes,
        *,
        path: str = "/v1/chat/completions",
        trailers: Sequence[tuple[str, str]] = (),
        end_with_empty_frame: bool = False,
    ) -> Reply:
        """POST a body; it ends in trailers, in an empty frame, or in its last one."""
        stream = self._connection.get_next_available_stream_id()
        head = [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", f"{self._host}:{self._port}"),
            (":path", path),
        ]
        self._connection.send_headers(stream, head)
        exchange = _Exchange(asyncio.get_running_loop().create_future())
        self._exchanges[stream] = exchange
        separate_end = bool(trailers) or end_with_empty_frame
        await self._send(stream, exchange, body, end=not separate_end)
        if trailers:
            self._connection.send_headers(stream, list(trailers), end_stream=True)
        elif end_with_empty_frame:
            self._connection.send_data(stream, b"", end_stream=True)
        self._flush()
        async with asyncio.timeout(20):
            return await exchange.done

    async def _send(self, stream: int, exchange: _Exchange, body: bytes, *, end: bool) -> None:
        rest = memoryview(body)
        while rest:
            room = min(
                self._connection.local_flow_control_window(stream),
                self._connection.max_outbound_frame_size,
                len(rest),
            )
            if not room:
                exchange.window.clear()
                self._flush()
                await exchange.window.wait()
                continue
            piece, rest = rest[:room], rest[room:]
            self._connection.send_data(stream, bytes(piece), end_stream=end and not rest)
        self._flush()

    def _flush(self) -> None:
        self._writer.write(self._connection.data_to_send())

    async def _read(self) -> None:
        while data := await self._reader.read(65_536):
            for event in self._connection.receive_data(data):
                self._take(event)
            self._flush()

    def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                for exchange in self._exchanges.values():
                    exchange.window.set()
            case h2.events.ResponseReceived():
                fields = {str(name): str(value) for name, value in event.headers}
                self._exchanges[event.stream_id].headers.update(fields)
            case h2.events.DataReceived():
                self._exchanges[event.stream_id].body += event.data
                self._connection.acknowledge_received_data(
                    event.flow_controlled_length, event.stream_id
                )
            case h2.events.StreamEnded():
                self._end(self._exchanges.pop(event.stream_id))
            case h2.events.StreamReset():
                exchange = self._exchanges.pop(event.stream_id)
                if not exchange.done.done():
                    exchange.done.set_exception(ConnectionResetError(str(event.error_code)))
            case _:
                pass

    def _end(self, exchange: _Exchange) -> None:
        if not exchange.done.done():
            status = int(exchange.headers.get(":status", "0"))
            exchange.done.set_result(Reply(status, exchange.headers, bytes(exchange.body)))
