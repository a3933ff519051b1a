"""`epp check`: every finding with its place and its fix, and an exit status for scripts."""

import json
from pathlib import Path

import pytest

from epp.cli import main

GOOD = """\
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: gpus, namespace: prod}
spec:
  selector: {matchLabels: {app: vllm}}
  targetPorts: [{number: 8000}]
---
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModel
metadata: {name: llama, namespace: prod}
spec:
  poolRef: {name: POOL}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: one, namespace: prod, labels: {app: vllm}}
addressType: IPv4
endpoints: [{addresses: [10.0.0.1], conditions: {ready: true}}]
"""


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as info:
        main(["check", *args], {})
    out, err = capsys.readouterr()
    assert isinstance(info.value.code, int)
    return info.value.code, out, err


def test_good_manifests_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "all.yaml").write_text(GOOD.replace("POOL", "gpus"))
    code, out, err = run(capsys, str(tmp_path))

    assert (code, err) == (0, "")
    assert out == (
        "1 file, 1 EndpointSlice, 1 InferenceModel, 1 InferencePool: 0 errors, 0 warnings\n"
    )


def test_a_mistake_has_its_file_line_and_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(GOOD.replace("POOL", "gpsu"))
    code, out, err = run(capsys, str(file))

    assert code == 2
    assert f"error: {file}:12: InferenceModel prod/llama: spec.poolRef.name: " in err
    assert "\n  fix: did you mean gpus?\n" in err
    assert "1 error, " in out


def test_strict_takes_warnings_for_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "all.yaml").write_text(
        GOOD.replace("POOL", "gpus").replace("app: vllm}}\na", "app: x}}\na")
    )

    assert run(capsys, str(tmp_path))[0] == 0
    assert run(capsys, str(tmp_path), "--strict")[0] == 2


def test_a_program_can_read_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(GOOD.replace("POOL", "none"))
    code, out, _ = run(capsys, str(file), "-o", "json")

    assert code == 2
    assert json.loads(out)["findings"][0]["line"] == 12


def test_a_path_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "/no/such/folder")

    assert code == 2
    assert "error: /no/such/folder: cannot be read" in err
