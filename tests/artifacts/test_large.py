"""Large cases: 20 000 objects, and a 5 GB object in 150 MB of memory.  `make test-s3` has them."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.processes import run_measured
from tests.artifacts.bucket import Bucket, Endpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

PROGRAM = [sys.executable, "-c", "from artifacts.cli import main; main()"]
OBJECTS = int(os.environ.get("PINS_OBJECTS", "20000"))  # noqa: TID251  a test's own knob
BIG_BYTES = int(os.environ.get("PINS_BIG_BYTES", "5000000000"))  # noqa: TID251  a test's own knob
RSS_LIMIT_MB = 150


def run(s3: Endpoint, *arguments: str | Path) -> tuple[int, float]:
    """Run the program; return its exit code and the most memory that it had, in MB."""
    environment = {**os.environ, **s3.environment}  # noqa: TID251  passed on
    usage = run_measured([*PROGRAM, *map(str, arguments)], environment)
    return usage.exit_code, usage.rss_mb


def test_20000_objects(bucket: Bucket, s3: Endpoint, tmp_path: Path) -> None:
    """Twenty pages of a listing, locked, overwritten in part, and pulled as they were."""
    files = {f"m/{n % 100:02}/{n:05}": b"%d" % n for n in range(OBJECTS)}
    bucket.put_all(files)
    lock = tmp_path / "m.lock.json"

    locked, _memory = run(s3, "lock", bucket.uri("m/"), "-o", lock)
    bucket.put_all(dict.fromkeys(list(files)[:50], b"other"))
    pulled, memory = run(s3, "pull", lock, tmp_path / "o")

    assert (locked, pulled) == (0, 0)
    assert len(json.loads(lock.read_text())["objects"]) == OBJECTS
    for key, data in files.items():
        assert data == (tmp_path / "o" / key.removeprefix("m/")).read_bytes()
    assert memory <= RSS_LIMIT_MB + 50  # a manifest of so many objects has 20 MB itself


def test_a_5_gb_object_in_150_mb_of_memory(bucket: Bucket, s3: Endpoint, tmp_path: Path) -> None:
    """A large object streams: to hash it, to fetch it, and to verify it."""
    if shutil.disk_usage(tmp_path).free < BIG_BYTES * 1.2:
        pytest.fail(f"{tmp_path} has no room for {BIG_BYTES} bytes; set TMPDIR")
    version = upload_in_parts(bucket, BIG_BYTES)
    pin = f"{bucket.uri('big.bin')}?versionId={version}"

    locked = run(s3, "lock", pin, "-o", tmp_path / "big.lock.json")
    pulled = run(s3, "pull", tmp_path / "big.lock.json", tmp_path / "o")
    verified = run(s3, "verify", tmp_path / "o")

    assert [code for code, _memory in (locked, pulled, verified)] == [0, 0, 0]
    assert (tmp_path / "o/big.bin").stat().st_size == BIG_BYTES
    assert max(memory for _code, memory in (locked, pulled, verified)) <= RSS_LIMIT_MB


def upload_in_parts(bucket: Bucket, size: int) -> str:
    """Upload an object too large for one request; every part is different."""
    part = 64 << 20
    target = {"Bucket": bucket.name, "Key": "big.bin"}
    upload = bucket.client.create_multipart_upload(**target)["UploadId"]
    done = []
    block = os.urandom(part - 8)
    for number in range(1, -(-size // part) + 1):
        body = (number.to_bytes(8, "big") + block)[: size - (number - 1) * part]
        answer = bucket.client.upload_part(**target, UploadId=upload, PartNumber=number, Body=body)
        done.append({"PartNumber": number, "ETag": answer["ETag"]})
    answer = bucket.client.complete_multipart_upload(
        **target, UploadId=upload, MultipartUpload={"Parts": done}
    )
    version: str = answer["VersionId"]
    return version
