"""What stops `epp serve` before it serves is a mistake with the name of the flag to change."""

import asyncio
import socket
import sys
from pathlib import Path

import pytest

PORTS = ("grpc-port", "grpc-health-port", "metrics-port", "debug-port")


async def serve(folder: Path, **flags: object) -> tuple[int | None, str]:
    """Run `epp serve` with flags that it cannot serve with; return its status and errors."""
    given = {"manifests": folder, "host": "127.0.0.1", **dict.fromkeys(PORTS, 0)}
    given |= {name.replace("_", "-"): value for name, value in flags.items()}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "epp", "serve"),
        *(f"--{name}={value}" for name, value in given.items()),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(30):
            _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, errors.decode()


@pytest.mark.parametrize("flag", PORTS)
async def test_a_port_that_somebody_has(flag: str, tmp_path: Path) -> None:
    """The flag and the port that are named are those of the port that is taken."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, errors = await serve(tmp_path, **{flag: port})

    assert status == 2
    assert f"error: --{flag}: port {port} cannot be opened" in errors


async def test_a_client_ca_that_is_not_there(tmp_path: Path) -> None:
    """Asked to check its clients, the picker does not serve unchecked ones instead."""
    status, errors = await serve(tmp_path, client_ca_path=tmp_path / "ca.crt")

    assert status == 2
    assert "--client-ca-path" in errors
    assert f"{tmp_path}/ca.crt: No such file or directory" in errors
