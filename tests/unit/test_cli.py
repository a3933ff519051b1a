"""The program: commands that are there, help made from the table, mistakes told at once."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from epp.cli import COMMANDS, Command, main
from epp.settings import TABLE

ROOT = Path(__file__).parents[2]


def run(*args: str, capsys: pytest.CaptureFixture[str], **env: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as info:
        main(args, env)
    out, err = capsys.readouterr()
    assert isinstance(info.value.code, int)
    return info.value.code, out, err


def test_help_names_every_command_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("--help", capsys=capsys)

    assert code == 0
    assert "serve" in out
    for command in COMMANDS:
        assert re.search(rf"│ {command.name} ", out), command.name


def test_help_of_serve_has_every_setting_in_its_group(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = run("serve", "--help", capsys=capsys)

    assert code == 0
    for setting in TABLE:
        assert f"--{setting.flag} " in out
        assert f"─ {setting.group} ─" in out
    assert "[default: 9002]" in out


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c.name)
def test_every_command_has_help(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """Its module loads, and typer understands its function."""
    code, out, _ = run(command.name, "--help", capsys=capsys)

    assert code == 0
    assert f"Usage: epp {command.name}" in out


def test_a_wrong_command_line_of_serve_exits_2_with_every_mistake(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run("serve", "--grpc-prot=1", "--v=loud", capsys=capsys, EPP_SEED="x")

    assert code == 2
    assert out == ""
    assert err.count("error: ") == 3
    assert "did you mean --grpc-port?" in err


def test_a_flag_of_the_reference_hides_no_mistake(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = run("serve", "--tracing", "--no-such", capsys=capsys)

    assert code == 2
    assert "--no-such: no such flag" in err


def test_flags_alone_are_those_of_serve(capsys: pytest.CaptureFixture[str]) -> None:
    """A Deployment made for the reference picker gives its image flags, and no command."""
    code, _, err = run("--pool-name=llama", "--grpc-prot=1", capsys=capsys)

    assert code == 2
    assert "did you mean --grpc-port?" in err


def test_an_unknown_command_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run("serv", capsys=capsys)

    assert code == 2
    assert "serve" in err


def test_the_module_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "epp", "--version"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert re.fullmatch(r"epp \d\S*\n", done.stdout)


def test_help_loads_no_server() -> None:
    """What `epp --help` costs: no event loop's libraries, no Kubernetes client, no grpc."""
    code = (
        "import sys\nfrom epp.cli import main\n"
        "try:\n    main(['--help'], {})\nexcept SystemExit:\n    pass\n"
        "heavy = {'grpc', 'aiohttp', 'kubernetes_asyncio', 'prometheus_client', 'uvloop'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
