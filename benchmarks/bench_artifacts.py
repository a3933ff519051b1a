"""Pull of a pinned model, against the tools that people use today, from one server in one run.

    python -m benchmarks.bench_artifacts [--objects 200] [--object-mb 10]

The server is moto, started for the run, or the one that S3_ENDPOINT names.  `aws s3 cp` is measured
where an `aws` is on the PATH (or AWS_CLI names one): install it into a virtualenv of its own.
Every row is a process of its own, so that time, CPU and memory are that row's alone.
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import botocore.session
from botocore.config import Config

from benchmarks import report
from benchmarks.processes import run_measured

MB = 1_000_000
BUCKET = "bench-artifacts"
_MOTO = (
    "import logging, signal; logging.getLogger('werkzeug').setLevel(logging.ERROR);"
    "from moto.server import ThreadedMotoServer;"
    "s = ThreadedMotoServer(ip_address='127.0.0.1', port=0, verbose=False); s.start();"
    "print(*s.get_host_and_port(), flush=True); signal.pause()"
)
_SEQUENTIAL = """
import pathlib, sys, botocore.session
from botocore.config import Config
bucket, target = sys.argv[1], pathlib.Path(sys.argv[2])
config = Config(response_checksum_validation="when_required", s3={"addressing_style": "path"})
client = botocore.session.Session().create_client("s3", config=config)
for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix="m/"):
    for row in page["Contents"]:
        file = target / row["Key"]
        file.parent.mkdir(parents=True, exist_ok=True)
        body = client.get_object(Bucket=bucket, Key=row["Key"])["Body"]
        with file.open("wb") as out:
            while chunk := body.read(1 << 20):
                out.write(chunk)
"""


@dataclass(frozen=True)
class Row:
    """One measured way."""

    name: str
    seconds: float
    mb_per_s: float
    cpu_s: float
    rss_mb: float
    note: str = ""


def _environment(endpoint: str) -> dict[str, str]:
    keys = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
    region = {"AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}
    style = {"AWS_ENDPOINT_URL": endpoint}
    return {**keys, **os.environ, **region, **style}  # noqa: TID251  passed on to the children


@contextmanager
def server() -> Iterator[dict[str, str]]:
    """Give the environment in which every row finds the same server."""
    external = os.environ.get("S3_ENDPOINT")  # noqa: TID251  how a server is named
    if external:
        yield _environment(external)
        return
    with subprocess.Popen([sys.executable, "-c", _MOTO], stdout=subprocess.PIPE, text=True) as moto:
        assert moto.stdout is not None
        host, port = moto.stdout.readline().split()
        try:
            yield _environment(f"http://{host}:{port}")
        finally:
            moto.send_signal(signal.SIGKILL)


def client(environment: dict[str, str]) -> Any:
    """Return botocore's own client."""
    return botocore.session.Session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        config=Config(
            request_checksum_calculation="when_required", s3={"addressing_style": "path"}
        ),
    )


def upload(environment: dict[str, str], objects: int, size: int) -> None:
    """Put the model there; every object's bytes are different."""
    s3 = client(environment)
    s3.create_bucket(Bucket=BUCKET)
    s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    block = os.urandom(size)
    for number in range(objects):
        body = number.to_bytes(8, "big") + block[8:]
        s3.put_object(Bucket=BUCKET, Key=f"m/part-{number:05}", Body=body)


def measure(
    name: str, command: list[str], environment: dict[str, str], size: int, note: str = ""
) -> Row:
    """Run a command; return its time, CPU and memory."""
    usage = run_measured(command, environment)
    if usage.exit_code:
        raise SystemExit(f"{name}: exit {usage.exit_code}")
    return Row(name, usage.seconds, size / MB / usage.seconds, usage.cpu_s, usage.rss_mb, note)


def hashing(folder: Path, size: int) -> Row:
    """Measure sha256 alone over the same bytes, from the page cache."""
    began, cpu = time.monotonic(), time.process_time()
    for file in sorted(folder.rglob("part-*")):
        with file.open("rb") as opened:
            hashlib.file_digest(opened, "sha256")
    seconds = time.monotonic() - began
    used = time.process_time() - cpu
    return Row("sha256 alone", seconds, size / MB / seconds, used, 0, "what verification costs")


