"""Envoy itself takes every configuration that we generate, and the samples are what we generate."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from epp.demo.envoyprocess import envoy_path
from epp.envoyconfig import BodyMode, EndpointMode, EnvoyOptions, bootstrap, render, to_yaml
from epp.envoyconfig.options import eds_file_name
from epp.envoyconfig.samples import SAMPLES

DEPLOY = Path(__file__).parents[2] / "deploy" / "envoy"
POOLS = ("default/llama", "n/1e3")


async def complaint(config: dict[str, Any] | str, folder: Path) -> str:
    """Return what Envoy says against a configuration, "" if nothing."""
    file = folder / "envoy.yaml"
    file.write_text(config if isinstance(config, str) else to_yaml(config))
    process = await asyncio.create_subprocess_exec(
        *(str(envoy_path()), "--mode", "validate", "--disable-hot-restart"),
        *("-l", "warning", "-c", str(file)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    lines = out.decode(errors="replace").strip().splitlines()
    return "\n".join(line for line in lines if not line.endswith("OK"))


def with_eds(folder: Path, **options: Any) -> EnvoyOptions:
    """Return options whose EDS files exist: Envoy insists on it."""
    built = EnvoyOptions(**options, eds_dir=str(folder))
    for pool in built.pools:
        (folder / eds_file_name(pool)).write_text("{}")
    return built


VARIANTS = [
    {"endpoint": endpoint, "request_body": body, **({"pools": POOLS} if overrides else {})}
    for endpoint, body in itertools.product(EndpointMode, BodyMode)
    for overrides in [endpoint is EndpointMode.OVERRIDE_HOST]
]
EXTRAS: list[dict[str, Any]] = [
    {"response_body": BodyMode.NONE},
    {"response_body": BodyMode.BUFFERED, "request_body": BodyMode.BUFFERED},
    {"picker_tls": False, "picker_health_check": False},
    {"picker_host": "picker.default.svc", "picker_port": 9002},
    {"picker_host": "::1"},
    {"authority": "outbound|9002||picker.default.svc.cluster.local"},
    {"bind_namespace": "n", "bind_pool": "1e3"},
    {"failure_mode_allow": True, "message_timeout_s": 0.25},
    {"admin_port": -1, "access_log": None, "graceful_close": False},
    {"max_requests": 1, "buffer_limit_bytes": 32768},
    {"endpoint": EndpointMode.OVERRIDE_HOST, "pools": ("only/one",)},
]


@pytest.mark.parametrize("options", VARIANTS + EXTRAS, ids=str)
async def test_envoy_takes_it(options: dict[str, Any], tmp_path: Path) -> None:
    assert await complaint(bootstrap(with_eds(tmp_path, **options)), tmp_path) == ""


async def test_envoy_refuses_a_field_that_it_does_not_know(tmp_path: Path) -> None:
    """The check above can fail."""
    config = bootstrap(EnvoyOptions())
    config["static_resources"]["clusters"][0]["circuit_braker"] = {}

    assert "circuit_braker" in await complaint(config, tmp_path)


async def test_a_whole_file_with_its_notes_is_taken(tmp_path: Path) -> None:
    options = with_eds(tmp_path, endpoint=EndpointMode.OVERRIDE_HOST, pools=POOLS)

    assert "--eds-dir" in render(options)
    assert await complaint(render(options), tmp_path) == ""


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_are_current(name: str) -> None:
    """`python -m epp.envoyconfig.samples deploy/envoy` writes them."""
    assert (DEPLOY / name).read_text() == render(SAMPLES[name])


def test_there_is_no_sample_that_nothing_generates() -> None:
    assert {p.name for p in DEPLOY.glob("*.yaml")} == set(SAMPLES)


async def test_the_command_prints_what_envoy_takes(tmp_path: Path) -> None:
    import typer

    from epp.envoyconfig.command import envoy_config

    app = typer.Typer()
    app.command()(envoy_config)
    result = CliRunner().invoke(
        app, ["--picker", "[::1]:9002", "--authority", "a|b", "--body-mode", "buffered"]
    )

    assert result.exit_code == 0, result.output
    assert await complaint(result.stdout, tmp_path) == ""
    assert CliRunner().invoke(app, ["--pool", "a/b"]).exit_code == 2
