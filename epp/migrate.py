"""`epp migrate`: a diff of what would change, on request the change itself."""

import asyncio
import difflib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import yaml

from console import Mistake, fail, fail_all, say, stderr
from datastore import manifests as m
from datastore.kube import KubeClient
from datastore.kube_auth import NoCluster, Where
from datastore.kube_errors import KubeError
from epp.migration import Choices, Finding, Json, Plan, Step, is_model, plan


def migrate(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Files or folders of manifests. None: the cluster's InferenceModels."),
    ] = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace", "-n", help="Namespace of the cluster (or of files); repeatable."
        ),
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(help="OLD=NEW: what clients ask for instead of a name nothing can have."),
    ] = None,
    accept_proposals: Annotated[
        bool, typer.Option(help="Take the proposed name wherever one is needed.")
    ] = False,
    drop_model_name: Annotated[
        bool, typer.Option(help="Remove spec.modelName: no way back to an older controller.")
    ] = False,
    apply: Annotated[bool, typer.Option(help="Do it, in the cluster. Without: only show.")] = False,
    kubeconfig: Annotated[Path | None, typer.Option(help="Kubeconfig of the cluster.")] = None,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig.")] = None,
) -> None:
    """Turn InferenceModels with spec.modelName into those named by metadata.name.

    From files: the new manifests go to standard output, to be reviewed and applied.  From a
    cluster: the difference is shown, and with --apply made, deletions last.
    """
    choices = Choices(_renames(rename or []), accept_proposals, drop_model_name)
    spaces = namespace or []
    if files:
        if apply:
            fail("--apply changes a cluster, and these are files", "--apply", "leave it out")
        _from_files(files, choices, spaces)
    else:
        where = Where(kubeconfig, context, os.environ)  # noqa: TID251  # a command reads it, once
        _run(_from_cluster(where, choices, spaces, apply))


def _renames(given: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        old, equals, new = text.rpartition("=")
        if not (old and equals and new):
            fail(f"{text} is not OLD=NEW", "--rename", "write --rename 'a/B=a-b'")
        found[old] = new
    return found


def _run(work: Any) -> None:
    try:
        asyncio.run(work)
    except NoCluster as error:
        fail(str(error), "--kubeconfig", "give a kubeconfig, or files to migrate")
    except KubeError as error:
        fail(error.message)


def _from_files(files: Sequence[Path], choices: Choices, spaces: Sequence[str]) -> None:
    models = [obj for path in files for obj in _read(path) if is_model(obj)]
    if not models:
        fail("there is no InferenceModel in these files", str(files[0]))
    found = plan(models, choices, spaces[0] if spaces else "default")
    for line in _difference(found.steps):
        typer.echo(line, err=True)
    after = [step.after for step in found.steps if step.after is not None]
    typer.echo(yaml.safe_dump_all(after, sort_keys=False), nl=False)
    _report(found)


def _read(path: Path) -> Iterator[Any]:
    paths = sorted(p for p in path.rglob("*") if p.suffix in _SUFFIXES) if path.is_dir() else [path]
    for one in paths:
        try:
            documents = list(yaml.safe_load_all(one.read_text("utf-8")))
        except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
            fail(f"cannot be read: {error}", str(one))
        for document in documents:
            items = document.get("items") if isinstance(document, dict) else None
            yield from items if isinstance(items, list) else [document]


_SUFFIXES = (".yaml", ".yml", ".json")


async def _from_cluster(where: Where, choices: Choices, spaces: Sequence[str], apply: bool) -> None:
    async with await KubeClient.connect(where) as client:
        models: list[Json] = []
        for namespace in spaces or [client.namespace]:
            async for page in client.list_pages(m.INFERENCE_MODEL, namespace):
                models += [_whole(raw) for raw in page.items]
        found = plan(models, choices)
        for line in _difference(found.steps):
            typer.echo(line)
        if apply:
            for step in found.steps:
                await carry_out(client, step)
        _report(found, applied=apply)


def _whole(raw: msgspec.Raw) -> Json:
    obj: Json = msgspec.json.decode(raw)
    return {"apiVersion": m.INFERENCE_MODEL.api_version, "kind": "InferenceModel", **obj}


async def carry_out(client: KubeClient, step: Step) -> None:
    """Make one step in the cluster; what somebody else changed meanwhile is refused there."""
    if step.after is None:
        assert step.before is not None
        uid = step.before["metadata"].get("uid")
        await client.delete(m.INFERENCE_MODEL, step.namespace, step.name, uid=uid)
    elif step.before is None:
        await client.create(m.INFERENCE_MODEL, step.namespace, step.after)
    else:
        version = step.before["metadata"]["resourceVersion"]
        metadata = {**step.before["metadata"], **step.after["metadata"], "resourceVersion": version}
        body = {**step.after, "metadata": metadata}
        await client.replace(m.INFERENCE_MODEL, step.namespace, step.name, body)


def _difference(steps: Sequence[Step]) -> Iterator[str]:
    for step in steps:
        where = f"{step.namespace}/{step.name}"
        yield from difflib.unified_diff(
            _lines(step.before),
            _lines(step.after),
            f"{where} now" if step.before else "/dev/null",
            f"{where} then" if step.after else "/dev/null",
            lineterm="",
        )


def _lines(obj: Json | None) -> list[str]:
    if obj is None:
        return []
    metadata = {k: v for k, v in obj["metadata"].items() if k in ("name", "labels")}
    shown = {"apiVersion": obj["apiVersion"], "metadata": metadata, "spec": obj.get("spec")}
    return yaml.safe_dump(shown, sort_keys=False).splitlines()


def _report(found: Plan, *, applied: bool = False) -> None:
    changed = sum(step.after is not None for step in found.steps)
    deleted = len(found.steps) - changed
    tense = "" if applied else "would be "
    say(f"{changed} InferenceModels {tense}written, {deleted} {tense}deleted", to=stderr())
    if found.findings:
        fail_all([_mistake(finding) for finding in found.findings])


def _mistake(finding: Finding) -> Mistake:
    return Mistake(finding.problem, f"{finding.namespace}/{finding.name}", finding.way_out)
