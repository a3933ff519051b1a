"""`epp crds`: the CustomResourceDefinitions that this version needs, to be piped into kubectl.

epp crds | kubectl apply --server-side -f -
"""

from importlib.resources import files

import typer


def crds() -> None:
    """Print the CustomResourceDefinitions."""
    typer.echo(text(), nl=False)


def text() -> str:
    """Return the CustomResourceDefinitions as YAML."""
    return (files("epp.crds") / "inferencemodels.yaml").read_text("utf-8")
