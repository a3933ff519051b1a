"""Check every manifest that we ship, without a cluster: `python -m deploy.check`.

Checked: kustomizations render; the API's own kinds against its schema; pools and models against our
decoders; that names, labels, ports and flags which refer to one another do; least privilege; that
copies are copies.  Not checked, for want of their schemas: objects of other projects' CRDs
(gateways, monitors).  The Helm chart is checked as text: every value that a template uses exists,
every value is used, blocks are closed, its rules are those of the kustomization.  `helm lint` and
`helm template` are not run here.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from datastore.decode import decode_object, misspelled_fields, resource_of
from datastore.problems import BadManifest
from deploy import schema
from deploy.render import load, render
from epp.settings import TABLE

HERE = Path(__file__).parent
BASE = HERE / "kustomize" / "base"
OVERLAYS = HERE / "kustomize" / "overlays"
CHART = HERE / "helm" / "epp"
CRD = HERE.parent / "epp" / "crds" / "inferencemodels.yaml"
UNCHECKED = {"Gateway", "HTTPRoute", "DestinationRule", "ServiceMonitor"}
COPIES = {
    BASE / "crd-inferencemodels.yaml": CRD,
    CHART / "files" / "inferencemodels.yaml": CRD,
    OVERLAYS / "sidecar" / "envoy.yaml": HERE / "envoy" / "original-dst.yaml",
}

Json = dict[str, Any]


def main() -> int:
    """Check everything; print what is wrong and return how much that is."""
    found = [*check_copies(), *check_chart(CHART)]
    for folder in (BASE, *sorted(path for path in OVERLAYS.iterdir() if path.is_dir())):
        found += [f"{folder.name}: {line}" for line in check_objects(render(folder))]
    monitor = HERE / "kustomize" / "components" / "servicemonitor"
    found += [f"servicemonitor: {line}" for line in check_each(render(monitor))]
    for line in found:
        print(line, file=sys.stderr)  # noqa: T201 - this is a program
    return min(len(found), 1)


def check_copies() -> Iterator[str]:
    """Yield each copy that is not what it is a copy of."""
    for copy, original in COPIES.items():
        if copy.read_bytes() != original.read_bytes():
            yield f"{copy}: differs from {original}; copy it again"


def check_objects(objects: list[Json]) -> Iterator[str]:
    """Yield what is wrong with the objects of one deployment, each and together."""
    yield from check_each(objects)
    yield from check_references(objects)
    yield from check_privileges(objects)


def check_each(objects: list[Json]) -> Iterator[str]:
    """Yield what is wrong with each object by itself."""
    for obj in objects:
        where = f"{obj['kind']} {obj['metadata']['name']}"
        if (obj["apiVersion"], obj["kind"]) in schema.MODELS:
            yield from (f"{where}: {line}" for line in schema.departures(obj))
        elif obj["kind"] not in UNCHECKED:
            yield from (f"{where}: {line}" for line in _ours(obj))


def _ours(obj: Json) -> Iterator[str]:
    if resource_of(obj) is None:
        yield f"{obj['apiVersion']} is not known here"
        return
    try:
        yield from map(str, decode_object(obj).problems)
    except BadManifest as error:
        yield str(error)
    yield from map(str, misspelled_fields(obj))


def check_references(objects: list[Json]) -> Iterator[str]:
    """Yield each reference from one object to another that leads nowhere."""
    by_kind: dict[str, dict[str, Json]] = {}
    for obj in objects:
        by_kind.setdefault(obj["kind"], {})[obj["metadata"]["name"]] = obj
    pod = by_kind["Deployment"]["epp"]["spec"]["template"]
    account = pod["spec"]["serviceAccountName"]
    if account not in by_kind.get("ServiceAccount", {}):
        yield f"the service account {account} is not there"
    yield from _check_selectors(by_kind, pod["metadata"]["labels"])
    yield from _check_ports(by_kind, pod["spec"]["containers"])
    yield from _check_flags(pod["spec"]["containers"])


def _check_selectors(by_kind: dict[str, dict[str, Json]], labels: Json) -> Iterator[str]:
    for kind, path in _SELECTORS.items():
        for obj in by_kind.get(kind, {}).values():
            selector: Any = obj["spec"]
            for step in path:
                selector = selector[step]
            if not selector.items() <= labels.items():
                yield f"{kind} {obj['metadata']['name']}: selects no pod of the deployment"


def _check_ports(by_kind: dict[str, dict[str, Json]], containers: list[Json]) -> Iterator[str]:
    service = by_kind["Service"]["epp"]["spec"]["ports"]
    open_ports = {port["name"] for c in containers for port in c.get("ports", ())}
    for port in service:
        if port["targetPort"] not in open_ports:
            yield f"Service epp: there is no port {port['targetPort']}"
    offered = {port["port"] for port in service}
    for pool in by_kind.get("InferencePool", {}).values():
        ref = pool["spec"]["endpointPickerRef"]
        if ref["name"] not in by_kind["Service"] or ref["port"]["number"] not in offered:
            yield f"InferencePool {pool['metadata']['name']}: names a picker that is not there"


_SELECTORS = {
    "Deployment": ("selector", "matchLabels"),
    "Service": ("selector",),
    "PodDisruptionBudget": ("selector", "matchLabels"),
    "NetworkPolicy": ("podSelector", "matchLabels"),
}


def _check_flags(containers: list[Json]) -> Iterator[str]:
    known = {f"--{setting.flag}" for setting in TABLE}
    picker = next(c for c in containers if c["name"] == "epp")
    for argument in picker["args"][1:]:
        if argument.partition("=")[0] not in known:
            yield f"epp serve has no {argument}"
    if "preStop" not in picker.get("lifecycle", {}):
        # Gateways hear of a pod's end a moment after it, and would be refused until then.
        yield "container epp: has no preStop, and stops taking connections too early"


def check_privileges(objects: list[Json]) -> Iterator[str]:
    """Yield each privilege that no picker needs."""
    for obj in objects:
        if obj["kind"] in ("Role", "ClusterRole"):
            for rule in obj["rules"]:
                if any("*" in values for values in rule.values()):
                    yield f"{obj['kind']} {obj['metadata']['name']}: a rule with a wildcard"
        if obj["kind"] == "Deployment":
            yield from _check_pod(obj["spec"]["template"]["spec"])


def _check_pod(spec: Json) -> Iterator[str]:
    if not spec["securityContext"].get("runAsNonRoot"):
        yield "the pod may run as root"
    for container in spec["containers"]:
        context = container.get("securityContext", {})
        name = container["name"]
        if context.get("allowPrivilegeEscalation") is not False:
            yield f"container {name}: may gain privileges"
        if not context.get("readOnlyRootFilesystem"):
            yield f"container {name}: its root file system can be written"
        if context.get("capabilities", {}).get("drop") != ["ALL"]:
            yield f"container {name}: has capabilities"
        if "requests" not in container.get("resources", {}):
            yield f"container {name}: asks for no resources"
        if "readinessProbe" not in container:
            yield f"container {name}: has no readiness probe"


def check_chart(chart: Path) -> Iterator[str]:
    """Yield what can be seen to be wrong with a Helm chart without rendering it."""
    (values,) = load(chart / "values.yaml")
    used: set[str] = set()
    for path in sorted((chart / "templates").glob("*.yaml")):
        text = path.read_text("utf-8")
        used |= set(re.findall(r"\.Values\.([A-Za-z.]+)", text))
        opened = len(re.findall(r"{{-? *(?:if|range|with)\b", text))
        if opened != len(re.findall(r"{{-? *end\b", text)):
            yield f"{path.name}: a block is not closed"
        if text.count("{{") != text.count("}}"):
            yield f"{path.name}: braces do not match"
    known = set(_paths(values, ""))
    yield from (f"values.yaml has no {name}" for name in sorted(used) if name not in known)
    for name in sorted(_leaves(values, "")):
        if not any(name == one or name.startswith(f"{one}.") for one in used):
            yield f"values.yaml: {name} is not used"
    if _chart_rules(chart) != _kustomize_rules():
        yield "rbac.yaml: the Role of the chart is not that of the kustomization"


def _paths(value: Any, path: str) -> Iterator[str]:
    if path:
        yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _paths(item, f"{path}.{key}".lstrip("."))


def _leaves(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}".lstrip("."))
    else:
        yield path


def _chart_rules(chart: Path) -> list[Json]:
    """Return the rules of the first Role of the chart: they have no template in them."""
    text = (chart / "templates" / "rbac.yaml").read_text("utf-8")
    rules = re.search(r"^kind: Role$.*?^rules:\n(.*?)^---", text, re.DOTALL | re.MULTILINE)
    assert rules is not None, "the chart has a Role"
    found: list[Json] = yaml.safe_load(rules[1])
    return found


def _kustomize_rules() -> list[Json]:
    roles = [obj for obj in load(BASE / "rbac.yaml") if obj["kind"] == "Role"]
    found: list[Json] = roles[0]["rules"]
    return found


if __name__ == "__main__":
    sys.exit(main())
