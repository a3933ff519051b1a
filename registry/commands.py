"""What `epp-registry plan` does: one look at each namespace, and nothing else."""

from collections.abc import Mapping
from typing import Any

import yaml

from console import Table, say, show
from registry.memory import Memory
from registry.observe import Observer
from registry.plan import plan as make_plan
from registry.program import connect_all
from registry.report import PLAN_COLUMNS, plan_rows, wanted_objects
from registry.settings import Settings


async def print_plan(
    settings: Settings, environ: Mapping[str, str], wanted: tuple[str, ...], output: str
) -> None:
    """Print the plan of each namespace."""
    rows: list[tuple[str, ...]] = []
    objects: list[dict[str, Any]] = []
    async with connect_all(settings, environ) as (_, cluster, registries):
        names = wanted or [item.name for item in await cluster.namespaces(settings.selector)]
        for namespace in names:
            registry = await registries.of(namespace)
            observer = Observer(registry.client, cluster, registry.resolver, settings.policy)
            look = await observer.look(namespace, Memory())
            if look.observed.environment is None:
                rows.append((namespace, "-", "environment", namespace, "create in the registry"))
            made = make_plan(look.desired, look.observed, settings.policy)
            rows += plan_rows(namespace, made)
            objects += wanted_objects(look.desired, look.observed, settings.policy)
            objects += [step.body for step in made.models.steps if hasattr(step, "body")]
    if output == "yaml":
        say(yaml.safe_dump_all(objects, sort_keys=False).rstrip())
    elif rows:
        show(Table(PLAN_COLUMNS, rows))
    else:
        say("nothing to do")
