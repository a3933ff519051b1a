"""Manifests and Kubernetes JSON to values: the builders are the oracle, and garbage is refused."""

import contextlib
import json
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datastore import manifests as m
from datastore.decode import Decoded, Value, decode_json, decode_object, misspelled_fields
from datastore.model import Backend, InferenceModel, InferencePool
from datastore.problems import BadManifest
from tests import published
from tests.builders import (
    DIGEST_A,
    DIGEST_B,
    ModelBuilder,
    PodBuilder,
    PoolBuilder,
    a_model,
    a_pod,
    a_pool,
    a_slice,
)

# A loaded machine is slow to generate and slow to run; neither is a failure of the law.
LAW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

BUILT: list[tuple[ModelBuilder | PoolBuilder | PodBuilder, m.Resource]] = [
    (a_model("llama"), m.INFERENCE_MODEL),
    (a_model("llama", "ns").in_pool("p").to("a").to("b"), m.INFERENCE_MODEL),
    (a_model("l").to("meta-llama/Llama-3.1", 3).to("b", 1, DIGEST_A), m.INFERENCE_MODEL),
    (a_model("l").critical().once_called("Llama"), m.INFERENCE_MODEL),
    (a_model("l").sheddable(), m.INFERENCE_MODEL),
    (a_pool(), m.INFERENCE_POOL_V1),
    (a_pool("p", "ns").on(1, 2, 65535).picked_by("epp"), m.INFERENCE_POOL_V1),
    (a_pool().v1alpha2().picked_by("epp"), m.INFERENCE_POOL_V1ALPHA2),
    (a_pod("p"), m.POD),
    (a_pod("p").at("fd00::1").not_ready().labelled(a="b").serving(DIGEST_B), m.POD),
    (a_pod("p").active_on(8000, 8001), m.POD),
]


def model_of(spec: dict[str, Any], **metadata: Any) -> tuple[InferenceModel, Decoded]:
    """Decode an InferenceModel with this spec."""
    manifest = a_model("m").manifest
    manifest["spec"] = {"poolRef": {"name": "p"}} | spec
    manifest["metadata"] |= metadata
    decoded = decode_object(manifest)
    (value,) = decoded.values
    assert isinstance(value, InferenceModel)
    return value, decoded


def pool_of(spec: dict[str, Any]) -> InferencePool:
    """Decode a v1 InferencePool with this spec."""
    manifest = a_pool().manifest
    manifest["spec"] |= spec
    (value,) = decode_object(manifest).values
    assert isinstance(value, InferencePool)
    return value


def pod_of(status: dict[str, Any] | None = None, **metadata: Any) -> Backend:
    """Decode a Pod with this status and metadata."""
    manifest = a_pod("p").manifest
    if status is not None:
        manifest["status"] |= status
    manifest["metadata"] |= metadata
    (value,) = decode_object(manifest).values
    assert isinstance(value, Backend)
    return value


@pytest.mark.parametrize(("built", "resource"), BUILT)
def test_both_doors_read_the_same_value(
    built: ModelBuilder | PoolBuilder | PodBuilder, resource: m.Resource
) -> None:
    """A file's mapping and the API server's bytes mean the same, whatever else they hold."""
    expected: tuple[Value, ...] = (built.value,)
    manifest = built.manifest

    assert decode_object(manifest).values == expected
    assert decode_object(manifest).problems == ()
    manifest["status"] = manifest.get("status", {}) | {"unheard": [1, {"of": None}]}
    manifest["metadata"]["managedFields"] = [{"manager": "x"}]
    decoded = decode_json(json.dumps(manifest).encode(), resource)
    assert decoded.values == expected
    assert decoded.resource is resource


def test_a_list_item_needs_no_kind() -> None:
    """The API server leaves apiVersion and kind out of a list's items."""
    manifest = a_pod("p").manifest
    del manifest["kind"], manifest["apiVersion"]
    manifest["metadata"]["resourceVersion"] = "41"

    decoded = decode_json(json.dumps(manifest).encode(), m.POD)

    assert decoded.values == (a_pod("p").value,)
    assert decoded.resource_version == "41"


def test_a_namespace_that_is_not_said_is_the_one_given() -> None:
    manifest = a_model("m").manifest
    del manifest["metadata"]["namespace"]

    assert decode_object(manifest, "here").name.namespace == "here"


