"""The two streams of a program, as rich consoles, and text made safe to print on them."""

import sys
from io import TextIOWrapper

from rich.console import Console
from rich.text import Text


def stdout() -> Console:
    """Return a console on standard output: for what was asked for.

    A character that the stream's encoding lacks is spelled out, as on standard error, not fatal.
    """
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True)


def stderr() -> Console:
    """Return a console on standard error: for what is said about it."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


def say(text: str | Text = "", *, to: Console | None = None) -> None:
    """Print one line, without markup: brackets in `text` stay brackets."""
    (to or stdout()).print(text)


def escape(text: str) -> str:
    r"""Return `text` with control characters (but not tabs and line ends) spelled as `\x1b`.

    Also what can reorder or hide a line (bidirectional overrides), and lone surrogates.
    """
    if text.isprintable():
        return text
    return "".join(map(_escape_one, text))


def _escape_one(char: str) -> str:
    if char.isprintable() or char in "\n\t":
        return char
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")
