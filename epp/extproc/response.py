"""Watch a response pass: its status, its first byte, its end.  It changes nothing."""

from epp.extproc.events import Event, ResponseBody, ResponseHeaders, ResponseTrailers, Route
from epp.extproc.outcome import Served


class ResponseWatch:
    """What has been seen of one response so far.  Written by the stream that it belongs to."""

    __slots__ = (
        "_body_bytes",
        "_endpoint",
        "_first_byte_at",
        "_picked_at",
        "_route",
        "_status",
        "_target",
    )

    def __init__(self, route: Route, target: str, picked_at: float) -> None:
        self._route = route
        self._target = target
        self._picked_at = picked_at
        self._endpoint = route.destination.partition(",")[0]
        self._status = 0
        self._first_byte_at: float | None = None
        self._body_bytes = 0

    def take(self, event: Event, now: float) -> bool:
        """Take an event of the stream; tell whether the response is complete."""
        match event:
            case ResponseHeaders(headers, end, served):
                status = headers.get(":status", b"")
                self._status = int(status) if status.isdigit() else 0
                self._endpoint = served or self._endpoint
                return end
            case ResponseBody(data, end):
                if self._first_byte_at is None and data:
                    self._first_byte_at = now
                self._body_bytes += len(data)
                return end
            case ResponseTrailers():
                return True
            case _:
                return False

    def served(self, now: float, *, complete: bool) -> Served:
        """Return how the response went, as of `now` (monotonic seconds)."""
        first = self._first_byte_at
        return Served(
            model=self._route.model,
            target=self._target,
            pool=self._route.pool,
            endpoint=self._endpoint,
            status=self._status,
            first_byte_s=first - self._picked_at if first is not None else None,
            duration_s=now - self._picked_at,
            body_bytes=self._body_bytes,
            complete=complete,
        )
