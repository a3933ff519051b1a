"""Everything that the demo runs: five model servers, the picker, and one Envoy before them all.

Envoy has two listeners: `inference` asks the picker, `direct` does not, so that what the picker
adds can be measured.  Leaving the `async with` ends every process.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import aiohttp

from epp.demo import manifests
from epp.demo.envoyprocess import EnvoyProcess
from epp.demo.manifests import LLAMA, MISTRAL, Member
from epp.demo.modelserver import ModelServer
from epp.demo.pickerprocess import PickerProcess
from epp.edsfile import write_atomically
from epp.envoyconfig import EnvoyOptions, bootstrap

SERVERS = (
    ("llama-1", LLAMA),
    ("llama-2", LLAMA),
    ("llama-3", LLAMA),
    ("mistral-1", MISTRAL),
    ("mistral-2", MISTRAL),
)
REQUEST_TIMEOUT_S = 20.0


class Stage:
    """What runs.  `port` is Envoy's; 0 lets the system choose."""

    def __init__(self, *, port: int = 0, seed: int = 7) -> None:
        self.servers: dict[str, ModelServer] = {}
        self.envoy: EnvoyProcess
        self.picker: PickerProcess
        self.client: aiohttp.ClientSession
        self.manifests: Path
        self._port = port
        self._seed = seed
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start everything, model servers first."""
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        """End everything."""
        await self._stack.aclose()

    @property
    def direct_url(self) -> str:
        """The listener without the picker; it leads to the plain model's servers."""
        return f"http://127.0.0.1:{self.envoy.ports['direct']}"

    def server_at(self, authority: str) -> str:
        """Return the name of the model server at an address."""
        names = (name for name, each in self.servers.items() if each.authority == authority)
        return next(names, authority)

    def set_members(self, *, without: str = "") -> None:
        """Write which model servers there are, all but one."""
        members = (
            Member(name, pool, self.servers[name].port) for name, pool in SERVERS if name != without
        )
        self._write("endpoints.yaml", manifests.endpoints(members))

    async def _start(self) -> None:
        enter = self._stack.enter_async_context
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="epp-demo-")))
        self.manifests = folder / "manifests"
        for name, pool in SERVERS:
            server = ModelServer(name, models=manifests.SERVES[pool])
            self.servers[name] = await enter(server)
        self._write("models.yaml", manifests.models())
        self._write("pools.yaml", manifests.pools())
        self.set_members()
        flags = {"manifests": self.manifests, "seed": self._seed}
        self.picker = await enter(PickerProcess(folder / "picker", flags))
        self.envoy = await enter(EnvoyProcess(self._config(), folder / "envoy"))
        self.client = await enter(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S),
                auto_decompress=False,
            )
        )

    def _write(self, file: str, text: str) -> None:
        write_atomically(self.manifests / file, text.encode())

    def _config(self) -> dict[str, Any]:
        options = EnvoyOptions(
            picker_port=self.picker.port,
            listener_host="127.0.0.1",
            listener_port=self._port,
            admin_port=0,
            access_log=None,
        )
        config = bootstrap(options)
        resources = config["static_resources"]
        resources["listeners"].append(_direct_listener(resources["listeners"][0]))
        resources["clusters"].append(_direct_cluster(self._ports_of(MISTRAL)))
        return config

    def _ports_of(self, pool: str) -> list[int]:
        return [self.servers[name].port for name, of in SERVERS if of == pool]


def _direct_listener(like: dict[str, Any]) -> dict[str, Any]:
    """Return a listener like the other, but with the router as its only filter."""
    (network_filter,) = like["filter_chains"][0]["filters"]
    manager = network_filter["typed_config"]
    route = {"match": {"prefix": "/"}, "route": {"cluster": "direct", "timeout": "0s"}}
    hosts = [{"name": "direct", "domains": ["*"], "routes": [route]}]
    direct = {
        **{key: value for key, value in manager.items() if key != "upgrade_configs"},
        "stat_prefix": "direct",
        "http_filters": [manager["http_filters"][-1]],
        "route_config": {"name": "direct", "virtual_hosts": hosts},
    }
    address = {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
    chain = {"filters": [{**network_filter, "typed_config": direct}]}
    return {**like, "name": "direct", "address": address, "filter_chains": [chain]}


def _direct_cluster(ports: list[int]) -> dict[str, Any]:
    members = [
        {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}
        for port in ports
    ]
    return {
        "name": "direct",
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {"cluster_name": "direct", "endpoints": [{"lb_endpoints": members}]},
    }


async def until(holds: Callable[[], Awaitable[bool]], within_s: float) -> bool:
    """Tell whether an async check comes to hold in time; asked again and again."""
    try:
        async with asyncio.timeout(within_s):
            while not await holds():  # noqa: ASYNC110 - other processes set no Event
                await asyncio.sleep(0.02)
    except TimeoutError:
        return False
    return True
