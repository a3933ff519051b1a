"""A watch against an API server that misbehaves in every way we know."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from datastore.changes import Change, Listed, Lost, Seen
from datastore.decode import Value
from datastore.kube import KubeClient
from datastore.kube_auth import NoCluster, Where
from datastore.kube_errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    ResourceMissing,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from datastore.manifests import INFERENCE_MODEL, POD
from datastore.model import InferenceModel
from datastore.observe import decoder
from datastore.reflect import Pace
from datastore.watch import Reflector, State, Subject
from tests.fakes.apiserver import ApiServer
from tests.fakes.kube_access import User
from tests.fakes.kube_faults import WatchList

PACE = Pace(backoff_min_s=0.02, backoff_max_s=0.1, idle_s=1.0, watch_list_s=0.5, page_limit=3)
Json = dict[str, Any]


def model(name: str, target: str = "x") -> Json:
    return {
        "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
        "kind": "InferenceModel",
        "metadata": {"name": name},
        "spec": {"poolRef": {"name": "pool"}, "targetModels": [{"name": target}]},
    }


class Mirror:
    """What a watch has told so far: name → target.  `told` holds every change."""

    def __init__(self) -> None:
        self.now: dict[str, str] = {}
        self.told: list[Change[Value]] = []
        self.changed = asyncio.Event()

    def take(self, changes: Sequence[Change[Value]]) -> None:
        for change in changes:
            self.told.append(change)
            match change:
                case Seen(name=name, value=value):
                    self.now[name.name] = target_of(value)
                case Lost(name=name):
                    self.now.pop(name.name, None)
                case Listed(values=values, gone=gone):
                    for name in gone:
                        del self.now[name.name]
                    assert self.now == {n.name: target_of(v) for n, v in values.items()}
        self.changed.set()

    async def until(self, expected: dict[str, str]) -> None:
        """Wait until this is what is known."""
        try:
            async with asyncio.timeout(30):
                while self.now != expected:
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            assert self.now == expected


def target_of(value: Value) -> str:
    assert isinstance(value, InferenceModel)
    return value.invalid_reason or value.targets[0].name


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer(bookmark_every_s=0.1) as server:
        yield server


@pytest.fixture
async def client(api: ApiServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    where = Where(kubeconfig=api.kubeconfig(tmp_path / "config"))
    async with await KubeClient.connect(where, timeout_s=5.0) as connected:
        yield connected


@asynccontextmanager
async def watching(
    client: KubeClient, mirror: Mirror, pace: Pace = PACE
) -> AsyncIterator[Reflector[Value]]:
    subject = Subject(INFERENCE_MODEL, "default")
    decode = decoder(INFERENCE_MODEL)
    watch = Reflector(client, subject, decode, mirror.take, pace=pace, rng=Random(1))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(watch.run(), name="watch")
        yield watch
        task.cancel()


@pytest.mark.parametrize("treatment", list(WatchList))
async def test_list_then_watch(api: ApiServer, client: KubeClient, treatment: WatchList) -> None:
    """Whether or not the server can begin a watch with a list, everything is told in order."""
    api.faults.watch_list = treatment
    for name in "abcdefgh":
        api.put(model(name))
    mirror = Mirror()
    async with watching(client, mirror) as watch:
        await mirror.until(dict.fromkeys("abcdefgh", "x"))
        async with asyncio.timeout(30):
            await watch.synced.wait()
        api.put(model("a", "y"))
        api.put(model("z"))
        for name in "bcdefgh":
            api.remove(model(name))
        await mirror.until({"a": "y", "z": "x"})
    assert watch.counters.lists == 1


async def test_nothing_there_is_an_answer(api: ApiServer, client: KubeClient) -> None:
    """An empty list syncs."""
    mirror = Mirror()
    async with watching(client, mirror) as watch, asyncio.timeout(30):
        await watch.synced.wait()
    assert watch.state is State.SYNCED


async def outage(api: ApiServer) -> None:
    await api.down()
    api.put(model("a", "y"))
    api.remove(model("b"))
    await asyncio.sleep(0.2)
    await api.up()


async def compaction(api: ApiServer) -> None:
    api.silence_watches()
    api.put(model("a", "y"))
    api.remove(model("b"))
    api.compact()
    api.close_watches()


async def expired_as_status(api: ApiServer) -> None:
    api.faults.gone_as_event = False
    await compaction(api)


async def expired_mid_stream(api: ApiServer) -> None:
    api.silence_watches()
    api.put(model("a", "y"))
    api.remove(model("b"))
    api.compact()
    for watcher in api.watchers:
        watcher.muted = False
        watcher.pending.clear()
    api.expire_watches()


async def cut_in_a_line(api: ApiServer) -> None:
    api.cut_watches()
    api.put(model("a", "y"))
    api.remove(model("b"))


async def silence(api: ApiServer) -> None:
    api.silence_watches()
    api.put(model("a", "y"))
    api.remove(model("b"))


def refusing(status: int, **kind: Any) -> Callable[[ApiServer], Any]:
    async def refuse(api: ApiServer) -> None:
        for verb in ("watch", "list"):
            api.faults.fail(status, verb=verb, times=2, **kind)
        await compaction(api)

    refuse.__name__ = f"refused_{status}"
    return refuse


async def cut_list(api: ApiServer) -> None:
    api.faults.watch_list = WatchList.REFUSED_422
    api.faults.cut_lists = 2
    await compaction(api)


FAULTS = [
    outage,
    compaction,
    expired_as_status,
    expired_mid_stream,
    cut_in_a_line,
    silence,
    cut_list,
    refusing(401),
    refusing(403),
    refusing(429),
    refusing(429, retry_after_s=1),
    refusing(500),
    refusing(503),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_every_fault_heals(
    api: ApiServer, client: KubeClient, fault: Callable[[ApiServer], Any]
) -> None:
    """After a fault what is known is what there is: updates and deletions during it included."""
    api.put(model("a"))
    api.put(model("b"))
    api.put(model("c"))
    mirror = Mirror()
    async with watching(client, mirror):
        await mirror.until(dict.fromkeys("abc", "x"))
        await fault(api)
        await mirror.until({"a": "y", "c": "x"})
        api.put(model("d"))
        await mirror.until({"a": "y", "c": "x", "d": "x"})


async def test_what_came_before_an_error_counts(api: ApiServer, client: KubeClient) -> None:
    """An error behind events, in one piece with them, takes nothing of them away."""
    mirror = Mirror()
    async with watching(client, mirror) as watch:
        await watch.synced.wait()
        for number in range(20):
            api.put(model("a", str(number)))
            api.put(model(f"b{number}"))
            api.fail_watches()
            await mirror.until(
                {"a": str(number)} | {f"b{earlier}": "x" for earlier in range(number + 1)}
            )
    assert watch.counters.lists == 1


async def test_an_unbroken_place_is_not_listed_again(tmp_path: Path) -> None:
    """A cut watch goes on where it was, bookmarks or not: no list, no object told twice."""
    async with ApiServer(bookmark_every_s=None) as api:
        where = Where(kubeconfig=api.kubeconfig(tmp_path / "config"))
        async with await KubeClient.connect(where) as client:
            api.put(model("a"))
            mirror = Mirror()
            async with watching(client, mirror) as watch:
                await mirror.until({"a": "x"})
                for round_ in range(3):
                    api.cut_watches()
                    api.put(model("b", str(round_)))
                    await mirror.until({"a": "x", "b": str(round_)})
    assert watch.counters.lists == 1
    assert watch.counters.stale == 0
    assert len([change for change in mirror.told if isinstance(change, Seen)]) == 4


async def test_bookmarks_move_our_place(api: ApiServer, client: KubeClient) -> None:
    """A quiet watch keeps up with a busy server: its place is not forgotten there."""
    mirror = Mirror()
    async with watching(client, mirror) as watch:
        await watch.synced.wait()
        for number in range(5):
            api.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{number}"}})
        told = watch.counters.events
        async with asyncio.timeout(30):
            while watch.counters.events < told + 2:
                await asyncio.sleep(0.01)
        api.compact()
        api.cut_watches()
        api.put(model("a"))
        await mirror.until({"a": "x"})
    assert watch.counters.lists == 1


async def test_a_list_that_breaks_off_leaves_nothing_behind(
    api: ApiServer, client: KubeClient
) -> None:
    """What a first page told, and is deleted before the list is begun anew, is gone at its end."""
    api.faults.watch_list = WatchList.REFUSED_422
    api.faults.list_delay_s = 0.1
    for name in "abcdefgh":
        api.put(model(name))
    mirror = Mirror()
    async with watching(client, mirror) as watch:
        await mirror.until(dict.fromkeys("abc", "x"))
        api.remove(model("a"))
        api.compact()
        await mirror.until(dict.fromkeys("bcdefgh", "x"))
        assert watch.counters.lists >= 2


async def test_a_relist_tells_only_news(api: ApiServer, client: KubeClient) -> None:
    """What a relist repeats is the same object as before, so that the store can see it at once."""
    api.put(model("a"))
    api.put(model("b"))
    mirror = Mirror()
    async with watching(client, mirror) as watch:
        await watch.synced.wait()
        first = next(c for c in mirror.told if isinstance(c, Listed))
        mirror.told.clear()
        await compaction_of(api)
        await until_listed(mirror)
    seen = [c for c in mirror.told if isinstance(c, Seen)]
    again = next(c for c in mirror.told if isinstance(c, Listed))
    name = next(n for n in again.values if n.name == "b")
    assert [change.name.name for change in seen] == ["a"]
    assert again.values[name] is first.values[name]


async def until_listed(mirror: Mirror) -> None:
    async with asyncio.timeout(30):
        while not any(isinstance(change, Listed) for change in mirror.told):
            mirror.changed.clear()
            await mirror.changed.wait()


async def compaction_of(api: ApiServer) -> None:
    api.silence_watches()
    api.put(model("a", "y"))
    api.compact()
    api.close_watches()


async def test_repeated_and_reordered_events(api: ApiServer, client: KubeClient) -> None:
    """An event that comes twice or late never undoes a newer one."""
    api.faults.duplicate = api.faults.reorder = 0.5
    mirror = Mirror()
    async with watching(client, mirror) as watch:
        await watch.synced.wait()
        for number in range(50):
            api.put(model("a", str(number)))
            api.put(model("b", str(number)))
            if number % 7 == 0:
                api.remove(model("b"))
            await asyncio.sleep(0)
        api.remove(model("a"))
        api.put(model("b", "last"))
        await mirror.until({"b": "last"})
    assert watch.counters.stale > 0


async def test_a_large_object_and_a_bad_one(api: ApiServer, client: KubeClient) -> None:
    """3 MB in one line is a line; an object that cannot be read is invalid, never fatal."""
    large, bad = model("a"), model("b")
    large["metadata"]["annotations"] = {"big": "x" * 3_000_000}
    mirror = Mirror()
    async with watching(client, mirror) as watch:
        await watch.synced.wait()
        api.put(model("b"))
        await mirror.until({"b": "x"})
        bad["spec"] = {"targetModels": [{"name": "x"}]}
        api.put(bad)
        api.put(large)
        await mirror.until({"a": "x", "b": "UnsupportedPoolRef"})


async def until_state(watch: Reflector[Value], state: State) -> None:
    async with asyncio.timeout(30):
        while watch.state is not state:
            await asyncio.sleep(0.01)


async def test_a_missing_kind_is_waited_for(
    api: ApiServer, client: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A CRD that is not installed is named once, and found when it comes."""
    caplog.set_level(logging.WARNING)
    resource = next(r for r in api.storage.served.values() if r.kind == "InferenceModel")
    api.uninstall("inferencemodels", "inference.networking.x-k8s.io")
    mirror = Mirror()
    async with watching(client, mirror) as watch:
        await until_state(watch, State.MISSING)
        api.storage.serve(resource)
        api.put(model("a"))
        await mirror.until({"a": "x"})
        await until_state(watch, State.SYNCED)
    assert len([r for r in caplog.records if "install its CRD" in r.message]) == 1


