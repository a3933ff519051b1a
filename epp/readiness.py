"""What the picker still waits for before it may be sent requests, and the health that follows."""

from epp.extproc.health import Health


class Readiness:
    """Named conditions; ready when none is missing.

    Written by whoever brings a condition about: sources, the leader election, the shutdown.
    """

    def __init__(self, health: Health) -> None:
        self._health = health
        self._missing: dict[str, None] = {}

    @property
    def missing(self) -> tuple[str, ...]:
        """What is waited for, in the order in which it came up."""
        return tuple(self._missing)

    def lack(self, condition: str) -> None:
        """Not ready before this is met."""
        self._missing[condition] = None
        self._health.set_ready(False)

    def meet(self, condition: str) -> None:
        """This is met (or was never lacking)."""
        self._missing.pop(condition, None)
        if not self._missing:
            self._health.set_ready(True)
