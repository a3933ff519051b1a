"""The CustomResourceDefinitions that this picker reads, as Kubernetes takes them."""

from importlib.resources import files
from typing import Annotated

import typer

from console import say

NAMES = ("inferencemodels",)


def read(name: str) -> str:
    """Return the YAML of one definition."""
    return (files(__package__) / f"{name}.yaml").read_text()


def crds(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(NAMES)}.")] = NAMES[0],
) -> None:
    """Print a CustomResourceDefinition, for `kubectl apply -f -`."""
    if name not in NAMES:
        raise typer.BadParameter(f"there is no {name!r}: it is one of {', '.join(NAMES)}")
    say(read(name).rstrip())
