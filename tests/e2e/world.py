"""What every end-to-end test stands on: model servers, manifests, pickers and Envoys, all real.

Pickers and Envoys are started when a test first asks for their options, and shared after that.
"""

import asyncio
import hashlib
import io
import json
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from epp.demo.envoyprocess import EnvoyProcess
from epp.demo.modelserver import ModelServer, Received
from epp.demo.pickerprocess import PickerProcess
from epp.envoyconfig import EnvoyOptions, bootstrap
from tests.builders import a_model, a_pool, a_slice

UNSPELLABLE = "meta-llama/Llama-3.1-8B:Instruct 名"
MAX_BODY = 8 * 1024 * 1024

Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """One response, whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The reason in an error of OpenAI's shape."""
        assert self.headers["content-type"] == "application/json", self
        assert set(self.document) == {"error"}, self.body
        assert set(self.document["error"]) == {"message", "type", "param", "code"}, self.body
        return str(self.document["error"]["code"])

    @property
    def served_by(self) -> str:
        """The name of the model server that answered, "" if none did."""
        return self.headers.get("x-served-by", "")


class World:
    """Everything that runs.  `manifests` is the folder that every picker here watches."""

    def __init__(self, folder: Path, stack: AsyncExitStack, transport: str) -> None:
        self.manifests = folder / "manifests"
        self.eds = folder / "eds"
        self.servers: dict[str, ModelServer] = {}
        self.session: aiohttp.ClientSession
        self._folder = folder
        self._stack = stack
        self._transport = transport
        self._pickers: dict[str, PickerProcess] = {}
        self._envoys: dict[str, EnvoyProcess] = {}

    async def start(self) -> None:
        """Start the model servers, and write the manifests that are there from the beginning."""
        self.manifests.mkdir()
        for name in ("s1", "s2", "s3", "s4", "s5"):
            self.servers[name] = await self._stack.enter_async_context(ModelServer(name))
        self.session = await self._stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=30),
            )
        )
        self.write("base.yaml", *self._base())

    def write(self, file: str, *manifests: Config) -> None:
        """Replace one file of the watched folder, as an editor would."""
        temporary = self.manifests / f".{file}.tmp"
        temporary.write_text(yaml.safe_dump_all(manifests))
        temporary.replace(self.manifests / file)

    def slice_of(self, server: str, pool: str, namespace: str = "default") -> Config:
        """Return the EndpointSlice that puts a model server into a pool."""
        port = self.servers[server].port
        return a_slice(f"{pool}-{server}", "127.0.0.1", ports=[port], namespace=namespace, app=pool)

    def _base(self) -> list[Config]:
        return [
            a_pool("llama").picked_by("epp").manifest,
            *(self.slice_of(server, "llama") for server in ("s1", "s2", "s3")),
            a_pool("mistral").picked_by("epp-mistral").manifest,
            self.slice_of("s4", "mistral"),
            a_pool("empty").manifest,
            a_pool("llama", "other").picked_by("epp").manifest,
            self.slice_of("s5", "llama", "other"),
            a_model("llama").in_pool("llama").manifest,
            a_model("weighted").in_pool("llama").to("three", 3).to("one", 1).manifest,
            a_model("renamed").in_pool("llama").to(UNSPELLABLE).manifest,
            a_model("mistral").in_pool("mistral").manifest,
            a_model("hollow").in_pool("empty").manifest,
            a_model("orphan").in_pool("gone").manifest,
            a_model("theirs", "other").in_pool("llama").manifest,
        ]

    async def picker(self, **flags: object) -> PickerProcess:
        """Return a picker with these flags besides the usual ones; `_` stands for `-`."""
        key = repr(sorted(flags.items()))
        if key not in self._pickers:
            usual = {
                "manifests": self.manifests,
                "transport": self._transport,
                "max-request-body-bytes": MAX_BODY,
                "seed": 1,
            }
            given = {name.replace("_", "-"): value for name, value in flags.items()}
            process = PickerProcess(
                self._folder / f"picker-{len(self._pickers)}", {**usual, **given}
            )
            self._pickers[key] = await self._stack.enter_async_context(process)
        return self._pickers[key]

    async def envoy(self, picker: PickerProcess | None = None, **options: Any) -> EnvoyProcess:
        """Return an Envoy with these options in front of a picker (else the plain one)."""
        picker = picker or await self.picker()
        config = bootstrap(self.options(picker, **options))
        return await self.envoy_with(config)

    async def envoy_with(self, config: Config) -> EnvoyProcess:
        """Return an Envoy with exactly this configuration."""
        key = json.dumps(config, sort_keys=True)
        if key not in self._envoys:
            process = EnvoyProcess(config, self._folder / f"envoy-{len(self._envoys)}")
            self._envoys[key] = await self._stack.enter_async_context(process)
        return self._envoys[key]

    def options(self, picker: PickerProcess, **options: Any) -> EnvoyOptions:
        """Return options for an Envoy on ports that the system chooses."""
        ports = {"listener_host": "127.0.0.1", "listener_port": 0, "admin_port": 0}
        return EnvoyOptions(**{**ports, "picker_port": picker.port, **options})

    async def ask(
        self,
        envoy: EnvoyProcess,
        body: Any = None,
        *,
        path: str = "/v1/chat/completions",
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send one request; a dict is sent as JSON, bytes and async generators as they are."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        return await self._fetch(method, envoy.url + path, data, headers)

    async def ask_server(self, name: str, body: bytes, *, path: str) -> Reply:
        """Ask a model server itself."""
        url = f"http://{self.servers[name].authority}{path}"
        return await self._fetch("POST", url, body, None)

    async def _fetch(
        self, method: str, url: str, data: Any, headers: Mapping[str, str] | None
    ) -> Reply:
        if isinstance(data, bytes):
            data = io.BytesIO(data)  # aiohttp warns of large bytes
        async with self.session.request(method, url, data=data, headers=headers) as response:
            content = await response.read()
            lower = {key.lower(): value for key, value in response.headers.items()}
            return Reply(response.status, lower, content)

    def received(self, reply: Reply) -> Received:
        """Return the request as the model server that answered saw it: its last one."""
        return self.servers[reply.served_by].received[-1]


async def eventually(check: Any, within_s: float = 5.0) -> None:
    """Wait until an async check holds; the world outside gives nothing to wait on."""
    async with asyncio.timeout(within_s):
        while not await check():
            await asyncio.sleep(0.02)


def sha256(body: bytes) -> str:
    """Return the digest as the model servers say it."""
    return hashlib.sha256(body).hexdigest()


def free_ports(count: int) -> list[int]:
    """Return ports that were free just now, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
