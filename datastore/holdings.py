"""Who says what about an object, when more than one source may speak of it.

Several watches can hold the same kind (a pod watch for each namespace, InferencePools of two API
groups), so a relist by one of them must not delete what another one holds, and the same name said
twice must always end the same way, whichever came first: the lower rank wins, then the source
whose name sorts first.
"""

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from datastore.model import ObjectName


class Named(Protocol):
    """A value that has a namespaced name."""

    @property
    def name(self) -> ObjectName:
        """Its name."""


T = TypeVar("T", bound=Named)
Slot = tuple[int, str]
"""(rank, source): who holds an object.  The smallest wins."""

RANKS = (0, 1)


def equal_rank(_: object) -> int:
    """Rank every object alike: only the source's name decides."""
    return 0


class Holdings(Generic[T]):
    """The objects of one kind.  `current` is what counts; written by the store only.

    Every method returns the changes of `current` as (name, before, after).
    """

    __slots__ = ("_names", "_rank", "_shadowed", "_winners", "current")

    def __init__(self, rank: Callable[[T], int] = equal_rank) -> None:
        self.current: dict[ObjectName, T] = {}
        self._rank = rank
        self._winners: dict[ObjectName, Slot] = {}
        self._shadowed: dict[ObjectName, dict[Slot, T]] = {}
        self._names: dict[Slot, set[ObjectName]] = {}

    def set(self, value: T, source: str) -> list[tuple[ObjectName, T | None, T | None]]:
        """`source` says that this object exists and is so."""
        slot = (self._rank(value), source)
        name = value.name
        self._names.setdefault(slot, set()).add(name)
        before = self.current.get(name)
        if before is not None and (winner := self._winners[name]) != slot:
            if winner < slot:
                self._shadowed.setdefault(name, {})[slot] = value
                return []
            self._shadowed.setdefault(name, {})[winner] = before
        self._winners[name] = slot
        # The newer of two equal objects is kept, so that a relist which repeats it compares by
        # identity.
        self.current[name] = value
        if before is value or before == value:
            return []
        return [(name, before, value)]

    def remove(self, name: ObjectName, source: str) -> list[tuple[ObjectName, T | None, T | None]]:
        """`source` says that this object is gone, under every rank that it held it."""
        before = self.current.get(name)
        for rank in RANKS:
            self._drop(name, (rank, source))
        after = self.current.get(name)
        return [] if before is after or before == after else [(name, before, after)]

    def replace(
        self, values: Iterable[T], source: str
    ) -> list[tuple[ObjectName, T | None, T | None]]:
        """`source` says that these are all the objects that it knows."""
        before: dict[ObjectName, T | None] = {}
        kept: dict[Slot, set[ObjectName]] = {(rank, source): set() for rank in RANKS}
        for value in values:
            name = value.name
            kept[self._rank(value), source].add(name)
            if self.current.get(name) is not value:
                for _, old, _ in self.set(value, source):
                    before.setdefault(name, old)
        for slot, names in kept.items():
            for name in self._names.get(slot, set()) - names:
                before.setdefault(name, self.current.get(name))
                self._drop(name, slot)
        return [
            (name, old, after)
            for name, old in before.items()
            if (after := self.current.get(name)) is not old and after != old
        ]

    def _drop(self, name: ObjectName, slot: Slot) -> None:
        """Forget what `slot` holds; if it was what counted, the next one in order counts."""
        names = self._names.get(slot)
        if names is None or name not in names:
            return
        names.discard(name)
        if not names:
            del self._names[slot]
        others = self._shadowed.get(name, {})
        if self._winners[name] != slot:
            del others[slot]
        elif others:
            heir = min(others)
            self._winners[name] = heir
            self.current[name] = others.pop(heir)
        else:
            del self._winners[name]
            del self.current[name]
        if not others:
            self._shadowed.pop(name, None)
