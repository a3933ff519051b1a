"""What the reconciler may and may not touch, and how it tells people."""

import copy
from dataclasses import replace

import pytest

from registry.model import Policy
from registry.names import FIELD_MANAGER
from tests.fakes.registry import Quirks
from tests.fakes.registry_scene import API, scene


async def test_a_foreign_resource_of_the_same_name() -> None:
    """Never adopted: one FAILED record, one Event; when it goes, the deployment goes on."""
    async with scene(start=False) as s:
        theirs = s.api.put(
            {
                "apiVersion": API,
                "kind": "InferenceService",
                "metadata": {"name": "m0", "namespace": "demo", "labels": {"team": "x"}},
                "spec": {"predictor": {"sklearn": {"storageUri": "s3://a/b"}}},
            }
        )
        s.model("mnist", "v8")
        s.runtime()
        s.intend("m0")
        await s.start()
        await s.until(lambda: s.states("m0") == [("v8", "FAILED")])
        await s.looks(3)
        assert s.records("m0") == [("v8", "FAILED")]
        assert s.events().count("NameTaken") == 1
        found = s.resources()["m0"]
        assert (found["spec"], found["metadata"]["labels"]) == (theirs["spec"], {"team": "x"})
        await s.stop()
        await s.start()
        await s.looks(2)
        assert s.events().count("NameTaken") == 1  # a new process tells it no second time
        s.remove(API, "InferenceService", "m0")
        s.kserve.again("demo", "m0")

        await s.until(lambda: s.states("m0") == [("v8", "RUNNING")])


async def test_a_name_taken_between_look_and_apply_is_given_back() -> None:
    """An apply that met somebody else's new object leaves nothing of ours in it."""
    async with scene(defaults=False) as s:
        client = s.loop._tools.cluster  # type: ignore[union-attr]  # the scene has started
        s.api.put(
            {
                "apiVersion": API,
                "kind": "InferenceService",
                "metadata": {"name": "m0", "namespace": "demo"},
                "spec": {"predictor": {"minReplicas": 3}},
            }
        )
        body = {
            "apiVersion": API,
            "kind": "InferenceService",
            "metadata": {"name": "m0", "namespace": "demo", "labels": {"a": "b"}},
            "spec": {"predictor": {"model": {"runtime": "x"}}},
        }
        with pytest.raises(Exception, match="belongs to somebody else"):
            await client.apply(body, create=True)

        found = s.resources()["m0"]
        assert found["spec"]["predictor"] | {"model": {}} == {"minReplicas": 3, "model": {}}
        assert "a" not in found["metadata"].get("labels", {})


async def test_replicas_and_defaults_of_others_stay() -> None:
    """KServe's defaults and an autoscaler's replicas are no difference, and survive a roll."""
    async with scene() as s:
        await s.deploy("m0")
        body = s.resources()["m0"]
        body["spec"]["predictor"] |= {"minReplicas": 4, "maxReplicas": 9}
        s.api.put(body)
        applies = s.api.requests.copy()
        await s.looks(3)
        assert {k: v for k, v in s.api.requests.items() if k[0] == "patch"} == {
            k: v for k, v in applies.items() if k[0] == "patch"
        }
        s.version("mnist", "v12")
        await s.until(lambda: s.states("m0") == [("v8", "COMPLETE"), ("v12", "RUNNING")])

        predictor = s.resources()["m0"]["spec"]["predictor"]
        assert (predictor["minReplicas"], predictor["maxReplicas"]) == (4, 9)
        assert predictor["model"]["protocolVersion"] == "v2"


async def test_a_conflict_is_reported_and_not_forced() -> None:
    """Somebody took one of our fields: said once, theirs stays, the record stays open."""
    async with scene() as s:
        await s.deploy("m0")
        body = copy.deepcopy(s.resources()["m0"])
        body["spec"]["predictor"]["model"]["runtime"] = "theirs"
        s.api.put(body)
        await s.until(lambda: "Conflict" in s.events())
        await s.looks(3)

        assert s.events().count("Conflict") == 1
        assert s.resources()["m0"]["spec"]["predictor"]["model"]["runtime"] == "theirs"
        assert s.records("m0") == [("v8", "UNKNOWN"), ("v8", "RUNNING")]


