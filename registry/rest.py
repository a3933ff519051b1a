"""HTTP to a registry: one request, one whole answer or one named error."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from registry.errors import (
    RegistryConflict,
    RegistryMalformed,
    RegistryNotFound,
    RegistryRefused,
    RegistryUnauthorized,
    RegistryUnavailable,
)
from registry.model import Json


@dataclass(frozen=True, slots=True)
class Address:
    """Where a registry is and how it is spoken to."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None
    timeout_s: float = 5.0
    concurrency: int = 16


class Rest:
    """The requests to one registry.  `requests` counts what was sent."""

    def __init__(self, address: Address, session: aiohttp.ClientSession) -> None:
        self.address = address
        self.requests = 0
        self._session = session
        self._slots = asyncio.Semaphore(address.concurrency)

    async def send(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        query: Mapping[str, str] | None = None,
        *,
        expect_json: bool = True,
    ) -> Any:
        """Return the answer's JSON; redirects are refused, they lead to a login page."""
        what = f"{method} {path}"
        try:
            async with self._slots, asyncio.timeout(self.address.timeout_s):
                self.requests += 1
                async with self._session.request(
                    method,
                    self.address.url.rstrip("/") + path,
                    json=body,
                    params=query,
                    headers=self._headers(),
                    allow_redirects=False,
                ) as response:
                    await _check(response, what)
                    return await response.json(content_type=None) if expect_json else None
        except TimeoutError as error:
            raise RegistryUnavailable(f"{what}: no answer in {self.address.timeout_s} s") from error
        except aiohttp.ClientPayloadError as error:
            raise RegistryMalformed(f"{what}: the answer was cut") from error
        except aiohttp.ClientError as error:
            raise RegistryUnavailable(f"{what}: {error}") from error
        except (ValueError, RecursionError) as error:
            raise RegistryMalformed(f"{what}: the answer is not JSON") from error

    def _headers(self) -> dict[str, str]:
        if self.address.token_file is None:
            return {}
        try:  # read each time: the kubelet rotates it
            token = self.address.token_file.read_text(encoding="ascii").strip()
        except OSError as error:
            raise RegistryUnauthorized(
                f"{self.address.token_file}: {error.strerror}; fix --model-registry-token-file"
            ) from error
        except ValueError:
            token = ""
        if not token.isprintable() or not token or " " in token:
            raise RegistryUnauthorized(
                f"{self.address.token_file}: holds no bearer token; fix --model-registry-token-file"
            )
        return {"Authorization": f"Bearer {token}"}


@asynccontextmanager
async def connect_rest(address: Address) -> AsyncIterator[Rest]:
    """Open a session with a registry."""
    context: ssl.SSLContext | bool = True
    if address.ca_file is not None:
        try:
            context = ssl.create_default_context(cafile=str(address.ca_file))
        except OSError as error:  # an SSLError is one
            raise RegistryUnavailable(
                f"{address.ca_file}: cannot be read as a bundle; fix --model-registry-ca-file"
            ) from error
    connector = aiohttp.TCPConnector(ssl=context, limit=address.concurrency)
    timeout = aiohttp.ClientTimeout(total=None)  # each request has its own, with its name in it
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield Rest(address, session)


def has_certificates(path: Path) -> bool:
    """Whether a file is a CA bundle."""
    try:
        ssl.create_default_context(cafile=str(path))
    except OSError:
        return False
    return True


async def _check(response: aiohttp.ClientResponse, what: str) -> None:
    if response.status < 300:
        return
    message = f"{what}: {response.status} {await _message(response)}".strip()
    match response.status:
        case 401 | 403 | 301 | 302 | 303 | 307 | 308:
            raise RegistryUnauthorized(message)
        case 404 | 405 | 501 if what.startswith("PATCH") or response.status == 404:
            raise RegistryNotFound(message)
        case 409:
            raise RegistryConflict(message)
        case 408 | 425 | 429:
            raise RegistryUnavailable(message)
        case status if status < 500:
            raise RegistryRefused(message)
        case _:
            raise RegistryUnavailable(message)


async def _message(response: aiohttp.ClientResponse) -> str:
    try:
        answer = await response.json(content_type=None)
    except (ValueError, aiohttp.ClientError):
        return ""
    return str(answer.get("message", ""))[:200] if isinstance(answer, dict) else ""
