"""What the reconciler remembers between two passes.  Losing all of it is always safe.

Two objects, each with one writer: a namespace's `Memory` is written by its own pass, the
`DeleteBudget` by whoever is about to delete.
"""

from collections import deque
from dataclasses import dataclass, field

from registry import names
from registry.model import Environment, Observed, Record, Resource
from registry.readiness import status_digest


@dataclass(slots=True)
class Memory:
    """What is known of one namespace since the last time somebody looked.

    Records are ours alone, so they are read once and then kept as we write them; after any doubt
    they are forgotten, and read again.
    """

    records: dict[str, tuple[Record, ...]] = field(default_factory=dict)
    seen: dict[str, str] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    environment: Environment | None = None

    def remember_record(self, intent_id: str, record: Record) -> None:
        """Keep a record that was just written, in place of its older self."""
        others = (item for item in self.records.get(intent_id, ()) if item.id != record.id)
        self.records[intent_id] = (*others, record)

    def forget_records(self, intent_id: str) -> None:
        """Read the records of this intent again next time."""
        self.records.pop(intent_id, None)

    def remember_resource(self, intent_id: str, resource: Resource) -> None:
        """Keep what came back with our write."""
        self.written[intent_id] = status_digest(resource.status)
        self.remember_seen(intent_id, resource)

    def remember_seen(self, intent_id: str, resource: Resource) -> None:
        """Keep that this resource exists."""
        label = resource.labels.get(names.RECORD_LABEL)
        if label:
            self.seen[intent_id] = label

    def remember_pass(self, observed: Observed, known: frozenset[str]) -> None:
        """Keep what a whole look at the namespace showed; `known` are the registry's intents."""
        labelled = {}
        for resource in observed.resources:
            intent_id = resource.labels.get(names.INTENT_LABEL)
            if intent_id:
                labelled[intent_id] = resource
                self.remember_seen(intent_id, resource)
        self.missing = frozenset(labelled) - known
        for intent_id in set(self.records) - known:
            self.forget_records(intent_id)
        for kept in (self.seen, self.written):
            for intent_id in set(kept) - known - set(labelled):
                del kept[intent_id]


class DeleteBudget:
    """How many deletes are left in a sliding period: the bound on any mistake, ours included."""

    def __init__(self, limit: int, period_s: float) -> None:
        self.limit = limit
        self._period_s = period_s
        self._taken: deque[float] = deque()

    def take(self, now: float) -> bool:
        """Take one delete, if there is one left at `now`."""
        while self._taken and self._taken[0] <= now - self._period_s:
            self._taken.popleft()
        if len(self._taken) >= self.limit:
            return False
        self._taken.append(now)
        return True
