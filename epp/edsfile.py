"""One EDS file per pool, so that Envoy's `override_host` clusters know what the picker knows.

`override_host` sends a request to a picked address only if that address is a member of the
cluster, and silently to another member otherwise.  So the members come from here, from the same
view that the pick comes from.  Envoy watches for a rename, which also makes each change whole.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from datastore.model import Endpoint, ObjectName, PoolView
from epp.envoyconfig.options import eds_file_name

ASSIGNMENT = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


def render(name: ObjectName, endpoints: Iterable[Endpoint]) -> bytes:
    """Return the DiscoveryResponse that makes `endpoints` the members of the pool's cluster."""
    members = [_member(endpoint) for endpoint in endpoints]
    assignment: dict[str, Any] = {"@type": ASSIGNMENT, "cluster_name": str(name)}
    if members:
        assignment["endpoints"] = [{"lb_endpoints": members}]
    resources = [assignment]
    digest = hashlib.sha256(json.dumps(resources).encode()).hexdigest()[:16]
    return json.dumps({"version_info": digest, "resources": resources}).encode()


def _member(endpoint: Endpoint) -> dict[str, Any]:
    address = {"address": endpoint.address, "port_value": endpoint.port}
    return {"endpoint": {"address": {"socket_address": address}}}


class EdsFolder:
    """The folder that Envoy's clusters read.  Written by the picker alone, on the event loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[ObjectName, bytes] = {}
        self._adopted = False

    def sync(self, views: Iterable[PoolView]) -> int:
        """Make the files say what `views` say; return how many had to be written.

        A pool that is no longer among them keeps its file, without members: Envoy's cluster still
        names the file, and must not go on sending to where the pool used to be.  That holds for
        what an earlier run of the picker left here too.
        """
        if not self._adopted:
            self._written = _left_in(self._folder)
            self._adopted = True
        wanted = {view.pool.name: render(view.pool.name, view.endpoints) for view in views}
        gone = {name: render(name, ()) for name in self._written.keys() - wanted.keys()}
        changed = 0
        for name, content in {**wanted, **gone}.items():
            if self._written.get(name) != content:
                self._write(name, content)
                changed += 1
        return changed

    def _write(self, name: ObjectName, content: bytes) -> None:
        write_atomically(self._folder / eds_file_name(str(name)), content)
        self._written[name] = content


def _left_in(folder: Path) -> dict[ObjectName, bytes]:
    """Return the files that an earlier run has written; what is not ours is left alone."""
    left = {}
    for path in folder.glob("*_*.json"):
        content = path.read_bytes()
        name = ObjectName(*path.stem.split("_", 1))
        if _is_ours(content, name):
            left[name] = content
    return left


def _is_ours(content: bytes, name: ObjectName) -> bool:
    try:
        (resource,) = json.loads(content)["resources"]
        told = resource["@type"], resource["cluster_name"]
    except (ValueError, LookupError, TypeError):
        return False
    return bool(told == (ASSIGNMENT, str(name)))


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file at once: a reader sees the old bytes or the new ones, whole.

    The file is readable by all, for Envoy runs as another user in another container.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
