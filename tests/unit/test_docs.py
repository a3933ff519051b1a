"""The pages of settings and metrics say what the program does, because they are made from it."""

import pytest

from epp.catalogue import CATALOGUE
from epp.docs import main, metrics_page, pages, settings_page
from epp.settings import TABLE


def test_the_pages_in_the_repository_are_current() -> None:
    """If this fails: `python -m epp.docs`."""
    assert {p.name: p.read_text("utf-8") for p in pages()} == {
        p.name: text for p, text in pages().items()
    }


def test_every_setting_and_metric_is_listed() -> None:
    settings, metrics = settings_page(), metrics_page(7)

    assert all(f"| `--{s.flag}` | `{s.variable}` |" in settings for s in TABLE)
    assert all(f"| `{name}` |" in metrics for name in CATALOGUE)


def test_rows_have_as_many_cells_as_their_header() -> None:
    """A bar inside a cell (`auto|close`) must not begin a new one."""
    for line in settings_page().splitlines():
        if line.startswith("| "):
            assert line.replace("\\|", "").count("|") == 6, line


def test_check_is_quiet_when_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0
    assert capsys.readouterr().out == ""


def test_other_arguments_are_refused() -> None:
    with pytest.raises(SystemExit) as info:
        main(["--chekc"])
    assert info.value.code == 2
