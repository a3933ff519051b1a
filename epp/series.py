"""Counts of what happens, kept as plain numbers so that keeping them costs next to nothing.

Nothing here knows how they are exposed.  Written and read on the event loop only.
"""

from bisect import bisect_left
from itertools import accumulate

REQUEST_BYTES = tuple(float(4**power) for power in range(3, 14))
"""64 B … 64 MiB: the body limit's default lies on a bound."""

TOKENS = tuple(float(2**power) for power in range(21))
"""1 … 1 Mi tokens: the longest contexts served today."""

RESPONSE_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 10.0, 15.0, 20.0, 30.0, 45.0,
    60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0,
)  # fmt: skip
"""From a cached embedding to the longest generation."""

PER_TOKEN_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Ten tokens a second is slow, a thousand is fast."""

PICKER_S = (
    1e-5, 2e-5, 5e-5, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1
)  # fmt: skip
"""The reference's bounds, and three below them, where our picks are."""

LAG_S = (0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)
"""Below 1 ms a loop is idle; at 50 ms a quarter of Envoy's default message timeout is gone."""


class Histogram:
    """How often a number fell between which bounds, and the sum of all of them."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one number."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[int]:
        """Return for each bound, and infinity, how many numbers were not above it."""
        return list(accumulate(self.counts))


class Responses:
    """What is known of the responses of a series whose responses pass through the picker."""

    __slots__ = (
        "bytes", "cached_tokens", "duration_s", "input_tokens", "output_tokens", "per_token_s",
        "ttft_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self.duration_s = Histogram(RESPONSE_S)
        self.ttft_s = Histogram(RESPONSE_S)
        self.per_token_s = Histogram(PER_TOKEN_S)
        self.bytes = Histogram(REQUEST_BYTES)
        self.input_tokens = Histogram(TOKENS)
        self.output_tokens = Histogram(TOKENS)
        self.cached_tokens = Histogram(TOKENS)


class Series:
    """Everything counted for one set of labels: namespace, model, target and pool."""

    __slots__ = ("errors", "labels", "picks", "request_bytes", "requests", "responses", "running")

    def __init__(self, labels: tuple[str, str, str, str]) -> None:
        self.labels = labels
        self.requests = 0
        self.running = 0
        self.errors: dict[str, int] = {}
        self.picks: dict[str, int] = {}
        self.request_bytes = Histogram(REQUEST_BYTES)
        self.responses: Responses | None = None

    def count_pick(self, endpoint: str) -> None:
        """Count one pick of an endpoint."""
        self.picks[endpoint] = self.picks.get(endpoint, 0) + 1

    def count_error(self, reason: str) -> None:
        """Count one refusal."""
        self.errors[reason] = self.errors.get(reason, 0) + 1

    def count_response(
        self,
        *,
        duration_s: float,
        ttft_s: float | None,
        response_bytes: int,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
    ) -> None:
        """Count one whole response; tokens where the model server told them."""
        seen = self.responses
        if seen is None:
            seen = self.responses = Responses()
        seen.duration_s.observe(duration_s)
        seen.bytes.observe(response_bytes)
        for value, histogram in (
            (ttft_s, seen.ttft_s),
            (input_tokens, seen.input_tokens),
            (output_tokens, seen.output_tokens),
            (cached_tokens, seen.cached_tokens),
        ):
            if value is not None:
                histogram.observe(value)
        if output_tokens:
            seen.per_token_s.observe(duration_s / output_tokens)
