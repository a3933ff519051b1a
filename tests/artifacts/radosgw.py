"""Run a command against a real S3 server: Ceph's radosgw, on loopback, in memory, for that long.

    python -m tests.artifacts.radosgw pytest tests/artifacts

The smallest cluster there is: one monitor, one OSD that keeps objects in memory, one gateway, each
in the foreground as a child of this process.  The command finds S3_ENDPOINT and keys in its
environment, and its exit status is ours.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("radosgw", "ceph-mon", "ceph-osd", "ceph-common")
ACCESS, SECRET = "loopback-access", "loopback-secret"
_GATEWAY = "client.rgw.only"
_MEMORY = os.environ.get("RADOSGW_MEMORY_BYTES", str(6 << 30))  # noqa: TID251  a script's own knob


def install() -> None:
    """Install Debian's packages where they are missing; that needs root."""
    if all(map(shutil.which, ("radosgw", "ceph-mon", "ceph-osd", "radosgw-admin"))):
        return
    subprocess.run(["apt-get", "update", "-q"], check=True, stdout=subprocess.DEVNULL)
    command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *PACKAGES]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}  # noqa: TID251  passed on
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def configuration(folder: Path, cluster: str, monitor: int, gateway: int) -> str:
    """Return ceph.conf: one copy of everything, no manager, everything below one folder."""
    settings: dict[str, dict[str, object]] = {
        "global": {
            "fsid": cluster,
            "mon host": f"v2:127.0.0.1:{monitor}/0",
            "public network": "127.0.0.0/8",
            "auth cluster required": "cephx",
            "auth service required": "cephx",
            "auth client required": "cephx",
            "keyring": folder / "admin.keyring",
            "run dir": folder,
            "admin socket": folder / "$name.asok",
            "log file": folder / "$name.log",
            "osd pool default size": 1,
            "osd pool default min size": 1,
            "mon allow pool size one": "true",
            "osd crush chooseleaf type": 0,
            "osd pool default pg num": 4,
            "osd pool default pgp num": 4,
            "osd pool default pg autoscale mode": "off",
            "mon max pg per osd": 1000,
            "osd objectstore": "memstore",
            "memstore device bytes": _MEMORY,
        },
        "mon.only": {"mon data": folder / "mon", "keyring": folder / "mon.keyring"},
        "osd.0": {
            "osd data": folder / "osd",
            "keyring": folder / "osd/keyring",
            "osd max object name len": 1024,
        },
        _GATEWAY: {
            "keyring": folder / "gateway.keyring",
            "rgw data": folder,
            "rgw frontends": f"beast endpoint=127.0.0.1:{gateway}",
            "rgw dns name": "localhost",
        },
    }
    lines = []
    for section, pairs in settings.items():
        lines += [f"[{section}]", *(f"{name} = {value}" for name, value in pairs.items())]
    return "\n".join(lines) + "\n"


class Cluster:
    """The three daemons of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.cluster = str(uuid.uuid4())
        self.monitor = free_port()
        self.file = folder / "ceph.conf"
        self.daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start everything; return when the gateway answers."""
        for name in ("mon", "osd"):
            (self.folder / name).mkdir()
        self.file.write_text(configuration(self.folder, self.cluster, self.monitor, self.port))
        self._start_monitor()
        self._start_osd()
        self._key(_GATEWAY, "gateway.keyring", "mon", "allow rwx", "osd", "allow rwx")
        self._daemon("radosgw", "-n", _GATEWAY)
        self._await_gateway()
        user = ["user", "create", "--uid=tests", "--display-name=tests"]
        keys = [f"--access-key={ACCESS}", f"--secret-key={SECRET}"]
        self._run("radosgw-admin", "-n", _GATEWAY, *user, *keys)

    def stop(self) -> None:
        """End the daemons, the last one first."""
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _start_monitor(self) -> None:
        ring, admin = str(self.folder / "mon.keyring"), str(self.folder / "admin.keyring")
        new = ["--create-keyring", "--gen-key", "-n"]
        everything = [word for part in ("mon", "osd") for word in ("--cap", part, "allow *")]
        self._tool("ceph-authtool", ring, *new, "mon.", "--cap", "mon", "allow *")
        self._tool("ceph-authtool", admin, *new, "client.admin", *everything)
        self._tool("ceph-authtool", ring, "--import-keyring", admin)
        members = str(self.folder / "monmap")
        address = f"[v2:127.0.0.1:{self.monitor}]"
        self._tool(
            "monmaptool", "--create", "--fsid", self.cluster, "--addv", "only", address, members
        )
        made = ["--mkfs", "--monmap", members, "--keyring", ring]
        self._run("ceph-mon", "-i", "only", *made)
        self._daemon("ceph-mon", "-i", "only")

    def _start_osd(self) -> None:
        self._key("osd.0", "osd/keyring", "mon", "allow profile osd", "osd", "allow *")
        identity = str(uuid.uuid4())
        self._run("ceph", "--connect-timeout", "30", "osd", "new", identity)
        self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", identity)
        self._daemon("ceph-osd", "-i", "0")

    def _key(self, name: str, file: str, *rights: str) -> None:
        target = str(self.folder / file)
        wait = ["--connect-timeout", "30"]
        self._run("ceph", *wait, "auth", "get-or-create", name, *rights, "-o", target)

    def _run(self, program: str, *arguments: str) -> None:
        self._tool(program, "-c", str(self.file), *arguments)

    def _tool(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr}")

    def _daemon(self, program: str, *arguments: str) -> None:
        command = [program, "-f", "-c", str(self.file), *arguments]
        quiet = subprocess.DEVNULL
        self.daemons.append(subprocess.Popen(command, stdout=quiet, stderr=quiet))

    def _await_gateway(self) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if self.daemons[-1].poll() is not None:
                break
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=5).close()
                return
            time.sleep(0.2)
        raise SystemExit(f"radosgw does not answer; its log is in {self.folder}")


@contextlib.contextmanager
def running() -> Iterator[dict[str, str]]:
    """Run a cluster for the block; give the environment that finds it."""
    with tempfile.TemporaryDirectory(prefix="radosgw-") as folder:
        cluster = Cluster(Path(folder))
        try:
            cluster.start()
            yield {
                "S3_ENDPOINT": f"http://127.0.0.1:{cluster.port}",
                "AWS_ACCESS_KEY_ID": ACCESS,
                "AWS_SECRET_ACCESS_KEY": SECRET,
            }
        finally:
            cluster.stop()


def main() -> int:
    """Install, start, run the command, stop."""
    install()
    with running() as environment:
        return subprocess.run(sys.argv[1:], env={**os.environ, **environment}).returncode  # noqa: TID251  passed on


if __name__ == "__main__":
    sys.exit(main())
