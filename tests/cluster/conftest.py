"""The cluster that the tests run against: a fake one, or a real one if a kubeconfig is given."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from datastore.cluster import ClusterSource, Scope
from datastore.kube import KubeClient
from datastore.kube_auth import Where
from datastore.reflect import Pace
from datastore.store import Store
from tests.cluster.world import FakeWorld, RealWorld, World
from tests.fakes.apiserver import ApiServer

CRDS = Path(__file__).parents[2] / "epp" / "crds"
PACE = Pace(backoff_min_s=0.05, backoff_max_s=0.5, idle_s=5.0, missing_grace_s=0.5)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kubeconfig", default=None, help="run tests/cluster against this cluster")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" in metafunc.fixturenames:
        given = metafunc.config.getoption("--kubeconfig", default=None)
        metafunc.parametrize("world", ["real" if given else "fake"], indirect=True)


def pytest_report_header(config: pytest.Config) -> str:
    given = config.getoption("--kubeconfig", default=None)
    if given:
        return f"cluster tests: against the API server of {given}; tests of faults are not run"
    return (
        "cluster tests: against a fake API server (make test-cluster KUBECONFIG=... for a real one)"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A real cluster is not broken on purpose: what needs the fake is left out."""
    if not config.getoption("--kubeconfig", default=None):
        return
    here = str(Path(__file__).parent)
    chosen = [i for i in items if "api" not in getattr(i, "fixturenames", ())]
    left_out = [i for i in items if i not in chosen and str(i.path).startswith(here)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [i for i in items if i not in left_out]


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer(bookmark_every_s=0.2) as server:
        server.install(CRDS / "inferencemodels.yaml")
        yield server


@pytest.fixture
async def client(api: ApiServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    where = Where(kubeconfig=api.kubeconfig(tmp_path / "config"))
    async with await KubeClient.connect(where, timeout_s=5.0) as connected:
        yield connected


@pytest.fixture
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """A namespace of its own in some cluster."""
    if request.param == "real":
        where = Where(kubeconfig=Path(request.config.getoption("--kubeconfig")))
        async with await KubeClient.connect(where) as real:
            space = RealWorld(real, f"epp-test-{secrets.token_hex(4)}")
            await space.begin()
            yield space
            await space.end()
        return
    async with ApiServer() as server:
        server.install(CRDS / "inferencemodels.yaml")
        where = Where(kubeconfig=server.kubeconfig(tmp_path / "config"))
        async with await KubeClient.connect(where) as connected:
            yield FakeWorld(connected, "default", server)


class Following:
    """A picker's view of a cluster, kept current by its watches."""

    def __init__(self, store: Store, source: ClusterSource) -> None:
        self.store = store
        self.source = source
        self.changed = asyncio.Event()


@asynccontextmanager
async def following(
    client: KubeClient, scope: Scope, pace: Pace = PACE
) -> AsyncIterator[Following]:
    """Follow a cluster while in the block."""
    store = Store()
    seen = asyncio.Event()
    source = ClusterSource(
        client, store, scope=scope, pace=pace, rng=Random(1), on_change=lambda _: seen.set()
    )
    found = Following(store, source)
    found.changed = seen
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(source.run(), name="cluster")
        yield found
        task.cancel()
