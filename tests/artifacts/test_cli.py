"""The program: exit codes, what it says, and that it says it to people, pipes and machines."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from artifacts.paths import RECORD_NAME
from tests.artifacts.bucket import Bucket, Endpoint
from tests.artifacts.conftest import Cli, tree


def test_lock_overwrite_pull_verify(bucket: Bucket, cli: Cli, tmp_path: Path) -> None:
    """The whole way: lock v1, overwrite with v2, and v1 comes back and verifies."""
    bucket.put("m/a", b"v1")
    lock = tmp_path / "m.lock.json"

    assert cli("lock", bucket.uri("m/"), "-o", lock).exit_code == 0
    bucket.put("m/a", b"v2")
    pulled = cli("pull", lock, tmp_path / "o")
    verified = cli("verify", tmp_path / "o", lock)

    assert (pulled.exit_code, verified.exit_code) == (0, 0)
    assert tree(tmp_path / "o") == {"a": b"v1"}
    digest = json.loads(lock.read_text())["digest"]
    assert pulled.stdout.startswith(f"{digest}  ")
    assert verified.stdout.startswith(f"{digest}  ")


def test_without_an_output_the_lock_is_the_output(bucket: Bucket, cli: Cli) -> None:
    """`epp-artifacts lock … > file` writes a lock and nothing else."""
    bucket.put("m/a", b"v1")

    result = cli("lock", bucket.uri("m/"))

    assert json.loads(result.stdout)["source"] == bucket.uri("m/")


def test_json_for_machines(bucket: Bucket, cli: Cli, tmp_path: Path) -> None:
    """With --log json every line of both streams is one JSON object."""
    version = bucket.put("m.bin", b"v1")
    pin = f"{bucket.uri('m.bin')}?versionId={version}"

    pulled = cli("pull", pin, tmp_path / "o", "--log", "json")
    gone = cli("pull", bucket.uri("none?etag=x"), tmp_path / "p", "--log", "json")

    (result,) = map(json.loads, pulled.stdout.splitlines())
    assert (result["event"], result["bytes"], result["already_there"]) == ("pulled", 2, False)
    assert result["digest"].startswith("sha256:")
    assert {"started"} == {json.loads(line)["event"] for line in pulled.stderr.splitlines()}
    (error,) = map(json.loads, gone.stderr.splitlines())
    assert (error["kind"], error["exit_code"], gone.exit_code) == ("pin gone", 4, 4)


def test_every_error_says_what_where_and_the_fix(bucket: Bucket, cli: Cli, tmp_path: Path) -> None:
    """One line for what and where, one for the fix; nothing of a traceback."""
    result = cli("pull", bucket.uri("m.bin?versionID=1"), tmp_path / "o")

    assert result.exit_code == 2
    assert (
        f"error: {bucket.uri('m.bin')}: usage: 'versionID' is not a key of a pin" in result.stderr
    )
    assert "fix: Did you mean 'versionId'?" in result.stderr
    assert result.stdout == ""


def test_verify_finds_every_kind_of_difference(bucket: Bucket, cli: Cli, tmp_path: Path) -> None:
    """Changed, missing and added files each fail the verification, and are all named."""
    for name in ("changed", "missing", "same", "sub/grown"):
        bucket.put(f"m/{name}", b"x")
    lock, folder = tmp_path / "m.lock.json", tmp_path / "o"
    cli("lock", bucket.uri("m/"), "-o", lock)
    cli("pull", lock, folder)
    (folder / "changed").write_bytes(b"y")
    (folder / "missing").unlink()
    (folder / "sub/grown").write_bytes(b"xx")
    (folder / "sub/added").write_bytes(b"")

    result = cli("verify", folder)

    assert result.exit_code == 3
    for path in (
        "changed: has sha256",
        "missing: missing",
        "sub/added: not part",
        "sub/grown: has 2",
    ):
        assert path in result.stderr
    assert "same" not in result.stderr


def test_verify_against_a_digest(bucket: Bucket, cli: Cli, tmp_path: Path) -> None:
    """`verify DIR sha256:…` says whether it is that model; another digest is exit 3."""
    bucket.put("m/a", b"x")
    lock, folder = tmp_path / "m.lock.json", tmp_path / "o"
    cli("lock", bucket.uri("m/"), "-o", lock)
    cli("pull", lock, folder)
    digest = json.loads(lock.read_text())["digest"]

    assert cli("verify", folder, digest).exit_code == 0
    assert cli("verify", folder, "sha256:" + "0" * 64).exit_code == 3
    (folder / "a").write_bytes(b"y")
    assert cli("verify", folder, digest).exit_code == 3
    assert cli("verify", tmp_path / "nothing").exit_code == 2


def test_show_says_which_version_is_pinned(bucket: Bucket, cli: Cli) -> None:
    """Versions newest first, the latest, the deleted and the pinned one marked; others left out."""
    first = bucket.put("m.bin", b"1")
    bucket.put("m.bin", b"22")
    bucket.put("m.bin.old", b"333")

    shown = cli("show", f"{bucket.uri('m.bin')}?versionId={first}")
    bucket.delete("m.bin")
    hidden = cli("show", bucket.uri("m.bin"))

    rows = shown.stdout.splitlines()
    assert shown.exit_code == 0
    assert rows[1].endswith("latest")
    assert rows[2].split()[0] == first
    assert rows[2].endswith("pinned")
    assert "333" not in shown.stdout
    assert f"versionId={first}" in rows[-1]
    assert hidden.exit_code == 4
    assert "deleted" in hidden.stdout.splitlines()[1]


def test_show_of_a_lock_says_what_has_changed_since(
    bucket: Bucket, cli: Cli, tmp_path: Path
) -> None:
    """Each object of a lock: still the latest, overwritten, or deleted."""
    for name in ("deleted", "latest", "overwritten", "again"):
        bucket.put(f"m/{name}", name.encode())
    lock = tmp_path / "m.lock.json"
    cli("lock", bucket.uri("m/"), "-o", lock)
    bucket.put("m/overwritten", b"x")
    bucket.put("m/again", b"again")
    bucket.delete("m/deleted")

    rows = cli("show", lock).stdout.splitlines()

    states = {row.split()[0]: row for row in rows[1:5]}
    assert states["latest"].endswith("latest")
    assert states["overwritten"].endswith("overwritten")
    assert states["deleted"].endswith("deleted")
    assert states["again"].endswith("same bytes, newer version")


def test_diff_of_locks_directories_and_folders(bucket: Bucket, cli: Cli, tmp_path: Path) -> None:
    """Any two references compare; the same bytes are the same wherever they are."""
    for name in ("a", "b"):
        bucket.put(f"m/{name}", b"1")
    lock = tmp_path / "m.lock.json"
    cli("lock", bucket.uri("m/"), "-o", lock)
    cli("pull", lock, tmp_path / "o")
    same = cli("diff", lock, tmp_path / "o", "--exit-code")
    bucket.put("m/b", b"2")
    bucket.put("m/c", b"3")
    changed = cli("diff", lock, bucket.uri("m/"), "--exit-code")
    local = cli("diff", bucket.uri("m/"), tmp_path / "o", "--log", "json")

    assert (same.exit_code, changed.exit_code, local.exit_code) == (0, 3, 0)
    assert "0 differ, 2 are the same" in same.stdout
    assert [row.split()[0] for row in changed.stdout.splitlines()[1:3]] == ["b", "c"]
    assert json.loads(local.stdout.splitlines()[-1]) == {
        "differ": 2,
        "same": 1,
        "event": "compared",
    }


def test_a_lock_on_s3_is_a_pin_like_any_other(bucket: Bucket, cli: Cli, tmp_path: Path) -> None:
    """A lock file can be kept beside the model, and be pinned itself."""
    bucket.put("m/a", b"v1")
    lock = tmp_path / "m.lock.json"
    cli("lock", bucket.uri("m/"), "-o", lock)
    version = bucket.put("m.lock.json", lock.read_bytes())
    bucket.put("m.lock.json", b"overwritten")
    bucket.put("m/a", b"v2")

    pulled = cli("pull", f"{bucket.uri('m.lock.json')}?versionId={version}", tmp_path / "o")
    floating = cli("pull", bucket.uri("m.lock.json"), tmp_path / "p")
    wrong = cli("pull", f"{bucket.uri('m.lock.json')}?sha256={'0' * 64}", tmp_path / "p")

    assert (pulled.exit_code, floating.exit_code, wrong.exit_code) == (0, 2, 3)
    assert tree(tmp_path / "o") == {"a": b"v1"}


def test_credentials_from_a_mounted_secret(
    bucket: Bucket, s3: Endpoint, cli: Cli, tmp_path: Path
) -> None:
    """With --storage-config nothing else is needed; --storage-key chooses the connection."""
    bucket.put("m/a", b"x")
    secret = tmp_path / "secret"
    secret.mkdir()
    fields = {
        "type": "s3",
        "endpoint_url": s3.url,
        "access_key_id": s3.access_key,
        "secret_access_key": s3.secret_key,
        "region": "us-east-1",
    }
    (secret / "minio").write_text(json.dumps(fields))
    (secret / "broken").write_text(json.dumps({**fields, "endpoint_url": "http://127.0.0.1:1"}))
    nowhere = dict.fromkeys(s3.environment, "")
    options = ["--storage-config", secret, "--storage-key", "minio"]

    result = cli("lock", bucket.uri("m/"), *options, **nowhere)
    unused = cli("lock", bucket.uri("m/"), "--storage-key", "minio")

    assert (result.exit_code, unused.exit_code) == (0, 2)


@pytest.mark.parametrize("command", ["lock", "pull", "verify", "diff", "show", "init"])
def test_help_names_the_exit_codes(cli: Cli, command: str) -> None:
    """Each command explains itself, and what its exit codes mean."""
    result = cli(command, "--help", COLUMNS="200", TERM="dumb")

    assert result.exit_code == 0
    assert "3 verification failed, 4 pin gone, 5 not allowed, 6 try again later" in result.stdout


def test_a_terminal_sees_a_progress_bar(bucket: Bucket, s3: Endpoint, tmp_path: Path) -> None:
    """On a terminal there is a bar, and no line is left of it; the result is the last line."""
    bucket.put("m/a", b"x" * 100_000)
    primary, secondary = os.openpty()
    environment = {**os.environ, **s3.environment, "TERM": "xterm", "COLUMNS": "100"}  # noqa: TID251  passed on
    command = [sys.executable, "-c", "from artifacts.cli import main; main()"]
    command += ["pull", bucket.uri("m/"), str(tmp_path / "o"), "--allow-floating"]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=secondary, text=True
    )
    os.close(secondary)
    seen = os.read(primary, 1 << 16).decode()
    os.close(primary)

    assert done.returncode == 0
    assert "pulling" in seen
    assert "KiB" in seen
    assert done.stdout.startswith("sha256:")


def test_without_the_s3_library_it_says_what_to_install(s3: Endpoint, tmp_path: Path) -> None:
    """The package imports, and local folders work, where aiobotocore is missing."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m/a").write_bytes(b"x")
    hide = (
        "import sys; sys.modules['aiobotocore'] = None; sys.modules['botocore'] = None;"
        "import artifacts; from artifacts.cli import main; main()"
    )

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", hide, *arguments], capture_output=True, text=True
        )

    local = run("pull", str(tmp_path / "m"), str(tmp_path / "o"), "--allow-floating")
    remote = run("show", "s3://bucket/key")

    assert (local.returncode, remote.returncode) == (0, 2)
    assert "pip install 'inference-epp[s3]'" in remote.stderr
    assert (tmp_path / "o" / RECORD_NAME).exists()
