"""Read the token counts that a model server reports, as its response passes.

An OpenAI-style API reports `usage` once, at the end: in the JSON object, or in one of the last
server-sent events.  Events can be cut anywhere between two messages, so the unfinished line is
kept; of a JSON body, only the last part is.  What cannot be read is not counted, and nothing here
changes or delays a byte.
"""

import msgspec

TAIL_BYTES = 64 * 1024
"""How much of a body is kept to find `usage` in; it stands at the end of every known API."""

_EVENT_STREAM = b"text/event-stream"
_DATA = b"data:"
_USAGE = b'"usage"'


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None


class _Response(msgspec.Struct):
    usage: _Usage | None = None


class _Event(msgspec.Struct):
    usage: _Usage | None = None
    response: _Response | None = None
    message: _Response | None = None


class Tokens(msgspec.Struct, frozen=True, gc=False):
    """What one response cost, in tokens; None = not reported."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None


_decode = msgspec.json.Decoder(_Event).decode
_decode_usage = msgspec.json.Decoder(_Usage).decode


class UsageReader:
    """Collects what one response says.  Written by the stream that it belongs to."""

    __slots__ = ("_is_stream", "_rest", "tokens")

    def __init__(self, content_type: bytes) -> None:
        self.tokens = Tokens()
        self._is_stream = content_type.lower().lstrip().startswith(_EVENT_STREAM)
        self._rest = b""

    def feed(self, data: bytes, *, end: bool) -> None:
        """Take the next piece of the body."""
        if self._is_stream:
            self._feed_events(data, end=end)
            return
        self._rest = (self._rest + data)[-TAIL_BYTES:]
        if end:
            self._read_tail(self._rest)

    def _feed_events(self, data: bytes, *, end: bool) -> None:
        lines = (self._rest + data).split(b"\n")
        self._rest = b"" if end else lines.pop()[-TAIL_BYTES:]
        for line in lines:
            if _USAGE in line and line.startswith(_DATA):
                self._read_event(line[len(_DATA) :])

    def _read_event(self, text: bytes) -> None:
        try:
            event = _decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        for part in (event, event.response, event.message):
            if part is not None and part.usage is not None:
                self._add(part.usage)

    def _read_tail(self, tail: bytes) -> None:
        """Find the last `usage` object of a JSON body of which the beginning may be missing."""
        start = tail.rfind(_USAGE)
        opening = tail.find(b"{", start)
        if start < 0 or opening < 0:
            return
        closing = tail.find(b"}", opening)
        while closing > 0:
            try:
                self._add(_decode_usage(tail[opening : closing + 1]))
                return
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                if closing - opening > _MAX_USAGE_BYTES:
                    return
                closing = tail.find(b"}", closing + 1)

    def _add(self, usage: _Usage) -> None:
        """Later reports complete earlier ones: Anthropic tells the input first, then the output."""
        known = self.tokens
        details = usage.prompt_tokens_details or usage.input_tokens_details
        self.tokens = Tokens(
            _first(usage.prompt_tokens, usage.input_tokens, known.input),
            _first(usage.completion_tokens, usage.output_tokens, known.output),
            _first(
                details.cached_tokens if details is not None else None,
                usage.cache_read_input_tokens,
                known.cached,
            ),
        )


_MAX_USAGE_BYTES = 4096


def _first(*counts: int | None) -> int | None:
    return next((count for count in counts if count is not None and count >= 0), None)
