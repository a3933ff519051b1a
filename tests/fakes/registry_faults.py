"""What can go wrong between the fake registry and whoever asks it."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from aiohttp import web

TEXT = {
    400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 409: "Conflict",
    422: "Bad Request", 500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip


@dataclass(slots=True)
class Fault:
    """Something that goes wrong with requests whose method and path match.

    `kind`: a status (`404`, `401`, `503` …), `slow`, `cut` (half a body), `html`, `not-a-list`,
    `short` (a page that holds fewer items than it says), `lost` (done, and the answer cut).
    `left` counts down; None is for ever.
    """

    kind: str
    path: str = ""
    method: str = ""
    left: int | None = None
    slow_s: float = 3600.0

    def hits(self, method: str, path: str) -> bool:
        """Whether this request is struck; counts it."""
        if self.path not in path or self.method not in ("", method) or self.left == 0:
            return False
        if self.left is not None:
            self.left -= 1
        return True


async def strike(fault: Fault) -> web.StreamResponse:
    """Answer with the fault instead."""
    if fault.kind == "slow":
        await asyncio.sleep(fault.slow_s)
        return refuse(503, "too slow")
    if fault.kind == "html":
        return web.Response(text="<html>Sign in</html>", content_type="text/html")
    return refuse(int(fault.kind), "a fault was injected")


async def distort(fault: Fault, request: web.Request, answer: Any) -> web.StreamResponse:
    """Spoil an answer."""
    if fault.kind == "not-a-list":
        return web.json_response(["items", 7])
    if fault.kind == "short":
        return web.json_response({**answer, "items": answer["items"][: len(answer["items"]) // 2]})
    text = json.dumps(answer).encode()
    response = web.StreamResponse(headers={"Content-Length": str(len(text))})
    await response.prepare(request)
    if fault.kind == "cut":
        await response.write(text[: len(text) // 2])
    if request.transport is not None:
        request.transport.close()
    return response


def refuse(status: int, message: str) -> web.Response:
    """Answer as the specification says errors look."""
    return web.json_response({"code": TEXT.get(status, "Error"), "message": message}, status=status)
