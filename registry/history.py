"""What `epp-registry history` does: the audit of an intent, from the registry alone."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from console import Table, fail, show
from registry.client import RegistryClient, connect
from registry.report import HISTORY_COLUMNS, history_rows, intents_named
from registry.settings import Settings


async def print_history(
    settings: Settings, environ: Mapping[str, str], name: str, environment: str
) -> None:
    """Print the audit of every intent of that name."""
    async with _connected(settings, environ, environment) as client:
        environments = {item.id: item.name for item in await client.environments()}
        found = [
            (where, intent)
            for identifier, where in environments.items()
            if environment in ("", where)
            for intent in intents_named(name, await client.intents(identifier))
        ]
        if not found:
            fail(f"no intent {name!r}", where=client.rest.address.url, fix="Check its name or id")
        for where, intent in found:
            versions = {v.id: v.name for v in await client.versions(intent.model_id)}
            rows = history_rows(await client.records(intent.id), versions)
            show(Table(HISTORY_COLUMNS, rows, title=f"{where}/{intent.name or intent.id}"))


@asynccontextmanager
async def _connected(
    settings: Settings, environ: Mapping[str, str], namespace: str
) -> AsyncIterator[RegistryClient]:
    """Open a registry; the cluster is asked only where its address is not given."""
    if settings.address.url:
        async with connect(settings.address) as client:
            yield client
        return
    from registry.program import connect_all  # imports a Kubernetes client

    async with connect_all(settings, environ) as (_, _cluster, registries):
        yield (await registries.of(namespace)).client
