"""Odd names, odd addresses and odd clients: none of them may cost more than its own request."""

import asyncio
import copy
import datetime
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from epp.demo.modelserver import ModelServer
from epp.demo.pickerprocess import PickerProcess
from epp.envoyconfig import BodyMode, EndpointMode, bootstrap
from epp.envoyconfig.clusters import PICKER_CLUSTER
from epp.envoyconfig.options import eds_file_name
from tests.builders import a_model, a_pool, a_slice
from tests.e2e.world import World, eventually, free_ports

pytestmark = pytest.mark.asyncio(loop_scope="session")

ODD_NAMES = [
    "名前",
    "a\nb",
    "a\r\nx-injected: 1",
    "a\x00b",
    " leading and trailing ",
    "\x7f",
    "é",
    "😀",
    '"quoted"\\',
    "x" * 5_000,
    "x" * 100_000,
]


@pytest.mark.parametrize("name", ODD_NAMES, ids=lambda name: ascii(name)[:20])
@pytest.mark.parametrize("mode", [BodyMode.FULL_DUPLEX, BodyMode.BUFFERED], ids=str)
async def test_an_odd_name_that_may_pass_reaches_the_server(
    world: World, mode: BodyMode, name: str
) -> None:
    """A client's words must not become a header that Envoy would refuse, or another header."""
    picker = await world.picker(pool_name="mistral", unknown_models="passthrough")
    envoy = await world.envoy(picker, request_body=mode)

    reply = await world.ask(envoy, {"model": name})

    assert reply.status == 200, (reply.status, reply.body[:300])
    received = world.received(reply)
    assert json.loads(received.body)["model"] == name
    assert received.values("x-injected") == []
    if name.isascii():
        can_be_told = name.isprintable() and name == name.strip() and len(name) <= 1_024
        assert received.values("x-gateway-model-name") == ([name] if can_be_told else [])


@pytest.mark.parametrize("name", ODD_NAMES, ids=lambda name: ascii(name)[:20])
async def test_an_odd_name_that_is_not_served_is_not_found(world: World, name: str) -> None:
    envoy = await world.envoy()

    reply = await world.ask(envoy, {"model": name})

    assert (reply.status, reply.code) == (404, "model_not_found")
    assert len(reply.body) < 4_096


async def test_a_lone_surrogate_is_invalid_json(world: World) -> None:
    envoy = await world.envoy()

    reply = await world.ask(envoy, rb'{"model": "\ud800"}')

    assert reply.status in {400, 404}


@pytest.mark.parametrize("endpoint", list(EndpointMode), ids=str)
async def test_an_ipv6_endpoint_is_reached(
    world: World, endpoint: EndpointMode, tmp_path: Path
) -> None:
    """Its address stands in brackets, in the header as in the metadata."""
    async with ModelServer("six", host="::1") as server:
        world.write(
            "six.yaml",
            a_pool("six").manifest,
            a_slice("six", "::1", ports=[server.port], app="six"),
            a_model("six").in_pool("six").manifest,
        )
        if endpoint is EndpointMode.OVERRIDE_HOST:
            picker = await world.picker(eds_dir=str(tmp_path))
            file = tmp_path / eds_file_name("default/six")

            async def is_written() -> bool:
                return file.exists()

            await eventually(is_written)
            envoy = await world.envoy(
                picker, endpoint=endpoint, pools=("default/six",), eds_dir=str(tmp_path)
            )
        else:
            envoy = await world.envoy()

        async def is_served() -> bool:
            return (await world.ask(envoy, {"model": "six"})).served_by == "six"

        await eventually(is_served)
        assert server.received[-1].values("x-gateway-destination-endpoint") == [server.authority]
    world.write("six.yaml")


async def test_a_client_that_asks_before_it_sends(world: World) -> None:
    """`expect: 100-continue`, as curl sends it with large bodies."""
    envoy = await world.envoy()
    url = envoy.url + "/v1/completions"

    async with world.session.post(url, json={"model": "llama"}, expect100=True) as response:
        assert response.status == 200


