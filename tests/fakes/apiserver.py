"""A Kubernetes API server for tests: real HTTP and TLS over a real socket, state in memory.

    async with ApiServer() as api:
        api.put(manifest)                  # make an object so, status included
        client = ... api.kubeconfig(path)  # or api.url and api.token

It stores whatever it is given (custom resources without a schema until `install` brings one) and
can be told to fail: see `api.faults`, `cut_watches`, `silence_watches`, `compact`, `down`, `up`.
It is written for correctness of the protocol, not for speed.
"""

import asyncio
import base64
import json
import logging
import ssl
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml
from aiohttp import web

from tests.fakes.kube_access import Access, User
from tests.fakes.kube_faults import Faults
from tests.fakes.kube_handlers import Handlers
from tests.fakes.kube_history import Watcher
from tests.fakes.kube_objects import Json, StatusError
from tests.fakes.kube_storage import Storage
from tests.fakes.kube_tls import server_context


class ApiServer:
    """One cluster's API server.  Tests share its loop, so they may touch its state."""

    def __init__(
        self,
        *,
        tls: bool = True,
        token: str = "test-token",
        window: int = 20_000,
        bookmark_every_s: float | None = 1.0,
    ) -> None:
        self.storage = Storage(window=window)
        self.faults = Faults()
        self.access = Access({token: User("system:serviceaccount:default:test")})
        self.token = token
        self._handlers = Handlers(
            self.storage, self.faults, self.access, bookmark_every_s=bookmark_every_s
        )
        self.port = 0
        self.ca = b""
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        self._runner: web.AppRunner | None = None

    # Life

    async def __aenter__(self) -> Self:
        if self._tls:
            with tempfile.TemporaryDirectory() as folder:
                self._context, self.ca = server_context(Path(folder))
        await self.up()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.down()

    async def up(self, port: int = 0) -> None:
        """Listen, on the same port as before if there was one."""
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._handlers.answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(
            self._runner,
            "127.0.0.1",
            port or self.port,
            ssl_context=self._context,
            reuse_address=True,
        )
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def down(self) -> None:
        """Stop listening and drop every connection; the state stays."""
        if self._runner is None:
            return
        for watcher in self.storage.history.open_watches():
            watcher.end("close")
        runner, self._runner = self._runner, None
        for site in list(runner.sites):
            await site.stop()
        for transport in list(self._handlers.connections):
            transport.abort()
        await runner.cleanup()

    @property
    def requests(self) -> dict[tuple[str, str], int]:
        """How many requests came in, by (verb, plural); clear it to count anew."""
        return self._handlers.requests

    @property
    def reviews(self) -> int:
        """How many token and access reviews were asked for."""
        return self._handlers.reviews

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def kubeconfig(self, path: Path, *, token: str | None = None, token_file: str = "") -> Path:
        """Write a kubeconfig for this server."""
        cluster: Json = {"server": self.url}
        if self._tls:
            cluster["certificate-authority-data"] = base64.b64encode(self.ca).decode()
        user = {"tokenFile": token_file} if token_file else {"token": token or self.token}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": user}],
            "contexts": [
                {
                    "name": "test",
                    "context": {"cluster": "test", "user": "test", "namespace": "default"},
                }
            ],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(config))
        return path

    def service_account(self, folder: Path) -> dict[str, str]:
        """Write a pod's service account files; return the environment that a pod would have."""
        (folder / "token").write_text(self.token)
        (folder / "ca.crt").write_bytes(self.ca)
        (folder / "namespace").write_text("default")
        return {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.port),
        }

    # What tests do to it

    def put(self, obj: Json) -> Json:
        """Make an object so, whatever there is (status included); return it."""
        return self.storage.put(obj)

    def remove(self, obj: Json) -> None:
        """Delete an object, named by its apiVersion, kind and metadata."""
        resource = self.storage.resource_of(obj)
        namespace = obj["metadata"].get("namespace", "default") if resource.namespaced else ""
        self.storage.delete(resource, namespace, obj["metadata"]["name"])

    def get(self, api_version: str, kind: str, name: str, namespace: str = "default") -> Json:
        """Return an object as it is stored now; KeyError if it is not there."""
        resource = self.storage.resource_of({"apiVersion": api_version, "kind": kind})
        try:
            return self.storage.get(resource, namespace if resource.namespaced else "", name).obj
        except StatusError as error:
            raise KeyError(error.message) from error

    def all(self, api_version: str, kind: str, namespace: str = "") -> list[Json]:
        """Return every object of a kind (in a namespace)."""
        resource = self.storage.resource_of({"apiVersion": api_version, "kind": kind})
        return [one.obj for one in self.storage.objects(resource, namespace)]

    def install(self, crd: Json | Path) -> None:
        """Serve what a CustomResourceDefinition (a file's documents) declares, with its schema."""
        documents = [crd] if isinstance(crd, dict) else yaml.safe_load_all(crd.read_text())
        for document in documents:
            if document:
                self.storage.install(document)

    def uninstall(self, plural: str, group: str) -> None:
        """Take a custom resource away: its paths answer 404 from now on."""
        self.storage.stop_serving(group, plural)

    def cut_watches(self, plural: str = "") -> None:
        """Break open watches in the middle of a line."""
        for watcher in self.storage.history.open_watches(plural):
            watcher.end("cut")

    def close_watches(self, plural: str = "") -> None:
        """End open watches as a server does when their time is over."""
        for watcher in self.storage.history.open_watches(plural):
            watcher.end("close")

    def expire_watches(self, plural: str = "") -> None:
        """End open watches with 410 inside the stream."""
        for watcher in self.storage.history.open_watches(plural):
            watcher.end("gone")

    def fail_watches(self, plural: str = "") -> None:
        """End open watches with an error inside the stream, right behind what is pending."""
        for watcher in self.storage.history.open_watches(plural):
            watcher.end("failed")

    def silence_watches(self, plural: str = "") -> None:
        """Let open watches stay open and never say a thing again."""
        for watcher in self.storage.history.open_watches(plural):
            watcher.muted = True

    def compact(self) -> None:
        """Forget the past: a watch or a continued list from before now is answered with 410."""
        self.storage.compact()

    @property
    def watchers(self) -> list[Watcher]:
        """The watches that are open now."""
        return list(self.storage.history.open_watches())


async def main() -> None:
    """Serve until interrupted, printing where: for a program of its own."""
    logging.basicConfig(level=logging.INFO)
    async with ApiServer(tls=False) as api:
        print(json.dumps({"url": api.url, "token": api.token}), flush=True)  # noqa: T201 — the caller reads it
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
