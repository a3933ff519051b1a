"""What a watch does next: pure decisions about places, failures and pauses.

A watch has a place: the revision up to which it knows everything.  Whatever fails, the question is
whether that place is still good (watch on from it) or lost (list anew), and how long to wait first.
`after` answers it for every failure; `watch` does what it says.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto
from random import Random

from datastore.kube_errors import (
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    ResourceMissing,
    TooNew,
)


@dataclass(frozen=True, slots=True)
class Pace:
    """How patient a watch is."""

    backoff_min_s: float = 0.8
    """The first pause after a failure; each further one is twice as long."""
    backoff_max_s: float = 30.0
    """The longest pause that we choose ourselves."""
    retry_after_max_s: float = 300.0
    """The longest pause that a server can choose for us."""
    healthy_s: float = 120.0
    """A connection that lived this long ends the series of failures before it."""
    watch_min_s: float = 300.0
    """A watch asks the server to end it after a random time from here..."""
    watch_max_s: float = 600.0
    """...to here, so that thousands of them do not come back at once."""
    idle_s: float = 150.0
    """Silence for this long ends a watch; API servers send a bookmark about every minute."""
    page_limit: int = 250
    """Objects in one page of a list; a page is read whole."""
    watch_list: bool = True
    """Ask for the list as the beginning of the watch (`sendInitialEvents`), where servers can."""
    watch_list_s: float = 60.0
    """How long that may take before we list the old way."""
    missing_grace_s: float = 60.0
    """A kind that the server has not known for this long has no objects any more."""
    slice_s: float = 0.0005
    """How long objects are decoded and applied before everybody else has a turn."""


class Step(Enum):
    """What to send next."""

    LIST = auto()
    WATCH_LIST = auto()
    WATCH = auto()


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a watch is.  `version` is its place, empty when it must list anew."""

    version: str = ""
    watch_list: bool = True
    failures: int = 0
    missing_since: float | None = None

    @property
    def step(self) -> Step:
        """What to send next."""
        if self.version:
            return Step.WATCH
        return Step.WATCH_LIST if self.watch_list else Step.LIST


def after(
    progress: Progress, error: KubeError | None, lived_s: float, pace: Pace, now: float, rng: Random
) -> tuple[Progress, float]:
    """Return where we are after a connection ended, and how long to wait before the next one.

    `error` None: the server ended it as agreed.  `lived_s`: how long it had told us things.
    """
    if lived_s >= pace.healthy_s:
        progress = replace(progress, failures=0)
    pause_s = backoff(progress.failures, pace, rng)
    failed = replace(progress, failures=progress.failures + 1, missing_since=None)
    if error is None:
        return (replace(failed, failures=0), 0.0) if lived_s >= 1.0 else (failed, pause_s)
    if isinstance(error, Invalid) and progress.step is Step.WATCH_LIST:
        return replace(progress, watch_list=False), 0.0
    if isinstance(error, ResourceMissing):
        since = now if progress.missing_since is None else progress.missing_since
        failed = replace(failed, missing_since=since)
    if isinstance(error, Gone | TooNew | Invalid):
        failed = replace(failed, version="")
    if isinstance(error, Gone) and not progress.failures:
        pause_s = 0.0
    return failed, max(pause_s, _asked(error, pace))


def backoff(failures: int, pace: Pace, rng: Random) -> float:
    """Return the pause after the n-th failure in a row: twice the last, at most the maximum.

    Up to half of it is taken off at random, so that many clients do not return together.
    """
    full_s = min(pace.backoff_max_s, pace.backoff_min_s * 2.0 ** min(failures, 32))
    return full_s * (0.5 + 0.5 * rng.random())


def _asked(error: KubeError, pace: Pace) -> float:
    """Return how long the server asked us to wait, within reason."""
    return min(error.retry_after_s or 0.0, pace.retry_after_max_s)


def is_quiet(error: KubeError | None, before: KubeError | None) -> bool:
    """Tell whether a failure need not be said (again): it is the usual end, or it was just said."""
    if error is None or isinstance(error, Gone):
        return True
    if isinstance(error, Forbidden | ResourceMissing):
        return type(before) is type(error)
    return before is not None and before.message == error.message


def newer(version: str, than: str) -> bool:
    """Tell whether a resourceVersion is newer than another; unreadable ones are taken as newer.

    Kubernetes promises since 1.35 that they can be compared as numbers, and etcd's always could.
    """
    if not (version.isdecimal() and than.isdecimal()):
        return version != than
    return int(version) > int(than)
