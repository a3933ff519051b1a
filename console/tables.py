"""Tables: boxes on a terminal, aligned columns in a pipe, always every character of every cell."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from console.screen import escape, stdout

Cell = str | int | float | Text | None
"""What can stand in a table.  None is shown as `-`."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column's heading; `right` aligns its cells to the right, for numbers."""

    name: str
    right: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """What a table says.  A column given as text is one with that heading, left-aligned."""

    columns: Sequence[str | Column]
    rows: Sequence[Sequence[Cell]]
    title: str = ""


def good(text: str) -> Text:
    """Return a cell that says that something is as it should be."""
    return Text(text, style="green")


def bad(text: str) -> Text:
    """Return a cell that says that something is not as it should be."""
    return Text(text, style="bold red")


def show(table: Table, to: Console | None = None) -> None:
    """Print `table`: drawn on a terminal, plain anywhere else."""
    console = to or stdout()
    if console.is_terminal:
        console.print(_drawn(table), soft_wrap=False)
    else:
        console.out(plain(table), highlight=False)


def plain(table: Table) -> str:
    """Return `table` as text: a heading line, then one line a row, columns two spaces apart."""
    columns = [_column(column) for column in table.columns]
    lines = [[column.name.upper() for column in columns]]
    lines += [[_line(cell) for cell in row] for row in table.rows]
    widths = [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)]
    body = "\n".join(_aligned(line, widths, columns) for line in lines)
    return f"{table.title}\n{body}" if table.title else body


def _drawn(table: Table) -> RichTable:
    drawn = RichTable(
        title=Text(escape(table.title)) if table.title else None,
        title_justify="left",
        title_style="bold",
        box=box.ROUNDED,
        header_style="bold cyan",
    )
    for column in map(_column, table.columns):
        drawn.add_column(
            Text(column.name), justify="right" if column.right else "left", overflow="fold"
        )
    for row in table.rows:
        drawn.add_row(*map(_text, row))
    return drawn


def _column(column: str | Column) -> Column:
    return Column(column) if isinstance(column, str) else column


def _text(cell: Cell) -> Text:
    if isinstance(cell, Text):
        safe = escape(cell.plain)
        return cell if safe == cell.plain else Text(safe, style=cell.style)
    return Text("-" if cell is None else escape(str(cell)))


def _line(cell: Cell) -> str:
    """Return a cell on one line: a line end inside it would break the row for `awk` and `cut`."""
    return _text(cell).plain.replace("\n", "\\n").replace("\t", "\\t")


def _aligned(cells: list[str], widths: list[int], columns: list[Column]) -> str:
    parts = []
    for cell, width, column in zip(cells, widths, columns, strict=True):
        gap = " " * (width - cell_len(cell))
        parts.append(gap + cell if column.right else cell + gap)
    return "  ".join(parts).rstrip()
