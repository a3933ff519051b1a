"""What a model server says, per API: one JSON document, or the events of a stream.

Pure: a reply is a function of what was asked, so that two servers say the same and a test can
compare bytes.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

WORDS = ("the", "endpoint", "was", "picked", "and", "the", "answer", "is", "forty", "two")
MAX_TOKENS = 100_000


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client wants of a model server."""

    model: str
    prompt_tokens: int
    completion_tokens: int
    received: dict[str, Any] = field(default_factory=dict)
    """What the server saw of the request; it is put into every document."""

    @property
    def tokens(self) -> Iterator[str]:
        """The words of the answer."""
        return (f"{WORDS[i % len(WORDS)]} " for i in range(self.completion_tokens))

    @property
    def text(self) -> str:
        """The answer as a whole."""
        return "".join(self.tokens)

    @property
    def usage(self) -> dict[str, int]:
        """The count of tokens, as OpenAI's chat and completions APIs spell it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }

    @property
    def usage_in_out(self) -> dict[str, int]:
        """The count of tokens, as the Responses and Messages APIs spell it."""
        return {"input_tokens": self.prompt_tokens, "output_tokens": self.completion_tokens}


def read(document: dict[str, Any], received: dict[str, Any]) -> Asked:
    """Return what a request's JSON asks for; a word of the prompt counts as a token."""
    wanted = document.get("max_tokens", document.get("max_output_tokens", 16))
    count = min(max(wanted, 0), MAX_TOKENS) if isinstance(wanted, int) else 16
    prompt = document.get("messages", document.get("prompt", document.get("input", "")))
    words = len(json.dumps(prompt).split())
    return Asked(str(document.get("model", "")), words, count, received)


def chat(asked: Asked) -> dict[str, Any]:
    """Answer `/v1/chat/completions`."""
    message = {"role": "assistant", "content": asked.text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return _document(asked, "chat.completion", choices=[choice], usage=asked.usage)


def completion(asked: Asked) -> dict[str, Any]:
    """Answer `/v1/completions`."""
    choice = {"index": 0, "text": asked.text, "finish_reason": "stop"}
    return _document(asked, "text_completion", choices=[choice], usage=asked.usage)


def embedding(asked: Asked) -> dict[str, Any]:
    """Answer `/v1/embeddings`; its usage has no completion tokens, as with the real API."""
    data = [{"object": "embedding", "index": 0, "embedding": [0.25, -0.5, 0.125]}]
    usage = {"prompt_tokens": asked.prompt_tokens, "total_tokens": asked.prompt_tokens}
    return _document(asked, "list", data=data, usage=usage)


def response(asked: Asked) -> dict[str, Any]:
    """Answer `/v1/responses`."""
    content = [{"type": "output_text", "text": asked.text}]
    output = [{"type": "message", "role": "assistant", "content": content}]
    usage = {**asked.usage_in_out, "total_tokens": asked.usage["total_tokens"]}
    return _document(asked, "response", status="completed", output=output, usage=usage)


def message(asked: Asked) -> dict[str, Any]:
    """Answer `/v1/messages`, Anthropic's API."""
    content = [{"type": "text", "text": asked.text}]
    return {
        "id": "msg_demo",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": content,
        "stop_reason": "end_turn",
        "usage": asked.usage_in_out,
        "received": asked.received,
    }


def chat_events(asked: Asked) -> Iterator[bytes]:
    """Stream `/v1/chat/completions`."""
    for token in asked.tokens:
        choice = {"index": 0, "delta": {"content": token}, "finish_reason": None}
        yield _data(_document(asked, "chat.completion.chunk", choices=[choice]))
    yield _data(_document(asked, "chat.completion.chunk", choices=[], usage=asked.usage))
    yield b"data: [DONE]\n\n"


def completion_events(asked: Asked) -> Iterator[bytes]:
    """Stream `/v1/completions`."""
    for token in asked.tokens:
        choice = {"index": 0, "text": token, "finish_reason": None}
        yield _data(_document(asked, "text_completion", choices=[choice]))
    yield _data(_document(asked, "text_completion", choices=[], usage=asked.usage))
    yield b"data: [DONE]\n\n"


def response_events(asked: Asked) -> Iterator[bytes]:
    """Stream `/v1/responses`."""
    yield _event("response.created", {"response": {"id": "resp_demo", "model": asked.model}})
    for token in asked.tokens:
        yield _event("response.output_text.delta", {"delta": token})
    yield _event("response.completed", {"response": response(asked)})


def message_events(asked: Asked) -> Iterator[bytes]:
    """Stream `/v1/messages`."""
    start = {"type": "message", "role": "assistant", "model": asked.model, "content": []}
    yield _event("message_start", {"message": start})
    for token in asked.tokens:
        yield _event("content_block_delta", {"index": 0, "delta": {"text": token}})
    yield _event("message_delta", {"delta": {}, "usage": asked.usage_in_out})
    yield _event("message_stop", {})


def _document(asked: Asked, kind: str, **fields: Any) -> dict[str, Any]:
    head = {"id": "demo", "object": kind, "created": 0, "model": asked.model}
    return {**head, **fields, "received": asked.received}


def _data(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def _event(kind: str, document: dict[str, Any]) -> bytes:
    return f"event: {kind}\n".encode() + _data({"type": kind, **document})
