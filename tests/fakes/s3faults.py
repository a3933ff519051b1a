"""A proxy in front of a real S3 server that breaks what it is told to, on the wire.

The client signs for the proxy's address, so the proxy passes the Host header on as it came: the
server behind it checks the same signature.  A request that the proxy changes, it signs itself.
"""

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode

import aiohttp
from aiohttp import web
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from yarl import URL

Matches = Callable[[web.Request], bool]


def gets_object(request: web.Request) -> bool:
    """Whether a request reads an object's bytes."""
    return request.method == "GET" and request.path.count("/") >= 2 and request.path[-1] != "/"


@dataclass
class Faults:
    """What the proxy does wrong.  Written by the test."""

    url: str
    ignore_range: bool = False
    """Answer 200 with everything, whatever range was asked for."""
    ignore_version: bool = False
    """Drop versionId from what is asked, as a careless cache in between would."""
    hide_version: bool = False
    """Drop x-amz-version-id from what is answered."""
    truncate: int | None = None
    """Send so many bytes of a body, then close the connection."""
    short_length: int | None = None
    """Send so many bytes of a body, with a Content-Length and a 206 that agree with that."""
    shift_range: bool = False
    """Answer with a range that begins one byte later."""
    flip: bool = False
    """Change one bit of every body."""
    status: int | None = None
    """Refuse with this status …"""
    code: str = ""
    """… and this code."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of the refusal."""
    reset: bool = False
    """Close the connection without an answer."""
    times: int = -1
    """How many requests to break; -1 = all of them."""
    only: Matches = gets_object
    seen: Counter[str] = field(default_factory=Counter)
    """Requests by method."""
    on_request: Callable[[web.Request], None] = lambda _request: None

    def take(self, request: web.Request) -> bool:
        """Return whether this request is to be broken, and count it."""
        if self.times == 0 or not self.only(request):
            return False
        self.times -= 1 if self.times > 0 else 0
        return True


@asynccontextmanager
async def serve_faults(
    upstream: str, keys: tuple[str, str], *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Faults]:
    """Serve the proxy on a free port of this machine."""
    session = aiohttp.ClientSession(auto_decompress=False)
    faults = Faults("")

    async def handle(request: web.Request) -> web.StreamResponse:
        faults.seen[request.method] += 1
        await asyncio.to_thread(faults.on_request, request)
        broken = faults.take(request)
        if broken and faults.reset:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if broken and faults.status is not None:
            return _refusal(faults)
        return await _forward(session, (upstream, *keys), request, faults, broken)

    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    faults.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    try:
        yield faults
    finally:
        await runner.cleanup()
        await session.close()


def _refusal(faults: Faults) -> web.Response:
    body = f"<Error><Code>{faults.code}</Code><Message>on purpose</Message></Error>"
    return web.Response(
        status=faults.status or 500,
        text=body if faults.code else "",
        content_type="application/xml",
        headers=faults.headers,
    )


async def _forward(
    session: aiohttp.ClientSession,
    server: tuple[str, str, str],
    request: web.Request,
    faults: Faults,
    broken: bool,
) -> web.StreamResponse:
    headers = dict(request.headers)
    url = f"{server[0]}{request.raw_path}"
    if broken and (faults.ignore_range or faults.ignore_version):
        url, headers = _changed(request.method, url, headers, faults, Credentials(*server[1:]))
    async with session.request(
        request.method,
        URL(url, encoded=True),
        headers=headers,
        data=await request.read(),
        skip_auto_headers=["User-Agent", "Content-Type"],
    ) as answer:
        body = await answer.read()
        return await _answer(request, answer, body, faults if broken else Faults(""))


def _changed(
    method: str, url: str, headers: dict[str, str], faults: Faults, keys: Credentials
) -> tuple[str, dict[str, str]]:
    """Return the request without its range or its versionId, signed anew."""
    path, _, query = url.partition("?")
    if faults.ignore_version:
        query = urlencode([pair for pair in parse_qsl(query) if pair[0] != "versionId"])
    again = AWSRequest(method, f"{path}?{query}" if query else path)
    if "Range" in headers and not faults.ignore_range:
        again.headers["Range"] = headers["Range"]
    S3SigV4Auth(keys, "s3", "us-east-1").add_auth(again)
    return str(again.url), {**dict(again.headers), "Accept-Encoding": "identity"}


async def _answer(
    request: web.Request, answer: aiohttp.ClientResponse, body: bytes, faults: Faults
) -> web.StreamResponse:
    headers = answer.headers.copy()
    for name in ("Transfer-Encoding", "Connection", "Keep-Alive"):
        headers.pop(name, None)
    if faults.hide_version:
        headers.pop("x-amz-version-id", None)
    if faults.shift_range and "Content-Range" in headers:
        headers["Content-Range"] = headers["Content-Range"].replace("bytes ", "bytes 1")
    if faults.flip and body:
        body = bytes([body[0] ^ 1]) + body[1:]
    if faults.short_length is not None:
        body = body[: faults.short_length]
        headers["Content-Length"] = str(len(body))
    response = web.StreamResponse(status=answer.status, headers=headers)
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        if faults.truncate is not None and len(body) > faults.truncate:
            await response.write(body[: faults.truncate])
            assert request.transport is not None
            request.transport.close()
            return response
        if request.method != "HEAD":
            await response.write(body)
        await response.write_eof()
    return response
