"""The messages that Envoy would send, made by our own encoder."""

import json

from protos.gen import ext_proc_pb2 as pb

HEADERS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "inference.example.com"),
    (":path", "/v1/chat/completions"),
    ("content-type", "application/json"),
    ("accept", "*/*"),
    ("user-agent", "openai-python/1.99"),
    ("x-forwarded-proto", "http"),
    ("x-request-id", "3f1c0e6e-2f0a-4c39-9c0b-0c8b6f8d2f11"),
    ("authorization", "Bearer sk-benchmark-0123456789abcdef"),
)


def chat_body(model: str, size: int) -> bytes:
    """Return a chat completion request of `size` bytes."""
    shape = {"model": model, "messages": [{"role": "user", "content": ""}], "stream": True}
    room = max(0, size - len(json.dumps(shape)))
    text = ("the quick brown fox jumps over the lazy dog, " * (room // 45 + 1))[:room]
    shape["messages"] = [{"role": "user", "content": text}]
    return json.dumps(shape).encode()


def request_headers(*, end: bool = False) -> bytes:
    """Return the first message of a stream in FULL_DUPLEX_STREAMED mode."""
    headers = [pb.HeaderValue(key=key, raw_value=value.encode()) for key, value in HEADERS]
    return pb.ProcessingRequest(
        request_headers=pb.HttpHeaders(headers=pb.HeaderMap(headers=headers), end_of_stream=end),
        protocol_config=pb.ProtocolConfiguration(
            request_body_mode=pb.FULL_DUPLEX_STREAMED, response_body_mode=pb.FULL_DUPLEX_STREAMED
        ),
    ).SerializeToString()


def request_body(body: bytes, *, end: bool = True) -> bytes:
    """Return a piece of the request's body."""
    return pb.ProcessingRequest(
        request_body=pb.HttpBody(body=body, end_of_stream=end)
    ).SerializeToString()


def response(
    chunks: int, chunk: bytes = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
) -> list[bytes]:
    """Return the messages of a streamed response of so many chunks."""
    headers = [
        pb.HeaderValue(key=":status", raw_value=b"200"),
        pb.HeaderValue(key="content-type", raw_value=b"text/event-stream"),
    ]
    begin = pb.ProcessingRequest(
        response_headers=pb.HttpHeaders(headers=pb.HeaderMap(headers=headers))
    )
    pieces = [
        pb.ProcessingRequest(
            response_body=pb.HttpBody(body=chunk, end_of_stream=number == chunks - 1)
        )
        for number in range(chunks)
    ]
    return [message.SerializeToString() for message in (begin, *pieces)]


def framed(messages: list[bytes]) -> bytes:
    """Return messages with gRPC's five-byte heads, as the body of one HTTP/2 request."""
    return b"".join(b"\0" + len(m).to_bytes(4, "big") + m for m in messages)
