"""What breaks between us and a store: each fault ends in the right bytes or the right exit code."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from artifacts import (
    ArtifactError,
    Connection,
    NotAllowed,
    PinGone,
    TryAgain,
    UsageError,
    VerificationFailed,
)
from tests.artifacts.bucket import Bucket, Endpoint
from tests.artifacts.conftest import Client, tree
from tests.fakes.certificates import self_signed
from tests.fakes.s3faults import Faults, gets_object, serve_faults

BIG = bytes(range(251)) * 2611  # 655 361 bytes: ten parts and a byte or so
REGION = {"x-amz-bucket-region": "eu-west-3"}


@pytest.fixture
def pinned(bucket: Bucket) -> str:
    """Give the pin of a large object that has been overwritten since."""
    version = bucket.put("m/big.bin", BIG)
    bucket.put("m/big.bin", b"overwritten")
    return f"{bucket.uri('m/big.bin')}?versionId={version}"


@pytest.fixture
def broken(s3: Endpoint, faults: Faults) -> Client:
    """Give the API, talking through the proxy."""
    return Client(replace(s3.connection, endpoint_url=faults.url))


async def test_the_proxy_alone_changes_nothing(pinned: str, broken: Client, tmp_path: Path) -> None:
    """With no fault switched on the pin is pulled: what fails below is the fault."""
    await broken.pull(pinned, tmp_path / "o")

    assert tree(tmp_path / "o") == {"big.bin": BIG}


@pytest.mark.parametrize(
    "fault",
    [
        {"ignore_range": True},
        {"ignore_range": True, "times": 3},
        {"truncate": 70_000, "times": 3},
        {"truncate": 1, "times": 3},
        {"short_length": 10, "times": 0},
        {"reset": True, "times": 3},
        {"status": 503, "code": "SlowDown", "times": 3},
        {"status": 500, "code": "InternalError", "times": 2},
        {"status": 429, "code": "", "times": 2},
        {"status": 400, "code": "RequestTimeout", "times": 2},
    ],
    ids=lambda fault: json.dumps(fault),
)
async def test_a_fault_that_passes_is_overcome(
    pinned: str, broken: Client, faults: Faults, tmp_path: Path, fault: dict[str, object]
) -> None:
    """A store that breaks off, is busy or cannot send ranges still yields exactly the bytes."""
    vars(faults).update(fault)

    await broken.pull(pinned, tmp_path / "o")

    assert tree(tmp_path / "o") == {"big.bin": BIG}


@pytest.mark.parametrize(
    ("fault", "expected", "words"),
    [
        ({"ignore_version": True}, VerificationFailed, "ignores versionId"),
        ({"hide_version": True}, VerificationFailed, "ignores versionId"),
        ({"shift_range": True}, VerificationFailed, "was asked for"),
        ({"truncate": 0}, TryAgain, "resumes"),
        ({"reset": True}, TryAgain, "resumes"),
        ({"status": 503, "code": "SlowDown"}, TryAgain, "503"),
        ({"status": 403, "code": "AccessDenied"}, NotAllowed, "s3:GetObjectVersion"),
        ({"status": 403, "code": "InvalidAccessKeyId"}, NotAllowed, "access key is unknown"),
        ({"status": 403, "code": "SignatureDoesNotMatch"}, NotAllowed, "does not fit"),
        ({"status": 400, "code": "ExpiredToken"}, NotAllowed, "expired"),
        ({"status": 403, "code": "RequestTimeTooSkewed"}, NotAllowed, "clock"),
        ({"status": 404, "code": "NoSuchKey"}, PinGone, "does not exist"),
        ({"status": 404, "code": "NoSuchVersion"}, PinGone, "does not exist"),
        ({"status": 404, "code": ""}, PinGone, "does not exist"),
        ({"status": 405, "code": "MethodNotAllowed"}, PinGone, "does not exist"),
        ({"status": 400, "code": "InvalidArgument"}, PinGone, "does not exist"),
        ({"status": 404, "code": "NoSuchBucket"}, PinGone, "bucket does not exist"),
        ({"status": 412, "code": "PreconditionFailed"}, PinGone, "overwritten"),
        ({"status": 301, "code": "PermanentRedirect"}, UsageError, "region"),
        (
            {"status": 301, "code": "PermanentRedirect", "headers": REGION},
            UsageError,
            "eu-west-3",
        ),
        ({"status": 501, "code": "NotImplemented"}, UsageError, "NotImplemented"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("phase", ["at the first look", "at the bytes"])
async def test_a_fault_that_stays_has_its_own_exit_code(
    pinned: str,
    broken: Client,
    faults: Faults,
    tmp_path: Path,
    fault: dict[str, object],
    expected: type[ArtifactError],
    words: str,
    phase: str,
) -> None:
    """Gone, not allowed, broken for now and wrong bytes are told apart, and say what to do."""
    vars(faults).update(fault)
    if phase == "at the first look":
        faults.only = lambda request: gets_object(request) or request.method == "HEAD"

    with pytest.raises(expected) as refused:
        await broken.pull(pinned, tmp_path / "o")

    assert words in str(refused.value)
    assert not (tmp_path / "o").exists()


async def test_a_bucket_in_another_region_is_found_there(
    pinned: str, broken: Client, faults: Faults, tmp_path: Path
) -> None:
    """A redirect that names the bucket's region is followed: only the signature changes."""
    faults.status, faults.code, faults.headers = 301, "PermanentRedirect", REGION
    faults.only = lambda request: "/eu-west-3/s3" not in request.headers["Authorization"]

    await broken.pull(pinned, tmp_path / "o")

    assert tree(tmp_path / "o") == {"big.bin": BIG}


