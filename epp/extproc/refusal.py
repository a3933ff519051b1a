"""The one place where a refusal becomes a response, in the shape of the API that was called."""

import msgspec

from epp.errors import RequestError
from epp.extproc.events import Answer

_ANTHROPIC_PATH = "/v1/messages"

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    413: "request_too_large",
    415: "invalid_request_error",
    503: "overloaded_error",
}


class _OpenAIError(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str


class _OpenAIBody(msgspec.Struct):
    error: _OpenAIError


class _AnthropicError(msgspec.Struct):
    type: str
    message: str


class _AnthropicBody(msgspec.Struct):
    error: _AnthropicError
    type: str = "error"


def refusal(error: RequestError, path: str) -> Answer:
    """Return the response that tells a client of `path` why it was refused.

    OpenAI's shape everywhere, Anthropic's on `/v1/messages`.
    """
    body: msgspec.Struct
    if path == _ANTHROPIC_PATH or path.startswith(_ANTHROPIC_PATH + "/"):
        kind = _ANTHROPIC_TYPES.get(error.status, "api_error")
        body = _AnthropicBody(_AnthropicError(kind, error.message))
    else:
        kind = "invalid_request_error" if error.status < 500 else "server_error"
        body = _OpenAIBody(_OpenAIError(error.message, kind, error.param, error.reason))
    return Answer(error.status, msgspec.json.encode(body), error.reason)
