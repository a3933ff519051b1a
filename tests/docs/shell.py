"""Shell blocks taken apart: which programs a reader is told to run, with which words."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from tests.docs.pages import Block, Page

_BETWEEN = {"|", "||", "&&", ";", "&", "(", ")"}
_REDIRECTIONS = {">", ">>", "<"}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_HEREDOC = re.compile(r"<<-?\s*'?(\w+)'?")


@dataclass(frozen=True, slots=True)
class Command:
    """One program with its words.  `into` is the file its output goes to, "" if none."""

    words: tuple[str, ...]
    into: str = ""
    where: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {shlex.join(self.words)}"


def commands_of(page: Page) -> list[Command]:
    """Return the commands of every `sh` block, and those after `$ ` in `console` blocks."""
    found: list[Command] = []
    for block in page.blocks:
        if block.language == "sh":
            found += _commands(block.text, page.name, block.line)
        elif block.language == "console":
            lines = [line.removeprefix("$ ") for line in _prompted(block)]
            found += _commands("\n".join(lines), page.name, block.line)
    return found


def _prompted(block: Block) -> list[str]:
    return [line for line in block.text.splitlines() if line.startswith("$ ")]


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield each whole command line: continued lines, quotes and here-documents are one."""
    pending, begun, until = "", 0, ""
    for number, line in enumerate(text.splitlines()):
        if until:
            until = "" if line.strip() == until else until
            continue
        begun = begun if pending else number
        pending += line + "\n"
        if line.endswith("\\") or not _closed(pending):
            continue
        if heredoc := _HEREDOC.search(pending):
            until = heredoc[1]
        yield begun, _HEREDOC.sub("", pending)
        pending = ""
    assert not pending, f"a quote is not closed: {pending}"
    assert not until, f"a here-document is not closed: {until}"


def _closed(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return True


def _commands(text: str, page: str, line: int) -> Iterator[Command]:
    for offset, whole in lines_of(text):
        where = f"{page}:{line + offset}"
        yield from parse(whole.replace("\\\n", " "), where)


def parse(text: str, where: str = "") -> Iterator[Command]:
    """Yield the programs of one command line."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    into = ""
    tokens = iter(lexer)
    for token in tokens:
        if token in _REDIRECTIONS:
            into = next(tokens)
        elif token in _BETWEEN:
            yield from _command(words, into, where)
            words, into = [], ""
        else:
            words.append(token)
    yield from _command(words, into, where)


def _command(words: list[str], into: str, where: str) -> Iterator[Command]:
    while words and _ASSIGNMENT.match(words[0]):
        words = words[1:]
    if words:
        yield Command(tuple(words), into, where)
