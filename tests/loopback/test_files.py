"""The standalone source: a real folder, real notifications."""

import asyncio
import contextlib
import itertools
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from datastore.events import Event
from datastore.files import FileSource, ManifestsError
from datastore.store import Store
from tests.builders import a_model, a_pod, a_pool, a_slice, named

POOL = yaml.safe_dump(a_pool().manifest)
BROKEN = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: [\n"


def model_text(name: str, target: str = "target") -> str:
    """Return a model's manifest as YAML."""
    return yaml.safe_dump(a_model(name).to(target).manifest)


async def eventually(holds: Callable[[], bool], within_s: float = 10.0) -> None:
    """Wait until something holds; the limit is for a machine that is busy with other things."""
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.01)


async def notified(source: FileSource, folder: Path) -> None:
    """Wait until the kernel's notifications come in: until then, touch a file of no meaning."""
    count = source.load_count
    for i in itertools.count():
        (folder / "probe.yaml").write_text(f"# {i}\n")
        with contextlib.suppress(TimeoutError):
            await eventually(lambda: source.load_count > count, 0.5)
            return


@asynccontextmanager
async def following(path: Path, store: Store, **options: Any) -> AsyncIterator[FileSource]:
    """Load the path and follow it, as the program does."""
    source = FileSource(path, store.apply, **options)
    await source.load_once()
    task = asyncio.ensure_future(source.run())
    try:
        yield source
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_loads_yaml_json_lists_and_several_documents(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"{POOL}---\n{model_text('one')}---\n# nothing\n---\n")
    (tmp_path / "b.json").write_text(json.dumps(a_model("two").to("zwei \U0001f600").manifest))
    (tmp_path / "c.yml").write_text(
        yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [a_pod("p").manifest]})
    )
    (tmp_path / "notes.txt").write_text(BROKEN)
    (tmp_path / ".hidden.yaml").write_text(BROKEN)
    store = Store()

    await FileSource(tmp_path, store.apply).load_once()

    assert [m.name.name for m in store.models_in("default")] == ["one", "two"]
    assert store.models_in("default")[1].targets[0].name == "zwei \U0001f600"
    view = store.pool(named("vllm"))
    assert view is not None
    assert [e.authority for e in view.endpoints] == ["10.0.0.1:8000"]


async def test_a_folder_is_one_batch(tmp_path: Path) -> None:
    """Readers never see half of a folder: everything comes in one call."""
    (tmp_path / "a.yaml").write_text(POOL)
    (tmp_path / "b.yaml").write_text(model_text("one"))
    batches: list[Sequence[Event]] = []

    await FileSource(tmp_path, batches.append).load_once()

    assert [len(batch) for batch in batches] == [2]


@pytest.mark.parametrize("as_file", [True, False], ids=["file", "folder"])
async def test_follows_changes(tmp_path: Path, as_file: bool) -> None:
    """A change is live without waiting for the rescan, whether written in place or renamed."""
    file = tmp_path / "models.yaml"
    file.write_text(model_text("one"))
    store = Store()
    async with following(file if as_file else tmp_path, store, rescan_s=60):
        file.write_text(model_text("two"))
        await eventually(lambda: store.model(named("two")) is not None)
        assert store.model(named("one")) is None

        new = tmp_path / "models.yaml.new"
        new.write_text(model_text("three"))
        new.rename(file)
        await eventually(lambda: store.model(named("three")) is not None)
        assert store.model_count == 1


async def test_follows_a_mounted_configmap(tmp_path: Path) -> None:
    """Kubernetes swaps one symlink, `..data`, under which all files change at once."""
    mount = tmp_path / "mount"
    for version in ("1", "2"):
        (mount / f"..v{version}").mkdir(parents=True)
        (mount / f"..v{version}" / "models.yaml").write_text(model_text(f"m{version}"))
    (mount / "..data").symlink_to("..v1")
    (mount / "models.yaml").symlink_to("..data/models.yaml")
    store = Store()
    async with following(mount, store, rescan_s=60, first_rescan_s=60) as source:
        assert store.model(named("m1")) is not None
        await notified(source, mount)

        (mount / "..tmp").symlink_to("..v2")
        os.replace(mount / "..tmp", mount / "..data")
        await eventually(lambda: store.model(named("m2")) is not None)

        assert store.model(named("m1")) is None