async def test_the_reverse_controllers_records_are_left_alone() -> None:
    """A resource with its label keeps its record, and nothing is applied."""
    async with scene(start=False) as s:
        s.model("mnist", "v8")
        s.runtime()
        mirrored = s.intend("isvc/0a1b2c3d-1111-2222-3333-444455556666")
        also = s.intend("plain")
        for name, intent in (("isvc", mirrored), ("plain", also)):
            labels = {"modelregistry.opendatahub.io/inference-service-id": intent}
            metadata = {"name": name, "namespace": "demo", "labels": labels}
            s.api.put(
                {"apiVersion": API, "kind": "InferenceService", "metadata": metadata,
                 "spec": {"predictor": {}}}
            )  # fmt: skip
        await s.start()
        await s.looks(2)

        assert s.registry.serves(mirrored) == s.registry.serves(also) == []
        assert all(
            FIELD_MANAGER not in str(body["metadata"].get("managedFields"))
            for body in s.resources().values()
        )


async def test_no_artifact_for_the_new_version() -> None:
    """The version before stays, no record is opened, a condition and a metric tell."""
    async with scene() as s:
        await s.deploy("m0")
        s.bare_version("mnist", "v12")
        await s.until(lambda: "NoArtifact" in s.events())
        await s.looks(2)
        assert s.path("m0") == "mnist/v8"
        assert s.records("m0") == [("v8", "UNKNOWN"), ("v8", "RUNNING")]
        text = await s.ask("metrics")
        assert 'epp_registry_conditions{namespace="demo",reason="NoArtifact"} 1.0' in text
        s.version("mnist", "v13")

        await s.until(lambda: s.states("m0") == [("v8", "COMPLETE"), ("v13", "RUNNING")])


async def test_a_model_that_does_not_load() -> None:
    """FAILED with KServe's reason, RUNNING when it is mended; no record in between."""
    async with scene() as s:
        s.kserve.failing["m0"] = "ModelLoadFailed"
        s.model("mnist", "v8")
        s.runtime()
        s.intend("m0")
        await s.until(lambda: s.states("m0") == [("v8", "FAILED")])
        await s.looks(2)
        assert len(s.records("m0")) == 2
        assert "ModelFailed" in s.events()
        s.kserve.failing.clear()
        s.kserve.again("demo", "m0")

        await s.until(lambda: s.states("m0") == [("v8", "RUNNING")])
        assert len(s.records("m0")) == 3


async def test_running_only_after_the_status_moved() -> None:
    """The old version's Ready=True says nothing of the new one."""
    async with scene() as s:
        await s.deploy("m0")
        s.kserve.paused = True
        s.version("mnist", "v12")
        await s.until(lambda: s.path("m0") == "mnist/v12")
        await s.looks(3)
        assert s.states("m0")[-1] == ("v12", "UNKNOWN")
        s.kserve.paused = False
        s.kserve.again("demo", "m0")

        await s.until(lambda: s.states("m0") == [("v8", "COMPLETE"), ("v12", "RUNNING")])


async def test_two_intents_with_one_name() -> None:
    """Old registries allow it: the older has the name, the other fails once."""
    async with scene(quirks=Quirks(api="v1alpha1")) as s:
        await s.deploy("m0")
        twin = s.registry.add(
            "inference_services", name="twin", registeredModelId=s.ids["mnist"],
            servingEnvironmentId=s.environment(), runtime="model-server",
        )  # fmt: skip
        s.registry.change("inference_services", twin["id"], name="m0")
        s.ids["twin"] = twin["id"]
        await s.until(lambda: s.states("twin") == [("v8", "FAILED")])
        await s.looks(2)

        assert s.records("twin") == [("v8", "FAILED")]
        assert s.states("m0") == [("v8", "RUNNING")]
        assert len(s.labelled("m0")) == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [("My Model!", "my-model-"), ("9lives", "m-9lives-"), ("é", "m-"), ("x" * 70, "x" * 50 + "-")],
)
async def test_names_that_kubernetes_refuses(name: str, expected: str) -> None:
    """A deterministic name instead; the display name keeps the original."""
    async with scene() as s:
        await s.deploy(name)
        [body] = s.labelled(name)

        made = body["metadata"]["name"]
        assert made.startswith(expected)
        assert len(made) == len(expected) + 8
        assert body["metadata"]["annotations"]["openshift.io/display-name"] == name