async def test_a_kind_that_goes_takes_its_objects(api: ApiServer, client: KubeClient) -> None:
    """When a CRD is removed behind our back its objects are gone too, after a grace."""
    api.put(model("a"))
    mirror = Mirror()
    pace = Pace(backoff_min_s=0.02, backoff_max_s=0.1, idle_s=1.0, missing_grace_s=0.3)
    async with watching(client, mirror, pace):
        await mirror.until({"a": "x"})
        await api.down()
        api.uninstall("inferencemodels", "inference.networking.x-k8s.io")
        await api.up()
        await asyncio.sleep(0.1)
        assert mirror.now == {"a": "x"}
        await mirror.until({})


async def test_a_missing_permission_is_named(
    api: ApiServer, client: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the rule to add, once; serving goes on from what is known."""
    api.put(model("a"))
    api.access.users[api.token] = User("someone", rules=())
    mirror = Mirror()
    async with watching(client, mirror) as watch:
        await until_state(watch, State.FORBIDDEN)
        api.access.users[api.token] = User("someone")
        await mirror.until({"a": "x"})
    told = [r.message for r in caplog.records if 'resources: ["inferencemodels"]' in r.message]
    assert len(told) == 1


async def test_a_replaced_token_is_read_again(api: ApiServer, tmp_path: Path) -> None:
    """In a pod the token file is read for each connection: a rotated token costs nothing."""
    environ = api.service_account(tmp_path)
    where = Where(environ=environ, service_account=tmp_path)
    async with await KubeClient.connect(where) as client:
        mirror = Mirror()
        async with watching(client, mirror):
            api.put(model("a"))
            await mirror.until({"a": "x"})
            api.access.users["new"] = api.access.users.pop(api.token)
            (tmp_path / "token").write_text("new\n")
            api.cut_watches()
            api.put(model("b"))
            await mirror.until({"a": "x", "b": "x"})


async def test_a_token_file_of_a_kubeconfig(api: ApiServer, tmp_path: Path) -> None:
    """A 401 makes us read the kubeconfig's token file again, within the same call."""
    (tmp_path / "token").write_text(f"{api.token}\n")
    config = api.kubeconfig(tmp_path / "config", token_file=str(tmp_path / "token"))
    async with await KubeClient.connect(Where(kubeconfig=config)) as client:
        api.put(model("a"))
        await client.get(INFERENCE_MODEL, "default", "a")
        api.access.users["new"] = api.access.users.pop(api.token)
        (tmp_path / "token").write_text("new")
        await asyncio.sleep(1.0)
        await client.get(INFERENCE_MODEL, "default", "a")


async def test_idle_server_is_left(api: ApiServer, client: KubeClient) -> None:
    """A server that accepts watches and never speaks is asked again, not waited for."""
    mirror = Mirror()
    async with watching(client, mirror) as watch:
        await watch.synced.wait()
        api.faults.silent = True
        api.close_watches()
        api.put(model("a"))
        await asyncio.sleep(0.1)
        api.faults.silent = False
        await mirror.until({"a": "x"})


async def test_age_tells_an_outage(api: ApiServer, client: KubeClient) -> None:
    """The age is how long the server has been silent; infinite before it was ever heard."""
    mirror = Mirror()
    clock = asyncio.get_running_loop().time
    async with watching(client, mirror) as watch:
        assert watch.age_s(clock()) == float("inf")
        await watch.synced.wait()
        await api.down()
        await asyncio.sleep(0.4)
        assert 0.3 < watch.age_s(clock()) < 10


async def test_errors_by_status(api: ApiServer, client: KubeClient) -> None:
    """Each refusal is the class that says what to do about it."""
    body = model("a")
    await client.create(INFERENCE_MODEL, "default", body)
    with pytest.raises(AlreadyExists):
        await client.create(INFERENCE_MODEL, "default", body)
    with pytest.raises(NotFound):
        await client.get(INFERENCE_MODEL, "default", "nobody")
    with pytest.raises(Conflict):
        await client.delete(INFERENCE_MODEL, "default", "a", uid="another")
    with pytest.raises(Invalid):
        await client.create(INFERENCE_MODEL, "default", model("Not A Name"))
    for status, kind in [
        (401, Unauthorized),
        (403, Forbidden),
        (429, TooManyRequests),
        (500, Unavailable),
    ]:
        failure = api.faults.fail(status, verb="get")
        with pytest.raises(kind):
            await client.get(INFERENCE_MODEL, "default", "a")
        api.faults.failures.remove(failure)
    api.uninstall("inferencemodels", "inference.networking.x-k8s.io")
    with pytest.raises(ResourceMissing, match="install its CRD"):
        await client.create(INFERENCE_MODEL, "default", body)
    await api.down()
    with pytest.raises(Unavailable):
        await client.get(POD, "default", "a")


async def test_apply_and_status(client: KubeClient) -> None:
    """Server-side apply, status patches, and a delete that means this very object."""
    body = {"spec": model("a")["spec"]}
    made = await client.apply(INFERENCE_MODEL, "default", "a", body, manager="us")
    status: Json = {"status": {"conditions": []}}
    await client.patch(INFERENCE_MODEL, "default", "a", status, subresource="status")
    other = {"spec": model("a", "y")["spec"]}
    with pytest.raises(Conflict):
        await client.apply(INFERENCE_MODEL, "default", "a", other, manager="them")
    assert await client.exists(INFERENCE_MODEL)
    await client.delete(INFERENCE_MODEL, "default", "a", uid=made["metadata"]["uid"])


async def test_no_configuration_is_said(tmp_path: Path) -> None:
    """Without any configuration the message names what was looked for."""
    with pytest.raises(NoCluster, match="nowhere"):
        await KubeClient.connect(Where(kubeconfig=tmp_path / "nowhere"))
