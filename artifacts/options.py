"""The options that every command which reaches a store has, written down once."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

_STORE = "Store"


class Log(Enum):
    """How progress, results and errors are written."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach a store, how hard to work, and how to tell of it."""

    endpoint_url: str | None = None
    region: str | None = None
    storage_config: Path | None = None
    storage_secret: str | None = None
    storage_key: str | None = None
    parallel: int = 8
    attempts: int = 8
    log: Log = Log.TEXT


LogOption = Annotated[
    Log, typer.Option("--log", help="Write text, or one JSON object a line", show_default=True)
]


def _options(  # one argument for each flag
    endpoint_url: Annotated[
        str | None,
        typer.Option(help="The S3 endpoint (AWS_ENDPOINT_URL is read too)", rich_help_panel=_STORE),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(help="The bucket's region (AWS_REGION is read too)", rich_help_panel=_STORE),
    ] = None,
    storage_config: Annotated[
        Path | None,
        typer.Option(
            help="A storage-config secret of KServe or ModelMesh, mounted as a folder",
            rich_help_panel=_STORE,
        ),
    ] = None,
    storage_secret: Annotated[
        str | None,
        typer.Option(
            help="The same secret, read from the Kubernetes API",
            metavar="[NAMESPACE/]NAME",
            rich_help_panel=_STORE,
        ),
    ] = None,
    storage_key: Annotated[
        str | None,
        typer.Option(
            help="Which connection of the secret to use; default_s3, then default, without it",
            rich_help_panel=_STORE,
        ),
    ] = None,
    parallel: Annotated[
        int, typer.Option(min=1, max=256, help="Requests at once", rich_help_panel=_STORE)
    ] = 8,
    attempts: Annotated[
        int,
        typer.Option(
            min=1, max=100, help="Tries in a row before giving up", rich_help_panel=_STORE
        ),
    ] = 8,
    log: LogOption = Log.TEXT,
) -> Settings:
    return Settings(
        endpoint_url,
        region,
        storage_config,
        storage_secret,
        storage_key,
        parallel,
        attempts,
        log,
    )


def reaching_a_store(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options above; it takes them as its parameter `settings`."""
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "settings"]
    shared = inspect.signature(_options).parameters

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        settings = _options(**{name: given.pop(name) for name in shared})
        command(settings=settings, **given)

    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in (*own, *shared.values())]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what inspect reads
    return wrapped