async def test_prune_and_its_bound() -> None:
    """Without --prune a vanished intent's resource stays; with it, so many in a period."""
    async with scene(start=False, max_deletes=1, period_s=0.3) as s:
        await s.start()
        await s.deploy("m0", "m1")
        for name in ("m0", "m1"):
            del s.registry.store.kinds["inference_services"][s.ids[name]]
        await s.until(lambda: s.events().count("IntentGone") == 2)
        await s.looks(2)
        assert len(s.resources()) == 2
        await s.stop()
        s.settings = replace(s.settings, policy=Policy(prune=True))
        await s.start()
        await s.until(lambda: len(s.resources()) == 1)
        await s.until(lambda: not s.resources())


async def test_an_emptied_registry_prunes_nothing() -> None:
    """A wiped database, a new environment of the same name: nobody asked for a delete."""
    async with scene(policy=Policy(prune=True)) as s:
        await s.deploy("m0")
        s.registry.store.clock_ms = 4_000_000_000_000
        for entities in s.registry.store.kinds.values():
            entities.clear()
        await s.looks(4)
        await s.until(lambda: "RegistryReplaced" in s.events())

        assert set(s.resources()) == {"m0"}


async def test_pins_reach_the_resource() -> None:
    """versionId and sha256 go to storage.parameters, the annotations and the picker's target."""
    policy = Policy(require_pins=True, inference_models=True, pool="pool")
    async with scene(policy=policy) as s:
        s.model("mnist")
        s.version("mnist", "v8")
        artifact = s.registry.store.children("model_artifacts")[0]
        s.runtime()
        s.intend("m0")
        await s.until(lambda: "Floating" in s.events())
        assert s.resources() == {}
        pins = {"versionId": "abc", "sha256": "A" * 64}
        artifact["customProperties"] = {
            key: {"metadataType": "MetadataStringValue", "string_value": value}
            for key, value in pins.items()
        }
        await s.until(lambda: s.states("m0") == [("v8", "RUNNING")])
        await s.until(lambda: s.api.all("inference.networking.x-k8s.io/v1alpha2", "InferenceModel"))

        [body] = s.labelled("m0")
        parameters = body["spec"]["predictor"]["model"]["storage"]["parameters"]
        assert parameters == {"versionId": "abc", "sha256": "a" * 64}
        annotations = body["metadata"]["annotations"]
        assert annotations["model-registry-pin-version-id"] == "abc"
        [model] = s.api.all("inference.networking.x-k8s.io/v1alpha2", "InferenceModel")
        digest = f"sha256:{'a' * 64}"
        assert model["spec"]["targetModels"] == [{"name": "m0", "artifactDigest": digest}]


async def test_a_canary() -> None:
    """Intents of one inferenceModel are targets by weight; one leaves before it is deleted."""
    async with scene(policy=Policy(inference_models=True)) as s:
        s.model("mnist", "v8", "v12")
        s.runtime(**{"model-registry-inference-pool": "pool"})

        def weighted(weight: int) -> dict[str, object]:
            return {
                "inferenceModel": {"metadataType": "MetadataStringValue", "string_value": "mnist"},
                "weight": {"metadataType": "MetadataIntValue", "int_value": str(weight)},
            }

        s.intend("stable", modelVersionId=s.ids["mnist:v8"], customProperties=weighted(95))
        s.intend("canary", modelVersionId=s.ids["mnist:v12"], customProperties=weighted(5))

        def targets() -> list[tuple[str, int]]:
            models = s.api.all("inference.networking.x-k8s.io/v1alpha2", "InferenceModel")
            return [
                (target["name"], target["weight"])
                for model in models
                for target in model["spec"]["targetModels"]
            ]

        await s.until(lambda: targets() == [("stable", 95), ("canary", 5)])
        s.order("canary", desiredState="UNDEPLOYED")
        await s.until(lambda: set(s.resources()) == {"stable"})
        assert targets() == [("stable", 95)]
        s.order("stable", desiredState="UNDEPLOYED")

        await s.until(lambda: not s.resources() and not targets())


async def test_service_accounts_come_from_a_list() -> None:
    """One that is not allowed is refused, not ignored."""
    async with scene(policy=Policy(service_accounts=frozenset({"good"}))) as s:
        s.model("mnist")
        s.version("mnist", "v8", serviceAccountName="bad")
        s.runtime()
        s.intend("m0")
        await s.until(lambda: "ServiceAccountRefused" in s.events())
        assert s.resources() == {}
        s.version("mnist", "v9", serviceAccountName="good")

        await s.until(lambda: s.states("m0") == [("v9", "RUNNING")])
        [body] = s.labelled("m0")
        assert body["spec"]["predictor"]["serviceAccountName"] == "good"
