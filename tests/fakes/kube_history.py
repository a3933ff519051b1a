"""The past of a cluster, as watches and continued lists see it.

A window of committed changes for each resource; a watch from before the window is refused with 410,
and so is a continued list whose first page is forgotten.
"""

import asyncio
import base64
import itertools
import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.fakes.kube_objects import TOO_LARGE, Json, Matches, Resource, StatusError

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Change:
    """One committed change: what the object is, and what it was."""

    revision: int
    obj: Json
    body: bytes
    old: Json | None
    deleted: bool = False


@dataclass(slots=True, eq=False)
class Watcher:
    """One open watch: lines wait here until the server has written them."""

    namespace: str
    matches: Matches
    pending: deque[tuple[int, bytes]] = field(default_factory=deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    revision: int = 0
    muted: bool = False
    ending: str = ""

    def push(self, line: bytes, revision: int = 0) -> None:
        """Queue a line for the client; `revision` is that of the change it tells, if it does."""
        self.pending.append((revision, line))
        self.wake.set()

    def end(self, how: str) -> None:
        """End it: `close` (cleanly), `cut` (within a line), `gone` (410), `failed` (500)."""
        self.ending = how
        self.wake.set()

    def offer(self, change: Change) -> None:
        """Queue a change if this watch can see it."""
        is_in = not change.deleted and self._sees(change.obj)
        was_in = change.old is not None and self._sees(change.old)
        if is_in or was_in:
            kind = ("MODIFIED" if was_in else "ADDED") if is_in else "DELETED"
            self.push(line(kind, change.body), change.revision)
        self.revision = change.revision

    def _sees(self, obj: Json) -> bool:
        namespace = obj["metadata"].get("namespace", "")
        return (not self.namespace or namespace == self.namespace) and self.matches(obj)


def line(kind: str, body: bytes) -> bytes:
    """Return one line of a watch."""
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), body)


class Pages:
    """Lists that clients are in the middle of: one snapshot each, as `continue` promises."""

    KEPT = 256

    def __init__(self) -> None:
        self._kept: dict[int, list[bytes]] = {}
        self._ids = itertools.count(1)

    def first(self, bodies: list[bytes], limit: int, revision: int) -> "Page":
        """Return the first page of a list."""
        ident = next(self._ids)
        if limit and limit < len(bodies):
            self._kept[ident] = bodies
            while len(self._kept) > self.KEPT:
                del self._kept[next(iter(self._kept))]
        return self._cut(ident, bodies, 0, limit, revision)

    def next(self, token: str, limit: int) -> "Page":
        """Return the page that a continue token asks for."""
        try:
            ident, start, revision = json.loads(base64.urlsafe_b64decode(token))
        except ValueError as error:
            raise StatusError(400, "BadRequest", "continue key is not valid") from error
        bodies = self._kept.get(ident)
        if bodies is None:
            text = "The provided continue parameter is too old to display a consistent list"
            raise StatusError(410, "Expired", text)
        return self._cut(ident, bodies, start, limit, revision)

    def expire(self) -> None:
        """Make every continue token that is out there answer 410."""
        self._kept.clear()

    @staticmethod
    def _cut(ident: int, bodies: list[bytes], start: int, limit: int, revision: int) -> "Page":
        end = start + limit if limit else len(bodies)
        if end >= len(bodies):
            return Page(bodies[start:], revision)
        token = base64.urlsafe_b64encode(json.dumps([ident, end, revision]).encode()).decode()
        return Page(bodies[start:end], revision, token, len(bodies) - end)


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list: bodies, the list's revision, the token for more, how many remain."""

    bodies: list[bytes]
    revision: int
    token: str = ""
    remaining: int = 0


class History:
    """The window of changes and the open watches.  Written by the storage.

    `delivered` says when (loop time) each change was last written to a client.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.delivered: dict[int, float] = {}
        self.watchers: dict[Key, set[Watcher]] = {}
        self._log: dict[Key, deque[Change]] = {}
        self._floor: dict[Key, int] = {}

    def begin(self, key: Key, revision: int) -> None:
        """Keep the changes of a resource from now on."""
        self._log.setdefault(key, deque())
        self.watchers.setdefault(key, set())
        self._floor.setdefault(key, revision)

    def announce(self, key: Key, change: Change) -> None:
        """Keep a change, and tell the watches."""
        log = self._log[key]
        log.append(change)
        while len(log) > self.window:
            self._floor[key] = log.popleft().revision
        for watcher in self.watchers[key]:
            watcher.offer(change)

    def compact(self, revision: int) -> None:
        """Forget every change up to a revision."""
        for key, log in self._log.items():
            log.clear()
            self._floor[key] = revision

    def replay(self, resource: Resource, watcher: Watcher, since: int) -> None:
        """Tell a new watch what it has missed; 410 when the window has moved past that."""
        if since < self._floor[resource.key]:
            text = f"too old resource version: {since} ({self._floor[resource.key]})"
            raise StatusError(410, "Expired", text)
        for change in self._log[resource.key]:
            if change.revision > since:
                watcher.offer(change)

    def open_watches(self, plural: str = "") -> Iterable[Watcher]:
        """Return the open watches (of one plural)."""
        return [
            watcher
            for (_, name), watchers in self.watchers.items()
            for watcher in watchers
            if not plural or plural == name
        ]


def too_large(since: int, revision: int) -> StatusError:
    """Return the refusal of a revision that lies in the future."""
    text = f"Too large resource version: {since}, current: {revision}"
    cause = {"reason": TOO_LARGE, "message": "Too large resource version"}
    return StatusError(504, "Timeout", text, causes=[cause], retry_after_s=1)
