"""The program `epp-registry`: run, plan, history.

The only module of the package that reads the environment and makes the dice.
"""

import asyncio
import logging
import os
from collections.abc import Coroutine, Mapping
from random import SystemRandom
from typing import Annotated, Any, NoReturn

import typer
import uvloop

from console import Mistake, fail, fail_all, say, stderr
from registry import options as o
from registry.errors import ClusterError, NotReachable, RegistryError
from registry.model import Policy
from registry.names import SYNC_SELECTOR
from registry.rest import Address
from registry.settings import Settings, mistakes_in

TRY_AGAIN = 6

app = typer.Typer(
    name="epp-registry",
    help="What the model registry wants is what the cluster serves.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a traceback with local variables could show a secret
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command("run")
def _run(  # one argument for each flag
    enabled: Annotated[
        bool,
        typer.Option("--model-registry-enabled", help="Without it, nothing is read or written"),
    ] = False,
    period: Annotated[
        float,
        typer.Option(
            "--model-registry-period", help="Seconds between two looks; 0 = only on events"
        ),
    ] = 60.0,
    max_deletes: Annotated[
        int, typer.Option("--max-deletes", help="Deletes in a period: bounds any mistake")
    ] = 10,
    url: o.Url = "",
    token_file: o.TokenFile = None,
    ca_file: o.CaFile = None,
    timeout: o.Timeout = 5.0,
    kubeconfig: o.Kubeconfig = None,
    context: o.Context = None,
    selector: o.Selector = SYNC_SELECTOR,
    all_namespaces: o.AllNamespaces = False,
    mode: o.Mode = "RawDeployment",
    accounts: o.ServiceAccounts = None,
    require_pins: o.RequirePins = False,
    prune: o.Prune = False,
    inference_models: o.InferenceModels = False,
    pool: o.Pool = None,
    elect: Annotated[
        bool, typer.Option("--leader-elect/--no-leader-elect", help="One of several acts")
    ] = True,
    lease: Annotated[str, typer.Option("--lease-name", help="What they elect by")] = "epp-registry",
    lease_namespace: Annotated[
        str, typer.Option("--lease-namespace", help="Where it is; by default our own")
    ] = "",
    host: Annotated[
        str, typer.Option("--http-host", help="/metrics and /readyz; empty = everywhere")
    ] = "",
    port: Annotated[int, typer.Option("--http-port", min=0, max=65535)] = 9091,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more")] = False,
) -> None:
    """Reconcile until told to stop."""
    settings = _checked(
        Settings(
            enabled=enabled,
            address=Address(url, token_file, ca_file, timeout),
            policy=_policy(mode, accounts, require_pins, prune, inference_models, pool),
            period_s=period,
            max_deletes=max_deletes,
            selector=_selector(selector, all_namespaces),
            elect=elect,
            lease_name=lease,
            lease_namespace=lease_namespace,
            host=host,
            port=port,
            kubeconfig=kubeconfig,
            context=context,
        )
    )
    level = logging.DEBUG if verbose else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    from registry.program import run_until_signalled  # imports a Kubernetes client

    _finish(run_until_signalled(settings, _environ(), SystemRandom()))


@app.command("plan")
def _plan(  # one argument for each flag
    namespaces: Annotated[
        list[str] | None, typer.Option("--namespace", "-n", help="Only this one; again for more")
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", help="table, or yaml: the resources for GitOps")
    ] = "table",
    url: o.Url = "",
    token_file: o.TokenFile = None,
    ca_file: o.CaFile = None,
    timeout: o.Timeout = 5.0,
    kubeconfig: o.Kubeconfig = None,
    context: o.Context = None,
    selector: o.Selector = SYNC_SELECTOR,
    all_namespaces: o.AllNamespaces = False,
    mode: o.Mode = "RawDeployment",
    accounts: o.ServiceAccounts = None,
    require_pins: o.RequirePins = False,
    prune: o.Prune = False,
    inference_models: o.InferenceModels = False,
    pool: o.Pool = None,
) -> None:
    """Print what `run` would do, and do nothing."""
    if output not in ("table", "yaml"):
        fail(f"{output!r} is no output", where="--output", fix="Use table or yaml")
    settings = _checked(
        Settings(
            address=Address(url, token_file, ca_file, timeout),
            policy=_policy(mode, accounts, require_pins, prune, inference_models, pool),
            selector=_selector(selector, all_namespaces),
            kubeconfig=kubeconfig,
            context=context,
        )
    )
    from registry.commands import print_plan  # imports a Kubernetes client, which takes a second

    _finish(print_plan(settings, _environ(), tuple(namespaces or ()), output))


@app.command("history")
def _history(  # one argument for each flag
    name: Annotated[str, typer.Argument(help="An intent's name or id in the registry")],
    environment: Annotated[
        str, typer.Option("--namespace", "-n", help="Only in this environment")
    ] = "",
    url: o.Url = "",
    token_file: o.TokenFile = None,
    ca_file: o.CaFile = None,
    timeout: o.Timeout = 5.0,
    kubeconfig: o.Kubeconfig = None,
    context: o.Context = None,
) -> None:
    """Print the audit of a deployment: what was served when, and how it ended."""
    address = Address(url, token_file, ca_file, timeout)
    settings = _checked(Settings(address=address, kubeconfig=kubeconfig, context=context))
    from registry.history import print_history

    _finish(print_history(settings, _environ(), name, environment))


def _selector(selector: str, all_namespaces: bool) -> str:
    """Return what namespaces opt in by; all of them only where that was said."""
    if all_namespaces:
        return ""
    if not selector.strip():
        fail(
            "it is empty, and that would mean every namespace",
            where="--namespace-selector",
            fix="Give labels, or say --all-namespaces",
        )
    return selector


def _policy(
    mode: str,
    accounts: list[str] | None,
    require_pins: bool,
    prune: bool,
    inference_models: bool,
    pool: str | None,
) -> Policy:
    return Policy(mode, frozenset(accounts or ()), require_pins, prune, inference_models, pool)


def _checked(settings: Settings) -> Settings:
    found = mistakes_in(settings)
    if found:
        fail_all([Mistake(what, where) for where, what in found])
    return settings


def _environ() -> Mapping[str, str]:
    return os.environ  # noqa: TID251  # a program's cli.py reads it, once


def _finish(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end; what a retry may cure has an exit status of its own."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work)
    except NotReachable as error:
        fail(str(error), fix="Run in a pod, or give --kubeconfig")
    except (RegistryError, ClusterError) as error:
        say(f"error: {error}", to=stderr())
        raise SystemExit(TRY_AGAIN) from error


def main() -> NoReturn:
    """Run the program and exit with its status."""
    app(prog_name="epp-registry")
    raise SystemExit(0)
