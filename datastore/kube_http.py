"""One HTTP request to an API server: signed, timed, and its failures named.

Over the connections of kubernetes-asyncio.  Every way in which a request can fail leaves here as
a `KubeError`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
from kubernetes_asyncio import client

from datastore.kube_auth import Identity
from datastore.kube_errors import Call, KubeError, Unauthorized, Unavailable, refusal

CHUNK_BYTES = 2**16
"""What is handled at once.  kubernetes-asyncio's own calls read up to 4 MB ahead of us, and cutting
those into lines takes 30 ms: that is why its connections are used here, and not its calls."""

_FAILURES = (aiohttp.ClientError, TimeoutError, OSError)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to be sent.  `path` overrides the path that its call implies."""

    method: str
    call: Call
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    content_type: str = "application/json"
    path: str = ""


class Http:
    """The connections to one API server, as one user."""

    def __init__(self, identity: Identity, *, timeout_s: float) -> None:
        self.identity = identity
        self.api = client.ApiClient(identity.configuration)
        self.timeout_s = timeout_s

    async def read(self, ask: Ask) -> bytes:
        """Send a request and return the body of its answer."""
        async with self._answer(ask, aiohttp.ClientTimeout(total=self.timeout_s)) as response:
            try:
                return await response.read()
            except _FAILURES as error:
                raise _unavailable(ask.call, error) from error

    async def stream(self, ask: Ask, *, idle_s: float) -> AsyncGenerator[bytes, None]:
        """Send a request and yield the answer as it arrives; the first chunk is empty.

        The empty one comes with the headers.  Unavailable after a silence of `idle_s`.
        """
        limits = aiohttp.ClientTimeout(total=None, sock_connect=self.timeout_s, sock_read=idle_s)
        async with self._answer(ask, limits) as response:
            yield b""
            try:
                async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                    yield chunk
            except _FAILURES as error:
                raise _unavailable(ask.call, error) from error

    @asynccontextmanager
    async def _answer(
        self, ask: Ask, limits: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send; once more with a fresh token if the first was refused."""
        now = asyncio.get_running_loop().time
        for is_last in (False, True):
            await self.identity.refresh(now(), refused=is_last)
            try:
                response = await self._send(ask, limits)
            except _FAILURES as error:
                raise _unavailable(ask.call, error) from error
            async with response:
                if response.status < 300:
                    yield response
                    return
                refused = await _refusal_of(response, ask.call)
            if is_last or not isinstance(refused, Unauthorized):
                raise refused

    async def _send(self, ask: Ask, limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json", "Content-Type": ask.content_type}
        await self.api.update_params_for_auth(headers, [], ["BearerToken"])
        rest = self.api.rest_client
        return await rest.pool_manager.request(
            ask.method,
            f"{self.identity.configuration.host}{ask.path or path_of(ask.call)}",
            params=dict(ask.query),
            headers=headers,
            data=None if ask.body is None else msgspec.json.encode(ask.body),
            timeout=limits,
            read_bufsize=CHUNK_BYTES,
            proxy=rest.proxy,
            proxy_headers=rest.proxy_headers,
            server_hostname=rest.server_hostname,
        )


def path_of(call: Call) -> str:
    """Return the path of a call."""
    resource = call.resource
    root = f"/apis/{resource.group}" if resource.group else "/api"
    parts = [root, resource.version]
    if call.namespace:
        parts += ["namespaces", quote(call.namespace, safe="")]
    parts.append(resource.plural)
    if call.name:
        parts.append(quote(call.name, safe=""))
    if call.subresource:
        parts.append(call.subresource)
    return "/".join(parts)


async def _refusal_of(response: aiohttp.ClientResponse, call: Call) -> KubeError:
    try:
        body = await response.read()
    except _FAILURES as error:
        return _unavailable(call, error)
    return refusal(response.status, body, call, response.headers.get("Retry-After"))


def _unavailable(call: Call, error: BaseException) -> Unavailable:
    what = str(error) or type(error).__name__
    return Unavailable(f"{call}: no answer from the API server: {what}")
