"""A port that nobody has connected to has nothing to wait for when the picker stops."""

import asyncio
from typing import Any

import pytest

from epp.extproc.transports.select import TRANSPORTS, listen


class NothingServed:
    def open(self, *_: Any) -> None:
        return None


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_port_without_connections_drains_at_once(transport: str) -> None:
    server = await listen(NothingServed(), host="127.0.0.1", transport=transport)

    async with asyncio.timeout(5):
        assert await server.drain(30.0)
