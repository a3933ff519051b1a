"""`epp check`: what `epp.check` found, for a terminal or for a program."""

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from console import Mistake, say, tell, warn
from datastore.reading import Finding
from epp.check import Report, check_paths


class Output(StrEnum):
    """How to print what was found."""

    TEXT = "text"
    JSON = "json"


def check(
    paths: Annotated[
        list[Path], typer.Argument(help="Files or folders of manifests.", show_default=False)
    ],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Where objects belong that do not say.")
    ] = "default",
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 2 for warnings too.")] = False,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = (
        Output.TEXT
    ),
) -> None:
    """Check manifests without a cluster: every mistake, with its file, line and fix.

    Exits with 2 if anything would keep a manifest from being served, with 0 otherwise.
    """
    report = check_paths(paths, namespace)
    if output is Output.JSON:
        say(msgspec.json.encode(report).decode())
    else:
        _print(report)
    sys.exit(2 if strict and report.findings else report.exit_code)


def _print(report: Report) -> None:
    for finding in report.errors:
        tell(_mistake(finding))
    for finding in report.warnings:
        mistake = _mistake(finding)
        warn(mistake.what, mistake.where, mistake.fix)
    for kind, where in report.unread.items():
        warn(f"{kind} is not read, here or by `epp serve`", where)
    say(summary(report))


def summary(report: Report) -> str:
    """Return one line about everything: `2 files, 3 InferenceModels: 1 error, 0 warnings`."""
    kinds = [_counted(count, kind) for kind, count in sorted(report.counts.items())]
    found = ", ".join([_counted(report.files, "file"), *kinds])
    errors, warnings = len(report.errors), len(report.warnings)
    return f"{found}: {_counted(errors, 'error')}, {_counted(warnings, 'warning')}"


def _mistake(finding: Finding) -> Mistake:
    where = f"{finding.file}:{finding.line}" if finding.line else finding.file
    subject: Sequence[str] = [part for part in (finding.about, finding.path) if part]
    return Mistake(": ".join([*subject, finding.message]), where, finding.fix)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
