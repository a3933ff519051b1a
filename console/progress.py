"""Progress on standard error: a bar on a terminal, a line at the start and the end elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from console.screen import say, stderr

Advance = Callable[[int], None]
"""Tell the bar that so many more steps are done."""


@contextmanager
def advancing(what: str, total: int, to: Console | None = None) -> Iterator[Advance]:
    """Show how far `what` has come; call the yielded function with the steps just done."""
    console = to or stderr()
    if not console.is_terminal:
        say(f"{what} ({total}) …", to=console)
        yield lambda _steps: None
        say(f"{what} done", to=console)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda steps: progress.advance(task, steps)


@contextmanager
def waiting(what: str, to: Console | None = None) -> Iterator[None]:
    """Show that `what` is going on, for as long as the block runs."""
    console = to or stderr()
    if console.is_terminal:
        with console.status(what):
            yield
    else:
        say(f"{what} …", to=console)
        yield
