"""What the value of a setting can be, and how people write it: ports, durations, sizes, names.

A kind turns text into a value or says in a `ValueError` what is wrong with it, and shows a value
as it would be written.  Durations and booleans are spelled as Go's `flag` package spells them, so
that a command line of the reference picker means the same here.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

_DURATION_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_UNIT_S = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "μs": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)(i?)(b?)", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3}
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_MAX_DURATION_S = 10 * 365 * 86400


@dataclass(frozen=True, slots=True)
class Kind:
    """How one sort of value is read and shown.

    `unitless` reads a bare number, for a flag whose own name ends in the unit.  `may_be_blank`
    takes an empty text as "not set": what a template leaves behind.
    """

    metavar: str
    parse: Callable[[str], object]
    show: Callable[[object], str] = str
    is_bool: bool = False
    is_repeatable: bool = False
    may_be_blank: bool = False
    unitless: Callable[[str], object] | None = None


def parse_bool(text: str) -> bool:
    """Read a boolean in any of Go's spellings."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def is_bool(text: str) -> bool:
    """Tell whether `text` is a boolean in one of Go's spellings."""
    return text in _TRUE or text in _FALSE


def parse_duration_s(text: str) -> float:
    """Read a duration as Go writes it (`50ms`, `1.5s`, `1h30m`) in seconds."""
    rest, total_s = text, Fraction(0)
    if text == "0":
        return 0.0
    while match := _DURATION_PART.match(rest):
        total_s += Fraction(_decimal(match[1])) * _UNIT_S[match[2]]
        rest = rest[match.end() :]
    if rest or not text:
        hint = f"; did you mean {text}s?" if _is_number(text) else ""
        raise ValueError(f"{text!r} is no duration such as 50ms, 2s or 1m30s{hint}")
    return _bounded_duration(float(total_s))


def parse_seconds(text: str) -> float:
    """Read a duration, or a bare number of seconds."""
    return _bounded_duration(float(text)) if _is_number(text) else parse_duration_s(text)


def show_duration(value: object) -> str:
    """Write seconds as a duration that `parse_duration_s` reads back."""
    assert isinstance(value, int | float)
    if value == 0:
        return "0s"
    if value < 1:
        return f"{_plain(value * 1000)}ms"
    for unit_s, unit in ((3600, "h"), (60, "m")):
        if value % unit_s == 0:
            return f"{_plain(value / unit_s)}{unit}"
    return f"{_plain(value)}s"


def parse_size_bytes(text: str) -> int:
    """Read a size in bytes: `65536`, `64KiB`, `16Mi` (1024s) or `16MB`, `16M` (1000s)."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        raise ValueError(f"{text!r} is no size such as 65536, 64KiB or 16Mi")
    size = Fraction(match[1]) * (1024 if match[3] else 1000) ** _POWER[match[2].lower()]
    if size >= 2**63 or size.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of bytes below 2^63")
    return int(size)


def show_size(value: object) -> str:
    """Write a size in the largest binary unit that divides it."""
    assert isinstance(value, int)
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value and value % (1 << power) == 0:
            return f"{value >> power}{unit}"
    return str(value)


def parse_label(text: str) -> str:
    """Read a DNS label: what Kubernetes takes as the name of a namespace."""
    if _LABEL.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no namespace's name (lower case letters, digits and -)")
    return text


def parse_object_name(text: str) -> str:
    """Read a DNS subdomain: what Kubernetes takes as the name of an object."""
    if len(text) > 253 or not all(map(_LABEL.fullmatch, text.split("."))):
        raise ValueError(f"{text!r} is no object's name (lower case letters, digits, - and .)")
    return text


def integer(low: int, high: int) -> Kind:
    """Return the kind of whole numbers from `low` to `high`."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,19}", text, re.ASCII):
            raise ValueError(f"{text!r} is no whole number")
        if not low <= int(text) <= high:
            raise ValueError(f"{text} is not between {low} and {high}")
        return int(text)

    return Kind("INTEGER", parse, lambda value: "unset" if value is None else str(value))


def choice(*allowed: str) -> Kind:
    """Return the kind of values that are one of a few words."""

    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(f"{text!r} is none of {', '.join(allowed)}")
        return text.lower()

    return Kind("|".join(allowed), parse, lambda value: "unset" if value is None else str(value))


def at_least(kind: Kind, low: float) -> Kind:
    """Return `kind` with values below `low` refused."""

    def bounded(inner: Callable[[str], object]) -> Callable[[str], object]:
        def parse(text: str) -> object:
            value = inner(text)
            assert isinstance(value, int | float)
            if value < low:
                raise ValueError(f"{text} is below {kind.show(low)}")
            return value

        return parse

    unitless = bounded(kind.unitless) if kind.unitless else None
    return Kind(kind.metavar, bounded(kind.parse), kind.show, unitless=unitless)


def or_off(kind: Kind) -> Kind:
    """Return `kind` with `off` and 0 read as None: the setting has no effect."""

    def switched(inner: Callable[[str], object]) -> Callable[[str], object]:
        return lambda text: None if text.lower() == "off" else inner(text) or None

    return Kind(
        f"{kind.metavar}|off",
        switched(kind.parse),
        lambda value: "off" if value is None else kind.show(value),
        unitless=switched(kind.unitless) if kind.unitless else None,
    )


def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(parse_label(part.strip()) for part in text.split(",") if part.strip())


def _show_names(value: object) -> str:
    return ",".join(value) if isinstance(value, Sequence) and value else "unset"


def _parse_bool_or_auto(text: str) -> bool | None:
    return None if text.lower() == "auto" else parse_bool(text)


def _parse_url_path(text: str) -> str:
    if not text.startswith("/") or any(char <= " " for char in text):
        raise ValueError(f"{text!r} is no path that begins with / and holds no space")
    return text


def _parse_host(text: str) -> str:
    bare = text.removeprefix("[").removesuffix("]")
    if not bare or any(char <= " " or char in "/[]" for char in bare):
        raise ValueError(f"{text!r} is no address or host name")
    return bare


def _show_text(value: object) -> str:
    return str(value) if value else "unset"


def _show_bool(value: object) -> str:
    return "auto" if value is None else str(value).lower()


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII) is not None


def _plain(number: float) -> str:
    """Return `number` without an exponent and without zeros at the end."""
    return f"{number:.9f}".rstrip("0").rstrip(".")


def _decimal(text: str) -> str:
    return text.rstrip(".") if text.endswith(".") else text


def _bounded_duration(value_s: float) -> float:
    if value_s > _MAX_DURATION_S:
        raise ValueError(f"{value_s:g} seconds are more than ten years")
    return value_s


PORT = integer(0, 65535)
BOOL = Kind("true|false", parse_bool, _show_bool, is_bool=True)
BOOL_OR_AUTO = Kind("auto|true|false", _parse_bool_or_auto, _show_bool, is_bool=True)
DURATION = Kind("DURATION", parse_duration_s, show_duration, unitless=parse_seconds)
SIZE = Kind("SIZE", parse_size_bytes, show_size)
PATH = Kind("PATH", str, _show_text, may_be_blank=True)
NAME = Kind("NAME", parse_object_name, _show_text, may_be_blank=True)
NAMESPACE = Kind("NAMESPACE", parse_label, _show_text, may_be_blank=True)
HOST = Kind("HOST", _parse_host, _show_text, may_be_blank=True)
NAMESPACES = Kind("NAMESPACE", _parse_names, _show_names, is_repeatable=True)
URL_PATH = Kind("PATH", _parse_url_path, _show_text)
