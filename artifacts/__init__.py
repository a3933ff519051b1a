"""Pins for models: name the bytes, fetch exactly those, prove it.

What programs may use::

    pin = artifacts.parse_pin("s3://bucket/model.bin?versionId=…&sha256=…")
    async with artifacts.open_artifact(pin, connection, parallel=8, backoff=…, rng=…) as artifact:
        pulled = await artifacts.pull(artifact.store, artifact.manifest, folder, options, …)

`Pin` and `Manifest` are values, and everything about them is pure.  `lock` makes a manifest,
`pull` makes a folder hold it, `find_faults` checks one.  Importing this package needs no S3
library; opening an S3 store does (`pip install 'inference-epp[s3]'`).
"""

from artifacts.credentials import (
    Connection,
    connection_from_environment,
    connection_from_folder,
    parse_connection,
)
from artifacts.errors import (
    ArtifactError,
    NotAllowed,
    PinGone,
    TryAgain,
    UsageError,
    VerificationFailed,
)
from artifacts.lock import lock
from artifacts.manifest import (
    Change,
    Entry,
    Manifest,
    build_manifest,
    diff_manifests,
    dump_lock,
    load_lock,
)
from artifacts.pin import Location, Pin, parse_pin
from artifacts.progress import Progress, Silent
from artifacts.pull import Pulled, PullOptions, pull
from artifacts.resolve import resolve
from artifacts.retry import Backoff
from artifacts.source import Artifact, open_artifact, open_store, read_lock_file, read_reference
from artifacts.store import Store, Version
from artifacts.verify import find_faults, read_record

__all__ = [
    "Artifact",
    "ArtifactError",
    "Backoff",
    "Change",
    "Connection",
    "Entry",
    "Location",
    "Manifest",
    "NotAllowed",
    "Pin",
    "PinGone",
    "Progress",
    "PullOptions",
    "Pulled",
    "Silent",
    "Store",
    "TryAgain",
    "UsageError",
    "VerificationFailed",
    "Version",
    "build_manifest",
    "connection_from_environment",
    "connection_from_folder",
    "diff_manifests",
    "dump_lock",
    "find_faults",
    "load_lock",
    "lock",
    "open_artifact",
    "open_store",
    "parse_connection",
    "parse_pin",
    "pull",
    "read_lock_file",
    "read_record",
    "read_reference",
    "resolve",
]
