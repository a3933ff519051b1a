"""What the program says: results on standard output, everything else on standard error.

As text for a person, or as one JSON object a line for a machine; which of them is decided once.
"""

import sys
from typing import NoReturn

from artifacts.errors import ArtifactError
from artifacts.progress import write_json
from console import Table, fail, say, show, warn


class Reporter:
    """The voice of one run."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def result(self, event: str, sentence: str, **figures: object) -> None:
        """Say what was asked for."""
        if self.as_json:
            write_json(sys.stdout, event, **figures)
        else:
            say(sentence)

    def rows(self, event: str, table: Table) -> None:
        """Show a table; as JSON, an object for each row."""
        if not self.as_json:
            show(table)
            return
        names = [column if isinstance(column, str) else column.name for column in table.columns]
        for row in table.rows:
            write_json(sys.stdout, event, **dict(zip(names, map(_plain, row), strict=True)))

    def warning(self, what: str, where: str = "", fix: str = "") -> None:
        """Say that something is not as it should be, and go on."""
        if self.as_json:
            write_json(sys.stderr, "warning", what=what, where=where, fix=fix)
        else:
            warn(what, where, fix)

    def error(self, error: ArtifactError) -> NoReturn:
        """Say what ended the run, and end it with the error's exit code."""
        if self.as_json:
            write_json(
                sys.stderr,
                "error",
                kind=error.title,
                what=error.what,
                where=error.where,
                fix=error.fix,
                exit_code=error.exit_code,
            )
            raise SystemExit(error.exit_code)
        fail(f"{error.title}: {error.what}", error.where, error.fix, status=error.exit_code)


def _plain(cell: object) -> object:
    return cell if cell is None or isinstance(cell, (str, int, float)) else str(cell)
