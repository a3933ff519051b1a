"""`epp check`: every mistake, with its line, its path and what to do."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from datastore.reading import Finding
from epp.check import Report, check_paths
from tests.builders import DIGEST_A, DIGEST_B, a_model, a_pod, a_pool, a_slice

GOOD: list[dict[str, Any]] = [
    a_pool().manifest,
    a_pod("p").serving(DIGEST_A).manifest,
    a_model("llama").to("a", 3).to("b", 1, DIGEST_A).manifest,
]


def check(folder: Path, *manifests: dict[str, Any]) -> Report:
    """Check these manifests, in one file."""
    (folder / "all.yaml").write_text(yaml.safe_dump_all(manifests, sort_keys=False))
    return check_paths([folder])


def only(findings: tuple[Finding, ...]) -> Finding:
    """Return the only finding."""
    (finding,) = findings
    return finding


def test_what_is_right_is_right(tmp_path: Path) -> None:
    report = check(tmp_path, *GOOD)

    assert report.findings == ()
    assert report.exit_code == 0
    assert report.files == 1
    assert report.counts == {"InferencePool": 1, "Pod": 1, "InferenceModel": 1}


BAD_YAML = """\
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModel
metadata:
  name: Llama
spec:
  poolRef:
    name: vlm
  criticality: Important
  targetModel: []
  targetModels:
  - name: a
    weight: 0
  - name: ""
  - name: b
    weight: 1000001
    artifactDigest: md5:1
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata:
  name: vllm
spec:
  selector:
    matchLabels: {}
  targetPorts:
  - number: 70000
  - number: 80
  - number: 80
---
kind: InferenceModel
metadata: x
---
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModel
metadata:
  name: 5
spec:
  poolRef: vllm
  targetModels:
  - weight: "3"
---
apiVersion: v1
kind: Service
metadata:
  name: other
"""


def test_every_mistake_of_a_file_is_listed(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(BAD_YAML)

    report = check_paths([file])

    found = [(f.line, f.path, f.message, f.severity) for f in report.findings]
    assert [(line, path) for line, path, _, _ in found] == [
        (4, "metadata.name"),
        (7, "spec.poolRef.name"),
        (8, "spec.criticality"),
        (9, "spec.targetModel"),
        (12, "spec.targetModels[0].weight"),
        (13, "spec.targetModels[1].weight"),
        (13, "spec.targetModels[1].name"),
        (15, "spec.targetModels[2].weight"),
        (16, "spec.targetModels[2].artifactDigest"),
        (24, "spec.selector.matchLabels"),
        (26, "spec.targetPorts[0].number"),
        (28, "spec.targetPorts[2].number"),
        (30, "apiVersion"),
        (36, "metadata.name"),
        (38, "spec.poolRef"),
        (40, "spec.targetModels[0].name"),
        (40, "spec.targetModels[0].weight"),
    ]
    assert {f.path for f in report.warnings} == {"spec.targetModel"}
    assert all(f.fix for f in report.findings if f.path != "spec.poolRef")
    assert report.exit_code == 2
    assert report.unread == {"Service of v1": f"{file}:42"}
    assert str(report.findings[1]) == (
        f"{file}:7: InferenceModel default/Llama: spec.poolRef.name: "
        "there is no InferencePool default/vlm (did you mean vllm?)"
    )
    assert report.findings[3].fix == "did you mean targetModels?"


@pytest.mark.parametrize(
    ("manifest", "path", "words"),
    [
        (a_model("m").once_called("Llama-3").manifest, "spec.modelName", "clients ask for 'm'"),
        (
            a_model("m").to("a", None, DIGEST_B).manifest,
            "spec.targetModels[0].artifactDigest",
            "no",
        ),
        (a_model("l-lama").manifest, "metadata.name", "only in its dots and hyphens"),
        (a_pool("lonely").manifest, "spec.selector", "app=lonely"),
        (a_pool("vllm").v1alpha2().manifest, "apiVersion", "is ignored"),
        (a_pod("q").labelled(app="other").manifest, "metadata.labels", "no InferencePool"),
        (a_slice("s", "10.0.0.7", app="x"), "metadata.labels", "no InferencePool"),
    ],
)
def test_what_is_odd_between_objects_is_a_warning(
    tmp_path: Path, manifest: dict[str, Any], path: str, words: str
) -> None:
    report = check(tmp_path, *GOOD, manifest)

    warning = only(report.findings)
    assert (warning.severity, warning.path) == ("warning", path)
    assert words in warning.message
    assert warning.line > 0
    assert report.exit_code == 0


@pytest.mark.parametrize(
    ("manifest", "fix"),
    [
        (a_model("m").in_pool("vlmm").manifest, "did you mean vllm?"),
        (a_model("m").in_pool("zzz").manifest, "add it, or correct the name"),
        (a_model("m", "elsewhere").manifest, "there is one in namespace default"),
    ],
)
def test_a_model_without_its_pool_is_an_error(
    tmp_path: Path, manifest: dict[str, Any], fix: str
) -> None:
    error = only(check(tmp_path, *GOOD, manifest).findings)

    assert (error.severity, error.path) == ("error", "spec.poolRef.name")
    assert fix in error.fix


def test_models_alone_only_warn_of_their_pools(tmp_path: Path) -> None:
    """Somebody checks the models of a cluster whose pools are another team's."""
    assert check(tmp_path, a_model("m").manifest).exit_code == 0


def test_two_documents_of_one_name_are_an_error_that_names_both(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(GOOD[2]))

    error = only(check(tmp_path, *GOOD).errors)

    assert error.file == str(tmp_path / "b.yaml")
    assert f"is already in {tmp_path / 'all.yaml'}:" in error.message


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    check(tmp_path, *GOOD)

    assert check_paths([tmp_path, tmp_path / "all.yaml"]).findings == ()


def test_paths_that_hold_nothing_are_told(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "blank.yaml").write_text("# nothing\n")

    report = check_paths([tmp_path / "missing", tmp_path / "empty", tmp_path / "blank.yaml"])

    assert [(Path(f.file).name, f.severity) for f in report.findings] == [
        ("blank.yaml", "warning"),
        ("empty", "warning"),
        ("missing", "error"),
    ]
