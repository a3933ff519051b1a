"""The demo's traffic, and what has to hold of it.

Each act sends requests, adds what it saw to `Seen`, and says of each promise whether it held.
"""

import asyncio
import gzip
import hashlib
import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from epp.demo.manifests import (
    BASE,
    LLAMA,
    NAMED,
    PLAIN,
    UNSPELLABLE,
    WEIGHTED,
    WEIGHTS,
)
from epp.demo.stage import SERVERS, Stage, until

SPLIT_REQUESTS = 400
LATENCY_REQUESTS = 200
AWAY_REQUESTS = 60
CONCURRENCY = 8
LONG_PROMPT_BYTES = 300 * 1024
MAX_TOKENS = 20
LIVE_WITHIN_S = 5.0
"""How long a changed manifest may take on a busy machine; a free one needs a tenth of a second."""

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"


@dataclass(frozen=True, slots=True)
class Answer:
    """One response, whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    elapsed_s: float

    @property
    def server(self) -> str:
        """The model server that answered, "" if none did."""
        return self.headers.get("x-served-by", "")

    @property
    def model(self) -> str:
        """The name that the model server was asked for."""
        return self.headers.get("x-served-model", "")

    def has_code(self, status: int, code: str) -> bool:
        """Tell whether this is that refusal, in OpenAI's shape."""
        if self.status != status or self.headers.get("content-type") != "application/json":
            return False
        return bool(json.loads(self.body).get("error", {}).get("code") == code)


@dataclass(frozen=True, slots=True)
class Check:
    """One promise, and whether it held."""

    promise: str
    held: bool
    detail: str = ""


@dataclass(slots=True)
class Seen:
    """What the acts have seen; written by them, read by the report."""

    checks: list[Check] = field(default_factory=list)
    targets: Counter[str] = field(default_factory=Counter)
    servers: Counter[str] = field(default_factory=Counter)
    refusals: list[tuple[str, Answer]] = field(default_factory=list)
    picked_s: list[float] = field(default_factory=list)
    direct_s: list[float] = field(default_factory=list)

    def check(self, promise: str, held: bool, detail: str = "") -> None:
        """Note a promise."""
        self.checks.append(Check(promise, held, detail))

    @property
    def broken(self) -> list[Check]:
        """The promises that did not hold."""
        return [check for check in self.checks if not check.held]


Act = Callable[[Stage, Seen], Awaitable[None]]


async def weighted_split(stage: Stage, seen: Seen) -> None:
    """Send many requests for the model that is split 3:1."""
    answers = await _many(stage, SPLIT_REQUESTS, {"model": WEIGHTED, "max_tokens": 1})
    seen.targets.update(answer.model for answer in answers)
    seen.servers.update(answer.server for answer in answers)
    seen.check("every request of the split is served", all(a.status == 200 for a in answers))
    share, asked = seen.targets[BASE] / len(answers), WEIGHTS[BASE] / sum(WEIGHTS.values())
    slack = 4 * math.sqrt(asked * (1 - asked) / len(answers))
    held = abs(share - asked) <= slack and set(seen.targets) == set(WEIGHTS)
    seen.check("targets are drawn 3:1", held, f"{share:.1%} of {asked:.0%} ± {slack:.1%}")
    wanted = {name for name, pool in SERVERS if pool == LLAMA}
    used = {answer.server for answer in answers}
    seen.check("every endpoint of the pool is used, and no other", used == wanted)


async def unspellable_target(stage: Stage, seen: Seen) -> None:
    """Ask for a model whose real name Kubernetes could not spell."""
    body = b'{"model" : "%s",  "max_tokens":3, "n": 1.0}' % NAMED.encode()
    answer = await _ask(stage, body)
    wanted = body.replace(NAMED.encode(), UNSPELLABLE.encode())
    held = answer.status == 200 and answer.model == UNSPELLABLE
    seen.check(f"{NAMED} reaches its server as {UNSPELLABLE}", held)
    seen.check("only the name's bytes are changed", _digest(wanted) == _arrived(answer))
    seen.servers[answer.server] += 1


async def streaming(stage: Stage, seen: Seen) -> None:
    """Stream from each API, and compare with what the server itself sends."""
    for path in (CHAT, "/v1/completions", "/v1/responses", MESSAGES):
        body = _json({"model": PLAIN, "stream": True, "max_tokens": MAX_TOKENS})
        answer = await _ask(stage, body, path=path)
        seen.servers[answer.server] += 1
        held = answer.headers.get("content-type") == "text/event-stream"
        if held:
            url = f"http://{stage.servers[answer.server].authority}"
            held = (await _ask(stage, body, path=path, url=url)).body == answer.body
        seen.check(f"a stream of {path} is the server's, byte for byte", held)


async def odd_bodies(stage: Stage, seen: Seen) -> None:
    """Send a long prompt, and a compressed one."""
    long = _json({"model": PLAIN, "prompt": "x" * LONG_PROMPT_BYTES})
    packed = gzip.compress(long)
    for what, body, headers in (
        ("a 300 KB prompt", long, {}),
        ("a gzip body", packed, {"content-encoding": "gzip"}),
    ):
        answer = await _ask(stage, body, path="/v1/completions", headers=headers)
        seen.servers[answer.server] += 1
        held = answer.status == 200 and _arrived(answer) == _digest(body)
        seen.check(f"{what} arrives unchanged", held, f"{len(body)} bytes")


