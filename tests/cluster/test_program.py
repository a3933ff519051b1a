"""`epp serve` in a cluster, as a process of its own that is told where the cluster is by a file."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import grpc.aio

from epp.demo.pickerprocess import PickerProcess
from epp.extproc.codec import METHOD
from protos.gen import ext_proc_pb2 as pb
from tests.cluster.world import model, placed, pod, pool
from tests.fakes.apiserver import ApiServer
from tests.fakes.kube_access import Rule, User

NAMESPACE = "models"


@asynccontextmanager
async def picker(api: ApiServer, folder: Path, **flags: object) -> AsyncIterator[PickerProcess]:
    settings = {
        "kubeconfig": api.kubeconfig(folder / "kubeconfig"),
        "pool-namespace": NAMESPACE,
        "secure-serving": "false",
        **{name.replace("_", "-"): value for name, value in flags.items()},
    }
    async with PickerProcess(folder / "picker", settings) as process:
        yield process


def fill(api: ApiServer, *models: str) -> None:
    for name in models:
        api.put(placed(model(name), NAMESPACE))
    api.put(placed(pool(), NAMESPACE))
    api.put(placed(pod("vllm-0", "10.0.0.1"), NAMESPACE))


async def ask(port: int, name: str) -> tuple[int, str]:
    """Send one request to the picker; return the status and the endpoint or reason."""
    headers = pb.HeaderMap(headers=[pb.HeaderValue(key=":method", raw_value=b"POST")])
    body = json.dumps({"model": name}).encode()
    messages = [
        pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=headers)),
        pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=True)),
    ]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream(
            METHOD,
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )(iter(messages))
        async for reply in call:
            if reply.WhichOneof("answer") == "immediate_response":
                immediate = reply.immediate_response
                return immediate.status.code, immediate.details
            fields = reply.dynamic_metadata.fields["envoy.lb"].struct_value.fields
            return 200, fields["x-gateway-destination-endpoint"].string_value
    raise AssertionError("the picker answered nothing")


async def eventually(port: int, name: str, wanted: tuple[int, str]) -> None:
    async with asyncio.timeout(20):
        while await ask(port, name) != wanted:
            await asyncio.sleep(0.05)


async def test_what_the_cluster_has_is_served_and_what_it_deletes_is_not(tmp_path: Path) -> None:
    """A model's life: absent, created, deleted; each shows in the next request or soon after."""
    async with ApiServer() as api:
        fill(api, "llama")
        async with picker(api, tmp_path) as process:
            assert await ask(process.port, "llama") == (200, "10.0.0.1:8000")
            assert await ask(process.port, "mistral") == (404, "model_not_found")
            api.put(placed(model("mistral"), NAMESPACE))
            await eventually(process.port, "mistral", (200, "10.0.0.1:8000"))
            api.remove(placed(model("mistral"), NAMESPACE))
            await eventually(process.port, "mistral", (404, "model_not_found"))
            api.remove(placed(pod("vllm-0", "10.0.0.1"), NAMESPACE))
            await eventually(process.port, "llama", (503, "no_ready_endpoint"))


async def test_serving_goes_on_while_the_api_server_is_away(tmp_path: Path) -> None:
    """The last state counts, and its age is a metric."""
    async with ApiServer() as api:
        fill(api, "llama")
        async with picker(api, tmp_path, metrics_endpoint_auth="false") as process:
            await api.down()
            for _ in range(20):
                assert await ask(process.port, "llama") == (200, "10.0.0.1:8000")
                await asyncio.sleep(0.05)

            assert "epp_state_age_seconds" in await process.metrics()


async def test_metrics_are_for_those_whom_the_cluster_lets_read_them(tmp_path: Path) -> None:
    """401 without a token, 403 for one that may not, 200 for one that may."""
    async with ApiServer() as api:
        fill(api, "llama")
        may = Rule((), (), ("get",), urls=("/metrics",))
        api.access.users["prometheus"] = User("prometheus", rules=(may,))
        api.access.users["stranger"] = User("stranger", rules=())
        async with picker(api, tmp_path) as process, aiohttp.ClientSession() as session:
            statuses = []
            for token in ("", "unheard-of", "stranger", "prometheus"):
                headers = {"authorization": f"Bearer {token}"} if token else {}
                async with session.get(process.metrics_url, headers=headers) as response:
                    statuses.append(response.status)

    assert statuses == [401, 403, 403, 200]


async def test_the_leader_says_what_became_of_a_model(tmp_path: Path) -> None:
    """Status is written by the elected replica, here the only one."""
    async with ApiServer() as api:
        fill(api, "llama")
        api.put(placed(model("lost", "nowhere"), NAMESPACE))
        async with picker(api, tmp_path):
            version = "inference.networking.x-k8s.io/v1alpha2"
            async with asyncio.timeout(20):
                while True:
                    found = [
                        api.get(version, "InferenceModel", name, NAMESPACE).get("status", {})
                        for name in ("llama", "lost")
                    ]
                    reasons = [c["reason"] for s in found for c in s.get("conditions", [])]
                    if reasons == ["Accepted", "PoolNotFound"]:
                        return
                    await asyncio.sleep(0.05)


async def test_with_leader_election_one_replica_is_ready(tmp_path: Path) -> None:
    """Active-passive: the second is ready only when the first has given the lease back."""
    async with ApiServer() as api, aiohttp.ClientSession() as session:
        fill(api, "llama")
        first = picker(api, tmp_path / "a", ha_enable_leader_election="true")
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        async with first as leader:
            flags = {
                "kubeconfig": api.kubeconfig(tmp_path / "b" / "kubeconfig"),
                "pool-namespace": NAMESPACE,
                "secure-serving": "false",
                "ha-enable-leader-election": "true",
            }
            waiting = asyncio.ensure_future(PickerProcess(tmp_path / "b" / "p", flags).__aenter__())
            await asyncio.sleep(3)
            assert not waiting.done()
            url = leader.metrics_url.replace("/metrics", "/readyz")
            async with session.get(url) as response:
                assert response.status == 200
        second = await waiting
        assert await ask(second.port, "llama") == (200, "10.0.0.1:8000")
        await second.__aexit__()