async def test_a_flipped_bit_is_found(
    bucket: Bucket, client: Client, broken: Client, faults: Faults, tmp_path: Path
) -> None:
    """One bit changed on the way, by something that keeps every header right, ends in exit 3."""
    bucket.put("m/a", BIG)
    manifest = await client.lock(bucket.uri("m/"))
    faults.flip, faults.times = True, 1

    with pytest.raises(VerificationFailed, match="sha256"):
        await broken.pull_manifest(manifest, tmp_path / "o")

    assert not (tmp_path / "o").exists()


async def test_a_body_with_a_wrong_length_that_agrees_with_itself_is_refused(
    bucket: Bucket, client: Client, broken: Client, faults: Faults, tmp_path: Path
) -> None:
    """A cut body whose Content-Length was cut with it never becomes a file."""
    bucket.put("m/a", b"0123456789" * 100)
    manifest = await client.lock(bucket.uri("m/"))
    faults.short_length = 10

    with pytest.raises((VerificationFailed, TryAgain)):
        await broken.pull_manifest(manifest, tmp_path / "o")

    assert not (tmp_path / "o").exists()


async def test_what_was_fetched_before_a_crash_is_not_fetched_again(
    bucket: Bucket, client: Client, broken: Client, faults: Faults, tmp_path: Path
) -> None:
    """After an abort in the middle, a second run fetches only what is missing."""
    for number in range(8):
        bucket.put(f"m/{number}", BIG)
    manifest = await client.lock(bucket.uri("m/"))
    served = 0

    def count(request: web.Request) -> None:
        nonlocal served
        served += 1
        if served > 40:
            faults.reset = True

    faults.on_request = count
    with pytest.raises(TryAgain):
        await broken.pull_manifest(manifest, tmp_path / "o")
    pulled = await client.pull_manifest(manifest, tmp_path / "o")

    assert pulled.resumed_bytes >= 20 * (64 << 10)
    assert pulled.resumed_bytes + pulled.fetched_bytes == manifest.size
    assert {str(number): BIG for number in range(8)} == tree(tmp_path / "o")


def _lose_what_was_staged(folder: Path) -> None:
    (staged,) = folder.glob(".epp-artifacts-o.*.partial/a")
    staged.write_bytes(bytes(staged.stat().st_size))


async def test_spans_that_the_disk_lost_are_fetched_again(
    bucket: Bucket, client: Client, broken: Client, faults: Faults, tmp_path: Path
) -> None:
    """What a journal promises and the disk has lost (a power cut) costs a download, no more."""
    bucket.put("m/a", BIG)
    manifest = await client.lock(bucket.uri("m/"))
    faults.reset, faults.only = True, lambda request: "589824" in request.headers.get("Range", "")
    with pytest.raises(TryAgain):
        await broken.pull_manifest(manifest, tmp_path / "o")
    _lose_what_was_staged(tmp_path)

    pulled = await client.pull_manifest(manifest, tmp_path / "o")

    assert tree(tmp_path / "o") == {"a": BIG}
    assert pulled.fetched_bytes > len(BIG)


@pytest.fixture
async def tls(s3: Endpoint, tmp_path: Path) -> AsyncIterator[tuple[str, Path]]:
    """Give the address of the server behind TLS, and the certificate to trust."""
    context, bundle = self_signed(tmp_path)
    async with serve_faults(s3.url, s3.keys, tls=context) as proxy:
        yield proxy.url, bundle


async def test_a_certificate_that_nobody_vouches_for_is_refused(
    pinned: str, s3: Endpoint, tls: tuple[str, Path], tmp_path: Path
) -> None:
    """An endpoint with an unknown certificate gets no request: exit 5, and at once."""
    client = Client(replace(s3.connection, endpoint_url=tls[0]))

    with pytest.raises(NotAllowed, match="certificate"):
        await client.pull(pinned, tmp_path / "o")


@pytest.mark.parametrize("how", ["ca_bundle", "certificate", "verify_ssl"])
async def test_a_certificate_can_be_vouched_for(
    pinned: str, s3: Endpoint, tls: tuple[str, Path], tmp_path: Path, how: str
) -> None:
    """A CA as a path (KServe), as text (ModelMesh), or no verification at all, each connect."""
    url, bundle = tls
    ways: dict[str, Connection] = {
        "ca_bundle": replace(s3.connection, ca_bundle=str(bundle)),
        "certificate": replace(s3.connection, certificate=bundle.read_text()),
        "verify_ssl": replace(s3.connection, verify_ssl=False),
    }
    client = Client(replace(ways[how], endpoint_url=url))

    await client.pull(pinned, tmp_path / "o")

    assert tree(tmp_path / "o") == {"big.bin": BIG}


async def test_an_endpoint_that_is_not_there_is_try_again(
    pinned: str, s3: Endpoint, tmp_path: Path
) -> None:
    """Nobody listens: the network may come back."""
    client = Client(replace(s3.connection, endpoint_url="http://127.0.0.1:1"))

    with pytest.raises(TryAgain, match="connection"):
        await client.pull(pinned, tmp_path / "o")


async def test_no_secret_is_ever_part_of_an_error(
    pinned: str, s3: Endpoint, faults: Faults, tmp_path: Path
) -> None:
    """Neither the message, its cause nor the connection's repr holds a key."""
    connection = Connection(faults.url, "us-east-1", "AKTOPSECRET", "SKTOPSECRET", "TKTOPSECRET")
    faults.status, faults.code = 403, "SignatureDoesNotMatch"
    faults.only = lambda _request: True

    with pytest.raises(NotAllowed) as refused:
        await Client(connection).pull(pinned, tmp_path / "o")

    told = f"{refused.value} {refused.value!r} {refused.value.__cause__} {connection!r}"
    assert "TOPSECRET" not in told
