"""What Envoy does when no picker answers: the claims of docs/reliability.md."""

import socket
from pathlib import Path

import pytest

from epp.envoyconfig import BodyMode, EndpointMode
from epp.envoyconfig.options import eds_file_name
from tests.e2e.world import World, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

POOL = "default/llama"


@pytest.mark.parametrize(
    ("body", "endpoint", "status"),
    [
        (BodyMode.FULL_DUPLEX, EndpointMode.OVERRIDE_HOST, 500),
        (BodyMode.FULL_DUPLEX, EndpointMode.ORIGINAL_DST, 500),
        (BodyMode.BUFFERED, EndpointMode.ORIGINAL_DST, 503),
        (BodyMode.BUFFERED, EndpointMode.OVERRIDE_HOST, 200),
    ],
)
async def test_failure_mode_allow(
    world: World, tmp_path: Path, body: BodyMode, endpoint: EndpointMode, status: int
) -> None:
    """Only a buffered body, and a cluster that can choose by itself, go on without a pick."""
    eds = tmp_path / "eds"
    picker = await world.picker(eds_dir=str(eds))
    there = eds / eds_file_name(POOL)

    async def is_there() -> bool:
        return there.exists()

    await eventually(is_there)
    of_pool = {"pools": (POOL,), "eds_dir": str(eds)}
    with socket.socket() as nobody:  # bound and not listening: whoever connects is refused
        nobody.bind(("127.0.0.1", 0))
        envoy = await world.envoy(
            picker,
            picker_port=nobody.getsockname()[1],
            endpoint=endpoint,
            request_body=body,
            response_body=BodyMode.NONE,
            failure_mode_allow=True,
            **(of_pool if endpoint is EndpointMode.OVERRIDE_HOST else {}),
        )
        reply = await world.ask(envoy, {"model": "llama"})

    assert reply.status == status
