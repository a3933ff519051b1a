"""A bucket as tests write to it: plain calls, with what a test needs back as the return value."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import botocore.session
from botocore.config import Config

from artifacts import Connection


@dataclass(frozen=True)
class Endpoint:
    """An S3 server to test against."""

    url: str
    access_key: str
    secret_key: str
    own: bool
    """Whether it ends with the tests, so that nothing has to be cleaned up in it."""

    @property
    def keys(self) -> tuple[str, str]:
        return self.access_key, self.secret_key

    @property
    def connection(self) -> Connection:
        return Connection(self.url, "us-east-1", self.access_key, self.secret_key)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
        }

    @contextmanager
    def client(self) -> Iterator[Any]:
        """Open botocore's own client: another reader of the protocol than ours."""
        client = botocore.session.Session().create_client(
            "s3",
            region_name="us-east-1",
            endpoint_url=self.url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(
                request_checksum_calculation="when_required",
                s3={"addressing_style": "path"},
            ),
        )
        try:
            yield client
        finally:
            client.close()


@dataclass(frozen=True)
class Bucket:
    """One bucket, made for one test."""

    client: Any
    name: str
    endpoint: Endpoint

    def uri(self, key: str = "") -> str:
        return f"s3://{self.name}/{key}"

    def put(self, key: str, data: bytes) -> str | None:
        """Upload; return the version id."""
        answer = self.client.put_object(Bucket=self.name, Key=key, Body=data)
        version: str | None = answer.get("VersionId")
        return version

    def put_all(self, files: dict[str, bytes]) -> None:
        """Upload many at once."""
        with ThreadPoolExecutor(10) as pool:
            list(pool.map(self.put, files, files.values()))

    def put_parts(self, key: str, parts: list[bytes]) -> str | None:
        """Upload in parts; return the version id."""
        target = {"Bucket": self.name, "Key": key}
        upload = self.client.create_multipart_upload(**target)["UploadId"]
        done = []
        for number, part in enumerate(parts, 1):
            answer = self.client.upload_part(
                **target, UploadId=upload, PartNumber=number, Body=part
            )
            done.append({"PartNumber": number, "ETag": answer["ETag"]})
        answer = self.client.complete_multipart_upload(
            **target, UploadId=upload, MultipartUpload={"Parts": done}
        )
        version: str | None = answer.get("VersionId")
        return version

    def etag(self, key: str) -> str:
        etag: str = self.client.head_object(Bucket=self.name, Key=key)["ETag"]
        return etag.strip('"')

    def delete(self, key: str, version: str | None = None) -> str | None:
        """Delete an object (a marker hides it) or one version for good; return the marker's id."""
        which = {"VersionId": version} if version else {}
        answer = self.client.delete_object(Bucket=self.name, Key=key, **which)
        marker: str | None = answer.get("VersionId")
        return marker

    def set_versioning(self, status: str) -> None:
        self.client.put_bucket_versioning(
            Bucket=self.name, VersioningConfiguration={"Status": status}
        )

    def empty(self) -> None:
        """Delete every version of everything."""
        pages = self.client.get_paginator("list_object_versions").paginate(Bucket=self.name)
        for page in pages:
            for row in [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]:
                self.delete(row["Key"], row["VersionId"])


@contextmanager
def new_bucket(client: Any, endpoint: Endpoint, *, versioned: bool) -> Iterator[Bucket]:
    """Make a bucket; remove it where the server outlives the tests."""
    bucket = Bucket(client, f"pins-{uuid.uuid4().hex[:12]}", endpoint)
    client.create_bucket(Bucket=bucket.name)
    if versioned:
        bucket.set_versioning("Enabled")
    try:
        yield bucket
    finally:
        if not endpoint.own:
            bucket.empty()
            client.delete_bucket(Bucket=bucket.name)
