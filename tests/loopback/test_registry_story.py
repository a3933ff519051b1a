"""The reconciler between a real-protocol registry and API server: the story, and its branches."""

import pytest

from tests.fakes.registry import Quirks
from tests.fakes.registry_scene import scene
from tests.loopback.test_registry_fake import check_answer


@pytest.mark.parametrize(
    "quirks",
    [
        Quirks(),
        Quirks(patch_serves=True),
        Quirks(api="v1alpha1", page_cap=20, duplicate_status=500, state_key="state"),
        Quirks(api="v1alpha1", page_cap=1, last_token="wraps", duplicate_status=500),
    ],
    ids=["v1alpha3", "patch", "v1alpha1-state", "v1alpha1-wraps"],
)
async def test_the_story(quirks: Quirks) -> None:
    """Deploy, roll, undeploy, deploy pinned: the cluster follows and the audit tells it."""
    check = check_answer if quirks.api == "v1alpha3" else None
    async with scene(quirks=quirks, on_answer=check) as s:
        s.model("mnist", "v8")
        s.runtime()
        await s.until(lambda: s.registry.store.children("serving_environments"))
        s.intend("mnist-deployment")
        await s.until(lambda: s.states("mnist-deployment") == [("v8", "RUNNING")])
        assert s.path("mnist-deployment") == "mnist/v8"
        s.version("mnist", "v12")
        told = [("v8", "COMPLETE"), ("v12", "RUNNING")]
        await s.until(lambda: s.states("mnist-deployment") == told)
        assert s.path("mnist-deployment") == "mnist/v12"
        s.order("mnist-deployment", desiredState="UNDEPLOYED")
        told[1] = ("v12", "COMPLETE")
        await s.until(lambda: s.states("mnist-deployment") == told)
        assert s.resources() == {}
        s.order("mnist-deployment", desiredState="DEPLOYED", modelVersionId=s.ids["mnist:v8"])
        await s.until(lambda: s.states("mnist-deployment") == [*told, ("v8", "RUNNING")])

        assert s.path("mnist-deployment") == "mnist/v8"