def resume(pull: list[str], environment: dict[str, str], size: int) -> Row:
    """Kill a pull in its middle, and measure the one that resumes it."""
    process = subprocess.Popen(pull, env=environment, stdout=subprocess.DEVNULL)
    folder = Path(pull[-1]).parent
    while process.poll() is None:
        staged = sum(f.stat().st_blocks * 512 for f in folder.glob(".epp-artifacts-*/part-*"))
        if staged > size / 2:
            break
        time.sleep(0.02)
    process.kill()
    process.wait()
    began = time.monotonic()
    done = subprocess.run(
        [*pull, "--log", "json"], env=environment, check=True, capture_output=True, text=True
    )
    seconds = time.monotonic() - began
    told = json.loads(done.stdout)
    kept = told["resumed_bytes"] / MB
    note = f"{kept:.0f} MB kept, {told['fetched_bytes'] / MB:.0f} MB fetched"
    return Row("resume after SIGKILL", seconds, size / MB / seconds, 0, 0, note)


def rows(environment: dict[str, str], folder: Path, size: int) -> Iterator[Row]:
    """Yield every row, each on an empty folder; what is compared takes turns, the best of two."""
    program = [sys.executable, "-c", "from artifacts.cli import main; main()"]
    lock, source = str(folder / "m.lock.json"), f"s3://{BUCKET}/m/"
    locking = [*program, "lock", source, "-o", lock]
    yield measure("lock (hashes every object)", locking, environment, size)

    pull = [*program, "pull", lock, str(folder / "pull")]
    ways = {"pull, verified": (pull, "")}
    aws = os.environ.get("AWS_CLI") or shutil.which("aws")  # noqa: TID251  how it is named
    if aws:
        copy = [aws, "s3", "cp", "--recursive", "--only-show-errors", source, str(folder / "aws")]
        ways["aws s3 cp --recursive"] = (copy, "nothing verified")
    else:
        print("aws s3 cp --recursive: skipped, there is no `aws` on the PATH")
    plain = [sys.executable, "-c", _SEQUENTIAL, BUCKET, str(folder / "plain")]
    ways["sequential GETs"] = (plain, "nothing verified")
    taken: dict[str, list[Row]] = {name: [] for name in ways}
    for _turn in range(2):
        for name, (command, note) in ways.items():
            shutil.rmtree(command[-1], ignore_errors=True)
            taken[name].append(measure(name, command, environment, size, note))
    for both in taken.values():
        yield min(both, key=lambda row: row.seconds)

    shutil.rmtree(folder / "aws", ignore_errors=True)
    shutil.rmtree(folder / "plain")
    yield hashing(folder / "pull", size)
    yield measure("pull again (verifies the disk)", pull, environment, size)
    yield resume([*program, "pull", lock, str(folder / "cut")], environment, size)
    flushed = [*program, "pull", lock, str(folder / "flushed"), "--flush"]
    yield measure("pull, verified, --flush", flushed, environment, size)


def run(objects: int = 200, size: int = 10 * MB) -> list[report.Row]:
    """Return the figures for `python -m benchmarks artifacts`, with their targets."""
    with server() as environment, tempfile.TemporaryDirectory() as folder:
        upload(environment, objects, size)
        found = {row.name: row for row in rows(environment, Path(folder), objects * size)}
    told = [
        report.Row(row.name, row.mb_per_s, "MB/s", note=f"{row.cpu_s:.1f} s CPU  {row.note}")
        for row in found.values()
    ]
    pull, aws = found["pull, verified"], found.get("aws s3 cp --recursive")
    told.append(report.at_most("memory of a pull", pull.rss_mb, 150, "MB"))
    if aws is not None:
        ratio = pull.mb_per_s / aws.mb_per_s
        told.append(report.at_least("pull, verified / aws s3 cp --recursive", ratio, 1))
    return told


def main() -> None:
    """Upload, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objects", type=int, default=200)
    parser.add_argument("--object-mb", type=float, default=10)
    parser.add_argument("--output", type=Path, help="where to write the rows as JSON")
    given = parser.parse_args()
    size = int(given.object_mb * MB)
    total = size * given.objects
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, "
        f"Python {platform.python_version()}; {given.objects} objects of {given.object_mb} MB"
    )
    found = []
    with server() as environment, tempfile.TemporaryDirectory() as folder:
        upload(environment, given.objects, size)
        for row in rows(environment, Path(folder), total):
            found.append(row)
            print(
                f"{row.name:32} {row.seconds:8.2f} s {row.mb_per_s:8.0f} MB/s "
                f"{row.cpu_s:7.2f} s CPU {row.rss_mb:6.0f} MB RSS  {row.note}",
                flush=True,
            )
    if given.output:
        given.output.write_text(json.dumps([asdict(row) for row in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
