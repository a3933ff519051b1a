"""What came of one request: the value behind its log line and its metrics.

Made once per request, when the picker has answered, and handed to both.  It holds names and
numbers only: nothing of a body can be in it.
"""

import msgspec

PICKED = "picked"
"""The reason of a request that got an endpoint; every other reason is one of `epp.errors`."""


class Outcome(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One answered request.

    `model` is the name that the client sent, `known` whether it is an InferenceModel of the
    namespace; a name that is not must never become a metric's label.  `endpoint` is the authority
    of the first endpoint picked, `pod` and `port` say whose it is.  `picker_s` is our own time.
    """

    request_id: str = ""
    namespace: str = ""
    model: str = ""
    known: bool = True
    target: str = ""
    pool: str = ""
    endpoint: str = ""
    pod: str = ""
    port: int = 0
    reason: str = PICKED
    status: int = 200
    revision: int = 0
    picker_s: float = 0.0
    body_bytes: int = 0
