"""What sources tell the store: one object is now so, one is gone, or "this is all there is".

A source is whoever speaks: one watch, one folder.  Two sources may hold the same kind; what one of
them deletes or replaces is only ever its own.  A `Replaced` is the end of a (re)list: objects of
that kind which it does not name and which its source held are gone, so a source never has to work
out deletions itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from datastore.model import Backend, InferenceModel, InferencePool, ObjectName


class Kind(Enum):
    """The kinds of object that the store holds."""

    MODEL = "InferenceModel"
    POOL = "InferencePool"
    BACKEND = "Backend"


@dataclass(frozen=True, slots=True)
class Upserted:
    """This object exists and is now so, says `source`."""

    object: InferenceModel | InferencePool | Backend
    source: str = ""


@dataclass(frozen=True, slots=True)
class Deleted:
    """This object is gone, says `source` (of a pool: in whatever API group `source` held it)."""

    kind: Kind
    name: ObjectName
    source: str = ""


@dataclass(frozen=True, slots=True)
class Replaced:
    """These are all the objects of this kind that `source` (a watch, a folder) knows."""

    kind: Kind
    objects: Sequence[InferenceModel | InferencePool | Backend]
    source: str = ""


Event = Upserted | Deleted | Replaced
