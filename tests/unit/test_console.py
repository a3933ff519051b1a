"""What the programs print: everything, safely, and without a terminal in plain text."""

import io

import pytest
from rich.console import Console
from rich.text import Text

from console import (
    Column,
    Mistake,
    Table,
    advancing,
    bad,
    fail,
    fail_all,
    format_bytes,
    format_seconds,
    good,
    plain,
    show,
    waiting,
    warn,
)
from console.screen import escape


def terminal(width: int = 60) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, highlight=False)


def pipe() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=20)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


TABLE = Table(
    ["model", Column("picks", right=True), "held"],
    [["llama", 7, good("yes")], ["ein-sehr-langer-name-der-nicht-passt", 12345, bad("no")]],
)


def test_plain_tables_are_aligned_and_whole() -> None:
    """In a pipe no cell is cut, numbers stand right, and the row is one line."""
    expected = (
        "MODEL                                 PICKS  HELD\n"
        "llama                                     7  yes\n"
        "ein-sehr-langer-name-der-nicht-passt  12345  no\n"
    )
    console = pipe()
    show(TABLE, console)

    assert expected == printed(console)


def test_a_terminal_gets_a_box() -> None:
    console = terminal()
    show(TABLE, console)

    assert "╭" in printed(console)
    assert "llama" in printed(console)


def test_a_narrow_terminal_folds_instead_of_cutting() -> None:
    console = terminal(width=24)
    show(TABLE, console)

    assert "…" not in printed(console)


def test_empty_tables_still_have_their_heading() -> None:
    assert plain(Table(["name", "pool"], [])) == "NAME  POOL"


def test_a_row_stays_one_line_whatever_its_cells_hold() -> None:
    """Line ends, tabs and escapes of an object's name never reach the terminal as such."""
    text = plain(Table(["a", "b"], [["x\ny\tz", None], ["\x1b[31m", Text("\x1b]0;evil")]]))

    assert text.splitlines()[1:] == ["x\\ny\\tz   -", "\\x1b[31m  \\x1b]0;evil"]


def test_wide_characters_count_their_cells() -> None:
    text = plain(Table(["n", "x"], [["模型", "1"], ["ab", "2"]]))

    assert text.splitlines() == ["N     X", "模型  1", "ab    2"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("[bold]x[/bold]", "[bold]x[/bold]"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("\x07\x00", "\\x07\\x00"),
        ("two\nlines", "two\nlines"),
        ("\u202egnp", "\\u202egnp"),
        ("\ud800", "\\ud800"),
        ("é模", "é模"),
    ],
)
def test_escape(text: str, expected: str) -> None:
    assert expected == escape(text)


def test_fail_says_what_where_and_how_to_fix_it(capsys: pytest.CaptureFixture[str]) -> None:
    """An error goes to standard error, and the exit status is 2."""
    with pytest.raises(SystemExit) as exit_info:
        fail("weight 0 is below 1", "models.yaml:12", "use a weight of 1…1000000")

    assert exit_info.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == ("error: models.yaml:12: weight 0 is below 1\n  fix: use a weight of 1…1000000\n")


def test_fail_all_reports_every_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fail_all([Mistake("one"), Mistake("two", "here"), Mistake("[red]three[/red]")])

    assert capsys.readouterr().err == "error: one\nerror: here: two\nerror: [red]three[/red]\n"


def test_long_errors_are_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    """A log line or a grep must find the whole message on its line."""
    with pytest.raises(SystemExit):
        fail("x " * 200)

    assert len(capsys.readouterr().err.splitlines()) == 1


def test_warnings_do_not_end_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    warn("--tracing has no meaning here")

    assert capsys.readouterr().err == "warning: --tracing has no meaning here\n"


@pytest.mark.parametrize(
    ("amount", "expected"),
    [(0, "0 B"), (512, "512 B"), (1536, "1.5 KiB"), (16 << 20, "16 MiB"), (5 << 50, "5120 TiB")],
)
def test_format_bytes(amount: int, expected: str) -> None:
    assert expected == format_bytes(amount)


@pytest.mark.parametrize(
    ("amount_s", "expected"),
    [
        (0, "0 s"),
        (8.3e-7, "830 ns"),
        (0.000195, "195 µs"),
        (0.0123, "12.3 ms"),
        (1.5, "1.5 s"),
        (30, "30 s"),
        (125, "2m05s"),
    ],
)
def test_format_seconds(amount_s: float, expected: str) -> None:
    assert expected == format_seconds(amount_s)


@pytest.mark.parametrize("make", [terminal, pipe])
def test_progress_runs_with_and_without_a_terminal(make: type[Console]) -> None:
    console = make()
    with advancing("sending", 3, console) as advance:
        for _ in range(3):
            advance(1)
    with waiting("starting Envoy", console):
        pass

    assert "sending" in printed(console)
    assert "starting Envoy" in printed(console)


def test_progress_in_a_pipe_has_no_control_characters() -> None:
    console = pipe()
    with advancing("sending", 2, console) as advance:
        advance(2)

    assert printed(console) == "sending (2) …\nsending done\n"
