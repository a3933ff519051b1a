"""What `epp-registry plan` does: one look at each namespace, and nothing else."""

from collections.abc import Mapping
from typing import Any

import yaml

from console import Table, say, show, stderr
from registry.errors import RegistryUnavailable
from registry.memory import Memory
from registry.observe import Observer
from registry.plan import plan as make_plan
from registry.program import connect_all
from registry.report import PLAN_COLUMNS, plan_rows, unknown, wanted_objects
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
            observed = look.observed
            if observed.environment is None and observed.usable and observed.runtimes:
                rows.append((namespace, "-", "environment", namespace, "create in the registry"))
            made = make_plan(look.desired, observed, settings.policy)
            if output == "yaml" and (why := unknown(made)):
                # A repository that lacks it would have it deleted.
                raise RegistryUnavailable(f"{namespace}: {why}")
            rows += plan_rows(namespace, made)
            objects += wanted_objects(look.desired, observed, settings.policy, made)
    if output == "yaml":
        for namespace, who, verb, _, detail in rows:
            if verb in ("note", "none"):
                say(f"# {namespace}: {who}: {detail}", to=stderr())
        say(yaml.safe_dump_all(objects, sort_keys=False).rstrip())
    elif rows:
        show(Table(PLAN_COLUMNS, rows))
    else:
        say("nothing to do")
