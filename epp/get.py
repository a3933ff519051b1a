"""`epp get`: what a running picker knows right now, as a table or as data."""

import http.client
import json
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
import typer
import yaml

from console import Cell, Column, Table, bad, fail, say, show
from epp.state import Model, Pool, Replica, State

_TIMEOUT_S = 10.0
_PORT = 9091
_SERVER = f"http://127.0.0.1:{_PORT}"

Item = Model | Pool | Replica
Row = Sequence[Cell]


class What(StrEnum):
    """What to get."""

    MODELS = "models"
    POOLS = "pools"
    ENDPOINTS = "endpoints"


class Output(StrEnum):
    """How to print it."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


def get(
    what: Annotated[What, typer.Argument(help="What to show.", show_default=False)],
    name: Annotated[str, typer.Argument(help="Only the one of this name.")] = "",
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Only those of this namespace.")
    ] = "",
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = (
        Output.TABLE
    ),
    server: Annotated[
        str, typer.Option(help="Where the picker's --debug-port is.", envvar="EPP_SERVER")
    ] = _SERVER,
) -> None:
    """Show the models, pools or endpoints that a running picker knows."""
    state = decode(fetch(server), server)
    items = [item for item in _items(state, what) if _matches(item, name, namespace)]
    if name and not items:
        fail(f"the picker knows no {what.value.removesuffix('s')} {name!r}", server)
    match output:
        case Output.JSON:
            say(json.dumps(msgspec.to_builtins(items), indent=2, ensure_ascii=False))
        case Output.YAML:
            text = yaml.safe_dump(msgspec.to_builtins(items), sort_keys=False, allow_unicode=True)
            say(text.rstrip("\n"))
        case Output.TABLE | Output.WIDE:
            show(table(items, what, wide=output is Output.WIDE))


def fetch(server: str) -> bytes:
    """Return the body of the picker's /debug/state."""
    host, port = _address(server)
    fix = "is `epp serve` running here, with --debug-port? For a pod: kubectl exec POD -- epp get …"
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/debug/state")
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        fail(f"no picker answers: {error}", server, fix)
    finally:
        connection.close()
    if response.status != 200:
        fail(f"answered {response.status} for /debug/state", server, fix)
    return body


def _address(server: str) -> tuple[str, int]:
    fix = f"--server takes an address such as {_SERVER}"
    try:
        parts = urlsplit(server if "://" in server else f"http://{server}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        fail(str(error), server, fix)
    if parts.scheme != "http" or not host:
        fail("is no http address", server, fix)
    return host, port or _PORT


def decode(body: bytes, server: str) -> State:
    """Read the picker's state."""
    try:
        return msgspec.json.decode(body, type=State)
    except msgspec.DecodeError as error:
        fix = "is this the --debug-port of a picker of the same release?"
        fail(f"did not answer with a state: {error}", server, fix)


def table(items: Sequence[Item], what: What, *, wide: bool) -> Table:
    """Return the items as a table; `wide` has every column."""
    columns, row = _LAYOUTS[what]
    every = Table(columns, [row(item) for item in items])
    if wide:
        return every
    count = _NARROW[what]
    return Table(every.columns[:count], [cells[:count] for cells in every.rows])


def _items(state: State, what: What) -> Sequence[Item]:
    match what:
        case What.MODELS:
            return state.models
        case What.POOLS:
            return state.pools
        case What.ENDPOINTS:
            return state.endpoints


def _matches(item: Item, name: str, namespace: str) -> bool:
    if namespace and item.namespace != namespace:
        return False
    if isinstance(item, Replica):
        return not name or name in (item.address, item.pod, item.pool)
    return not name or name == item.name


def _model_row(model: Model) -> Row:
    targets = ", ".join(
        f"{target.name}={target.weight}" if len(model.targets) > 1 else target.name
        for target in model.targets
    )
    digests = ", ".join(filter(None, (target.artifact_digest for target in model.targets)))
    return (
        model.namespace,
        model.name,
        model.pool,
        bad(model.problem) if model.problem else "served",
        targets,
        model.criticality,
        digests or None,
    )


def _pool_row(pool: Pool) -> Row:
    selector = ",".join(f"{key}={value}" for key, value in sorted(pool.selector.items()))
    return (
        pool.namespace,
        pool.name,
        pool.ready,
        bad(pool.problem) if pool.problem else "served",
        ",".join(map(str, pool.ports)),
        selector or None,
        pool.picker_service,
        pool.group,
    )


def _replica_row(replica: Replica) -> Row:
    cache = replica.kv_cache_utilization
    age_s = replica.scrape_age_seconds
    return (
        replica.namespace,
        replica.pool,
        replica.address,
        replica.pod,
        f"{replica.load:g}",
        _figure(replica.waiting),
        _figure(replica.running),
        None if cache is None else f"{cache:.0%}",
        None if age_s is None else f"{age_s:.1f}s",
        replica.artifact_digest,
    )


def _figure(value: float | None) -> Cell:
    return None if value is None else f"{value:g}"


_LAYOUTS: dict[What, tuple[tuple[str | Column, ...], Callable[[Any], Row]]] = {
    What.MODELS: (
        ("namespace", "name", "pool", "state", "targets", "criticality", "digest"),
        _model_row,
    ),
    What.POOLS: (
        ("namespace", "name", Column("ready", right=True), "state", "ports", "selector",
         "picker", "group"),
        _pool_row,
    ),
    What.ENDPOINTS: (
        ("namespace", "pool", "address", "pod", Column("load", right=True),
         Column("waiting", right=True), Column("running", right=True),
         Column("kv cache", right=True), Column("scraped", right=True), "digest"),
        _replica_row,
    ),
}  # fmt: skip
_NARROW = {What.MODELS: 5, What.POOLS: 5, What.ENDPOINTS: 5}
