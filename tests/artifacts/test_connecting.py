"""How a store is reached: addressing styles, proxies, and secrets from the Kubernetes API."""

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from artifacts import ArtifactError, Connection, NotAllowed, PinGone, TryAgain, UsageError
from artifacts.kubesecret import connection_from_secret
from tests.artifacts.bucket import Bucket, Endpoint
from tests.artifacts.conftest import Client, tree

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handle: Handler) -> AsyncIterator[int]:
    """Answer every request with `handle`, on a free port."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("style", "host", "path"),
    [
        ("path", "localhost", "/models/m.bin"),
        ("auto", "localhost", "/models/m.bin"),
        ("virtual", "models.localhost", "/m.bin"),
    ],
)
async def test_addressing_styles(style: str, host: str, path: str, tmp_path: Path) -> None:
    """The bucket is in the path or in the host's name; by default an own endpoint gets the path."""
    seen: list[tuple[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((request.host.partition(":")[0], request.path))
        return web.Response(status=404)

    async with serving(answer) as port:
        connection = Connection(
            f"http://localhost:{port}", "us-east-1", "a", "b", addressing_style=style
        )
        with pytest.raises(ArtifactError):
            await Client(connection).pull("s3://models/m.bin?etag=e", tmp_path / "o")

    assert seen == [] or seen[0] == (host, path)
    assert seen or style == "virtual"  # a resolver without *.localhost cannot get there


async def test_a_proxy_is_used(
    bucket: Bucket, s3: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP_PROXY is asked for every object, with the whole URL."""
    bucket.put("m.bin", b"x")
    asked: list[str] = []

    async def refuse(request: web.Request) -> web.Response:
        asked.append(request.raw_path)
        return web.Response(status=503)

    async with serving(refuse) as port:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(TryAgain):
            await Client(replace(s3.connection, endpoint_url="http://s3.test")).pull(
                f"{bucket.uri('m.bin')}?etag=e", tmp_path / "o"
            )

    assert asked
    assert asked[0].startswith("http://s3.test/")


async def test_anonymous_requests_are_not_signed(tmp_path: Path) -> None:
    """`anonymous` sends no Authorization at all."""
    signed: list[bool] = []

    async def answer(request: web.Request) -> web.Response:
        signed.append("Authorization" in request.headers)
        return web.Response(status=403)

    async with serving(answer) as port:
        connection = Connection(f"http://127.0.0.1:{port}", anonymous=True)
        with pytest.raises(NotAllowed, match="s3:GetObject"):
            await Client(connection).pull("s3://models/m.bin?etag=e", tmp_path / "o")

    assert set(signed) == {False}


@pytest.fixture
async def api(s3: Endpoint, tmp_path: Path) -> AsyncIterator[str]:
    """Serve one secret as the Kubernetes API does, and a kubeconfig that finds it."""
    fields = {"type": "s3", "endpoint_url": s3.url, "access_key_id": s3.access_key}
    fields |= {"secret_access_key": s3.secret_key}
    encoded = base64.b64encode(json.dumps(fields).encode()).decode()
    secrets = {"storage-config": {"minio": encoded, "broken": "bm90IGpzb24="}}

    async def answer(request: web.Request) -> web.Response:
        name = request.path.removeprefix("/api/v1/namespaces/demo/secrets/")
        if name == "forbidden":
            return web.json_response({"kind": "Status", "code": 403}, status=403)
        if name not in secrets:
            return web.json_response({"kind": "Status", "code": 404}, status=404)
        metadata = {"name": name, "namespace": "demo"}
        return web.json_response(
            {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": secrets[name]}
        )

    async with serving(answer) as port:
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [cluster],
            "contexts": [context],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "current-context": "x",
        }
        file = tmp_path / "kubeconfig"
        file.write_text(json.dumps(document))
        yield str(file)


async def test_a_secret_from_the_kubernetes_api(api: str, bucket: Bucket, tmp_path: Path) -> None:
    """The connection in a secret is enough to pull."""
    version = bucket.put("m.bin", b"x")

    connection = await connection_from_secret(
        "demo", "storage-config", "minio", Connection(), environment={"KUBECONFIG": api}
    )
    await Client(connection).pull(f"{bucket.uri('m.bin')}?versionId={version}", tmp_path / "o")

    assert tree(tmp_path / "o") == {"m.bin": b"x"}


@pytest.mark.parametrize(
    ("name", "key", "expected"),
    [
        ("none", None, PinGone),
        ("forbidden", None, NotAllowed),
        ("storage-config", "minoi", UsageError),
        ("storage-config", "broken", UsageError),
    ],
)
async def test_a_secret_that_cannot_be_used(
    api: str, name: str, key: str | None, expected: type[ArtifactError]
) -> None:
    """Missing, forbidden, without that key, or not JSON: each has its own exit code."""
    with pytest.raises(expected):
        await connection_from_secret(
            "demo", name, key, Connection(), environment={"KUBECONFIG": api}
        )
