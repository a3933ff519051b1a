"""Token counts are read from a passing response, however it is cut."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.extproc.usage import TAIL_BYTES, Tokens, UsageReader

_OPENAI = {
    "prompt_tokens": 7,
    "completion_tokens": 3,
    "total_tokens": 10,
    "prompt_tokens_details": {"cached_tokens": 4},
}
_STREAM = (
    b'data: {"choices":[{"delta":{"content":"hi"}}],"usage":null}\n\n'
    b"data: " + json.dumps({"choices": [], "usage": _OPENAI}).encode() + b"\n\n"
    b"data: [DONE]\n\n"
)


def _read(content_type: bytes, body: bytes, cuts: list[int]) -> Tokens:
    reader = UsageReader(content_type)
    edges = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    for start, stop in pairwise(edges):
        reader.feed(body[start:stop], end=False)
    reader.feed(b"", end=True)
    return reader.tokens


@given(st.lists(st.integers(min_value=0, max_value=1000), max_size=8))
def test_an_event_stream_may_be_cut_anywhere(cuts: list[int]) -> None:
    """The unfinished line is kept until the rest of it comes."""
    assert Tokens(7, 3, 4) == _read(b"text/event-stream; charset=utf-8", _STREAM, cuts)


@given(st.lists(st.integers(min_value=0, max_value=100_000), max_size=8), st.integers(0, 100_000))
def test_a_json_body_may_be_cut_anywhere_and_be_long(cuts: list[int], padding: int) -> None:
    """`usage` is found at the end of a body of which only the tail is kept."""
    body = json.dumps({"text": "x" * padding, "usage": _OPENAI}).encode()

    assert Tokens(7, 3, 4) == _read(b"application/json", body, cuts)


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (b'data: {"type":"response.completed","response":{"usage":{"input_tokens":5,'
         b'"output_tokens":2,"input_tokens_details":{"cached_tokens":1}}}}\n', Tokens(5, 2, 1)),
        (b'data: {"type":"message_start","message":{"usage":{"input_tokens":9,'
         b'"output_tokens":1,"cache_read_input_tokens":8}}}\n'
         b'data: {"type":"message_delta","usage":{"output_tokens":44}}\n', Tokens(9, 44, 8)),
        (b'data: {"usage":{"prompt_tokens":6}}\n', Tokens(6, None, None)),
        (b'data: {"usage":"none"}\ndata: {"usage\n', Tokens()),
        (b'data: {"usage":{"prompt_tokens":-1}}\n', Tokens()),
    ],
)  # fmt: skip
def test_each_api_reports_in_its_own_words(body: bytes, tokens: Tokens) -> None:
    """OpenAI's chat and responses, Anthropic's messages, and what is none of them."""
    assert tokens == _read(b"text/event-stream", body, [])


@pytest.mark.parametrize("body", [b"", b"no healthy upstream", b'"usage"', b'{"usage":{', b"\xff{"])
def test_what_is_no_report_is_not_counted(body: bytes) -> None:
    """A plain-text error of the upstream passes without a word."""
    assert Tokens() == _read(b"text/plain", body, [])


def test_what_is_kept_is_bounded() -> None:
    """A line without an end does not grow in memory."""
    reader = UsageReader(b"text/event-stream")
    for _ in range(100):
        reader.feed(b"x" * 62_000, end=False)

    assert len(reader._rest) <= TAIL_BYTES
