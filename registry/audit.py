"""The audit: ServeModel records read as deployments, and the names of the next ones.

A real registry can only append records, so one deployment of one version, an `Episode`, is a
series of them: `<name>/<n>-v<version>` opens it as UNKNOWN, and each transition appends
`<name>/<n>-v<version>/<k>-<state>`.  Where a server can PATCH, the first record carries the state
and there is no series.  Both read the same.  Every name follows from what the registry already
holds, so a retry writes the same name again, and "exists already" means done.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from registry.model import Record, RecordState

_NAME = re.compile(
    r"(?P<stem>.*)/(?P<n>[1-9][0-9]*)-v(?P<version>[^/]+)(/(?P<k>[1-9][0-9]*)-[a-z]+)?",
    re.DOTALL,  # a registry takes names of several lines
)
ENDED = frozenset({RecordState.COMPLETE, RecordState.CANCELED, RecordState.CACHED})

REASON = "reason"
MESSAGE = "message"
STATUS_BEFORE = "statusBefore"
GENERATION_BEFORE = "generationBefore"
UID_BEFORE = "uidBefore"

# Why a resource was never there: the same record goes on when the obstacle is gone.
NAME_TAKEN = "NameTaken"
REFUSED = "Refused"
CONFLICT = "Conflict"
NEVER_THERE = frozenset({NAME_TAKEN, REFUSED})


@dataclass(frozen=True, slots=True)
class Episode:
    """One deployment of one version, as the audit tells it.

    `first` is the record that opened it, `last` the newest one, `length` how many there are.
    """

    number: int
    first: Record
    last: Record
    length: int

    @property
    def version_id(self) -> str:
        """The version deployed."""
        return self.first.version_id

    @property
    def state(self) -> RecordState:
        """How it stands."""
        return self.last.state

    @property
    def open(self) -> bool:
        """Whether nobody has written its end."""
        return self.state not in ENDED

    @property
    def never_there(self) -> bool:
        """Whether it failed before a resource existed."""
        return self.state is RecordState.FAILED and self.last.properties.get(REASON) in NEVER_THERE


@dataclass(frozen=True, slots=True)
class OpenRecord:
    """Step: begin an episode."""

    intent_id: str
    name: str
    version_id: str
    state: RecordState
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AdvanceRecord:
    """Step: write a transition: append `name`, or where the server can, PATCH `first_id`.

    `first_id` is None while the episode is opened in the same plan (then `opened` is its name), and
    where the episode is a series already.
    """

    intent_id: str
    opened: str
    first_id: str | None
    name: str
    version_id: str
    state: RecordState
    properties: Mapping[str, str]


def read_episodes(records: Sequence[Record]) -> tuple[Episode, ...]:
    """Return the episodes by number; records that are not ours are passed over."""
    series: dict[tuple[int, str], list[tuple[int, Record]]] = {}
    for record in records:
        found = _NAME.fullmatch(record.name)
        if found and found["version"] == record.version_id:
            key = (int(found["n"]), record.version_id)
            series.setdefault(key, []).append((int(found["k"] or 0), record))
    episodes = []
    for (number, _), entries in series.items():
        entries.sort(key=lambda entry: entry[0])
        first, last = entries[0][1], entries[-1][1]
        episodes.append(Episode(number, first, last, len(entries)))
    return tuple(sorted(episodes, key=lambda episode: (episode.number, episode.first.name)))


def open_record(
    intent_id: str,
    stem: str,
    version_id: str,
    episodes: Sequence[Episode],
    properties: Mapping[str, str],
    state: RecordState = RecordState.UNKNOWN,
) -> OpenRecord:
    """Return the step that begins the next episode."""
    number = max((episode.number for episode in episodes), default=0) + 1
    name = f"{stem}/{number}-v{version_id}"
    return OpenRecord(intent_id, name, version_id, state, properties)


def advance(
    intent_id: str, episode: Episode, state: RecordState, reason: str = "", message: str = ""
) -> AdvanceRecord:
    """Return the step that moves an episode to another state."""
    opened = episode.first.name
    kept = {
        key: value
        for key, value in episode.first.properties.items()
        if key in (STATUS_BEFORE, GENERATION_BEFORE, UID_BEFORE)
    }
    return AdvanceRecord(
        intent_id=intent_id,
        opened=opened,
        first_id=episode.first.id if episode.length == 1 else None,
        name=f"{opened}/{episode.length}-{state.value.lower()}",
        version_id=episode.version_id,
        state=state,
        properties={**kept, **explained(reason, message)},
    )


def advance_opened(step: OpenRecord, state: RecordState) -> AdvanceRecord:
    """Return the step that moves an episode which the same plan begins."""
    name = f"{step.name}/1-{state.value.lower()}"
    return AdvanceRecord(
        step.intent_id, step.name, None, name, step.version_id, state, step.properties
    )


def explained(reason: str, message: str) -> dict[str, str]:
    """Return the properties that say why."""
    pairs = {REASON: reason, MESSAGE: message[:500]}
    return {key: value for key, value in pairs.items() if value}
