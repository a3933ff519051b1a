"""How a program says that something is wrong: what, where, and how to put it right."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from rich.text import Text

from console.screen import escape, say, stderr

EXIT_USAGE = 2
"""What was asked for cannot be done as asked: a wrong flag, a broken file."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong; `where` is a `file:line`, a flag or an address."""

    what: str
    where: str = ""
    fix: str = ""

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head}\n  fix: {self.fix}" if self.fix else head


def fail(what: str, where: str = "", fix: str = "", *, status: int = EXIT_USAGE) -> NoReturn:
    """Print one mistake on standard error and end the program, with exit status 2 by default."""
    fail_all([Mistake(what, where, fix)], status=status)


def fail_all(mistakes: Iterable[Mistake], *, status: int = EXIT_USAGE) -> NoReturn:
    """Print every mistake on standard error and end the program, with exit status 2 by default."""
    for mistake in mistakes:
        tell(mistake)
    raise SystemExit(status)


def tell(mistake: Mistake) -> None:
    """Print one mistake on standard error; the program goes on, to find others."""
    _print("error", "bold red", mistake)


def warn(what: str, where: str = "", fix: str = "") -> None:
    """Print a warning on standard error; the program goes on."""
    _print("warning", "bold yellow", Mistake(what, where, fix))


def _print(label: str, style: str, mistake: Mistake) -> None:
    line = Text(f"{label}: ", style=style)
    if mistake.where:
        line.append(f"{escape(mistake.where)}: ", style="default bold")
    line.append(escape(mistake.what), style="default not bold")
    if mistake.fix:
        line.append("\n  fix: ", style="green not bold")
        line.append(escape(mistake.fix), style="default not bold")
    say(line, to=stderr())
