"""What came of one request: the values behind its log line and its metrics.

Made once per request, when the picker has answered, and handed to both.  They hold names and
numbers only: nothing of a body can be in them.
"""

from typing import Protocol

import msgspec

PICKED = "picked"
"""The reason of a request that got an endpoint."""

LISTED = "listed"
"""The reason of a request that the picker answered itself, from the InferenceModels."""


class Outcome(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One answered request.

    `model` is the name that the client sent, `known` whether it is an InferenceModel of the
    namespace; a name that is not must never become a metric's label.  `endpoint` is what went on
    the wire, `choice` how its first one was chosen.
    `reason` is `PICKED`, `LISTED` or one of `epp.errors`.  `picker_s` is our own time, from the
    message that completed the request to its answer.  `passes`: the response will pass through
    us, and a `Served` follows whatever happens.
    """

    request_id: str = ""
    namespace: str = ""
    model: str = ""
    known: bool = True
    target: str = ""
    pool: str = ""
    endpoint: str = ""
    choice: str = ""
    reason: str = PICKED
    status: int = 200
    revision: int = 0
    picker_s: float = 0.0
    body_bytes: int = 0
    passes: bool = False


class Served(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How the response to a pick went, where it passed through us.

    Times are seconds since the pick; `status` 0 and `first_byte_s` None mean that none came.
    `endpoint` is the one that the gateway says has served it, else our first choice.
    `complete` is false when the stream ended before the response did.  Tokens are what the model
    server reported (None = nothing).
    """

    outcome: Outcome
    endpoint: str
    status: int
    first_byte_s: float | None
    duration_s: float
    body_bytes: int
    complete: bool
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


class Observer(Protocol):
    """Who is told of requests."""

    def picked(self, outcome: Outcome) -> None:
        """A request was routed, answered or refused."""

    def served(self, response: Served) -> None:
        """The response of a routed request has passed through, or will not any more."""
