"""The manifests that we ship are right, and the checks that say so can fail."""

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from datastore.manifests import ModelSpec, PoolRef, Target
from deploy import check
from deploy.render import render
from epp.crds import read

Json = dict[str, Any]


def one(objects: list[Json], kind: str) -> Json:
    return next(obj for obj in objects if obj["kind"] == kind)


def container(objects: list[Json]) -> Json:
    found: Json = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return found


def test_everything_that_is_shipped_is_right() -> None:
    """`make check` runs the same."""
    assert check.main() == 0


def test_the_crd_is_printed() -> None:
    """`epp crds` prints what deploy/ applies."""
    assert read("inferencemodels") == (check.BASE / "crd-inferencemodels.yaml").read_text("utf-8")


PLANTED: list[tuple[Callable[[list[Json]], Any], str]] = [
    (lambda o: container(o).update(imagePulPolicy="x"), "imagePulPolicy: no such field"),
    (lambda o: container(o).pop("name"), "name"),
    (lambda o: one(o, "Deployment")["spec"].update(replicas="2"), "replicas: is not int"),
    (lambda o: one(o, "Deployment")["spec"].pop("selector"), "selector"),
    (lambda o: one(o, "Service")["spec"].update(ports={}), "ports: is not a list"),
    (lambda o: one(o, "Service")["spec"]["selector"].update(a="b"), "selects no pod"),
    (lambda o: one(o, "Service")["spec"]["ports"][0].update(targetPort="x"), "no port x"),
    (lambda o: container(o)["args"].append("--nonsense=1"), "no --nonsense=1"),
    (lambda o: container(o).pop("readinessProbe"), "no readiness probe"),
    (lambda o: container(o).pop("lifecycle"), "no preStop"),
    (
        lambda o: container(o)["securityContext"].pop("readOnlyRootFilesystem"),
        "root file system can be written",
    ),
    (lambda o: one(o, "Role")["rules"][0].update(verbs=["*"]), "wildcard"),
    (lambda o: one(o, "InferencePool")["spec"].update(targetPorts=[]), "targetPorts"),
    (lambda o: one(o, "InferenceModel")["spec"].update(criticallity="x"), "criticallity"),
    (lambda o: o.remove(one(o, "ServiceAccount")), "service account"),
]


@pytest.mark.parametrize(("plant", "said"), PLANTED, ids=[said for _, said in PLANTED])
def test_a_planted_mistake_is_found(plant: Callable[[list[Json]], Any], said: str) -> None:
    """Each kind of mistake that the checks look for is found, and named."""
    objects = copy.deepcopy(render(check.OVERLAYS / "istio"))
    plant(objects)
    found: list[str] = []
    try:
        found += check.check_each(objects)
        found += check.check_objects(objects)
    except KeyError:
        pass  # the object is too broken for its references to be followed
    assert said in " | ".join(found)


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("templates/service.yaml", "spec:", "{{ .Values.nope }}", "no nope"),
        ("templates/networkpolicy.yaml", "{{- end }}", "", "not closed"),
        ("templates/deployment.yaml", "{{ .Values.replicas }}", "2", ""),
        ("templates/deployment.yaml", "}}\n", "\n", "braces"),
        ("templates/rbac.yaml", '"watch"]', '"watch", "delete"]', "not that of the kustomization"),
        ("values.yaml", "args: []", "args: []\nunused: 1", "unused is not used"),
    ],
)
def test_a_planted_mistake_in_the_chart_is_found(
    tmp_path: Path, file: str, old: str, new: str, said: str
) -> None:
    """The text of the chart is checked as far as text can be."""
    chart = tmp_path / "epp"
    shutil.copytree(check.CHART, chart)
    path = chart / file
    assert old in path.read_text("utf-8")
    path.write_text(path.read_text("utf-8").replace(old, new, 1))
    assert said in " | ".join(check.check_chart(chart))


def test_the_crd_is_a_superset_of_what_we_read() -> None:
    """Every field that the decoder knows is in the schema: what is not would be pruned."""
    (version,) = yaml.safe_load(read("inferencemodels"))["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    camel = {"pool_ref": "poolRef", "model_name": "modelName", "target_models": "targetModels"}
    assert {camel.get(f, f) for f in ModelSpec.__struct_fields__} == set(spec)
    assert set(PoolRef.__struct_fields__) == set(spec["poolRef"]["properties"])
    assert {f.replace("artifact_digest", "artifactDigest") for f in Target.__struct_fields__} == (
        set(spec["targetModels"]["items"]["properties"])
    )
