"""The command line's options, spelled once for all commands."""

from pathlib import Path
from typing import Annotated

import typer

_REGISTRY = "Model registry"
_CLUSTER = "Cluster"
_POLICY = "What is allowed"

Url = Annotated[
    str,
    typer.Option(
        "--model-registry-url",
        envvar="MODEL_REGISTRY_URL",
        help="Where the registry is; without it, the Service labelled component=model-registry",
        rich_help_panel=_REGISTRY,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--model-registry-token-file",
        help="A file with a bearer token, read for each request",
        rich_help_panel=_REGISTRY,
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option(
        "--model-registry-ca-file", help="A CA bundle for the registry", rich_help_panel=_REGISTRY
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--model-registry-timeout",
        min=0.1,
        help="Seconds for one request to the registry",
        rich_help_panel=_REGISTRY,
    ),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option("--kubeconfig", help="Instead of the pod's account", rich_help_panel=_CLUSTER),
]
Context = Annotated[
    str | None, typer.Option("--context", help="In the kubeconfig", rich_help_panel=_CLUSTER)
]
Selector = Annotated[
    str,
    typer.Option(
        "--namespace-selector",
        help="Labels by which namespaces opt in",
        rich_help_panel=_CLUSTER,
    ),
]
AllNamespaces = Annotated[
    bool,
    typer.Option("--all-namespaces", help="Keep every namespace", rich_help_panel=_CLUSTER),
]
Mode = Annotated[
    str,
    typer.Option(
        "--deployment-mode",
        help="ModelMesh, Standard (RawDeployment) or Knative (Serverless); written as given",
        rich_help_panel=_POLICY,
    ),
]
ServiceAccounts = Annotated[
    list[str] | None,
    typer.Option(
        "--service-account",
        help="A service account that artifacts may name; again for more",
        rich_help_panel=_POLICY,
    ),
]
RequirePins = Annotated[
    bool,
    typer.Option(
        "--require-pins", help="Refuse artifacts whose bytes can change", rich_help_panel=_POLICY
    ),
]
Prune = Annotated[
    bool,
    typer.Option(
        "--prune",
        help="Delete the resource of an intent that two full lists in a row lack",
        rich_help_panel=_POLICY,
    ),
]
InferenceModels = Annotated[
    bool,
    typer.Option(
        "--inference-models",
        help="Write InferenceModels, so that the picker follows",
        rich_help_panel=_POLICY,
    ),
]
Pool = Annotated[
    str | None,
    typer.Option(
        "--inference-pool",
        help="The pool of those models; a label model-registry-inference-pool on the runtime wins",
        rich_help_panel=_POLICY,
    ),
]
