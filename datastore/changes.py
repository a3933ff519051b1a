"""What a watch tells: an object is now so, one is gone, or "these are all there are".

Generic over what the objects mean; `observe` turns these into the store's own events.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from datastore.model import ObjectName

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Item(Generic[T]):
    """One object, decoded; `value` None = it exists, and counts for nothing."""

    name: ObjectName
    version: str
    value: T | None


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """This object exists and is now so."""

    name: ObjectName
    value: T


@dataclass(frozen=True, slots=True)
class Lost:
    """This object is gone, or counts for nothing any more."""

    name: ObjectName


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """The list is complete: `items` are all the objects that there are.

    Each of them that is news has been told before this, and `gone` are those that were told once
    and are no more: a sink that keeps what it is told needs only those.
    """

    items: Mapping[ObjectName, Item[T]]
    gone: Sequence[ObjectName] = ()

    @property
    def values(self) -> dict[ObjectName, T]:
        """The values of all objects that count for something."""
        return {name: item.value for name, item in self.items.items() if item.value is not None}


Change = Seen[T] | Lost | Listed[T]
Decode = Callable[[msgspec.Raw], Item[T]]
Sink = Callable[[Sequence[Change[T]]], None]
