"""Whose a resource is: a label alone proves nothing, it can be a copy or outlive its registry."""

from registry import names
from registry.model import Condition, Environment, Resource
from registry.ownership import owned_fields

CLOCK_SLACK_MS = 300_000
"""How far the clocks of the registry and of the API server may be apart."""


def is_ours(resource: Resource) -> bool:
    """Whether we ever wrote to a resource: a label alone can come with a copy of one of ours."""
    return bool(owned_fields(resource.body, names.FIELD_MANAGER))


def is_anothers(environment: Environment | None, resource: Resource) -> bool:
    """Whether the environment was made after the resource: then it is not the one that asked.

    A registry that was wiped counts its ids from one again, so a label alone proves nothing.
    """
    made_ms = environment.created_ms if environment else 0
    return made_ms > resource.created_ms + CLOCK_SLACK_MS


def replaced(resource: Resource, intent_id: str) -> Condition:
    """Return why nothing is done to a resource that another registry asked for."""
    return Condition(
        "RegistryReplaced",
        f"{resource.name} is older than the registry's environment, so its label {intent_id} is "
        "another registry's; left",
    )


def not_ours(resource: Resource) -> Condition:
    """Return why a labelled resource is not deleted."""
    return Condition("NotOurs", f"{resource.name} has our label and not one field of ours; left")
