"""docs/settings.md and docs/metrics.md, made from the tables that the program runs on.

`python -m epp.docs` writes them; with `--check` it only says whether they are current, and exits
with 1 if they are not.
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from console import fail, say
from epp.catalogue import CATALOGUE, Described
from epp.flags import Setting
from epp.foreign import FOREIGN
from epp.settings import TABLE

FOLDER = Path(__file__).parents[1] / "docs"

_MADE = "<!-- Made by `python -m epp.docs`; change the tables in epp/ instead. -->\n"

_SETTINGS = """
# Settings

Each setting of `epp serve` is a flag and an environment variable; the flag wins.
A mistake in any of them is told together with all the others, and the program exits with 2.

- Durations are written as Go writes them: `50ms`, `2s`, `1m30s`.
  Sizes are bytes, or `64KiB`, `16Mi` (1024s), `16MB` (1000s).
- A switch can be written `--secure-serving`, `--secure-serving=false` or `--no-secure-serving`.
- Where a flag's value has a unit, the flag with the unit at its end takes a bare number:
  `--drain-timeout-s 30`, `EPP_DRAIN_TIMEOUT_S=30`.
- The command lines of the Go endpoint picker work, those of its older releases too
  (`-poolName`, `--secureServing=false`).
- A variable that Kubernetes sets for a Service of a name such as `epp-grpc`
  (`EPP_GRPC_PORT=tcp://…`) is not taken for a setting.
"""

_FOREIGN = """
## Accepted and without effect

These flags of the Go picker are accepted, and named in one warning at the start:
{ignored}.
{already} are accepted silently, because it is always so.
"""

_METRICS = """
# Metrics

`/metrics` on `--metrics-port`, as Prometheus text or OpenMetrics, whichever is asked for.
Names marked ● are those of the Go endpoint picker, so that its dashboards find their data.

Label values come from closed sets: names of InferenceModels, their targets and pools, reasons of
refusals.  A model name that no InferenceModel has is counted as `unknown`, and beyond
{limit} combinations of namespace, model, target and pool all further ones are counted as `other`.
The metrics of a deleted InferenceModel go with it.
"""


def settings_page() -> str:
    """Return docs/settings.md."""
    parts = [_MADE, _SETTINGS]
    for group in dict.fromkeys(setting.group for setting in TABLE):
        rows = [_setting_row(setting) for setting in TABLE if setting.group == group]
        parts.append(f"\n## {group}\n\n")
        parts.append(_table(("flag", "variable", "value", "default", "what and why"), rows))
    ignored = ", ".join(f"`--{name}`" for name in sorted(FOREIGN.valued | FOREIGN.switches))
    already = " and ".join(f"`--{name}`" for name in sorted(FOREIGN.already_so))
    parts.append(_FOREIGN.format(ignored=ignored, already=already))
    return "".join(parts)


def metrics_page(limit: int) -> str:
    """Return docs/metrics.md; `limit` is how many series are told apart."""
    rows = map(_metric_row, CATALOGUE.values())
    header = ("", "name", "type", "labels", "what")
    return "".join([_MADE, _METRICS.format(limit=limit), "\n", _table(header, rows)])


def pages() -> dict[Path, str]:
    """Return every page by its path."""
    from epp.metrics import MAX_SERIES  # the client library is needed for nothing else here

    return {
        FOLDER / "settings.md": settings_page(),
        FOLDER / "metrics.md": metrics_page(MAX_SERIES),
    }


def main(args: Sequence[str]) -> int:
    """Write the pages, or check them; return the exit status."""
    if args not in ([], ["--check"]):
        fail(f"unexpected arguments {' '.join(args)!r}", "epp.docs", "none, or --check")
    stale = [path for path, text in pages().items() if _read(path) != text]
    if args:
        for path in stale:
            say(f"{path.name} is not current; run `python -m epp.docs`")
        return 1 if stale else 0
    for path in stale:
        path.write_text(pages()[path], encoding="utf-8")
        say(f"wrote {path.name}")
    return 0


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _setting_row(setting: Setting) -> Sequence[str]:
    default = setting.kind.show(setting.default)
    return (
        f"`--{setting.flag}`",
        f"`{setting.variable}`",
        setting.kind.metavar,
        "" if default == "unset" else f"`{default}`",
        f"{setting.about} {setting.why}".strip(),
    )


def _metric_row(row: Described) -> Sequence[str]:
    labels = ", ".join(f"`{label}`" for label in row.labels)
    return ("●" if row.reference else "", f"`{row.name}`", row.type, labels, row.about)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n" for cells in lines
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
