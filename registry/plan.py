"""From what is desired and what is observed to the steps that make them one.  Pure.

Each intent gets its own chain of steps, so one that fails holds up nobody else.  Every step can be
repeated, and a chain that was cut anywhere is finished by planning again.  What is in doubt is
left as it is: a resource goes only because its intent says UNDEPLOYED, or (with prune) because a
full list no longer has the intent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from registry import names
from registry.chain import Chain, DeleteResource, IntentPlan
from registry.doubt import is_anothers, is_ours, not_ours, replaced
from registry.model import Condition, Desired, Intent, Observed, Policy, Resource
from registry.traffic import ModelPlan, plan_models


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do in one namespace: the picker's models first, then each intent's chain."""

    models: ModelPlan
    chains: tuple[Chain, ...]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.models.steps and not any(chain.steps for chain in self.chains)


def plan(
    desired: Sequence[Desired],
    observed: Observed,
    policy: Policy,
    only: frozenset[str] | None = None,
) -> Plan:
    """Return what to do in a namespace.

    `desired` is the full list of the environment.  `only` narrows the work to some runtimes.
    """
    reverse = {names.reverse_intent(item.labels) for item in observed.resources}
    ours = [
        item
        for item in sorted(desired, key=lambda item: intent_order(item.intent))
        if item.intent.id not in reverse and not names.is_reverse_name(item.intent.name)
    ]
    resources = _by_intent(observed.resources)
    owners = _name_owners(ours, observed, resources)
    chains = [
        IntentPlan(item, observed, policy, resources.get(item.intent.id, ()), owners).chain()
        for item in ours
        if only is None or item.intent.runtime in only
    ]
    if only is None and observed.environment is not None:
        chains += _leftovers(desired, observed, resources, policy)
    served = {
        intent_id: found
        for intent_id, found in resources.items()
        if not is_anothers(observed.environment, found[0])
    }
    models = plan_models(ours, observed, policy, served)
    return Plan(models, tuple(chains))


def intent_order(intent: Intent) -> tuple[int, str]:
    """Return what sorts intents by age: their id."""
    return id_order(intent.id)


def id_order(identifier: str) -> tuple[int, str]:
    """Return what sorts the registry's ids: they are numbers, written as text."""
    return (int(identifier) if identifier.isdecimal() else 0, identifier)


def _leftovers(
    desired: Sequence[Desired],
    observed: Observed,
    resources: Mapping[str, Sequence[Resource]],
    policy: Policy,
) -> list[Chain]:
    """Deal with resources whose intent the full list lacks: with prune they go, else they stay."""
    known = {item.intent.id for item in desired}
    chains = []
    for intent_id, found in resources.items():
        if intent_id in known:
            continue
        for resource in found:
            if resource.terminating or names.reverse_intent(resource.labels):
                continue
            intent = Intent(intent_id, resource.name, "", deployed=False)
            doubt = _doubt(intent_id, resource, observed, policy)
            if doubt is None:
                step = DeleteResource(intent_id, resource.name, resource.uid, "pruned")
                chains.append(Chain(intent, (step,), (), resource))
            else:
                chains.append(Chain(intent, (), (doubt,), resource))
    return chains


def _doubt(
    intent_id: str, resource: Resource, observed: Observed, policy: Policy
) -> Condition | None:
    """Return why a resource that nobody asks for any more stays, if it does."""
    gone = f"the registry no longer lists intent {intent_id}, and {resource.name}"
    if not is_ours(resource):
        return not_ours(resource)
    if not policy.prune:
        return Condition("IntentGone", f"{gone} stays, for --prune is off")
    if observed.environment is None or is_anothers(observed.environment, resource):
        return replaced(resource, intent_id)
    if intent_id not in observed.missing:
        return Condition("IntentGone", f"{gone} goes if the next list says so too")
    return None


def _by_intent(resources: Sequence[Resource]) -> dict[str, list[Resource]]:
    """Group our resources by intent, the oldest first: that is the one we go on with."""
    found: dict[str, list[Resource]] = {}
    for resource in sorted(resources, key=lambda resource: (resource.created, resource.name)):
        intent_id = resource.labels.get(names.INTENT_LABEL)
        if intent_id:
            found.setdefault(intent_id, []).append(resource)
    return found


def _name_owners(
    desired: Sequence[Desired], observed: Observed, resources: Mapping[str, Sequence[Resource]]
) -> dict[str, str]:
    """Return who may use each name: the resource that has it, else the oldest that wants it."""
    owners = {
        resource.name: resource.labels.get(names.INTENT_LABEL, "")
        for resource in observed.resources
    }
    for item in desired:
        if item.intent.deployed and item.intent.id not in resources:
            owners.setdefault(names.resource_name(item.intent.name, item.intent.id), item.intent.id)
    return owners
