"""Metrics as text, in slices: what Prometheus reads, written so that nobody else waits for it.

The client library's own writer takes several times as long and cannot be interrupted, and a page
is written on the event loop, between two picks.  Each function yields the text of a few dozen
samples at a time.  Both text formats are spoken; they differ in the heading of a counter.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from epp.catalogue import Described
from epp.series import Histogram

Values = Sequence[str]
"""Label values, in the order of the row's labels."""

_SLICE = 256
"""Lines per slice: about a third of a millisecond."""


def family(
    row: Described, samples: Iterable[tuple[Values, float]], *, openmetrics: bool
) -> Iterator[str]:
    """Write a counter or a gauge."""
    lines = [_heading(row, openmetrics)]
    for values, number in samples:
        labels = f"{{{_labels(row.labels, values)}}}" if values else ""
        lines.append(f"{row.name}{labels} {_number(number)}\n")
        if len(lines) >= _SLICE:
            yield "".join(lines)
            lines.clear()
    yield "".join(lines)


def histogram(
    row: Described, samples: Iterable[tuple[Values, Histogram]], *, openmetrics: bool
) -> Iterator[str]:
    """Write a histogram: its buckets, its count and its sum."""
    lines = [_heading(row, openmetrics)]
    for values, counted in samples:
        labels = _labels(row.labels, values)
        start = f"{row.name}_bucket{{{labels}," if labels else f"{row.name}_bucket{{"
        counts = counted.cumulative()
        lines += [
            f"{start}{bound}{count}\n"
            for bound, count in zip(_bounds(counted.bounds), counts, strict=True)
        ]
        ending = f"{{{labels}}}" if labels else ""
        lines.append(f"{row.name}_count{ending} {counts[-1]}\n")
        lines.append(f"{row.name}_sum{ending} {_number(counted.total)}\n")
        if len(lines) >= _SLICE:
            yield "".join(lines)
            lines.clear()
    yield "".join(lines)


def _heading(row: Described, openmetrics: bool) -> str:
    name = row.name
    if openmetrics and row.type == "counter":
        name = name.removesuffix("_total")
    return f"# HELP {name} {row.about}\n# TYPE {name} {row.type}\n"


def _labels(names: Sequence[str], values: Values) -> str:
    return ",".join(f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True))


@lru_cache(maxsize=4096)
def _escape(value: str) -> str:
    escaped = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return escaped.encode("utf-8", "replace").decode("utf-8")


@lru_cache(maxsize=32)
def _bounds(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return tuple(f'le="{bound}"}} ' for bound in (*map(repr, bounds), "+Inf"))


def _number(number: float) -> str:
    if math.isfinite(number):
        return repr(number)
    return "NaN" if math.isnan(number) else "+Inf" if number > 0 else "-Inf"
