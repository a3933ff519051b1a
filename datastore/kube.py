"""The Kubernetes API as we use it: raw bodies in, errors by what can be done about them.

kubernetes-asyncio does authentication, TLS and the HTTP request; its models, its watch and its
retries are not used: the models cost more than the rest of an event's way together, and the watch
loses its place (see `watch` for what a correct one does).
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import msgspec
from kubernetes_asyncio import client

from datastore.kube_auth import Identity, Where
from datastore.kube_errors import Call, KubeError, Unavailable
from datastore.kube_http import Ask, Http
from datastore.manifests import Resource

Json = dict[str, Any]
Query = Mapping[str, str]

MAX_LINE_BYTES = 256 * 2**20
"""etcd holds 1.5 MB an object by default; beyond this a line is an attack, not an object."""

_MERGE = "application/merge-patch+json"
_APPLY = "application/apply-patch+yaml"


class _PageMeta(msgspec.Struct):
    resourceVersion: str = ""  # noqa: N815 - as the API spells it
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    metadata: _PageMeta
    items: list[msgspec.Raw] | None = None


_PAGE = msgspec.json.Decoder(_Page)


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list: its objects as they came, and the revision of the whole list."""

    items: list[msgspec.Raw]
    version: str
    is_last: bool


class KubeClient:
    """One API server, as one user.  `namespace` is our own."""

    def __init__(self, identity: Identity, *, timeout_s: float = 30.0) -> None:
        self._http = Http(identity, timeout_s=timeout_s)

    @classmethod
    async def connect(cls, where: Where, *, timeout_s: float = 30.0) -> Self:
        """Read the configuration (NoCluster if there is none); nothing is sent yet."""
        identity = Identity(where)
        await identity.load(asyncio.get_running_loop().time())
        return cls(identity, timeout_s=timeout_s)

    @property
    def namespace(self) -> str:
        """The namespace of our service account, or of the kubeconfig's context."""
        return self._http.identity.namespace

    @property
    def api_client(self) -> client.ApiClient:
        """The client of kubernetes-asyncio, for what it does well (leases)."""
        return self._http.api

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._http.api.close()

    # Reading

    async def list_pages(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        limit: int = 500,
    ) -> AsyncGenerator[Page, None]:
        """Yield the pages of a consistent list; Gone if it took too long.

        An empty namespace means all of them.
        """
        token = ""
        while True:
            query = _selectors(labels, fields) | {"limit": str(limit)}
            if token:
                query["continue"] = token
            call = Call("list", resource, namespace)
            body = await self._http.read(Ask("GET", call, query))
            try:
                page = _PAGE.decode(body)
            except (ValueError, RecursionError) as error:
                raise Unavailable(f"{call}: the list is not readable: {error}") from error
            token = page.metadata.continue_
            yield Page(page.items or [], page.metadata.resourceVersion, not token)
            if not token:
                return

    async def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        query: Query,
        idle_s: float,
    ) -> AsyncGenerator[list[bytes], None]:
        """Yield what a watch says, the complete lines of each chunk; the first is empty.

        The empty one comes when the server has accepted the watch.  Returns when the server ends it
        between two lines; Unavailable when it breaks off within one, or is silent for `idle_s`.
        """
        call = Call("watch", resource, namespace)
        wanted = _selectors(labels, fields) | {"watch": "true"} | dict(query)
        rest: list[bytes] = []
        size = 0
        async with aclosing(self._http.stream(Ask("GET", call, wanted), idle_s=idle_s)) as chunks:
            async for chunk in chunks:
                head, newline, tail = chunk.rpartition(b"\n")
                size = len(tail) + (0 if newline else size)
                if size > MAX_LINE_BYTES:
                    raise Unavailable(f"{call}: a line of more than {MAX_LINE_BYTES} bytes")
                if newline:
                    yield b"".join([*rest, head]).split(b"\n")
                    rest = [tail] if tail else []
                elif chunk:
                    rest.append(chunk)
                else:
                    yield []
        if rest:
            raise Unavailable(f"{call}: broke off in the middle of a line")

    async def get(self, resource: Resource, namespace: str, name: str) -> Json:
        """Return an object; NotFound if there is none."""
        return await self._json("GET", Call("get", resource, namespace, name))

    async def exists(self, resource: Resource) -> bool:
        """Tell whether the API server has this kind of object."""
        root = f"/apis/{resource.group}" if resource.group else "/api"
        call = Call("get", resource)
        try:
            found = await self._http.read(Ask("GET", call, path=f"{root}/{resource.version}"))
        except KubeError as error:
            if error.status == 404:
                return False
            raise
        rows = msgspec.json.decode(found).get("resources", ())
        return any(row.get("name") == resource.plural for row in rows)

    # Writing

    async def create(self, resource: Resource, namespace: str, obj: Json) -> Json:
        """Create an object; AlreadyExists if it is there."""
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **obj}
        return await self._json("POST", Call("create", resource, namespace), body)

    async def replace(self, resource: Resource, namespace: str, name: str, obj: Json) -> Json:
        """Replace an object; Conflict if its resourceVersion is not the current one."""
        return await self._json("PUT", Call("update", resource, namespace, name), obj)

    async def apply(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        obj: Json,
        *,
        manager: str,
        force: bool = False,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Json:
        """Apply (server-side) what this manager wants; Conflict if others own it, without force."""
        query = {"fieldManager": manager}
        if force:
            query["force"] = "true"
        if dry_run:
            query["dryRun"] = "All"
        call = Call("patch", resource, namespace, name, subresource)
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **obj}
        return await self._json("PATCH", call, body, query, _APPLY)

    async def patch(
        self, resource: Resource, namespace: str, name: str, obj: Json, *, subresource: str = ""
    ) -> Json:
        """Merge a patch into an object or its subresource."""
        call = Call("patch", resource, namespace, name, subresource)
        return await self._json("PATCH", call, obj, {}, _MERGE)

    async def delete(self, resource: Resource, namespace: str, name: str, *, uid: str = "") -> None:
        """Delete an object; Conflict if its uid is another."""
        call = Call("delete", resource, namespace, name)
        body = {"preconditions": {"uid": uid}} if uid else None
        await self._json("DELETE", call, body)

    async def _json(
        self,
        method: str,
        call: Call,
        body: Json | None = None,
        query: Query | None = None,
        content_type: str = "application/json",
    ) -> Json:
        data = await self._http.read(Ask(method, call, query or {}, body, content_type))
        try:
            found: Json = msgspec.json.decode(data)
        except ValueError as error:
            raise Unavailable(f"{call}: the answer is not readable: {error}") from error
        return found


def _selectors(labels: str, fields: str) -> dict[str, str]:
    query = {"labelSelector": labels, "fieldSelector": fields}
    return {key: value for key, value in query.items() if value}