@pytest.mark.parametrize("built", [a_model("x"), a_pool("x"), a_pool("x").v1alpha2(), a_pod("x")])
def test_what_is_being_deleted_is_gone(built: ModelBuilder | PoolBuilder | PodBuilder) -> None:
    manifest = built.manifest
    manifest["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    decoded = decode_object(manifest)

    assert (decoded.gone, decoded.values) == (True, ())


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        ({"targetModels": [{"name": "a", "weight": 1}, {"name": "b"}]}, "InvalidWeights", "[1]"),
        ({"targetModels": [{"name": "a", "weight": 0}]}, "InvalidWeights", "weight"),
        ({"targetModels": [{"name": "a", "weight": -1}]}, "InvalidWeights", "weight"),
        ({"targetModels": [{"name": "a", "weight": 1_000_001}]}, "InvalidWeights", "weight"),
        ({"targetModels": [{"name": "a", "weight": 10**40}]}, "InvalidWeights", "weight"),
        ({"targetModels": [{"name": "a"}] * 11}, "InvalidTargets", "11 targets"),
        ({"targetModels": [{"name": ""}]}, "InvalidTargets", "name"),
        ({"targetModels": [{"name": "x" * 254}]}, "InvalidTargets", "253"),
        ({"targetModels": [{"name": "a\nb"}]}, "InvalidTargets", "printed"),
        ({"targetModels": [{"name": "\ud800"}]}, "InvalidTargets", "printed"),
        ({"targetModels": [{"name": "a", "artifactDigest": "x"}]}, "InvalidTargets", "sha256"),
        ({"poolRef": {"name": "p", "kind": "Service"}}, "UnsupportedPoolRef", "Service"),
        ({"poolRef": {"name": "p", "group": "x.io"}}, "UnsupportedPoolRef", "x.io"),
        ({"poolRef": {"name": ""}}, "UnsupportedPoolRef", "name"),
        ({"criticality": "critical"}, "InvalidCriticality", "Critical, Standard, Sheddable"),
    ],
)
def test_a_model_that_cannot_be_served_says_why(
    spec: dict[str, Any], reason: str, words: str
) -> None:
    """In a cluster it exists all the same: it is a value, with a draw that is never empty."""
    value, decoded = model_of(spec)

    assert value.invalid_reason == reason
    assert value.invalid is not None
    assert words in value.invalid
    assert len(value.targets) == len(value.cumulative) >= 1
    assert decoded.errors


def test_limits_are_allowed() -> None:
    targets = [{"name": "x" * 253, "weight": 1_000_000}] + [{"name": "é/:é", "weight": 1}] * 9

    value, _ = model_of({"targetModels": targets, "criticality": None})

    assert value.invalid is None
    assert value.cumulative[-1] == 1_000_009


@pytest.mark.parametrize("group", ["", None, m.X_GROUP, m.V1_GROUP])
def test_a_pool_of_either_group_may_be_meant(group: str | None) -> None:
    value, _ = model_of({"poolRef": {"name": "p", "group": group, "kind": "InferencePool"}})

    assert value.invalid is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:01:00Z", 60),
        ("1970-01-01T01:01:00+01:00", 60),
        ("0001-01-01T00:00:00+14:00", 0),
        ("9999-12-31T23:59:59-14:00", 253402351199),
        ("yesterday", 0),
        ("", 0),
        (None, 0),
    ],
)
def test_created_is_seconds(text: str | None, seconds: int) -> None:
    value, _ = model_of({}, creationTimestamp=text, generation=4, uid="u")

    assert (value.created_s, value.generation, value.uid) == (seconds, 4, "u")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"selector": None}, "selector.matchLabels: is empty"),
        ({"selector": {"matchLabels": {}}}, "selector.matchLabels: is empty"),
        ({"targetPorts": None}, "targetPorts: is missing"),
        ({"targetPorts": []}, "targetPorts: is missing"),
        ({"targetPorts": [{"number": 0}]}, "targetPorts[0].number: is out of range"),
        ({"targetPorts": [{"number": 65536}]}, "targetPorts[0].number: is out of range"),
        ({"targetPorts": [{"number": 1}, {"number": 1}]}, "targetPorts[1].number: 1 is there"),
        ({"targetPorts": [{"number": n} for n in range(1, 10)]}, "at most 8"),
    ],
)
def test_a_pool_that_cannot_be_served_says_why(spec: dict[str, Any], words: str) -> None:
    assert words in (pool_of(spec).invalid or "")


@pytest.mark.parametrize(
    ("ref", "service"),
    [
        ({"name": "epp"}, "epp"),
        ({"name": "epp", "group": "", "kind": "Service"}, "epp"),
        ({"name": "epp", "kind": "Deployment"}, None),
        ({"name": "epp", "group": "x.io"}, None),
        (None, None),
    ],
)
def test_the_picker_is_a_service(ref: dict[str, Any] | None, service: str | None) -> None:
    assert pool_of({"endpointPickerRef": ref}).picker_service == service


