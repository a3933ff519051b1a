"""As KServe's storage initializer: its arguments, its environment, and the digest in the status."""

import json
import stat
from pathlib import Path

import pytest

from tests.artifacts.bucket import Bucket, Endpoint
from tests.artifacts.conftest import Cli, tree


@pytest.fixture
def status(tmp_path: Path) -> Path:
    """Give the file that Kubernetes reads the termination message from."""
    file = tmp_path / "termination-log"
    file.write_text("from an earlier run, and longer than what comes now" * 10)
    return file


def storage_config(s3: Endpoint, bucket: Bucket) -> str:
    return json.dumps(
        {
            "type": "s3",
            "access_key_id": s3.access_key,
            "secret_access_key": s3.secret_key,
            "endpoint_url": s3.url,
            "region": "us-east-1",
            "bucket": bucket.name,
        }
    )


def test_a_pinned_uri(bucket: Bucket, cli: Cli, tmp_path: Path, status: Path) -> None:
    """SRC_URI with a versionId: that version, and its digest for the picker to read."""
    version = bucket.put("m/model.bin", b"v1")
    bucket.put("m/model.bin", b"v2")
    source = f"{bucket.uri('m/model.bin')}?versionId={version}"

    result = cli("init", source, tmp_path / "models", "--termination-log", status)

    assert result.exit_code == 0
    assert tree(tmp_path / "models") == {"model.bin": b"v1"}
    assert (
        status.read_text()
        == json.loads((tmp_path / "models/.artifact.lock.json").read_text())["digest"]
    )


def test_a_storage_spec_with_its_pin_in_the_parameters(
    bucket: Bucket, s3: Endpoint, cli: Cli, tmp_path: Path, status: Path
) -> None:
    """`storage: {key, path, parameters: {versionId}}` arrives as placeholder and environment."""
    version = bucket.put("m/model.bin", b"v1")
    bucket.put("m/model.bin", b"v2")
    environment = dict.fromkeys(s3.environment, "") | {
        "STORAGE_CONFIG": storage_config(s3, bucket),
        "STORAGE_OVERRIDE_CONFIG": json.dumps({"versionId": version}),
    }

    result = cli(
        "init",
        "<scheme-placeholder>://m/model.bin",
        tmp_path / "models",
        "--termination-log",
        status,
        **environment,
    )

    assert result.exit_code == 0, result.stderr
    assert tree(tmp_path / "models") == {"model.bin": b"v1"}


def test_several_pairs(bucket: Bucket, cli: Cli, tmp_path: Path, status: Path) -> None:
    """A model and an adapter inside its folder, given in any order, and again after a restart."""
    base = bucket.put("base.bin", b"base")
    lora = bucket.put("lora.bin", b"lora")
    models = tmp_path / "models"
    pairs = [
        f"{bucket.uri('lora.bin')}?versionId={lora}",
        models / "lora",
        f"{bucket.uri('base.bin')}?versionId={base}",
        models,
    ]
    for _restart in range(2):
        result = cli("init", *pairs, "--termination-log", status)

        assert result.exit_code == 0, result.stderr
        assert (models / "base.bin").read_bytes() == b"base"
        assert (models / "lora/lora.bin").read_bytes() == b"lora"
    told = json.loads(status.read_text())
    assert [str(models), str(models / "lora")] == list(told["artifacts"])
    assert told["digest"] == told["artifacts"][str(models)]


def test_a_floating_source_is_refused_and_the_status_says_so(
    bucket: Bucket, cli: Cli, tmp_path: Path, status: Path
) -> None:
    """An unpinned model does not start; the pod's status says why, and how to change that."""
    bucket.put("m/a", b"x")

    refused = cli("init", bucket.uri("m/"), tmp_path / "o", "--termination-log", status)
    told = status.read_text()
    allowed = cli(
        "init",
        bucket.uri("m/"),
        tmp_path / "o",
        "--termination-log",
        status,
        EPP_ARTIFACTS_ALLOW_FLOATING="true",
    )

    assert (refused.exit_code, allowed.exit_code) == (2, 0)
    assert "floats" in told
    assert not told.startswith("sha256:")
    assert status.read_text().startswith("sha256:")


def test_other_schemes_go_to_the_initializer_that_it_stands_in_for(
    bucket: Bucket, cli: Cli, tmp_path: Path, status: Path
) -> None:
    """hf:// is handed to the delegate, with its own arguments; without one it is refused."""
    version = bucket.put("m.bin", b"x")
    delegate = tmp_path / "initializer"
    delegate.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called\n')
    delegate.chmod(delegate.stat().st_mode | stat.S_IXUSR)
    pairs = [
        "hf://org/model",
        tmp_path / "hf",
        f"{bucket.uri('m.bin')}?versionId={version}",
        tmp_path / "o",
    ]

    refused = cli("init", *pairs, "--termination-log", status)
    done = cli("init", *pairs, "--termination-log", status, "--delegate", delegate)

    assert (refused.exit_code, done.exit_code) == (2, 0)
    assert f"hf://org/model {tmp_path}/hf\n" == (tmp_path / "called").read_text()


def test_outside_of_kubernetes_there_is_no_status_to_write(
    bucket: Bucket, cli: Cli, tmp_path: Path
) -> None:
    """Without a termination log the artifact is fetched all the same, and none is made."""
    version = bucket.put("m.bin", b"x")
    missing = tmp_path / "none"

    result = cli(
        "init",
        f"{bucket.uri('m.bin')}?versionId={version}",
        tmp_path / "o",
        "--termination-log",
        missing,
    )

    assert result.exit_code == 0
    assert not missing.exists()
