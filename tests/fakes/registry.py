"""A model registry for tests and demos: real HTTP, state in memory, the quirks as switches.

    async with FakeRegistry(Quirks(api="v1alpha1", page_cap=20)) as registry:
        model = registry.add("registered_models", name="mnist")
        ... RegistryClient at registry.url
        registry.faults.append(Fault("404"))

`log` holds every request, `requests` counts them; `on_answer` sees every 2xx answer.
"""

import asyncio
import base64
import ssl
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from tests.fakes.registry_faults import Fault, distort, refuse, strike
from tests.fakes.registry_store import Json, Quirks, Refusal, Store

CHILDREN = {
    ("registered_models", "versions"): "model_versions",
    ("model_versions", "artifacts"): "model_artifacts",
    ("serving_environments", "inference_services"): "inference_services",
    ("inference_services", "serves"): "serves",
}
SINGULAR = {
    "registered_model": "registered_models",
    "model_version": "model_versions",
    "model_artifact": "model_artifacts",
    "serving_environment": "serving_environments",
    "inference_service": "inference_services",
}


class FakeRegistry:
    """One registry on loopback."""

    def __init__(
        self,
        quirks: Quirks | None = None,
        *,
        token: str = "",
        on_answer: Callable[[str, str, Json], None] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.quirks = quirks or Quirks()
        self.store = Store(self.quirks)
        self.token = token
        self.faults: list[Fault] = []
        self.log: list[tuple[str, str, Any]] = []
        self.port = 0
        self.delay_s = 0.0
        self._on_answer = on_answer
        self._tls = tls
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        await self.up()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.down()

    async def up(self) -> None:
        """Listen, on the same port as before if there was one."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, "127.0.0.1", self.port, reuse_address=True, ssl_context=self._tls
        )
        await site.start()
        server = site._server
        assert isinstance(server, asyncio.Server)
        self.port = server.sockets[0].getsockname()[1]

    async def down(self) -> None:
        """Stop listening; the state stays."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def requests(self) -> Counter[tuple[str, str]]:
        """How often each method and path was asked."""
        return Counter((method, path) for method, path, _ in self.log)

    @property
    def writes(self) -> list[tuple[str, str, Any]]:
        """The requests that were not GETs."""
        return [entry for entry in self.log if entry[0] != "GET"]

    def add(self, kind: str, parent: str = "", **fields: Any) -> Json:
        """Store an entity without HTTP; `parent` is the id of a version or of an intent."""
        return self.store.create(kind, fields, parent)

    def change(self, kind: str, identifier: str, **fields: Any) -> Json:
        """Change an entity without HTTP and without the traps of PATCH."""
        item = self.store.get(kind, identifier)
        item |= fields
        return item

    def serves(self, intent_id: str) -> list[Json]:
        """Return the records of an intent."""
        return self.store.children("serves", intent_id)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        self.log.append((request.method, request.path, body))
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        fault = next((f for f in self.faults if f.hits(request.method, request.path)), None)
        if fault is not None and fault.kind not in ("short", "not-a-list", "cut", "lost"):
            return await strike(fault)
        try:
            status, answer = self._route(request, body)
        except Refusal as refusal:
            return refuse(refusal.status, refusal.message)
        answer = self._spelled(answer)
        if fault is not None:
            return await distort(fault, request, answer)
        if self._on_answer is not None:
            self._on_answer(request.method, request.path, answer)
        return web.json_response(answer, status=status)

    def _route(self, request: web.Request, body: Any) -> tuple[int, Any]:
        if request.path in ("/readyz/health", "/readyz/isDirty"):
            return 200, {"status": "ok"}
        prefix = f"/api/model_registry/{self.quirks.api}/"
        if not request.path.startswith(prefix):
            raise Refusal(404, "page not found")
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            raise Refusal(401, "the token is not valid")
        parts = request.path.removeprefix(prefix).split("/")
        if parts[0] not in SINGULAR and (parts[0] not in self.store.kinds or parts[0] == "serves"):
            raise Refusal(404, "page not found")
        match request.method:
            case "GET":
                return 200, self._get(request, parts)
            case "POST":
                return 201, self._post(parts, body)
            case "PATCH":
                return 200, self._patch(parts, body)
            case _:
                raise Refusal(405, "method not allowed")

    def _get(self, request: web.Request, parts: list[str]) -> Json:
        match parts:
            case [kind] if kind in SINGULAR:
                name, parent = request.query.get("name", ""), self._parent_query(request)
                return self.store.find(SINGULAR[kind], name, parent)
            case [kind]:
                return self._page(request, self.store.children(kind))
            case [kind, identifier]:
                return self.store.get(kind, identifier)
            case [kind, identifier, child] if (kind, child) in CHILDREN:
                self.store.get(kind, identifier)
                children = self.store.children(CHILDREN[kind, child], identifier)
                return self._page(request, children)
        raise Refusal(404, "page not found")

    def _post(self, parts: list[str], body: Any) -> Json:
        match parts:
            case [kind] if kind not in SINGULAR:
                return self.store.create(kind, body)
            case [kind, identifier, child] if (kind, child) in CHILDREN:
                self.store.get(kind, identifier)
                return self.store.create(CHILDREN[kind, child], body, identifier)
        raise Refusal(404, "page not found")

    def _patch(self, parts: list[str], body: Any) -> Json:
        match parts:
            case [kind, identifier]:
                return self.store.update(kind, identifier, body)
            case ["inference_services", _, "serves", identifier] if self.quirks.patch_serves:
                return self.store.update("serves", identifier, body)
        raise Refusal(404, "page not found")

    def _parent_query(self, request: web.Request) -> str:
        spelled = "parentResourceID" if self.quirks.api == "v1alpha1" else "parentResourceId"
        return request.query.get(spelled, "")

    def _page(self, request: web.Request, items: list[Json]) -> Json:
        key = request.query.get("orderBy", "ID")
        field = {"ID": "id", "CREATE_TIME": "createTimeSinceEpoch"}.get(key)
        if field is None:
            raise Refusal(400, f"unsupported orderBy {key}")
        reverse = request.query.get("sortOrder") == "DESC"
        items = sorted(items, key=lambda item: int(item[field]), reverse=reverse)
        default = 20 if self.quirks.api == "v1alpha1" else 0
        asked = int(request.query.get("pageSize") or default) or len(items) or 1
        size = min(asked, self.quirks.page_cap or asked)
        start = _read_token(request.query.get("nextPageToken", ""))
        page = items[start : start + size]
        end = start + size
        token = _token(end) if end < len(items) else ""
        if not token and page:
            token = {"empty": "", "wraps": _token(0), "stuck": _token(start)}[
                self.quirks.last_token
            ]
        return {"items": page, "nextPageToken": token, "pageSize": asked, "size": len(page)}

    def _spelled(self, answer: Any) -> Any:
        """Return the answer in the spelling of this version."""
        if isinstance(answer, list):
            return [self._spelled(item) for item in answer]
        if not isinstance(answer, dict):
            return answer
        renamed = {}
        if self.quirks.api == "v1alpha1":
            renamed = {"externalId": "externalID"}
            if "servingEnvironmentId" not in answer:
                renamed["registeredModelId"] = "registeredModelID"
        if self.quirks.state_key == "state":
            renamed["desiredState"] = "state"
        return {
            renamed.get(key, key): self._spelled(value) if key == "items" else value
            for key, value in answer.items()
            if value is not None
        }


async def _body(request: web.Request) -> Any:
    if request.method == "GET":
        return None
    try:
        return await request.json()
    except ValueError:
        return None


def _token(offset: int) -> str:
    return base64.b64encode(f"offset:{offset}".encode()).decode()


def _read_token(token: str) -> int:
    if not token:
        return 0
    try:
        return int(base64.b64decode(token).decode().removeprefix("offset:"))
    except ValueError as error:
        raise Refusal(400, "invalid nextPageToken") from error


__all__ = ["FakeRegistry", "Fault", "Quirks"]
