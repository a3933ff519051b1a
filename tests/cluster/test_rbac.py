"""The picker needs no more than the roles that we ship, and no less."""

import asyncio

import pytest

from datastore.cluster import Scope
from datastore.kube import KubeClient
from deploy.check import BASE
from deploy.render import load
from epp.metricsauth import MetricsAuth
from tests.cluster.conftest import following
from tests.cluster.test_status import running
from tests.cluster.world import model, pool, until
from tests.fakes.apiserver import ApiServer
from tests.fakes.kube_access import User, rules_of

ROLES = load(BASE / "rbac.yaml")
METRICS = "epp-metrics-reader"


@pytest.fixture
def restricted(api: ApiServer) -> ApiServer:
    """Return the API server, on which our token has the shipped roles and nothing else."""
    ours = [role for role in ROLES if role["metadata"]["name"] != METRICS]
    rules = rules_of(ours, "default")
    api.access.users[api.token] = User("system:serviceaccount:default:epp", rules=rules)
    return api


async def test_the_shipped_roles_suffice(restricted: ApiServer, client: KubeClient) -> None:
    """Watching, leading, writing status and telling events: nothing of it is refused."""
    restricted.put(model("llama"))
    async with running(client, "default", "one") as replica:
        await until(lambda: len(restricted.all("v1", "Event")), 1)
        restricted.put(pool())
        await until(lambda: replica.writer.writes, 2)
        assert replica.leadership.is_leader
        assert [w.error for w in replica.source.watches] == [None] * len(replica.source.watches)
    leases = restricted.all("coordination.k8s.io/v1", "Lease")
    assert [lease["spec"]["holderIdentity"] for lease in leases] == [""]


@pytest.mark.parametrize(
    "plural",
    ["inferencemodels", "pods", "inferencemodels/status", "events", "leases"],
)
async def test_each_rule_is_needed(api: ApiServer, client: KubeClient, plural: str) -> None:
    """Without any one of them something does not work: the roles have nothing to spare."""
    rules = [rule for rule in rules_of(ROLES, "default") if plural not in rule.resources]
    api.access.users[api.token] = User("epp", rules=tuple(rules))
    api.put(model("llama"))
    async with running(client, "default", "one") as replica:
        await asyncio.sleep(0.5)
        done = {
            "inferencemodels": replica.source.synced.is_set(),
            "pods": replica.source.synced.is_set(),
            "inferencemodels/status": "status" in api.all(*MODEL)[0],
            "events": bool(api.all("v1", "Event")),
            "leases": replica.leadership.is_leader,
        }
        assert not done[plural]


MODEL = ("inference.networking.x-k8s.io/v1alpha2", "InferenceModel")


async def test_another_namespace_is_named(restricted: ApiServer, client: KubeClient) -> None:
    """A namespace that we may not watch is said with the rule to add, and does not stop ours."""
    restricted.put(model("llama"))
    async with following(client, Scope(("default", "other"))) as found:
        await until(lambda: found.store.model_count, 1)

        def said() -> str:
            return " ".join(found.source.waiting_for())

        await until(lambda: "Role in namespace other" in said(), True)
        assert "Role in namespace default" not in said()


async def test_metrics_are_for_those_who_may(restricted: ApiServer, client: KubeClient) -> None:
    """A token of somebody with the reader's role is let in; others, and none, are not."""
    readers = rules_of([role for role in ROLES if role["metadata"]["name"] == METRICS])
    restricted.access.users["scraper"] = User("prometheus", rules=readers)
    restricted.access.users["other"] = User("other", rules=())
    auth = MetricsAuth(client)
    assert [await auth.allowed(t) for t in ("scraper", "other", "forged", "", "\udcff")] == [
        True,
        False,
        False,
        False,
        False,
    ]


async def test_metrics_answers_are_kept(restricted: ApiServer, client: KubeClient) -> None:
    """One question for many scrapes; while nobody can be asked a yes stays a yes, a no a no."""
    readers = rules_of([role for role in ROLES if role["metadata"]["name"] == METRICS])
    restricted.access.users["scraper"] = User("prometheus", rules=readers)
    auth = MetricsAuth(client)
    await asyncio.gather(*(auth.allowed("scraper") for _ in range(20)))
    assert restricted.reviews == 2
    await restricted.down()
    auth.ALLOWED_S = 0.0
    assert await auth.allowed("scraper")
    assert not await auth.allowed("unknown")