@pytest.mark.parametrize(
    ("status", "address", "ready"),
    [
        ({"podIP": "10.0.0.1"}, "10.0.0.1", True),
        ({"podIP": ""}, "", False),
        ({"podIP": None, "podIPs": [{"ip": "FD00:0::1"}]}, "fd00::1", True),
        ({"podIP": None, "podIPs": []}, "", False),
        ({"podIP": "not an address"}, "", False),
        ({"podIP": "fe80::1%eth0"}, "", False),
        ({"podIP": "10.0.0.1", "conditions": None}, "10.0.0.1", False),
        ({"conditions": [{"type": "Ready", "status": "Unknown"}]}, "10.0.0.1", False),
        ({"conditions": [{"type": "ContainersReady", "status": "True"}]}, "10.0.0.1", False),
    ],
)
def test_a_pod_is_ready_with_its_condition_and_an_address(
    status: dict[str, Any], address: str, ready: bool
) -> None:
    backend = pod_of(status)

    assert (backend.address, backend.ready) == (address, ready)


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("8000,8001", (8000, 8001)),
        (" 8000 , 8000", (8000,)),
        ("", ()),
        ("x, 0, 65536, 8001, ٣, 1e3, +1", (8001,)),
    ],
)
def test_active_ports_leave_out_what_is_none(text: str, ports: tuple[int, ...]) -> None:
    annotations = {"inference.networking.k8s.io/active-ports": text}

    assert pod_of(annotations=annotations).active_ports == ports


@pytest.mark.parametrize(
    ("message", "exit_code", "digest"),
    [
        (DIGEST_B, 0, DIGEST_B),
        (f"  {DIGEST_B}\n", None, DIGEST_B),
        (json.dumps({"digest": DIGEST_B, "files": 3}), 0, DIGEST_B),
        (DIGEST_B, 1, None),
        ("sha256:short", 0, None),
        ('{"digest": 5}', 0, None),
        ('{"digest": "md5:1"}', 0, None),
        ("[" * 100_000, 0, None),
        ("", 0, None),
        (None, 0, None),
    ],
)
def test_what_the_init_container_reports_is_what_the_pod_serves(
    message: str | None, exit_code: int | None, digest: str | None
) -> None:
    ended = {"terminated": {"message": message, "exitCode": exit_code}}
    status = {"initContainerStatuses": [{"state": {"running": {}}}, {"state": ended}]}

    assert pod_of(status).artifact_digest == digest
    annotations = {"epp.inference/artifact-digest": DIGEST_A}
    assert pod_of(status, annotations=annotations).artifact_digest == DIGEST_A


def test_a_slice_is_one_backend_for_each_address() -> None:
    """No word on readiness means ready; one that ends is not."""
    manifest = a_slice("s", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", ports=(8000, 8001))
    endpoints = manifest["endpoints"]
    endpoints[1]["conditions"] = {"ready": False}
    endpoints[2]["conditions"] = {"ready": True, "terminating": True}
    endpoints[3] |= {"conditions": {"ready": None}, "targetRef": {"kind": "Pod", "uid": "u4"}}
    manifest["ports"] += [{"port": 53, "protocol": "UDP"}, {"port": None}]

    backends = [value for value in decode_object(manifest).values if isinstance(value, Backend)]

    assert [(b.name.name, b.ready) for b in backends] == [
        ("s/10.0.0.1", True),
        ("s/10.0.0.2", False),
        ("s/10.0.0.3", False),
        ("s/10.0.0.4", True),
    ]
    assert {b.ports for b in backends} == {(8000, 8001)}
    assert [b.uid for b in backends[2:]] == ["default/s/10.0.0.3", "u4"]


@pytest.mark.parametrize("ready_first", [True, False])
def test_of_two_endpoints_at_one_address_the_ready_one_counts(ready_first: bool) -> None:
    manifest = a_slice("s", "10.0.0.1", "10.0.0.1")
    manifest["endpoints"][ready_first]["conditions"] = {"ready": False}

    (backend,) = decode_object(manifest).values

    assert isinstance(backend, Backend)
    assert backend.ready


def test_a_slice_of_names_has_no_backends() -> None:
    manifest = a_slice("s", "10.0.0.1") | {"addressType": "FQDN"}

    decoded = decode_object(manifest)

    assert decoded.values == ()
    assert [str(p) for p in decoded.errors] == [
        "addressType: FQDN is not supported (use IPv4 or IPv6)"
    ]


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        ({"spec": None}, "spec", "expected a mapping, found nothing"),
        ({"spec": {}}, "spec.poolRef", "is missing"),
        ({"metadata": {}}, "metadata.name", "is missing"),
        ({"metadata": {"name": 1.5}}, "metadata.name", "expected text, found a number"),
        ({"metadata": {"name": "a", "labels": {"x": True}}}, "metadata.labels.x", "expected text"),
        ({"metadata": {"name": "a", "labels": {"x/y": 1}}}, 'metadata.labels["x/y"]', "expected"),
        (
            {"spec": {"poolRef": {"name": "p"}, "targetModels": [{"name": "a"}, {"weight": "1"}]}},
            "spec.targetModels[1].name",
            "is missing",
        ),
        (
            {"spec": {"poolRef": {"name": "p"}, "targetModels": [{"name": "a", "weight": 1.5}]}},
            "spec.targetModels[0].weight",
            "expected a whole number, found a number",
        ),
        ({"apiVersion": None}, "apiVersion", "is missing or is not text"),
        ({"kind": ["x"]}, "kind", "is missing or is not text"),
        ({"kind": "Deployment"}, "kind", "Deployment of"),
    ],
)
def test_a_wrong_shape_names_its_path(change: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(BadManifest) as caught:
        decode_object(a_model("m").manifest | change)

    assert caught.value.path == path
    assert message in caught.value.message


def test_a_field_that_no_schema_has_is_pointed_out() -> None:
    manifest = a_model("m").manifest
    manifest["spec"]["targetModel"] = []
    manifest["spec"]["poolRef"]["x"] = 1

    assert [(p.path, p.fix) for p in misspelled_fields(manifest)] == [
        (("spec", "poolRef", "x"), "one of: name, group, kind"),
        (("spec", "targetModel"), "did you mean targetModels?"),
    ]


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None))
    | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@st.composite
