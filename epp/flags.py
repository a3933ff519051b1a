"""From a command line and an environment to values, with every mistake found, not just the first.

Generic: it is given the table of settings and knows none of them.  Spellings are generous
(`--pool-name x`, `--pool-name=x`, `-poolName x`, `--no-secure-serving`), so that the command lines
of every release of the reference picker work; names are not: an unknown flag is a mistake, told
together with the nearest known one.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from console import Mistake
from epp.foreign import Foreign
from epp.kinds import Kind, is_bool, parse_bool

ENV_PREFIX = "EPP_"

_CAMEL = re.compile(r"(?<=[a-z0-9])([A-Z])")
_NUMBER = re.compile(r"-\d+(\.\d+)?")
_SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://")


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: what a setting is called, what it can be, and why it is what it is.

    `name` is the attribute (with its unit), `flag` the name on the command line without dashes.
    `fallback_variable` is an environment variable of somebody else's that also sets it.
    """

    name: str
    flag: str
    kind: Kind
    default: object
    group: str
    about: str
    why: str = ""
    fallback_variable: str = ""

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return ENV_PREFIX + self.flag.replace("-", "_").upper()

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other names of the flag: with the unit at the end, a bare number is taken in it."""
        spelled = self.name.replace("_", "-")
        return () if spelled == self.flag else (spelled,)


@dataclass(slots=True)
class Reading:
    """What was read; written by `read` only.  `broken` names settings whose text was no value."""

    values: dict[str, object] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    ignored: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Given:
    """One flag as it was typed; `value` is None where none was attached or followed."""

    typed: str
    name: str
    value: str | None


def read(
    table: Sequence[Setting], foreign: Foreign, args: Sequence[str], env: Mapping[str, str]
) -> Reading:
    """Read the environment, then the command line over it."""
    reading = Reading()
    _read_environment(table, env, reading)
    _read_arguments(table, foreign, args, reading)
    if reading.ignored:
        names = ", ".join(dict.fromkeys(reading.ignored))
        reading.warnings.insert(0, f"flags of the Go picker without meaning here, ignored: {names}")
    return reading


def canonical(name: str) -> str:
    """Return a flag's name without dashes in front, in lower case, its words joined by dashes."""
    return _CAMEL.sub(r"-\1", name.lstrip("-")).replace("_", "-").lower()


def nearest(name: str, known: Sequence[str]) -> str | None:
    """Return the known name that `name` was probably meant to be."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.6)), None)


def _read_environment(table: Sequence[Setting], env: Mapping[str, str], reading: Reading) -> None:
    known: set[str] = set()
    for setting in table:
        aliases = [ENV_PREFIX + alias.replace("-", "_").upper() for alias in setting.aliases]
        known.update([setting.variable, *aliases])
        # An empty variable is what a template leaves behind: it sets nothing.
        for variable in (setting.fallback_variable, *aliases, setting.variable):
            text = env.get(variable, "")
            if text and not _SERVICE_LINK.match(text):
                _take(setting, text, variable, reading, unitless=variable in aliases)
    for variable in sorted(env):
        meant = _misspelt(variable, env[variable], known)
        if meant:
            reading.warnings.append(f"{variable} is no setting; did you mean {meant}?")


def _misspelt(variable: str, text: str, known: set[str]) -> str | None:
    """Return the variable that was meant, where one is close.

    A Service called `epp` makes Kubernetes set EPP_PORT=tcp://…, EPP_SERVICE_HOST and others in
    every container of its namespace; those are nobody's mistake.
    """
    if not variable.startswith(ENV_PREFIX) or variable in known or _SERVICE_LINK.match(text):
        return None
    if re.search(r"_(SERVICE|PORT)_", variable):
        return None
    return next(iter(difflib.get_close_matches(variable, sorted(known), n=1, cutoff=0.85)), None)


def _read_arguments(
    table: Sequence[Setting], foreign: Foreign, args: Sequence[str], reading: Reading
) -> None:
    by_name = {name: s for s in table for name in (s.flag, *s.aliases)}
    switches = {name for name, setting in by_name.items() if setting.kind.is_bool}
    switches |= foreign.switches | foreign.already_so
    repeated: dict[str, tuple[object, ...]] = {}
    for given in _split(args, switches, reading):
        setting = by_name.get(given.name)
        if setting is None:
            _take_other(given, by_name, foreign, reading)
        elif given.value is None and not setting.kind.is_bool:
            _refuse(setting, f"needs a value ({setting.kind.metavar})", given.typed, reading)
        else:
            text = "true" if given.value is None else given.value
            unitless = given.name != setting.flag
            value = _take(setting, text, given.typed, reading, unitless=unitless)
            if setting.kind.is_repeatable and isinstance(value, tuple):
                repeated[setting.name] = repeated.get(setting.name, ()) + value
    reading.values.update(repeated)


def _split(args: Sequence[str], switches: set[str], reading: Reading) -> Iterator[_Given]:
    """Cut a command line into flags with their values."""
    rest = list(reversed(args))
    while rest:
        word = rest.pop()
        if not word.startswith("-") or not word.strip("-"):
            if word != "--":
                fix = "every setting is a --flag; see epp serve --help"
                reading.mistakes.append(Mistake(f"unexpected argument {word!r}", fix=fix))
            continue
        typed, equals, attached = word.partition("=")
        name = canonical(typed)
        if equals:
            yield _Given(typed, name, attached)
        elif name in switches or name.removeprefix("no-") in switches:
            # Go takes `--flag false` as true and a stray word; nobody means that.
            yield _Given(typed, name, rest.pop() if rest and is_bool(rest[-1]) else None)
        elif rest and (not rest[-1].startswith("-") or _NUMBER.fullmatch(rest[-1])):
            yield _Given(typed, name, rest.pop())
        else:
            yield _Given(typed, name, None)


def _take_other(
    given: _Given, by_name: Mapping[str, Setting], foreign: Foreign, reading: Reading
) -> None:
    """Take a flag that is no setting's name: a negation, a flag of the reference, or a typo."""
    positive = given.name.removeprefix("no-")
    negated = by_name.get(positive)
    if negated is not None and negated.kind.is_bool and positive != given.name:
        if given.value is None or is_bool(given.value):
            reading.values[negated.name] = not parse_bool(given.value or "true")
        else:
            _refuse(negated, f"{given.value!r} is neither true nor false", given.typed, reading)
    elif given.name in foreign or positive in foreign.switches:
        if given.name not in foreign.already_so or given.value in {"false", "0", "f"}:
            reading.ignored.append(f"--{given.name}")
    else:
        meant = nearest(given.name, list(by_name))
        fix = f"did you mean --{meant}?" if meant else "see epp serve --help"
        reading.mistakes.append(Mistake("no such flag", given.typed, fix))


def _take(setting: Setting, text: str, where: str, reading: Reading, *, unitless: bool) -> object:
    if not text and setting.kind.may_be_blank:
        reading.values.pop(setting.name, None)
        return None
    parse = setting.kind.parse
    if unitless and setting.kind.unitless:
        parse = setting.kind.unitless
    try:
        value = parse(text)
    except ValueError as error:
        _refuse(setting, str(error), where, reading)
        return None
    reading.values[setting.name] = value
    return value


def _refuse(setting: Setting, what: str, where: str, reading: Reading) -> None:
    reading.broken.add(setting.name)
    default = setting.kind.show(setting.default)
    fix = f"--{setting.flag} takes {setting.kind.metavar} (default: {default})"
    reading.mistakes.append(Mistake(what, where, fix))
