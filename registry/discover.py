"""Which registry a namespace listens to: the one that was named, or the Service that is one.

The namespace's own Service goes before one elsewhere in the cluster.  Two are none: which of them
to obey cannot be guessed.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from registry.client import RegistryClient, connect
from registry.cluster import Cluster
from registry.errors import RegistryNotConfigured
from registry.model import Policy, Resource
from registry.resolve import Resolver
from registry.rest import Address

LABELS = "component=model-registry"
PORT_NAMES = ("http-api", "https-api")
KEEP_S = 60.0


@dataclass(frozen=True, slots=True)
class Registry:
    """A registry and what was asked of it lately."""

    client: RegistryClient
    resolver: Resolver


class Registries:
    """The registries in use.  Sessions stay open until the stack that was given closes."""

    def __init__(
        self,
        address: Address,
        policy: Policy,
        cluster: Cluster,
        stack: AsyncExitStack,
        *,
        ttl_s: float,
        limit_s: float,
    ) -> None:
        self._address = address
        self._policy = policy
        self._cluster = cluster
        self._stack = stack
        self._ttl_s, self._limit_s = ttl_s, limit_s
        self._by_url: dict[str, Registry] = {}
        self._found: dict[str, tuple[float, str]] = {}

    @property
    def open(self) -> Sequence[Registry]:
        """The registries that were needed so far."""
        return tuple(self._by_url.values())

    async def of(self, namespace: str) -> Registry:
        """Return the registry of a namespace; RegistryNotConfigured where there is not one."""
        url = self._address.url or await self._url_of(namespace)
        if url not in self._by_url:
            address = replace(self._address, url=url)
            client = await self._stack.enter_async_context(connect(address))
            resolver = Resolver(client, self._policy, ttl_s=self._ttl_s, limit_s=self._limit_s)
            self._by_url[url] = Registry(client, resolver)
        return self._by_url[url]

    async def _url_of(self, namespace: str) -> str:
        now = asyncio.get_running_loop().time()
        at, url = self._found.get(namespace, (0.0, ""))
        if not url or now - at > KEEP_S:
            services = await self._cluster.services(namespace, LABELS)
            services = services or await self._cluster.services("", LABELS)
            url = service_url(namespace, services)
            self._found[namespace] = (now, url)
        return url


def service_url(namespace: str, services: Sequence[Resource]) -> str:
    """Return the address of the one registry among these Services."""
    fix = "set --model-registry-url"
    if not services:
        raise RegistryNotConfigured(f"no Service with label {LABELS} for {namespace}; {fix}")
    if len(services) > 1:
        found = ", ".join(f"{s.body['metadata'].get('namespace')}/{s.name}" for s in services)
        raise RegistryNotConfigured(f"several registries for {namespace} ({found}); {fix}")
    service = services[0]
    ports = (service.body.get("spec") or {}).get("ports") or []
    named = [port for port in ports if port.get("name") in PORT_NAMES] or ports
    if len(named) != 1:
        raise RegistryNotConfigured(f"Service {service.name} has no port {PORT_NAMES[0]!r}; {fix}")
    scheme = "https" if named[0].get("name") == "https-api" else "http"
    where = service.body["metadata"].get("namespace", namespace)
    return f"{scheme}://{service.name}.{where}.svc:{named[0]['port']}"
