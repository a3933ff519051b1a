"""What a benchmark says, as rows; how they are shown and kept."""

import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.  `target` is what it must reach, and `reached` whether it does (None = told)."""

    what: str
    value: float
    unit: str
    target: str = ""
    reached: bool | None = None
    note: str = ""


def at_least(what: str, value: float, least: float, unit: str = "x", note: str = "") -> Row:
    """Return a row that must not be below a figure."""
    return Row(what, value, unit, f">= {least:g} {unit}", value >= least, note)


def at_most(what: str, value: float, most: float, unit: str = "x", note: str = "") -> Row:
    """Return a row that must not be above a figure."""
    return Row(what, value, unit, f"<= {most:g} {unit}", value <= most, note)


def machine() -> dict[str, str | int]:
    """Return what the figures were taken on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "cpu": model,
        "cores": os.cpu_count() or 0,
        "python": platform.python_version(),
        "ngh2": version("ngh2"),
        "grpcio": version("grpcio"),
        "msgspec": version("msgspec"),
    }


def show(title: str, rows: Sequence[Row]) -> None:
    """Print rows as a table."""
    table = Table(title=title, title_justify="left")
    for name in ("what", "figure", "target", "verdict", "note"):
        table.add_column(name, justify="right" if name == "figure" else "left")
    verdicts = {True: "reached", False: "MISSED", None: ""}
    for row in rows:
        figure = f"{row.value:,.4g} {row.unit}"
        table.add_row(row.what, figure, row.target, verdicts[row.reached], row.note)
    Console(width=140).print(table)


def keep(name: str, rows: Sequence[Row], *, load: float | None = None) -> Path:
    """Write rows to benchmarks/results/NAME.json, with the machine and the command.

    `load` is the load average when the benchmark began.
    """
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = {
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python -m benchmarks", *sys.argv[1:]]),
        "machine": machine(),
        "load": round(load if load is not None else os.getloadavg()[0], 1),
        "rows": [asdict(row) for row in rows],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path
