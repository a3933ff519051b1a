"""What an API server does with each request: refuse it, or read, write and watch objects."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import yaml
from aiohttp import web

from tests.fakes import kube_requests, kube_schema
from tests.fakes.kube_access import Access, Attributes, User, forbid
from tests.fakes.kube_apply import Manager
from tests.fakes.kube_faults import Faults, WatchList
from tests.fakes.kube_history import Page
from tests.fakes.kube_objects import (
    Json,
    Matches,
    StatusError,
    encode,
    json_patch,
    merge_patch,
    selector,
)
from tests.fakes.kube_requests import Target
from tests.fakes.kube_storage import Storage
from tests.fakes.kube_watch import WatchResponse, bookmark, error_line

_APPLY = ("application/apply-patch+yaml", "application/apply-patch+json")
_REASONS = {
    401: "Unauthorized",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


Handler = Callable[[web.Request, Target], Awaitable[web.StreamResponse]]


class Handlers:
    """The requests of one API server.  `requests` counts them by (verb, plural)."""

    def __init__(
        self, storage: Storage, faults: Faults, access: Access, *, bookmark_every_s: float | None
    ) -> None:
        self.requests: dict[tuple[str, str], int] = {}
        self.reviews = 0
        self.connections: set[asyncio.Transport] = set()
        self.storage = storage
        self.faults = faults
        self.access = access
        self.bookmark_every_s = bookmark_every_s

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request, with a `Status` object where it is refused."""
        transport = request.transport
        if transport is not None:
            self.connections.add(transport)
        try:
            return await self._route(request)
        except StatusError as error:
            headers = {"Retry-After": str(error.retry_after_s)} if error.retry_after_s else None
            return _json(error.status, error.code, headers)
        finally:
            if transport is not None:
                self.connections.discard(transport)

    async def _route(self, request: web.Request) -> web.StreamResponse:
        if request.path in ("/healthz", "/livez", "/readyz"):
            return web.Response(text="ok")
        user = self.access.user_of(request.headers.get("Authorization", ""))
        document = kube_requests.discovery(request.path, self.storage)
        if document is not None and request.method == "GET":
            return _json(document)
        if request.path.endswith("reviews"):
            return await self._review(request, user)
        target = kube_requests.target_of(request, self.storage)
        if target is None:
            return web.Response(status=404, text="404 page not found\n")
        where = (target.verb, target.resource.plural)
        self.requests[where] = self.requests.get(where, 0) + 1
        self._fail(target)
        if not user.may(target.attributes):
            raise forbid(user, target.attributes)
        return await self._serve(request, target)

    def _fail(self, target: Target) -> None:
        failure = self.faults.failure_of(target.verb, target.resource.plural)
        if failure is None:
            return
        if failure.status == 403:
            raise forbid(User("system:serviceaccount:default:test"), target.attributes)
        reason = _REASONS.get(failure.status, "Unknown")
        text = f"a fault that a test switched on: {failure.status}"
        raise StatusError(failure.status, reason, text, retry_after_s=failure.retry_after_s)

    async def _review(self, request: web.Request, user: User) -> web.Response:
        self.reviews += 1
        plural = request.path.rsplit("/", 1)[1]
        group = request.path.split("/")[2]
        attributes = Attributes("create", group, plural)
        if not user.may(attributes):
            raise forbid(user, attributes)
        body = await _read(request)
        if plural == "tokenreviews":
            return _json(self.access.review_token(body), 201)
        return _json(self.access.review_access(body), 201)

    async def _serve(self, request: web.Request, target: Target) -> web.StreamResponse:
        handlers: dict[str, Handler] = {
            "watch": self._watch,
            "list": self._list,
            "get": self._get,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_all,
        }
        handler = handlers.get(target.verb)
        if handler is None:
            raise StatusError(405, "MethodNotAllowed", "the server does not allow this method")
        return await handler(request, target)

    async def _get(self, request: web.Request, target: Target) -> web.Response:
        found = self.storage.get(target.resource, target.namespace, target.name)
        return web.Response(body=found.body, content_type="application/json")

    async def _update(self, request: web.Request, target: Target) -> web.Response:
        return _json(self._replace(request, target, await self._body(request, target)))

    async def _delete(self, request: web.Request, target: Target) -> web.Response:
        options = await _read(request) if request.can_read_body else {}
        return _json(self.storage.delete(target.resource, target.namespace, target.name, options))

    async def _delete_all(self, request: web.Request, target: Target) -> web.Response:
        matches = _matches(request, target)
        for one in list(self.storage.objects(target.resource, target.namespace)):
            if matches(one.obj):
                metadata = one.obj["metadata"]
                namespace = metadata.get("namespace", "")
                self.storage.delete(target.resource, namespace, metadata["name"])
        return _json({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    async def _list(self, request: web.Request, target: Target) -> web.StreamResponse:
        if self.faults.list_delay_s:
            await asyncio.sleep(self.faults.list_delay_s)
        limit = int(request.query.get("limit") or 0)
        token = request.query.get("continue", "")
        page = self.storage.page(
            target.resource, target.namespace, _matches(request, target), limit, token
        )
        body = _list_body(target, page)
        if self.faults.cut_lists:
            self.faults.cut_lists -= 1
            return await _cut(request, body)
        return web.Response(body=body, content_type="application/json")

    async def _watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        query = request.query
        initial = self._wants_initial(request)
        version = query.get("resourceVersion", "")
        since = int(version or 0)
        matches = _matches(request, target)
        resource, namespace = target.resource, target.namespace
        from_start = initial or version in ("", "0")
        try:
            watcher = self.storage.watch(resource, namespace, matches, since, initial=from_start)
        except StatusError as error:
            if error.code != 410 or not self.faults.gone_as_event:
                raise
            body = error_line(error)
            return web.Response(body=body, content_type="application/json")
        watcher.muted = self.faults.silent
        bookmarks = query.get("allowWatchBookmarks") in ("true", "1")
        if initial and bookmarks:
            watcher.push(bookmark(resource, watcher.revision, initial_end=True))
        every_s = self.bookmark_every_s if bookmarks else None
        response = WatchResponse(
            request,
            resource,
            watcher,
            self.faults,
            bookmark_every_s=every_s,
            delivered=self.storage.history.delivered,
            revision=lambda: self.storage.revision,
        )
        try:
            return await response.serve(float(query.get("timeoutSeconds") or 1800))
        except ConnectionResetError:
            raise asyncio.CancelledError from None
        finally:
            self.storage.history.watchers[resource.key].discard(watcher)

    def _wants_initial(self, request: web.Request) -> bool:
        query = request.query
        if query.get("sendInitialEvents") not in ("true", "1"):
            return False
        treatment = self.faults.watch_list
        if treatment is WatchList.IGNORED:
            return False
        if treatment is WatchList.REFUSED_400:
            raise StatusError(400, "BadRequest", "unknown parameter sendInitialEvents")
        if treatment is WatchList.REFUSED_422:
            text = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch"
            raise StatusError(422, "Invalid", text)
        if query.get("resourceVersionMatch") != "NotOlderThan":
            text = "resourceVersionMatch: Forbidden: must be NotOlderThan with sendInitialEvents"
            raise StatusError(422, "Invalid", text)
        return True

    async def _create(self, request: web.Request, target: Target) -> web.Response:
        body = await self._body(request, target)
        obj = self.storage.create(
            target.resource,
            target.namespace,
            body,
            _manager(request, target, "Update"),
            dry_run=_dry_run(request),
        )
        return _json(obj, 201)

    def _replace(self, request: web.Request, target: Target, body: Json) -> Json:
        if target.resource.custom and not body.get("metadata", {}).get("resourceVersion"):
            text = "metadata.resourceVersion: Invalid value: must be specified for an update"
            raise StatusError(422, "Invalid", text)
        return self.storage.replace(
            target.resource,
            target.namespace,
            target.name,
            body,
            _manager(request, target, "Update"),
            status=target.subresource == "status",
            dry_run=_dry_run(request),
        )

    async def _patch(self, request: web.Request, target: Target) -> web.Response:
        kind = request.content_type
        if kind in _APPLY:
            return await self._apply(request, target)
        found = self.storage.get(target.resource, target.namespace, target.name)
        patch = json.loads(await request.read())
        if kind == "application/json-patch+json":
            body = json_patch(found.obj, patch)
        elif kind == "application/merge-patch+json" or (
            kind == "application/strategic-merge-patch+json" and not target.resource.custom
        ):
            body = merge_patch(found.obj, patch)
        else:
            text = f"the body of the request was in an unknown format: {kind}"
            raise StatusError(415, "UnsupportedMediaType", text)
        return _json(self._replace(request, target, body))

    async def _apply(self, request: web.Request, target: Target) -> web.Response:
        if not request.query.get("fieldManager"):
            text = "PatchOptions.meta.k8s.io is invalid: fieldManager: Required value"
            raise StatusError(422, "Invalid", text)
        config = await self._body(request, target)
        obj, created = self.storage.apply(
            target.resource,
            target.namespace,
            target.name,
            config,
            _manager(request, target, "Apply"),
            force=request.query.get("force") in ("true", "1"),
            dry_run=_dry_run(request),
        )
        return _json(obj, 201 if created else 200)

    async def _body(self, request: web.Request, target: Target) -> Json:
        body = await _read(request)
        resource = target.resource
        if not resource.custom:
            body.setdefault("apiVersion", resource.api_version)
            body.setdefault("kind", resource.kind)
        named = (body.get("apiVersion"), body.get("kind"))
        if named != (resource.api_version, resource.kind):
            text = f"the object provided is {named}, not {(resource.api_version, resource.kind)}"
            raise StatusError(400, "BadRequest", text)
        if request.query.get("fieldValidation") == "Strict" and resource.schema is not None:
            unknown = kube_schema.prune(json.loads(json.dumps(body)), resource.schema)
            if unknown:
                listed = ", ".join(f'unknown field "{path}"' for path in unknown)
                raise StatusError(400, "BadRequest", f"strict decoding error: {listed}")
        return body


def _matches(request: web.Request, target: Target) -> Matches:
    query = request.query
    return selector(query.get("labelSelector", ""), query.get("fieldSelector", ""), target.resource)


def _manager(request: web.Request, target: Target, operation: str) -> Manager:
    agent = request.headers.get("User-Agent", "unknown").partition("/")[0]
    return Manager(request.query.get("fieldManager") or agent, operation, target.subresource)


def _dry_run(request: web.Request) -> bool:
    return request.query.get("dryRun") == "All"


async def _read(request: web.Request) -> Json:
    try:
        text = await request.read()
        body = None
        if request.content_type in _APPLY:
            body = yaml.load(text, Loader=yaml.CSafeLoader)
        if body is None:
            body = json.loads(text or b"{}")
    except (ValueError, yaml.YAMLError) as error:
        raise StatusError(400, "BadRequest", f"couldn't parse the body: {error}") from error
    if not isinstance(body, dict):
        raise StatusError(400, "BadRequest", "the body is not an object")
    return body


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=encode(value), status=status, content_type="application/json", headers=headers
    )


def _list_body(target: Target, page: Page) -> bytes:
    metadata: Json = {"resourceVersion": str(page.revision)}
    if page.token:
        metadata.update({"continue": page.token, "remainingItemCount": page.remaining})
    head = {
        "kind": f"{target.resource.kind}List",
        "apiVersion": target.resource.api_version,
        "metadata": metadata,
    }
    return encode(head)[:-1] + b',"items":[' + b",".join(page.bodies) + b"]}"


async def _cut(request: web.Request, body: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": str(len(body))})
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    if request.transport is not None:
        request.transport.abort()
    return response
