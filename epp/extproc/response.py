"""Watch a response pass: its status, its first byte, its tokens, its end.  It changes nothing."""

from epp.extproc.events import Event, ResponseBody, ResponseHeaders, ResponseTrailers
from epp.extproc.usage import UsageReader
from epp.outcome import Outcome, Served


class ResponseWatch:
    """What has been seen of one response so far.  Written by the stream that it belongs to."""

    __slots__ = (
        "_body_bytes",
        "_endpoint",
        "_first_byte_at",
        "_outcome",
        "_picked_at",
        "_status",
        "_usage",
    )

    def __init__(self, outcome: Outcome, picked_at: float) -> None:
        self._outcome = outcome
        self._picked_at = picked_at
        self._endpoint = outcome.endpoint.partition(",")[0]
        self._status = 0
        self._first_byte_at: float | None = None
        self._body_bytes = 0
        self._usage = UsageReader(b"")

    def take(self, event: Event, now: float) -> bool:
        """Take an event of the stream; tell whether the response is complete."""
        match event:
            case ResponseHeaders(headers, end, served):
                status = headers.get(":status", b"")
                self._status = int(status) if status.isdigit() else 0
                self._endpoint = served or self._endpoint
                self._usage = UsageReader(headers.get("content-type", b""))
                return end
            case ResponseBody(data, end):
                if self._first_byte_at is None and data:
                    self._first_byte_at = now
                self._body_bytes += len(data)
                self._usage.feed(data, end=end)
                return end
            case ResponseTrailers():
                return True
            case _:
                return False

    def served(self, now: float, *, complete: bool) -> Served:
        """Return how the response went, as of `now` (monotonic seconds)."""
        first, tokens = self._first_byte_at, self._usage.tokens
        return Served(
            outcome=self._outcome,
            endpoint=self._endpoint,
            status=self._status,
            first_byte_s=first - self._picked_at if first is not None else None,
            duration_s=now - self._picked_at,
            body_bytes=self._body_bytes,
            complete=complete,
            input_tokens=tokens.input,
            output_tokens=tokens.output,
            cached_tokens=tokens.cached,
        )
