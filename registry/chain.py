"""One intent's steps: the table of (wanted, there) with its audit.  Pure.

| wanted     | resource | then                                                        |
|------------|----------|-------------------------------------------------------------|
| DEPLOYED   | absent   | close what vanished, open a record, create                  |
| DEPLOYED   | present  | apply the difference; follow its status; close old versions |
| UNDEPLOYED | present  | delete                                                      |
| UNDEPLOYED | absent   | close records that are open                                 |

A record is opened before the write that it tells of, and closed after: whatever dies in between,
the next plan finds the open record and goes on with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from registry import names
from registry.audit import (
    NAME_TAKEN,
    AdvanceRecord,
    Episode,
    OpenRecord,
    advance,
    advance_opened,
    explained,
    open_record,
    read_episodes,
)
from registry.doubt import is_anothers, is_ours, not_ours, replaced
from registry.model import (
    Condition,
    Desired,
    Intent,
    Json,
    Observed,
    Policy,
    RecordState,
    Resource,
    Serving,
)
from registry.readiness import Progress, before_write, health
from registry.resource import resource_delta, wanted_resource

AUDIT_UNKNOWN = "AuditUnknown"
REGISTRY_SILENT = "RegistryUnavailable"


@dataclass(frozen=True, slots=True)
class ApplyResource:
    """Step: apply our fields.  `opened` names the record to label it with, where it is new.

    `on_refusal` is what to write where the API server refuses for good.
    """

    intent_id: str
    body: Json
    create: bool
    opened: str | None = None
    on_refusal: AdvanceRecord | None = None
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteResource:
    """Step: delete this very resource (by uid)."""

    intent_id: str
    name: str
    uid: str
    why: str


Step = OpenRecord | AdvanceRecord | ApplyResource | DeleteResource


@dataclass(frozen=True, slots=True)
class Chain:
    """The steps of one intent, in order, and what there is to say about it."""

    intent: Intent
    steps: tuple[Step, ...] = ()
    conditions: tuple[Condition, ...] = ()
    resource: Resource | None = None


class IntentPlan:
    """The plan of one intent: short-lived, so that its parts need not hand everything around."""

    def __init__(
        self,
        item: Desired,
        observed: Observed,
        policy: Policy,
        found: Sequence[Resource],
        owners: Mapping[str, str],
    ) -> None:
        self.intent, self.serving = item.intent, item.serving
        self.observed, self.policy, self.owners = observed, policy, owners
        self.resource = found[0] if found else None
        records = observed.records.get(self.intent.id, ())
        self.episodes = read_episodes(records)
        self.open = [episode for episode in self.episodes if episode.open]
        self.conditions: list[Condition] = []
        if len(found) > 1:
            others = ", ".join(resource.name for resource in found[1:])
            self._tell("Duplicate", f"{others}: also labelled with intent {self.intent.id}; left")

    def chain(self) -> Chain:
        """Return the steps that bring this intent about."""
        if isinstance(self.serving, Condition) and self.serving.reason == AUDIT_UNKNOWN:
            return Chain(self.intent, (), (self.serving,), self.resource)
        if self.resource is not None and is_anothers(self.observed.environment, self.resource):
            doubt = replaced(self.resource, self.intent.id)
            return Chain(self.intent, (), (doubt,), self.resource)
        steps = self._deployed() if self.intent.deployed else self._undeployed()
        return Chain(self.intent, tuple(steps), tuple(self.conditions), self.resource)

    def _undeployed(self) -> list[Step]:
        if self.resource is None:
            return self._close(self.open, "Undeployed")
        if self.resource.terminating:
            self._tell("Terminating", f"{self.resource.name} is being deleted")
            return []
        if not is_ours(self.resource):
            self.conditions.append(not_ours(self.resource))
            return []
        return [DeleteResource(self.intent.id, self.resource.name, self.resource.uid, "UNDEPLOYED")]

    def _deployed(self) -> list[Step]:
        blocked = self._blocked()
        if blocked is not None:
            self.conditions.append(blocked)
            return self._follow_only()
        assert isinstance(self.serving, Serving)
        if self.serving.note is not None:
            self.conditions.append(self.serving.note)
        if self.resource is None:
            return self._create(self.serving)
        return self._update(self.serving, self.resource)

    def _blocked(self) -> Condition | None:
        """Return why nothing may be written to the cluster for this intent."""
        if self.resource is not None and self.resource.terminating:
            return Condition("Terminating", f"{self.resource.name} is being deleted")
        if not self.observed.usable:
            return Condition(
                "NamespaceGone", f"namespace {self.observed.namespace} is gone or going"
            )
        runtime = self.intent.runtime
        if runtime not in self.observed.runtimes:
            return Condition(
                "RuntimeGone" if runtime else "NoRuntime",
                f"no ServingRuntime {runtime!r} in {self.observed.namespace}; nothing is changed",
            )
        if not isinstance(self.serving, Serving):
            return self.serving or Condition("Unresolved", "the version is not known")
        return None

    def _follow_only(self) -> list[Step]:
        """Keep the audit true to a resource that we must not touch."""
        if self.resource is None:
            return self._close(self._vanished(), "ResourceGone")
        current = self._labelled(self.resource)
        if current is None or self.resource.terminating:
            return []
        steps = self._progress(current, self.resource)
        if isinstance(self.serving, Condition) and self.serving.reason != REGISTRY_SILENT:
            # What was begun for a version that can no longer be had will never be finished.
            others = [episode for episode in self.open if episode is not current]
            steps += self._close(others, "Superseded")
        return steps

    def _create(self, serving: Serving) -> list[Step]:
        gone = self._vanished()
        rest = [episode for episode in self.open if episode not in gone]
        other = [episode for episode in rest if episode.version_id != serving.version_id]
        current = next((e for e in reversed(rest) if e not in other), None)
        spare = [episode for episode in rest if episode not in other and episode is not current]
        steps: list[Step] = self._close(gone, "ResourceGone")
        steps += self._close([*other, *spare], "Superseded")
        name = names.resource_name(self.intent.name, self.intent.id)
        if self.owners.get(name) != self.intent.id:
            return steps + self._name_taken(serving, current, name)
        return steps + self._open_and_apply(serving, current, None)

    def _update(self, serving: Serving, resource: Resource) -> list[Step]:
        labelled = self._labelled(resource)
        same = [episode for episode in self.open if episode.version_id == serving.version_id]
        current = labelled if labelled in same else (same[-1] if same else None)
        others = [episode for episode in self.open if episode is not current]
        body = self._body(serving, resource, current)
        changes = resource_delta(body, resource)
        if current is None or changes:
            steps = self._open_and_apply(serving, current, resource)
        else:
            steps = self._progress(current, resource)
        return steps + self._close(others, "Superseded")

    def _open_and_apply(
        self, serving: Serving, current: Episode | None, resource: Resource | None
    ) -> list[Step]:
        steps: list[Step] = []
        body = self._body(serving, resource, current)
        changes = resource_delta(body, resource) if resource else ()
        create = resource is None
        if current is not None:
            failed = None
            if current.state is RecordState.UNKNOWN:
                failed = advance(self.intent.id, current, RecordState.FAILED)
            return [ApplyResource(self.intent.id, body, create, None, failed, changes)]
        opened = open_record(
            self.intent.id, self._stem, serving.version_id, self.episodes, before_write(resource)
        )
        failed = advance_opened(opened, RecordState.FAILED)
        steps.append(opened)
        steps.append(ApplyResource(self.intent.id, body, create, opened.name, failed, changes))
        return steps

    def _name_taken(self, serving: Serving, current: Episode | None, name: str) -> list[Step]:
        message = f"{name} in {self.observed.namespace} belongs to somebody else"
        self._tell(NAME_TAKEN, message)
        if current is None:
            why = explained(NAME_TAKEN, message)
            failed = RecordState.FAILED
            return [
                open_record(
                    self.intent.id, self._stem, serving.version_id, self.episodes, why, failed
                )
            ]
        if current.state is RecordState.FAILED:
            return []
        return [advance(self.intent.id, current, RecordState.FAILED, NAME_TAKEN, message)]

    def _progress(self, episode: Episode, resource: Resource) -> list[Step]:
        written = self.observed.written.get(self.intent.id)
        found = health(resource, episode.first.properties, written)
        if found.progress is Progress.READY and episode.state is not RecordState.RUNNING:
            return [advance(self.intent.id, episode, RecordState.RUNNING)]
        if found.progress is Progress.FAILED:
            self._tell("ModelFailed", f"{resource.name}: {found.reason} {found.message}".strip())
            if episode.state is not RecordState.FAILED:
                return [
                    advance(
                        self.intent.id, episode, RecordState.FAILED, found.reason, found.message
                    )
                ]
        return []

    def _vanished(self) -> list[Episode]:
        """Return the open episodes whose resource was there and is not any more."""
        last_seen = self.observed.seen.get(self.intent.id)
        return [
            episode
            for episode in self.open
            if episode.first.id == last_seen
            or not (episode.state is RecordState.UNKNOWN or episode.never_there)
        ]

    def _close(self, episodes: Sequence[Episode], reason: str) -> list[Step]:
        return [
            advance(self.intent.id, episode, RecordState.COMPLETE, reason) for episode in episodes
        ]

    def _labelled(self, resource: Resource) -> Episode | None:
        wanted = resource.labels.get(names.RECORD_LABEL)
        return next((episode for episode in self.open if episode.first.id == wanted), None)

    def _body(self, serving: Serving, resource: Resource | None, current: Episode | None) -> Json:
        return wanted_resource(
            self.observed.namespace,
            self.intent,
            serving,
            self.policy,
            existing=resource,
            record_id=current.first.id if current else None,
        )

    @property
    def _stem(self) -> str:
        return names.record_stem(self.intent.name, self.intent.id)

    def _tell(self, reason: str, message: str) -> None:
        self.conditions.append(Condition(reason, message))
