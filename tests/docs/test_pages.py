"""The pages hold together: links, anchors, data in blocks, paths, the table of contents."""

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from deploy.render import render
from tests.docs import pages
from tests.docs.pages import ROOT, Page, slug
from tests.docs.shell import commands_of

PAGES = {page.name: page for page in pages.every()}
DOCS = [name for name in PAGES if name.startswith("docs/")]
PATH = re.compile(
    r"(?:deploy|docs|epp|tests|benchmarks|protos|registry|artifacts|datastore|console)/[\w./-]*"
)
MACHINE = re.compile(
    "|".join([*map(re.escape, (str(ROOT), sys.prefix)), r"/tmp/\w", "pythonhosted", r"pypi\.org"])
)
"""What is true on one machine alone: its paths, and where it has its packages from."""


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    """To a file that is there, and to a heading that it has."""
    found = [link for link in PAGES[name].links if not urlsplit(link).scheme]
    assert [link for link in found if not _leads(PAGES[name], link)] == []


def _leads(page: Page, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (ROOT / page.name).parent / path if path else ROOT / page.name
    if not target.resolve().is_relative_to(ROOT) or not target.exists():
        return False
    if not anchor:
        return True
    return anchor in pages.read(str(target.resolve().relative_to(ROOT))).anchors


@pytest.mark.parametrize("name", DOCS)
def test_the_site_has_what_its_pages_link_to(name: str) -> None:
    """A link out of docs/ is good on GitHub and dead on the site: name the path instead."""
    links = [link.partition("#")[0] for link in PAGES[name].links if not urlsplit(link).scheme]
    outside = [
        link
        for link in links
        if not ((ROOT / name).parent / link).resolve().is_relative_to(ROOT / "docs")
    ]
    assert outside == []


@pytest.mark.parametrize("name", PAGES)
def test_data_in_blocks_can_be_read(name: str) -> None:
    """Each `json` and `yaml` block is what it says it is."""
    for block in PAGES[name].blocks:
        if block.language == "json":
            json.loads(block.text)
        elif block.language == "yaml":
            assert list(yaml.safe_load_all(block.text)), block


@pytest.mark.parametrize("name", PAGES)
def test_blocks_say_what_they_are(name: str) -> None:
    """`sh` is run or checked, `console` and `text` show; nothing hides under another name."""
    known = {"sh", "console", "text", "yaml", "json", "python", "promql", ""}
    assert {block.language for block in PAGES[name].blocks} <= known
    bare = [block.text for block in PAGES[name].blocks if block.language == ""]
    assert [
        text for text in bare if re.search(r"^(epp|make|kubectl|docker|curl)\b", text, re.M)
    ] == []


@pytest.mark.parametrize("name", PAGES)
def test_paths_in_running_text_exist(name: str) -> None:
    """`deploy/envoy/original-dst.yaml` in a sentence is there."""
    named = {piece for piece in PAGES[name].inline if PATH.fullmatch(piece)}
    assert {path for path in named if not (ROOT / path).exists()} == set()


@pytest.mark.parametrize("name", PAGES)
def test_pages_name_no_machine(name: str) -> None:
    assert MACHINE.findall(PAGES[name].text) == []


def test_what_is_shipped_names_no_machine() -> None:
    """Neither do manifests, pins and build files."""
    files = [
        p for p in ROOT.iterdir() if p.is_file() and not p.name.startswith((".coverage", ".git"))
    ]
    files += [p for p in (ROOT / "deploy").rglob("*") if p.is_file() and p.suffix != ".pyc"]
    assert {str(p) for p in files if MACHINE.search(p.read_text("utf-8"))} == set()


def test_every_page_is_in_the_table_of_contents() -> None:
    """Decisions are reached by their index; every other page by the navigation."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    listed = {f"docs/{path}" for path in _leaves(config["nav"])}
    decisions = {name for name in DOCS if re.match(r"docs/adr/\d", name)}
    assert set(DOCS) - decisions == listed
    index = PAGES["docs/adr/index.md"]
    assert {f"docs/adr/{link}" for link in index.links} == decisions


def _leaves(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [leaf for part in parts for leaf in _leaves(part)]


@pytest.mark.timeout(180)
async def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mkdocs", "-q", "build", "--strict", "-d", str(tmp_path / "site")),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    page = (tmp_path / "site" / "protocol" / "index.html").read_text("utf-8")
    assert 'id="errors"' in page


@pytest.mark.parametrize(
    ("title", "anchor"), [("Errors", "errors"), ("`epp get`: what, why?", "epp-get-what-why")]
)
def test_anchors_are_those_that_sites_make(title: str, anchor: str) -> None:
    assert slug(title) == anchor


def test_a_dead_link_is_found() -> None:
    """The check can fail."""
    page = Page("docs/x.md", "[a](nothing.md) [b](protocol.md#nothing) [c](protocol.md#errors)")
    assert [_leads(page, link) for link in page.links] == [False, False, True]


def test_kustomizations_on_the_pages_build_on_what_is_shipped() -> None:
    """The paths that they name exist, from where the page says that they lie."""
    found = [
        b for page in PAGES.values() for b in page.blocks if b.file.endswith("kustomization.yaml")
    ]
    assert found
    for block in found:
        folder = (ROOT / block.file).parent
        for resource in yaml.safe_load(block.text)["resources"]:
            assert (folder / resource).resolve().joinpath("kustomization.yaml").exists(), resource


def test_the_way_back_removes_all_but_the_crd() -> None:
    """What the page deletes by name is what the base applies."""
    applied = {
        f"{obj['kind'].lower()}/{obj['metadata']['name']}"
        for obj in render(ROOT / "deploy" / "kustomize" / "base")
        if obj["kind"] != "CustomResourceDefinition"
    }
    (command,) = [
        c
        for c in commands_of(PAGES["docs/kubernetes.md"])
        if c.words[:2] == ("kubectl", "delete") and "crd" not in c.words
    ]
    assert {word for word in command.words if "/" in word} == applied
