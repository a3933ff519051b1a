"""Alerts, dashboard and runbook speak of metrics, labels and reasons that exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from epp import errors
from epp.catalogue import CATALOGUE
from tests.docs import pages
from tests.docs.pages import ROOT, slug

MONITORING = ROOT / "deploy" / "monitoring"
COMPONENT = ROOT / "deploy" / "kustomize" / "components" / "prometheusrule"
FUNCTIONS = {
    "sum", "max", "min", "avg", "rate", "increase", "absent", "histogram_quantile", "label_values",
    "by", "without", "ignoring", "on", "group_left", "and", "or", "unless", "count",
}  # fmt: skip
GIVEN_BY_SCRAPES = {"instance", "job", "pod", "le"}
_SUFFIX = re.compile(r"_(?:bucket|sum|count)$")
_LABEL_LIST = re.compile(r"\b(?:by|without|ignoring|on|group_left)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"(\w+)?\{([^}]*)\}")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"')


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((MONITORING / "rules.yaml").read_text("utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    dashboard = json.loads((MONITORING / "dashboard.json").read_text("utf-8"))
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (v["query"] for v in dashboard["templating"]["list"] if v["type"] == "query")
    for block in pages.read("docs/runbook.md").blocks:
        if block.language == "promql":
            yield from block.text.strip().splitlines()


def faults(expression: str) -> list[str]:
    """Return what an expression names and nothing here has."""
    text = re.sub(r"\[[^\]]*\]", "", expression)
    labels = {label for found in _LABEL_LIST.findall(text) for label in re.findall(r"\w+", found)}
    values: dict[str, set[str]] = {}
    for _, inner in _SELECTOR.findall(text):
        for label, value in _MATCHER.findall(inner):
            labels.add(label)
            values.setdefault(label, set()).update(value.split("|"))
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", _LABEL_LIST.sub("", re.sub(r"\{[^}]*\}", "", text)))
    words = set(re.findall(r"\b[a-z_][a-z0-9_]*\b", bare)) - FUNCTIONS
    if "label_values" in text:
        labels |= words & {"namespace"}
        words -= {"namespace"}
    known = {_SUFFIX.sub("", word) if word not in CATALOGUE else word for word in words}
    found = [f"no metric {name}" for name in sorted(known - CATALOGUE.keys())]
    told = {label for name in known & CATALOGUE.keys() for label in CATALOGUE[name].labels}
    found += [f"no label {label}" for label in sorted(labels - told - GIVEN_BY_SCRAPES)]
    unknown = values.get("error_code", set()) - reasons()
    found += [f"no reason {reason}" for reason in sorted(unknown)]
    if text.count("(") != text.count(")") or text.count("{") != text.count("}"):
        found.append("parentheses do not match")
    return found


def reasons() -> set[str]:
    """Return every reason for which a request can be refused."""

    def tree(kind: type[errors.RequestError]) -> Iterator[type[errors.RequestError]]:
        yield kind
        for child in kind.__subclasses__():
            yield from tree(child)

    return {kind.reason for kind in tree(errors.RequestError)}


def test_expressions_name_what_is_there() -> None:
    assert {text: found for text in expressions() if (found := faults(text))} == {}


@pytest.mark.parametrize(
    "expression",
    [
        "sum(rate(inference_objective_requests_total[5m]))",
        "sum by (model) (rate(inference_objective_request_total[5m]))",
        'rate(inference_objective_request_error_total{error_code="no_such"}[5m])',
        'epp_models{model_name="x"}',
        "sum(rate(epp_models[5m])",
    ],
)
def test_a_planted_mistake_is_found(expression: str) -> None:
    assert faults(expression) != []


def test_every_alert_has_its_section_in_the_runbook() -> None:
    """And the runbook has none for an alert that is not there."""
    anchors = pages.read("docs/runbook.md").anchors
    alerts = {slug(rule["alert"]) for rule in rules()}
    assert {a for a in anchors if a.startswith("epp")} == alerts


def test_every_refusal_is_in_the_runbook_and_on_the_protocol_page() -> None:
    for page in ("docs/runbook.md", "docs/protocol.md"):
        text = pages.read(page).text
        assert {reason for reason in reasons() if f"`{reason}`" not in text} == set(), page


def test_alerts_say_what_a_person_needs() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule
        assert rule["annotations"]["summary"], rule
        assert rule["annotations"]["description"], rule


def test_the_operators_rule_is_the_same() -> None:
    plain = yaml.safe_load((MONITORING / "rules.yaml").read_text("utf-8"))
    wrapped = yaml.safe_load((COMPONENT / "prometheusrule.yaml").read_text("utf-8"))
    assert wrapped["spec"] == plain


def test_the_dashboard_lays_its_panels_out() -> None:
    """None hides another, and ids are its own."""
    panels = json.loads((MONITORING / "dashboard.json").read_text("utf-8"))["panels"]
    taken = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(taken) == len(set(taken))
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {
        panel["title"] for panel in panels if panel["type"] != "row" and not panel["targets"]
    } == set()


def test_scrapers_keep_our_namespace() -> None:
    """Without honorLabels, Prometheus calls our label exported_namespace."""
    for file in ("kustomize/components/servicemonitor", "helm/epp/templates"):
        path = Path(ROOT / "deploy" / file / "servicemonitor.yaml")
        assert "honorLabels: true" in path.read_text("utf-8"), file
