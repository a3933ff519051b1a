"""The programs under load, each a child process pinned to one core, and what they have used so far.

Servers stand on core 0 and whoever loads them on core 1, so that a server's figure is what one core
gives.  On a machine with a single core everything shares it, and only CPU time means something.
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from epp.demo.envoyprocess import envoy_path
from epp.demo.pickerprocess import PROGRAM
from epp.envoyconfig import EnvoyOptions, bootstrap, to_yaml

CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, CLIENT_CORE = CORES[0], CORES[-1]
START_S = 30.0
PORTS = ("grpc-port", "grpc-health-port", "metrics-port")
_TICKS = os.sysconf("SC_CLK_TCK")


def free_ports(count: int) -> list[int]:
    """Return ports that were free just now, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def pinned(core: int, command: Sequence[str]) -> list[str]:
    """Return a command that runs on one core."""
    return ["taskset", "-c", str(core), *command]


class Child:
    """One running program."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port
        self.ports: dict[str, int] = {}

    def cpu_s(self) -> float:
        """Return the CPU seconds used so far, by all threads."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def rss_kib(self) -> int:
        """Return the resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", status)
        assert found is not None, "a running process has a resident size"
        return int(found.group(1))

    def end(self) -> None:
        """Stop it, by force if it takes too long."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def module(name: str, *arguments: str, core: int = SERVER_CORE) -> Iterator[Child]:
    """Run `python -m benchmarks.NAME`, which prints its port, or ports, once it listens."""
    command = pinned(core, [sys.executable, "-m", f"benchmarks.{name}", *arguments])
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        ports = [int(port) for port in process.stdout.readline().split()]
        child = Child(process, ports[0])
        child.ports = {str(number): port for number, port in enumerate(ports)}
        yield child
    finally:
        Child(process, 0).end()


@contextmanager
def picker(
    manifests: Path,
    *,
    core: int = SERVER_CORE,
    cwd: Path | None = None,
    watch: Path | None = None,
    **flags: Any,
) -> Iterator[Child]:
    """Run `epp serve`; flags are written with `_` for `-`.

    `cwd`: another checkout's code.  `watch` gets the collector's pauses (`benchmarks.watched`).
    """
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    given = {
        "host": "127.0.0.1",
        "debug-port": 0,
        "manifests": manifests,
        "secure-serving": "false",
        **ports,
        **{name.replace("_", "-"): value for name, value in flags.items()},
    }
    program: tuple[str, ...] = PROGRAM
    if watch is not None:
        program = (sys.executable, "-m", "benchmarks.watched", str(watch), "serve")
    command = pinned(core, [*program, *(f"--{name}={value}" for name, value in given.items())])
    errors = manifests.parent / f"picker-{ports['grpc-port']}.err"
    with errors.open("wb") as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, cwd=cwd)
    child = Child(process, ports["grpc-port"])
    child.ports = ports
    try:
        _await(process, f"http://127.0.0.1:{ports['metrics-port']}/readyz", errors)
        yield child
    finally:
        child.end()


@contextmanager
def envoy(config: Mapping[str, Any], folder: Path, *, core: int = CLIENT_CORE) -> Iterator[Child]:
    """Run the real Envoy with one worker; `ports` has its listeners."""
    admin, *ports = free_ports(1 + len(config["static_resources"]["listeners"]))
    config = {**config, "admin": _address(admin)}
    names = []
    for listener, port in zip(config["static_resources"]["listeners"], ports, strict=True):
        listener.update(_address(port))
        names.append(listener["name"])
    file, log = folder / "envoy.yaml", folder / "envoy.log"
    file.write_text(to_yaml(config))
    options = ("--concurrency", "1", "--disable-hot-restart", "-l", "error", "--drain-time-s", "0")
    with log.open("wb") as said:
        process = subprocess.Popen(
            pinned(core, [str(envoy_path()), "-c", str(file), *options]), stdout=said, stderr=said
        )
    child = Child(process, ports[0])
    child.ports = dict(zip(names, ports, strict=True))
    try:
        _await(process, f"http://127.0.0.1:{admin}/ready", log)
        yield child
    finally:
        child.end()


def _address(port: int) -> dict[str, Any]:
    return {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}


def listener(picker_port: int, name: str, *, tls: bool = False) -> dict[str, Any]:
    """Return the project's own Envoy configuration for one picker, its parts named `name`."""
    options = EnvoyOptions(
        picker_port=picker_port,
        picker_tls=tls,
        picker_health_check=False,
        listener_host="127.0.0.1",
        access_log=None,
    )
    return _renamed(bootstrap(options), name)


def _renamed(config: dict[str, Any], name: str) -> dict[str, Any]:
    """Let several such configurations stand in one Envoy."""
    text = to_yaml(config)
    for cluster in config["static_resources"]["clusters"]:
        text = re.sub(rf"(?<![\w-]){cluster['name']}(?![\w.-])", f"{cluster['name']}-{name}", text)
    renamed: dict[str, Any] = yaml.safe_load(text)
    renamed["static_resources"]["listeners"][0]["name"] = name
    return renamed


def _await(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.02)
    raise RuntimeError(f"{process.args!r} does not serve:\n{log.read_text()[-4000:]}")


@contextmanager
def world(*, models: int = 100, endpoints: Sequence[int] = ()) -> Iterator[Path]:
    """Make a folder of manifests: models `model-0`… of one pool whose endpoints are local ports."""
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as folder:
        manifests = Path(folder) / "manifests"
        manifests.mkdir()
        write_models(manifests, models)
        documents = [_pool(), *map(_slice, endpoints)]
        (manifests / "pool.yaml").write_text(yaml.safe_dump_all(documents))
        yield manifests


def write_models(
    manifests: Path, models: int, *, target: Callable[[int], str] = "target-{}".format
) -> None:
    """Write the models into one file, replaced as a whole."""
    documents = [model(number, target(number)) for number in range(models)]
    temporary = manifests / ".models.tmp"
    temporary.write_text(yaml.dump_all(documents, Dumper=getattr(yaml, "CSafeDumper", None)))
    temporary.replace(manifests / "models.yaml")


def model(number: int, target: str) -> dict[str, Any]:
    """Return the manifest of one model."""
    return {
        "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
        "kind": "InferenceModel",
        "metadata": {"name": f"model-{number}", "namespace": "default"},
        "spec": {
            "poolRef": {"name": "pool"},
            **({"targetModels": [{"name": target}]} if target else {}),
        },
    }


def _pool() -> dict[str, Any]:
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": "pool", "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": {"app": "vllm"}},
            "targetPorts": [{"number": 8000}],
            "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
        },
    }


def _slice(port: int) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"vllm-{port}", "namespace": "default", "labels": {"app": "vllm"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["127.0.0.1"]}],
        "ports": [{"port": port}],
    }


def direct_listener(like: dict[str, Any]) -> dict[str, Any]:
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
    chain = {"filters": [{**network_filter, "typed_config": direct}]}
    return {**like, "name": "direct", "filter_chains": [chain]}


def direct_cluster(ports: Sequence[int]) -> dict[str, Any]:
    """Return the cluster that such a listener leads to."""
    members = [{"endpoint": _address(port)} for port in ports]
    return {
        "name": "direct",
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {"cluster_name": "direct", "endpoints": [{"lb_endpoints": members}]},
    }


def metric(picker: Child, name: str) -> float:
    """Return a metric without labels, as the picker tells it now."""
    with urllib.request.urlopen(f"http://127.0.0.1:{picker.ports['metrics-port']}/metrics") as page:
        text = page.read().decode()
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    assert found is not None, f"there is no metric {name}"
    return float(found.group(1))
