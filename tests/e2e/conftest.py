"""One world for the whole session, on one event loop."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from tests.e2e.world import World


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def world(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[World]:
    transport = request.config.getoption("--transport", default="auto")
    async with AsyncExitStack() as stack:
        built = World(tmp_path_factory.mktemp("world"), stack, str(transport))
        await built.start()
        yield built
