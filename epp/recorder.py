"""Tell the metrics and the access log of each request."""

from epp.accesslog import AccessLog
from epp.metrics import UNKNOWN, PickerMetrics
from epp.outcome import Outcome, Served


class Recorder:
    """The picker's observer of requests: counts first, then a line."""

    def __init__(self, metrics: PickerMetrics, log: AccessLog | None) -> None:
        self._metrics = metrics
        self._log = log

    def picked(self, outcome: Outcome) -> None:
        """Count and log a request that was routed, answered or refused."""
        series = self._metrics.record(outcome)
        if outcome.passes:
            series.begin()
        if self._log is not None:
            self._log.write(outcome)

    def served(self, response: Served) -> None:
        """Count a response that has passed through, or that will not any more."""
        outcome = response.outcome
        model = outcome.model if outcome.known else UNKNOWN
        series = self._metrics.series(outcome.namespace, model, outcome.target, outcome.pool)
        if not response.complete:
            series.end()
            return
        series.end(
            duration_s=response.duration_s,
            ttft_s=response.first_byte_s,
            response_bytes=response.body_bytes,
            input_tokens=response.input_tokens,
            output_tokens=response.output_tokens,
            cached_tokens=response.cached_tokens,
        )
