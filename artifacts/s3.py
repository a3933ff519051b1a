"""S3, through aiobotocore: the only module that knows the library.

Its retries are off, because they would start a body again from the beginning: asking again is the
puller's work, which knows what it already has.  Checksum headers are not asked for: servers
disagree on them, and every byte is hashed here anyway.
"""

import contextlib
import functools
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from artifacts.answers import Answer, Question, explain
from artifacts.credentials import Connection
from artifacts.errors import (
    ArtifactError,
    NotAllowed,
    TryAgain,
    UsageError,
    VerificationFailed,
)
from artifacts.manifest import Entry
from artifacts.pin import Location, Pin
from artifacts.store import RangeIgnored, Version

_CHUNK_BYTES = 1 << 20
_CONNECT_S = 10
_READ_S = 60  # a store that says nothing for this long has stalled
_BROKEN = (aiohttp.ClientError, TimeoutError, ConnectionError)


class S3Store:
    """A `Store` on one S3 endpoint.  Use `open_s3` to get one."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def stat(self, pin: Pin) -> Entry:
        """Return the object that `pin` means now."""
        question = _question(pin)
        try:
            head = await self._client.head_object(**_target(pin))
        except Exception as error:
            raise await self._look_closer(pin, _translate(error, question)) from error
        _check_identity(head, pin)
        return Entry(
            key=pin.location.key,
            size=head["ContentLength"],
            version_id=head.get("VersionId", pin.version_id),
            etag=_bare(head.get("ETag")),
            sha256=pin.sha256,
            md5=pin.md5,
        )

    async def versions(self, prefix: Location) -> AsyncIterator[Version]:
        """Yield every version below the prefix, from as many pages as there are."""
        question = Question(str(prefix), listing=True)
        markers: dict[str, str] = {}
        while True:
            with _translated(question):
                page = await self._client.list_object_versions(
                    Bucket=prefix.bucket, Prefix=prefix.key, **markers
                )
            for version in _page_versions(page):
                yield version
            if not page.get("IsTruncated"):
                return
            following = _next_markers(page)
            if following == markers or not following:
                raise VerificationFailed(
                    "the store's listing does not come to an end: its next page is the same page",
                    where=str(prefix),
                )
            markers = following

    @asynccontextmanager
    async def read(
        self, pin: Pin, size: int, start: int, stop: int
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield bytes start…stop, once the answer's headers have proved whose bytes they are."""
        question = _question(pin)
        whole = start == 0 and stop == size
        ranged = {} if whole else {"Range": f"bytes={start}-{stop - 1}"}
        with _translated(question):
            answer = await self._client.get_object(**_target(pin), **ranged)
        body = answer["Body"]
        try:
            _check_identity(answer, pin)
            _check_range(answer, size, start, stop, question)
            yield _chunks(body, stop - start, question)
        finally:
            body.close()

    async def _look_closer(self, pin: Pin, error: ArtifactError) -> ArtifactError:
        """Return the error with its reason: an answer to HEAD has no body that could name it."""
        if isinstance(error, TryAgain):
            return error
        try:
            answer = await self._client.get_object(**_target(pin), Range="bytes=0-0")
        except Exception as closer:  # noqa: BLE001  translated, or raised again as it was
            found = _translate(closer, _question(pin))
            return error if isinstance(found, TryAgain) else found
        answer["Body"].close()
        return error


