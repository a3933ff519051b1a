"""What is told of each request, to whoever keeps logs and metrics."""

from typing import Protocol

import msgspec


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What became of one request, for the log and the metrics.

    `model` is the client's name for it ("" = none asked for, `unknown` = not one of ours),
    `status` the HTTP status of our own answer (200 for a pick), `reason` how the pick was made or
    why the request was refused.  `picker_s` is our own time, from the message that completed the
    request to its answer.  `body_bytes` is the size of the request's body as it came.
    """

    request_id: str
    namespace: str
    model: str
    target: str
    pool: str
    endpoint: str
    status: int
    reason: str
    revision: int
    picker_s: float
    body_bytes: int
    passes: bool = False
    """The response will pass through us: a `Served` follows, whatever happens."""


class Served(msgspec.Struct, frozen=True, gc=False):
    """How the response to a pick went, where it passed through us.

    Times are seconds since the pick; `status` 0 and `first_byte_s` None mean that none came.
    `endpoint` is the one that the gateway says has served it, else our first choice.
    `complete` is false when the stream ended before the response did.
    """

    model: str
    target: str
    pool: str
    endpoint: str
    status: int
    first_byte_s: float | None
    duration_s: float
    body_bytes: int
    complete: bool


class Observer(Protocol):
    """Who is told of requests."""

    def picked(self, outcome: Outcome) -> None:
        """A request was routed or refused."""

    def served(self, response: Served) -> None:
        """The response of a routed request has passed through, or will not any more."""