async def test_a_file_that_is_being_written_is_not_served_in_parts(tmp_path: Path) -> None:
    """Written in place, a file is empty, then a part of itself: neither was ever meant."""
    file = tmp_path / "models.yaml"
    text = "---\n".join(model_text(f"m{number}") for number in range(20))
    file.write_text(text)
    store, seen = Store(), set()

    def apply(events: Sequence[Event]) -> None:
        store.apply(events)
        seen.add(store.model_count)

    source = FileSource(tmp_path, apply, rescan_s=0.01, first_rescan_s=0.01, debounce_ms=1)
    await source.load_once()
    task = asyncio.ensure_future(source.run())
    with file.open("w") as stream:
        await asyncio.sleep(0.03)
        for part in [*text.split("---\n"), model_text("last")]:
            stream.write(f"---\n{part}")
            stream.flush()
            await asyncio.sleep(0.02)
    await eventually(lambda: store.model(named("last")) is not None)
    task.cancel()
    await asyncio.wait([task])

    assert seen == {20, 21}


async def test_a_rescan_finds_what_no_notification_told(tmp_path: Path) -> None:
    """A symlink to a file elsewhere: nothing happens in the watched folder."""
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere.yaml"
    folder.mkdir()
    elsewhere.write_text(model_text("one"))
    (folder / "link.yaml").symlink_to(elsewhere)
    store = Store()
    async with following(folder, store, rescan_s=0.1):
        elsewhere.write_text(model_text("two"))
        await eventually(lambda: store.model(named("two")) is not None)


