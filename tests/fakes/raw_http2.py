"""An HTTP/2 client that sends exactly the frames it is told to, right or wrong."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE = range(9)
CONTINUATION = 9
ACK = END_STREAM = 1
END_HEADERS = 4

Fields = list[tuple[str, str]]


class Frame(NamedTuple):
    """A frame as it came."""

    kind: int
    flags: int
    stream: int
    payload: bytes
    fields: dict[str, str]
    """What a HEADERS frame says; decoding it is due for every one, in order."""


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """A frame as it goes out."""
    return (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
    )


def message(payload: bytes) -> bytes:
    """A gRPC message."""
    return b"\0" + len(payload).to_bytes(4, "big") + payload


def settings(values: dict[int, int]) -> bytes:
    """A SETTINGS frame."""
    payload = b"".join(k.to_bytes(2, "big") + v.to_bytes(4, "big") for k, v in values.items())
    return frame(SETTINGS, payload=payload)


class RawHttp2:
    """The connection.  Frames are written at once and read one by one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.authority = "test"
        self.next_stream = 1
        self._encoder = hpack.Encoder()
        self._decoder = hpack.Decoder()

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def greet(self, values: dict[int, int] | None = None) -> None:
        """Preface, SETTINGS, and the acknowledgement of the server's."""
        self.write(PREFACE + settings(values or {}))
        first = await self.frame()
        assert first.kind == SETTINGS

    def block(self, path: str, more: Fields | None = None) -> bytes:
        """The headers of a call."""
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", self.authority),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            *(more or []),
        ]
        return self.encode(fields)

    def open(self, path: str, more: Fields | None = None, *, end: bool = False) -> int:
        """Begin a call; returns its stream."""
        stream, self.next_stream = self.next_stream, self.next_stream + 2
        flags = END_HEADERS | (END_STREAM if end else 0)
        self.write(frame(HEADERS, flags, stream, self.block(path, more)))
        return stream

    def encode(self, fields: Fields) -> bytes:
        """A block of headers."""
        return bytes(self._encoder.encode(fields, huffman=False))

    def request(self, fields: Fields, *, end: bool = True) -> int:
        """Begin a request that is whatever the fields say."""
        stream, self.next_stream = self.next_stream, self.next_stream + 2
        block = self.encode(fields)
        self.write(frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, block))
        return stream

    def data(self, stream: int, data: bytes, *, end: bool = False) -> None:
        self.write(frame(DATA, END_STREAM if end else 0, stream, data))

    def reset(self, stream: int) -> None:
        self.write(frame(RST_STREAM, 0, stream, (8).to_bytes(4, "big")))

    async def frame(self) -> Frame:
        """The next frame; raises when the connection has ended."""
        head = await self.reader.readexactly(9)
        payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
        kind, flags = head[3], head[4]
        if kind == SETTINGS and not flags & ACK:
            self.write(frame(SETTINGS, ACK))
        fields: dict[str, str] = {}
        if kind == HEADERS:
            fields = {str(name): str(value) for name, value in self._decoder.decode(payload)}
        return Frame(kind, flags, int.from_bytes(head[5:], "big"), payload, fields)

    async def response(self, stream: int) -> tuple[dict[str, str], bytes]:
        """All headers and trailers of a stream, and its data, until its end."""
        fields: dict[str, str] = {}
        data = b""
        while True:
            got = await self.frame()
            if got.stream == stream and got.kind == HEADERS:
                fields.update(got.fields)
            elif got.stream == stream and got.kind == DATA:
                data += got.payload
            elif got.stream == stream and got.kind == RST_STREAM:
                return {**fields, "reset": str(int.from_bytes(got.payload, "big"))}, data
            if got.stream == stream and got.kind in (DATA, HEADERS) and got.flags & END_STREAM:
                return fields, data

    async def until_closed(self) -> list[Frame]:
        """Everything that still comes before the connection ends."""
        frames = []
        try:
            while True:
                frames.append(await self.frame())
        except (asyncio.IncompleteReadError, ConnectionError):
            return frames


@asynccontextmanager
async def connect(port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[RawHttp2]:
    """Connect, without a greeting."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    try:
        yield RawHttp2(reader, writer)
    finally:
        writer.transport.abort()
