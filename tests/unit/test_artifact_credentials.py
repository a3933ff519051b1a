"""Connections: both spellings of the secret, the environment, and secrets kept secret."""

import json
from pathlib import Path

import pytest

from artifacts import (
    Connection,
    UsageError,
    connection_from_environment,
    connection_from_folder,
    parse_connection,
)

KEYS = {"access_key_id": "AK", "secret_access_key": "SK"}


def test_modelmesh_and_kserve_spellings() -> None:
    """Every field of either one is read; `bucket` wins over `default_bucket`."""
    modelmesh = parse_connection(
        {
            "type": "s3",
            **KEYS,
            "endpoint_url": "https://s3",
            "region": "r",
            "default_bucket": "d",
            "certificate": "PEM",
        },
        where="x",
    )
    kserve = parse_connection(
        {
            "type": "s3",
            "bucket": "b",
            "default_bucket": "d",
            "ca_bundle": "/ca",
            "verify_ssl": "0",
            "anonymous": "True",
        },
        where="x",
    )

    assert modelmesh == Connection("https://s3", "r", "AK", "SK", bucket="d", certificate="PEM")
    assert kserve == Connection(bucket="b", ca_bundle="/ca", verify_ssl=False, anonymous=True)


def test_the_secret_lies_over_the_environment() -> None:
    """What the secret does not say stays as the environment has it."""
    base = connection_from_environment(
        {
            "AWS_ENDPOINT_URL": "http://env",
            "AWS_DEFAULT_REGION": "env",
            "S3_USER_VIRTUAL_BUCKET": "true",
        }
    )

    found = parse_connection({**KEYS, "region": "secret"}, where="x", base=base)

    assert (found.endpoint_url, found.region) == ("http://env", "secret")
    assert found.addressing_style == "virtual"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Connection()),
        (
            {"AWS_ENDPOINT_URL": "http://a", "AWS_ENDPOINT_URL_S3": "http://b"},
            Connection("http://b"),
        ),
        ({"AWS_REGION": "a", "AWS_DEFAULT_REGION": "b"}, Connection(region="a")),
        ({"AWS_CA_BUNDLE": "/ca"}, Connection(ca_bundle="/ca")),
        (
            {"CA_BUNDLE_CONFIGMAP_NAME": "c", "CA_BUNDLE_VOLUME_MOUNT_POINT": "/etc/ssl/custom"},
            Connection(ca_bundle="/etc/ssl/custom/cabundle.crt"),
        ),
        ({"S3_VERIFY_SSL": "false"}, Connection(verify_ssl=False)),
        ({"awsAnonymousCredential": "true"}, Connection(anonymous=True)),
    ],
)
def test_the_environment(environment: dict[str, str], expected: Connection) -> None:
    """The variables of AWS and of KServe are read."""
    assert expected == connection_from_environment(environment)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"type": "gcs"}, "only s3"),
        ({"access_key_id": "AK"}, "go together"),
        ({"region": 7}, "region is not a text"),
        ({"endpoint_url": "minio:9000"}, "must begin with http"),
        ({"addressing_style": "virtul"}, "Did you mean 'virtual'?"),
    ],
)
def test_what_is_refused(fields: dict[str, object], words: str) -> None:
    """A field that cannot work is named, before anything is connected to."""
    with pytest.raises(UsageError) as refused:
        parse_connection(fields, where="secret")

    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("names", "key", "chosen"),
    [
        (("default", "default_s3", "x"), None, "default_s3"),
        (("default", "x"), None, "default"),
        (("only",), None, "only"),
        (("default", "x"), "x", "x"),
    ],
)
def test_which_connection_is_used(
    tmp_path: Path, names: tuple[str, ...], key: str | None, chosen: str
) -> None:
    """The one asked for, else default_s3, else default, else the only one."""
    (tmp_path / "..data").mkdir()  # what Kubernetes adds to a mounted secret
    for name in names:
        (tmp_path / name).write_text(json.dumps({"type": "s3", "region": name}))

    assert chosen == connection_from_folder(tmp_path, key, Connection()).region


@pytest.mark.parametrize(
    ("content", "key", "words"),
    [
        ('{"secret_access_key": "TOPSECRET', None, "not a JSON object"),
        ('["TOPSECRET"]', None, "not a JSON object"),
        ("{}", "lokal", "Did you mean 'local'?"),
    ],
)
def test_a_broken_secret_is_refused_without_being_shown(
    tmp_path: Path, content: str, key: str | None, words: str
) -> None:
    """The message says which file, and nothing of what is in it."""
    (tmp_path / "local").write_text(content)

    with pytest.raises(UsageError) as refused:
        connection_from_folder(tmp_path, key, Connection())

    assert words in str(refused.value)
    assert "TOPSECRET" not in f"{refused.value} {refused.value.__cause__}"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """A secret that was not mounted is a usage error with the path."""
    with pytest.raises(UsageError, match="cannot be read"):
        connection_from_folder(tmp_path / "none", None, Connection())


def test_a_connection_never_shows_its_secrets() -> None:
    """Not even in a repr, which is what ends up in logs and tracebacks."""
    secret = Connection(None, None, "AKTOP", "SKTOP", "TTOP", certificate="CTOP")

    assert "TOP" not in repr(secret)
