"""A refusal in the words of the API that was called."""

import json
from typing import Any

import pytest

from epp import errors
from epp.errors import RequestError
from epp.extproc.events import Answer
from epp.extproc.refusal import refusal

EVERY = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, RequestError)
]


def read(answer: Answer) -> Any:
    return json.loads(answer.body)


@pytest.mark.parametrize("error", EVERY)
def test_openai_s_shape(error: type[RequestError]) -> None:
    """Everywhere but on Anthropic's path; the reason is the code, and Envoy's detail."""
    answer = refusal(error("What is wrong: “é” \n", param="model"), "/v1/chat/completions")
    kind = "invalid_request_error" if error.status < 500 else "server_error"

    assert (answer.status, answer.reason) == (error.status, error.reason)
    assert read(answer) == {
        "error": {
            "message": "What is wrong: “é” \n",
            "type": kind,
            "param": "model",
            "code": error.reason,
        }
    }


@pytest.mark.parametrize("error", EVERY)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/"])
def test_anthropic_s_shape(error: type[RequestError], path: str) -> None:
    """On its path and below; the type is one that its clients know."""
    answer = refusal(error("No."), path)
    kinds = {
        400: "invalid_request_error",
        404: "not_found_error",
        413: "request_too_large",
        415: "invalid_request_error",
        500: "api_error",
        503: "overloaded_error",
    }

    assert (answer.status, answer.reason) == (error.status, error.reason)
    assert read(answer) == {
        "type": "error",
        "error": {"type": kinds[error.status], "message": "No."},
    }


@pytest.mark.parametrize("path", ["", "/", "/v1/messagesx", "/messages", "/x/v1/messages"])
def test_other_paths_are_openai_s(path: str) -> None:
    """Paths that only look like Anthropic's."""
    assert set(read(refusal(errors.MissingModel("No."), path))) == {"error"}


def test_a_refusal_without_a_field_at_fault() -> None:
    """`param` is there and null, as OpenAI has it."""
    assert read(refusal(errors.Internal("No."), "/"))["error"]["param"] is None


def test_every_reason_is_a_word_of_its_own() -> None:
    """Reasons are label values: short, and no two errors share one (Internal is the tree's own)."""
    reasons = [error.reason for error in EVERY if error is not RequestError]

    assert len(set(reasons)) == len(reasons)
    assert all(reason.replace("_", "").isalpha() and reason.islower() for reason in reasons)
