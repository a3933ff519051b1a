"""Every way in which a request can be refused.

One tree: `status` and `reason` stand on the class, the message on the instance.  The core raises
them, and `extproc.refusal` turns them into a response, in one place.  A message never repeats the
request's body: it may hold somebody's prompt.
"""

from typing import ClassVar


class RequestError(Exception):
    """A request that gets an answer other than a pick.

    `message` is for the client.  `param` names the field of the request at fault, if one is.
    `model` and `pool` are filled in by the router once the request is known to be about them.
    """

    status: ClassVar[int] = 500
    reason: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.model = ""
        self.pool = ""


class InvalidJson(RequestError):
    """The body is not a JSON object in UTF-8."""

    status = 400
    reason = "invalid_json"


class MissingModel(RequestError):
    """The JSON object has no usable `model`."""

    status = 400
    reason = "missing_model"


class DuplicateModel(RequestError):
    """The JSON object has `model` twice: two parsers could read two different names."""

    status = 400
    reason = "duplicate_model"


class ModelNotFound(RequestError):
    """No InferenceModel of that name is served here."""

    status = 404
    reason = "model_not_found"


class RouteNotFound(RequestError):
    """A request without a model, and no single pool that it could belong to."""

    status = 404
    reason = "not_found"


class BodyTooLarge(RequestError):
    """The body, or what it decompresses to, is over the limit."""

    status = 413
    reason = "body_too_large"


class UnsupportedEncoding(RequestError):
    """The body's content-encoding is one that we cannot read."""

    status = 415
    reason = "unsupported_content_encoding"


class Internal(RequestError):
    """Our own bug."""

    status = 500
    reason = "internal_error"


class UnsupportedBodyMode(RequestError):
    """Envoy's body mode cannot carry a pick by model."""

    status = 500
    reason = "unsupported_body_mode"


class PoolNotFound(RequestError):
    """The model's pool does not exist."""

    status = 503
    reason = "pool_not_found"


class NoReadyEndpoint(RequestError):
    """The pool exists and has no ready endpoint."""

    status = 503
    reason = "no_ready_endpoint"


class SubsetUnmatched(RequestError):
    """The gateway's subset hint leaves none of the pool's ready endpoints."""

    status = 503
    reason = "subset_unmatched"


class ModelInvalid(RequestError):
    """The InferenceModel exists, and what it says cannot be served."""

    status = 503
    reason = "model_invalid"


class ArtifactMismatch(RequestError):
    """No ready endpoint serves the bytes that the target is pinned to."""

    status = 503
    reason = "artifact_mismatch"


class Overloaded(RequestError):
    """A limit of the picker itself has been reached."""

    status = 503
    reason = "overloaded"


class NotSynced(RequestError):
    """The picker has just started, and what it has not heard of may exist all the same."""

    status = 503
    reason = "not_synced"
