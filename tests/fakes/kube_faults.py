"""Faults that a test can switch on in the API server."""

import random
from dataclasses import dataclass, field
from enum import Enum


class WatchList(Enum):
    """How the server treats `sendInitialEvents`."""

    ON = "on"
    REFUSED_422 = "422"
    REFUSED_400 = "400"
    IGNORED = "ignored"


@dataclass(slots=True)
class Failure:
    """Requests that fail; an empty `verb` or `plural` means any; `times` None = until cleared."""

    status: int
    verb: str = ""
    plural: str = ""
    times: int | None = None
    retry_after_s: int | None = None

    def hits(self, verb: str, plural: str) -> bool:
        """Tell whether a request fails, and count it."""
        if self.verb not in ("", verb) or self.plural not in ("", plural) or self.times == 0:
            return False
        if self.times is not None:
            self.times -= 1
        return True


@dataclass(slots=True)
class Faults:
    """What goes wrong at present.  Written by tests, read by the server on the same loop.

    `duplicate` and `reorder` are the chances (0…1) that a watch repeats a line, or swaps two lines
    that it writes together.  `silent` watches are accepted and never say a thing.  `list_delay_s`
    passes before each page, `cut_lists` pages end in the middle.  `gone_as_event` says 410 inside
    the stream instead of as an HTTP status.
    """

    failures: list[Failure] = field(default_factory=list)
    list_delay_s: float = 0.0
    cut_lists: int = 0
    silent: bool = False
    duplicate: float = 0.0
    reorder: float = 0.0
    gone_as_event: bool = True
    watch_list: WatchList = WatchList.ON
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def fail(
        self,
        status: int,
        *,
        verb: str = "",
        plural: str = "",
        times: int | None = None,
        retry_after_s: int | None = None,
    ) -> Failure:
        """Let requests fail with a status; return the failure, so that it can be removed."""
        failure = Failure(status, verb, plural, times, retry_after_s)
        self.failures.append(failure)
        return failure

    def failure_of(self, verb: str, plural: str) -> Failure | None:
        """Return the failure that a request meets, if any."""
        return next((one for one in self.failures if one.hits(verb, plural)), None)

    def clear(self) -> None:
        """Switch every fault off; the way `sendInitialEvents` is treated stays."""
        self.failures.clear()
        self.list_delay_s = self.duplicate = self.reorder = 0.0
        self.cut_lists = 0
        self.silent = False

    def scramble(self, lines: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Return the lines of one write with the duplicates and swaps of the moment."""
        if not self.duplicate and not self.reorder:
            return lines
        found: list[tuple[int, bytes]] = []
        for line in lines:
            found.append(line)
            if self.rng.random() < self.duplicate:
                found.append(line)
        for index in range(1, len(found)):
            if self.rng.random() < self.reorder:
                found[index - 1], found[index] = found[index], found[index - 1]
        return found