async def test_many_clients_at_once(world: World) -> None:
    envoy = await world.envoy()
    body = json.dumps({"model": "llama", "prompt": "x" * 20_000}).encode()

    replies = await asyncio.gather(*(world.ask(envoy, body) for _ in range(300)))

    assert {reply.status for reply in replies} == {200}


async def test_a_restarted_picker_is_found_again(world: World) -> None:
    """Envoy keeps trying; what is in flight when the picker goes fails, what comes later works."""
    (port,) = free_ports(1)
    flags = {"manifests": world.manifests, "grpc-port": port}
    folder = world.manifests.parent / "restarted"
    async with PickerProcess(folder, flags) as picker:
        envoy = await world.envoy(picker)
        assert (await world.ask(envoy, {"model": "llama"})).status == 200
    assert (await world.ask(envoy, {"model": "llama"})).status in {500, 503}
    async with PickerProcess(folder, flags):

        async def is_served() -> bool:
            return (await world.ask(envoy, {"model": "llama"})).status == 200

        await eventually(is_served, within_s=15)


async def test_a_stopping_picker_finishes_what_it_has_begun(world: World) -> None:
    """A body that is still coming when SIGTERM arrives is picked for, not dropped."""
    async with PickerProcess(
        world.manifests.parent / "stopping", {"manifests": world.manifests}
    ) as picker:
        envoy = await world.envoy(picker, picker_health_check=False)
        begun = asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b'{"model": "llama",'
            begun.set()
            await asyncio.sleep(1.0)
            yield b'"prompt": "x"}'

        request = asyncio.ensure_future(world.ask(envoy, slow()))
        await begun.wait()
        await asyncio.sleep(0.3)
        picker.terminate()
        reply = await request

    assert reply.status == 200


async def test_one_of_two_pickers_stops_and_no_request_is_lost(world: World) -> None:
    """What a picker that has just closed its port would have been asked, the other one is."""
    stopping, staying = [
        await world.picker(fallbacks=0, seed=seed, drain_timeout="20s") for seed in (31, 32)
    ]
    config = bootstrap(world.options(stopping))
    (cluster,) = (
        each for each in config["static_resources"]["clusters"] if each["name"] == PICKER_CLUSTER
    )
    (locality,) = cluster["load_assignment"]["endpoints"]
    (member,) = locality["lb_endpoints"]
    other = copy.deepcopy(member)
    other["endpoint"]["address"]["socket_address"]["port_value"] = staying.port
    locality["lb_endpoints"].append(other)
    envoy = await world.envoy_with(config)
    statuses: Counter[int] = Counter()

    async def ask(number: int) -> None:
        for _ in range(number):
            statuses[(await world.ask(envoy, {"model": "llama"})).status] += 1

    await ask(20)
    stopping.terminate()
    await asyncio.gather(*(ask(20) for _ in range(4)))

    assert len(staying.requests()) > 0
    assert statuses == {200: 100}


async def test_envoy_trusts_a_picker_by_its_ca(world: World, tmp_path: Path) -> None:
    """With --picker-ca a certificate of somebody else is refused, and nothing is picked."""
    write_certificate(tmp_path)
    good = await world.picker(cert_path=str(tmp_path))
    self_signed = await world.picker()
    ca = str(tmp_path / "tls.crt")

    trusted = await world.envoy(good, picker_ca_file=ca)
    refused = await world.envoy(self_signed, picker_ca_file=ca, picker_health_check=False)

    assert (await world.ask(trusted, {"model": "llama"})).status == 200
    assert (await world.ask(refused, {"model": "llama"})).status == 500


def write_certificate(folder: Path) -> None:
    """Write `tls.crt` and `tls.key` of a certificate that signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "picker")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "tls.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "tls.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


async def test_a_websocket_to_a_picker_that_refuses_is_refused(world: World) -> None:
    envoy = await world.envoy()

    async with aiohttp.ClientSession() as client:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await client.ws_connect(envoy.url + "/ws")

    assert refused.value.status in {404, 500}
