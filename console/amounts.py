"""Amounts as people read them: three significant figures and a unit."""

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")


def format_bytes(amount_bytes: float) -> str:
    """Return an amount of bytes with a binary unit: `512 B`, `1.5 MiB`."""
    size = float(amount_bytes)
    for unit in _BINARY[:-1]:
        if abs(size) < 1024:
            return f"{_figures(size)} {unit}"
        size /= 1024
    return f"{_figures(size)} {_BINARY[-1]}"


def format_seconds(amount_s: float) -> str:
    """Return a span of time with the unit that suits it: `830 ns`, `12.3 ms`, `1.5 s`, `2m05s`."""
    size = abs(amount_s)
    if size >= 60:
        minutes, seconds = divmod(round(amount_s), 60)
        return f"{minutes}m{seconds:02d}s"
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if size * factor >= 1:
            return f"{_figures(amount_s * factor)} {unit}"
    return f"{_figures(amount_s * 1e9)} ns" if size else "0 s"


def _figures(number: float) -> str:
    """Return `number` with at most three significant figures, without an exponent."""
    if abs(number) >= 100:
        return f"{number:.0f}"
    decimals = 1 if abs(number) >= 10 else 2
    return f"{number:.{decimals}f}".rstrip("0").rstrip(".") or "0"