async def test_a_broken_file_keeps_everything_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whole or not at all: a good change in another file waits until the broken one is mended."""
    file, other = tmp_path / "a.yaml", tmp_path / "b.yaml"
    file.write_text(model_text("one"))
    other.write_text(model_text("other"))
    store = Store()
    async with following(tmp_path, store, rescan_s=0.05) as source:
        revision = store.revision
        other.write_text(BROKEN)
        await eventually(lambda: source.last_error is not None)
        file.write_text(model_text("two"))
        failures = source.failure_count
        await eventually(lambda: source.failure_count > failures)

        assert store.revision == revision
        assert store.model(named("one")) is not None
        errors = [r for r in caplog.records if r.levelno == logging.ERROR]
        assert [r.getMessage() for r in errors] == [f"manifests: {source.last_error}"]
        assert f"{other}:" in errors[0].getMessage()

        other.write_text(model_text("other"))
        await eventually(lambda: store.model(named("two")) is not None)
        assert source.last_error is None


@pytest.mark.parametrize("moved", [True, False], ids=["moved", "deleted"])
async def test_a_folder_that_goes_keeps_the_last_state_and_may_come_back(
    tmp_path: Path, moved: bool
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.yaml").write_text(model_text("one"))
    store = Store()
    never = {"first_rescan_s": 3600.0}  # so that only notifications can tell
    async with following(folder, store, rescan_s=0.1, **never) as source:
        await notified(source, folder)
        (folder / "probe.yaml").unlink()
        if moved:
            folder.rename(tmp_path / "elsewhere")
        else:
            (folder / "a.yaml").rename(tmp_path / "a.yaml")
            folder.rmdir()
        await eventually(lambda: source.last_error is not None)
        count = store.model_count  # what the folder held until it vanished: one or, briefly, none
        failures = source.failure_count
        await asyncio.sleep(0.3)
        assert store.model_count == count
        assert source.failure_count - failures < 10  # a look now and then, not a busy loop

        folder.mkdir()
        (folder / "a.yaml").write_text(model_text("two"))
        await eventually(lambda: store.model(named("two")) is not None)
        await notified(source, folder)
        (folder / "a.yaml").write_text(model_text("three"))
        await eventually(lambda: store.model(named("three")) is not None)


async def test_a_missing_path_is_a_clear_error(tmp_path: Path) -> None:
    source = FileSource(tmp_path / "missing", Store().apply)

    with pytest.raises(ManifestsError, match=r"missing.*No such file.*name a file or a folder"):
        await source.load_once()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", r"a\.yaml:2: has the key 'a' twice, first on line 1"),
        ("- x\n", r"a\.yaml:1: expected a Kubernetes object"),
        ("\xff", r"apiVersion|expected a Kubernetes object"),
        (
            "apiVersion: inference.networking.x-k8s.io/v1alpha2\nkind: InferenceModel\n"
            "metadata:\n  name: m\nspec:\n  poolRef:\n    name: p\n  targetModels:\n"
            "  - name: a\n    weight: 0\n",
            r"a\.yaml:10: InferenceModel default/m: spec\.targetModels\[0\]\.weight: is out of",
        ),
        (
            "apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: InferenceModel\n",
            r"a\.yaml:1: InferenceModel: apiVersion: .*v1alpha1 is not read here \(use .*v1alpha2",
        ),
    ],
)
async def test_what_is_wrong_is_named_with_file_line_and_path(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "a.yaml").write_text(text)

    with pytest.raises(ManifestsError, match=message):
        await FileSource(tmp_path, Store().apply).load_once()


async def test_an_object_in_two_files_names_both(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(POOL + "---\n" + model_text("one"))
    (tmp_path / "b.yaml").write_text(model_text("one"))

    with pytest.raises(ManifestsError, match=r"b\.yaml:\d+: .*default/one.* already in .*a\.yaml:"):
        await FileSource(tmp_path, Store().apply).load_once()


async def test_pools_of_both_groups_are_two_objects(tmp_path: Path) -> None:
    """v1 wins; when it goes, the x-k8s one of the same name serves."""
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(a_pool().v1alpha2().on(9).manifest))
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(a_pool().on(8).manifest))
    store = Store()
    source = FileSource(tmp_path, store.apply)
    await source.load_once()
    view = store.pool(named("vllm"))
    assert view is not None
    assert view.pool.ports == (8,)

    (tmp_path / "b.yaml").unlink()
    await source.load_once()

    view = store.pool(named("vllm"))
    assert view is not None
    assert view.pool.ports == (9,)


async def test_a_slice_that_shrinks_loses_its_addresses(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(POOL + "---\n" + yaml.safe_dump(a_slice("s", "10.0.0.1", "10.0.0.2")))
    store = Store()
    source = FileSource(tmp_path, store.apply)
    await source.load_once()

    file.write_text(POOL + "---\n" + yaml.safe_dump(a_slice("s", "10.0.0.2", ports=(80,))))
    await source.load_once()

    view = store.pool(named("vllm"))
    assert view is not None
    assert [e.authority for e in view.endpoints] == ["10.0.0.2:80"]


async def test_unknown_kinds_are_mentioned_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: x\n"
    (tmp_path / "a.yaml").write_text(f"{text}---\n{text}")
    source = FileSource(tmp_path, Store().apply)
    await source.load_once()
    (tmp_path / "a.yaml").write_text(f"\n{text}---\n{text}")
    await source.load_once()

    assert [r.getMessage() for r in caplog.records if "Deployment" in r.getMessage()] == [
        f"manifests: Deployment of apps/v1 is not read here (in {tmp_path / 'a.yaml'})"
    ]


async def test_a_pipe_or_a_folder_named_like_a_manifest_is_left_alone(tmp_path: Path) -> None:
    """Opening a pipe would wait for ever."""
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "dangling.yaml").symlink_to("nowhere")
    (tmp_path / "a.yaml").write_text(model_text("one"))
    store = Store()

    await FileSource(tmp_path, store.apply).load_once()

    assert store.model_count == 1


async def test_loads_that_overlap_take_turns(tmp_path: Path) -> None:
    """Each finds what changed since the one before it, so nothing is applied twice."""
    for i in range(20):
        (tmp_path / f"{i}.yaml").write_text(model_text(f"m{i}"))
    batches: list[Sequence[Event]] = []
    source = FileSource(tmp_path, batches.append)

    await asyncio.gather(*(source.load_once() for _ in range(5)))

    assert [len(batch) for batch in batches] == [20]
    assert source.load_count == 5