async def refusals(stage: Stage, seen: Seen) -> None:
    """Ask for what cannot be given."""
    rows: tuple[tuple[str, bytes, int, str], ...] = (
        ("an unknown model", _json({"model": "gpt-9"}), 404, "model_not_found"),
        ("broken JSON", b'{"model": "mistral", "messages": [', 400, "invalid_json"),
        ("no model", b'{"prompt": "hello"}', 400, "missing_model"),
        ("two models", b'{"model": "mistral", "model": "gpt-9"}', 400, "duplicate_model"),
    )
    for what, body, status, code in rows:
        answer = await _ask(stage, body)
        seen.refusals.append((what, answer))
        seen.check(f"{what} gets {status} {code}", answer.has_code(status, code))


async def endpoint_goes_away(stage: Stage, seen: Seen) -> None:
    """Take a server out of the manifests, then stop it: nobody may notice."""
    gone = "mistral-2"
    stage.set_members(without=gone)

    async def is_out() -> bool:
        answers = await _many(stage, 12, {"model": PLAIN, "max_tokens": 1})
        return {answer.server for answer in answers} == {"mistral-1"}

    loop = asyncio.get_running_loop()
    started = loop.time()
    out = await until(is_out, LIVE_WITHIN_S)
    took = f"{(loop.time() - started) * 1000:.0f} ms after the edit"
    seen.check(f"{gone} is not picked once it is out of the manifests", out, took)
    await stage.servers[gone].stop()
    answers = await _many(stage, AWAY_REQUESTS, {"model": PLAIN, "max_tokens": 1})
    seen.servers.update(answer.server for answer in answers)
    served = all((answer.status, answer.server) == (200, "mistral-1") for answer in answers)
    seen.check(f"no request fails when {gone} has stopped", served)
    await stage.servers[gone].start()
    stage.set_members()

    async def is_back() -> bool:
        answers = await _many(stage, 12, {"model": PLAIN, "max_tokens": 1})
        return gone in {answer.server for answer in answers}

    seen.check(f"{gone} is picked again when it is back", await until(is_back, LIVE_WITHIN_S))


async def latency(stage: Stage, seen: Seen) -> None:
    """Send one request after the other through the same Envoy, in turn with and without us."""
    body = _json({"model": PLAIN, "max_tokens": 1})
    for _ in range(LATENCY_REQUESTS):
        seen.direct_s.append((await _ask(stage, body, url=stage.direct_url)).elapsed_s)
        seen.picked_s.append((await _ask(stage, body)).elapsed_s)


async def log_says_why(stage: Stage, seen: Seen) -> None:
    """Read the picker's own log: a line for each request, and nothing of a prompt."""

    async def is_written() -> bool:
        return len(stage.picker.requests()) >= LATENCY_REQUESTS + SPLIT_REQUESTS

    seen.check("each request is a line of the picker's log", await until(is_written, 5.0))
    lines = stage.picker.requests()
    known = {server.authority for server in stage.servers.values()}
    picked = [line for line in lines if line["reason"] == "picked"]
    seen.check("the log names the endpoint of each pick", {p["endpoint"] for p in picked} <= known)
    seen.check("nothing of a prompt is in the log", "xxxxxxxx" not in json.dumps(lines))


ACTS: tuple[tuple[str, Act], ...] = (
    ("a model split 3:1", weighted_split),
    ("a name that Kubernetes cannot spell", unspellable_target),
    ("streams", streaming),
    ("long and compressed bodies", odd_bodies),
    ("what cannot be given", refusals),
    ("an endpoint that goes away", endpoint_goes_away),
    ("latency with and without the picker", latency),
    ("the picker's log", log_says_why),
)


async def _many(stage: Stage, count: int, document: dict[str, Any]) -> list[Answer]:
    body = _json(document)
    left = iter(range(count))

    async def worker() -> list[Answer]:
        return [await _ask(stage, body) for _ in left]

    shares = await asyncio.gather(*(worker() for _ in range(min(CONCURRENCY, count))))
    return [answer for share in shares for answer in share]


async def _ask(
    stage: Stage,
    body: bytes,
    *,
    path: str = CHAT,
    headers: Mapping[str, str] | None = None,
    url: str | None = None,
) -> Answer:
    loop = asyncio.get_running_loop()
    target = (url or stage.envoy.url) + path
    given = {"content-type": "application/json", **(headers or {})}
    started = loop.time()
    async with stage.client.post(target, data=body, headers=given) as response:
        content = await response.read()
        elapsed_s = loop.time() - started
        lower = {key.lower(): value for key, value in response.headers.items()}
        return Answer(response.status, lower, content, elapsed_s)


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _arrived(answer: Answer) -> str:
    return answer.headers.get("x-body-sha256", "")