@asynccontextmanager
async def open_s3(connection: Connection, *, parallel: int) -> AsyncIterator[S3Store]:
    """Open a store on the endpoint that `connection` names, with that many connections at most."""
    try:
        from aiobotocore.config import AioConfig
        from aiobotocore.session import get_session
        from botocore import UNSIGNED
    except ModuleNotFoundError as error:
        raise UsageError(
            "S3 needs a library that is not installed",
            where=error.name or "aiobotocore",
            fix="pip install 'inference-epp[s3]'",
        ) from error
    options: dict[str, Any] = {"signature_version": UNSIGNED} if connection.anonymous else {}
    config = AioConfig(
        connect_timeout=_CONNECT_S,
        read_timeout=_READ_S,
        max_pool_connections=parallel,
        retries={"total_max_attempts": 1, "mode": "standard"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": connection.addressing_style},
        **options,
    )
    session = get_session()
    session.register_component("data_loader", _library_data())
    async with contextlib.AsyncExitStack() as stack:
        with _translated(Question(connection.endpoint_url or "s3")):
            client = await stack.enter_async_context(
                session.create_client(
                    "s3",
                    region_name=connection.region or "us-east-1",
                    endpoint_url=connection.endpoint_url,
                    aws_access_key_id=connection.access_key_id,
                    aws_secret_access_key=connection.secret_access_key,
                    aws_session_token=connection.session_token,
                    verify=_trust(connection, stack),
                    config=config,
                )
            )
        yield S3Store(client)


@functools.cache
def _library_data() -> Any:
    """Return what the library knows of S3: reading it is most of what opening a store costs."""
    from botocore.loaders import Loader

    return Loader()


def _trust(connection: Connection, stack: contextlib.AsyncExitStack) -> bool | str | None:
    """Return what `verify` means to the library: a path to a CA, or yes or no."""
    if not connection.verify_ssl:
        return False
    if connection.certificate:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        bundle = Path(folder) / "ca.pem"
        bundle.write_text(connection.certificate)
        return str(bundle)
    return connection.ca_bundle


def _question(pin: Pin) -> Question:
    return Question(str(pin), version_id=pin.version_id, etag=pin.etag)


def _target(pin: Pin) -> dict[str, str]:
    """Return the request's parameters that make it mean the pin and nothing else.

    The version `null` is asked for by its etag as well: it alone can be overwritten.
    """
    target = {"Bucket": pin.location.bucket, "Key": pin.location.key}
    if pin.version_id is not None:
        target["VersionId"] = pin.version_id
    if pin.etag is not None and not pin.has_version:
        target["IfMatch"] = f'"{pin.etag}"'
    return target


def _check_identity(answer: dict[str, Any], pin: Pin) -> None:
    version = answer.get("VersionId")
    if pin.has_version and version != pin.version_id:
        said = f"answered with version {version}" if version else "does not say which it sent"
        raise VerificationFailed(
            f"version {pin.version_id} was asked for, and the store {said}",
            where=str(pin),
            fix="It (or a proxy before it) ignores versionId: pin by sha256, or fix the endpoint",
        )
    etag = _bare(answer.get("ETag"))
    if pin.etag and etag and etag != pin.etag:
        raise VerificationFailed(
            f"etag {pin.etag} was asked for, and the store answered with {etag}", where=str(pin)
        )


def _check_range(
    answer: dict[str, Any], size: int, start: int, stop: int, question: Question
) -> None:
    status = answer["ResponseMetadata"]["HTTPStatusCode"]
    length = answer.get("ContentLength")
    if status == 206:
        expected = f"bytes {start}-{stop - 1}/{size}"
        if answer.get("ContentRange") != expected:
            raise VerificationFailed(
                f"{expected} was asked for, and the store sent {answer.get('ContentRange')}",
                where=question.where,
            )
    elif length is not None and length != size:
        raise VerificationFailed(
            f"the object has {length} bytes, and the pin says {size}", where=question.where
        )
    elif start != 0:
        raise RangeIgnored(question.where)


async def _chunks(body: Any, wanted: int, question: Question) -> AsyncIterator[bytes]:
    while wanted > 0:
        with _translated(question):
            chunk: bytes = await body.read(min(_CHUNK_BYTES, wanted))
        if not chunk:
            return
        wanted -= len(chunk)
        yield chunk


def _page_versions(page: dict[str, Any]) -> list[Version]:
    """Return a page's versions and markers in the server's order: by key, newest first."""
    found = [_version(row, is_marker=False) for row in page.get("Versions", ())]
    found += [_version(row, is_marker=True) for row in page.get("DeleteMarkers", ())]
    newest = datetime.max.replace(tzinfo=UTC)
    found.sort(key=lambda version: version.modified or newest, reverse=True)
    found.sort(key=lambda version: (version.entry.key, not version.is_latest))
    return found


def _version(row: dict[str, Any], *, is_marker: bool) -> Version:
    entry = Entry(
        key=row["Key"],
        size=row.get("Size", 0),
        version_id=row.get("VersionId", "null"),
        etag=_bare(row.get("ETag")),
    )
    return Version(entry, bool(row.get("IsLatest")), is_marker, row.get("LastModified"))


def _next_markers(page: dict[str, Any]) -> dict[str, str]:
    markers = {
        "KeyMarker": page.get("NextKeyMarker"),
        "VersionIdMarker": page.get("NextVersionIdMarker"),
    }
    return {name: value for name, value in markers.items() if value}


def _bare(etag: str | None) -> str | None:
    return etag.strip('"') or None if etag else None


@contextlib.contextmanager
def _translated(question: Question) -> Any:
    """Turn whatever the library raises inside the block into one of our errors."""
    try:
        yield
    except Exception as error:
        raise _translate(error, question) from error


def _translate(error: Exception, question: Question) -> ArtifactError:
    """Return our error for the library's; a bug is raised again as it is."""
    from botocore import exceptions as theirs

    broken = (theirs.HTTPClientError, theirs.ConnectionError, theirs.ResponseStreamingError)
    anonymous = (theirs.NoCredentialsError, theirs.PartialCredentialsError)
    match error:
        case ArtifactError():
            return error
        case theirs.ClientError():
            return explain(_answer(error.response), question, datetime.now(UTC))
        case theirs.SSLError():
            return NotAllowed(
                f"the endpoint's certificate is not trusted: {_reason(error)}",
                where=question.where,
                fix="Name its CA (AWS_CA_BUNDLE, or certificate in the storage-config secret)",
            )
        case _ if isinstance(error, anonymous):
            return NotAllowed(
                "no credentials were found",
                where=question.where,
                fix="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a secret",
            )
        case _ if isinstance(error, (*broken, *_BROKEN)):
            return TryAgain(
                f"the connection to the store failed: {_reason(error)}",
                where=question.where,
                fix="Check endpoint and network, then run the same command again: it resumes",
            )
        case RecursionError():  # how the library ends when a redirect leads to itself
            return UsageError(
                "the endpoint redirects in a circle",
                where=question.where,
                fix="Set region and endpoint_url of the bucket",
            )
        case theirs.BotoCoreError() | ValueError():
            return UsageError(f"the S3 client refuses: {error}", where=question.where)
        case _:
            raise error


def _reason(error: BaseException) -> str:
    """Return the innermost reason in few words; the outer ones repeat the URL."""
    inner = getattr(error, "kwargs", {}).get("error", error)
    return f"{type(inner).__name__}: {inner}".rstrip(": ")


def _answer(response: dict[str, Any]) -> Answer:
    meta = response.get("ResponseMetadata", {})
    error = response.get("Error", {})
    status = int(meta.get("HTTPStatusCode", 0))
    code = str(error.get("Code", ""))
    return Answer(
        status,
        "" if code == str(status) else code,
        str(error.get("Message", "")),
        meta.get("HTTPHeaders", {}),
    )
