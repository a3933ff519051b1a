"""The program `epp`: its commands, and nothing of what they do.

A command's module is imported only when that command is asked for: `epp --help` is quick, and
serving loads no demo.  `serve` is not declared here at all: it is made from the table of settings.
"""

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter, Signature
from typing import Annotated, Any, NoReturn

import typer
from rich.markup import escape

from console import fail_all, say
from epp.flags import Setting
from epp.logs import set_up_logs
from epp.release import release
from epp.settings import TABLE, InvalidSettings, Settings

_log = logging.getLogger(__name__)

PROGRAM = "epp"

_RUN = "Run"
_LOOK = "Look and check"
_MAKE = "Make configuration"
_HELP = {"--help", "-h"}
_OWN_OPTIONS = _HELP | {"--version"}
_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Command:
    """One command: `module:function` is a typer function, imported when the command is run."""

    name: str
    target: str
    about: str
    panel: str

    def load(self) -> Callable[..., Any]:
        """Import it."""
        module, _, function = self.target.partition(":")
        loaded: Callable[..., Any] = getattr(import_module(module), function)
        return loaded


COMMANDS = (
    Command("demo", "epp.demo.command:demo", "See it work: a real Envoy and model servers.", _RUN),
    Command("get", "epp.get:get", "Show what a running picker knows.", _LOOK),
    Command("check", "epp.report:check", "Check manifests without a cluster.", _LOOK),
    Command(
        "envoy-config",
        "epp.envoyconfig.command:envoy_config",
        "Print an Envoy configuration that asks this picker.",
        _MAKE,
    ),
    Command("crds", "epp.crds:crds", "Print the CustomResourceDefinitions.", _MAKE),
    Command("migrate", "epp.migrate:migrate", "Turn old InferenceModels into new ones.", _MAKE),
)
"""Every command but `serve`."""


def main(args: Sequence[str] | None = None, env: Mapping[str, str] | None = None) -> NoReturn:
    """Run the program and exit with its status."""
    args = list(sys.argv[1:] if args is None else args)
    if args and args[0].startswith("-") and args[0] not in _OWN_OPTIONS:
        args.insert(0, "serve")  # as in a Deployment made for the reference picker: flags only
    if args[:1] == ["serve"] and not _HELP & set(args):
        env = os.environ if env is None else env  # noqa: TID251  # a program's cli.py reads it, once
        raise SystemExit(serve(args[1:], env))
    application(args[0] if args else "")(args, prog_name=PROGRAM)
    raise SystemExit(0)


def serve(args: Sequence[str], env: Mapping[str, str]) -> int:
    """Serve until told to stop; return the exit status."""
    try:
        settings = Settings.parse(args, env)
    except InvalidSettings as error:
        fail_all(error.mistakes)
    set_up_logs(settings.level)
    for line in settings.warnings:
        _log.warning("%s", line)
    run: Callable[[Settings, Mapping[str, str]], int] = import_module("epp.app").run
    try:
        return run(settings, env)
    except KeyboardInterrupt:
        return _INTERRUPTED


def application(wanted: str = "") -> typer.Typer:
    """Return the program with the command `wanted` loaded and the others only named."""
    app = typer.Typer(
        name=PROGRAM,
        help="The endpoint picker: Envoy asks where to send a request, and this answers.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,  # a traceback with local variables could show a secret
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    app.command("serve", rich_help_panel=_RUN)(_served())
    for command in COMMANDS:
        function = command.load() if command.name == wanted else _named
        app.command(command.name, short_help=command.about, rich_help_panel=command.panel)(function)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"{PROGRAM} {release()}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Take the options of the program itself; `--version` has done its work by now."""


def _named() -> None:
    """Stand in for a command that was not asked for."""


def _served() -> Callable[..., None]:
    """Return a function whose signature is the table of settings, for typer to write help from."""

    def serve_help(**_: object) -> None:
        pass

    serve_help.__doc__ = (
        "Serve picks to Envoy, from a cluster or from manifests on disk.\n\n"
        "Each flag is also an environment variable (EPP_GRPC_PORT, …); the flag wins. "
        "--no-secure-serving is --secure-serving=false, and the Go picker's spellings "
        "(-poolName, --secureServing=false) work too. "
        "Durations are written 50ms, 2s, 1m30s; sizes 65536, 64KiB, 16Mi."
    )
    parameters = [_parameter(setting) for setting in TABLE]
    serve_help.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # what inspect reads first
    serve_help.__annotations__ = {p.name: p.annotation for p in parameters}
    return serve_help


def _parameter(setting: Setting) -> Parameter:
    shown = setting.kind.show(setting.default)
    about = f"{setting.about} {setting.why}".strip()
    default = "" if shown == "unset" else f" [default: {shown}]"
    option = typer.Option(
        f"--{setting.flag}",
        help=escape(about) + f"[dim]{escape(default)}[/dim]",
        rich_help_panel=setting.group,
        metavar=setting.kind.metavar,
        show_default=False,
    )
    annotation = Annotated[str | None, option]
    return Parameter(setting.name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
