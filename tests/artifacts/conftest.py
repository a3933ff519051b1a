"""An S3 server for the tests: moto in this process, or whatever S3_ENDPOINT names."""

import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from artifacts import (
    Backoff,
    Connection,
    Manifest,
    Pulled,
    PullOptions,
    Silent,
    lock,
    open_artifact,
    open_store,
    pull,
    read_reference,
)
from artifacts.cli import app
from tests.artifacts.bucket import Bucket, Endpoint, new_bucket
from tests.fakes.s3faults import Faults, serve_faults

QUICK = Backoff(attempts=4, base_s=0.01, ceiling_s=0.05)
SMALL_PARTS = PullOptions(parallel=6, part_bytes=64 << 10, backoff=QUICK)


@pytest.fixture(scope="session")
def s3() -> Iterator[Endpoint]:
    """Give the S3 server that the tests talk to."""
    url = os.environ.get("S3_ENDPOINT")  # noqa: TID251  how `make test-s3` names a server
    if url:
        access = os.environ["AWS_ACCESS_KEY_ID"]  # noqa: TID251  as above
        secret = os.environ["AWS_SECRET_ACCESS_KEY"]  # noqa: TID251  as above
        yield Endpoint(url, access, secret, own=False)
        return
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield Endpoint(f"http://{host}:{port}", "test-access", "test-secret", own=True)
    server.stop()


@pytest.fixture(scope="session")
def writer(s3: Endpoint) -> Iterator[Any]:
    """Give the client that uploads."""
    with s3.client() as client:
        yield client


@pytest.fixture
def bucket(writer: Any, s3: Endpoint) -> Iterator[Bucket]:
    """Give a new bucket with versions."""
    with new_bucket(writer, s3, versioned=True) as made:
        yield made


@pytest.fixture
def plain_bucket(writer: Any, s3: Endpoint) -> Iterator[Bucket]:
    """Give a new bucket that never had versions."""
    with new_bucket(writer, s3, versioned=False) as made:
        yield made


@pytest.fixture
async def faults(s3: Endpoint) -> AsyncIterator[Faults]:
    """Give a proxy in front of the server, which breaks what it is told to."""
    async with serve_faults(s3.url, s3.keys) as proxy:
        yield proxy


class Client:
    """The package's API with a test's settings filled in."""

    def __init__(self, connection: Connection, options: PullOptions = SMALL_PARTS) -> None:
        self.connection = connection
        self.options = options
        self.rng = Random(1)

    async def lock(self, reference: str) -> Manifest:
        pin = read_reference(reference)
        async with open_store(pin.location, self.connection, parallel=6) as store:
            return await lock(
                store,
                pin,
                parallel=6,
                backoff=self.options.backoff,
                rng=self.rng,
                progress=Silent(),
            )

    async def pull(self, reference: str, target: Path, *, floating: bool = False) -> Pulled:
        async with open_artifact(
            read_reference(reference),
            self.connection,
            parallel=self.options.parallel,
            backoff=self.options.backoff,
            rng=self.rng,
            allow_floating=floating,
        ) as artifact:
            return await pull(
                artifact.store,
                artifact.manifest,
                target,
                self.options,
                rng=self.rng,
                progress=Silent(),
                expected_digest=artifact.digest,
            )

    async def pull_manifest(self, manifest: Manifest, target: Path) -> Pulled:
        async with open_store(manifest.source, self.connection, parallel=6) as store:
            return await pull(
                store, manifest, target, self.options, rng=self.rng, progress=Silent()
            )


@pytest.fixture
def client(s3: Endpoint) -> Client:
    """Give the API, talking to the server itself."""
    return Client(s3.connection)


Cli = Callable[..., Result]


@pytest.fixture
def cli(s3: Endpoint) -> Cli:
    """Run the program in this process, with the server in its environment."""

    def run(*arguments: str | Path, **environment: str) -> Result:
        return CliRunner().invoke(
            app, [str(word) for word in arguments], env={**s3.environment, **environment}
        )

    return run


def tree(folder: Path) -> dict[str, bytes]:
    """Return what a reader sees in a folder: its files and their bytes, without our own."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".artifact.lock.json"
    }