def nearly_right(draw: st.DrawFn) -> Any:
    """Draw a manifest with one thing in it replaced, removed or added."""
    built, _ = draw(st.sampled_from(BUILT))
    manifest = draw(st.sampled_from([built.manifest, a_slice("s", "10.0.0.1", ports=(1,))]))
    place: Any = manifest
    while True:
        key = draw(st.sampled_from(list(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], dict | list) or not place[key] or draw(st.booleans()):
            break
        place = place[key]
    place[key] = draw(anything)
    return manifest


@LAW
@given(anything | nearly_right())
def test_no_object_is_any_other_error(raw: Any) -> None:
    """Whatever a file holds: a value, or BadManifest."""
    try:
        decoded = decode_object(raw)
    except BadManifest:
        return
    assert decoded.gone or decoded.problems or decoded.values or raw["kind"] == "EndpointSlice"


@LAW
@given(st.binary() | nearly_right().map(lambda raw: json.dumps(raw, default=str).encode()))
def test_no_bytes_are_any_other_error(data: bytes) -> None:
    """Whatever an API server sends: a value, or BadManifest, for every resource."""
    for resource in m.RESOURCES:
        with contextlib.suppress(BadManifest):
            assert decode_json(data, resource).resource is resource


def test_depth_is_not_a_crash() -> None:
    deep: Any = "x"
    for _ in range(5_000):
        deep = [deep]

    with pytest.raises(BadManifest):
        decode_object(a_model("m").manifest | {"spec": deep})
    with pytest.raises(BadManifest):
        decode_json(b'{"metadata":{"name":"x","labels":' + b"[" * 100_000, m.POD)
    assert decode_json(msgspec.Raw(json.dumps(a_pod("p").manifest).encode()), m.POD).values


SCHEMAS = {
    m.INFERENCE_MODEL: published.INFERENCE_MODEL,
    m.INFERENCE_POOL_V1: published.INFERENCE_POOL_V1,
    m.INFERENCE_POOL_V1ALPHA2: published.INFERENCE_POOL_V1ALPHA2,
}


@pytest.mark.parametrize(("built", "resource"), [b for b in BUILT if b[1] in SCHEMAS])
def test_the_builders_manifests_are_what_the_published_schemas_allow(
    built: ModelBuilder | PoolBuilder, resource: m.Resource
) -> None:
    """What these tests call right is right elsewhere, but for what we left out or added."""
    spec = built.manifest["spec"]
    needed = SCHEMAS[resource]["required"]
    filled = {name: example(SCHEMAS[resource]["properties"][name]) for name in needed} | spec
    for target in filled.get("targetModels", ()):
        target.pop("artifactDigest", None)  # ours alone

    jsonschema.validate(filled, SCHEMAS[resource])


@pytest.mark.parametrize("resource", SCHEMAS)
def test_every_field_of_a_published_spec_is_known(resource: m.Resource) -> None:
    """A manifest that uses any field of the public schema is never said to misspell it."""
    spec = example(SCHEMAS[resource])
    manifest = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": "x"},
        "spec": spec,
    }

    assert spec.keys() == SCHEMAS[resource]["properties"].keys()
    assert misspelled_fields(manifest) == ()
    assert misspelled_fields(manifest | {"spec": {**spec, "slector": 1}}) != ()


def example(schema: dict[str, Any]) -> Any:
    """Return something of a schema's shape with every property in it."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            return {name: example(inner) for name, inner in schema.get("properties", {}).items()}
        case "array":
            return [example(schema["items"])]
        case "integer":
            return 1
        case _:
            return "x"
