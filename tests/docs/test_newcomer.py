"""The starts that the pages promise, done from their own text: real programs, a real Envoy."""

from pathlib import Path

import pytest

from tests.docs import pages
from tests.docs.pages import Block, Page
from tests.docs.story import Reader


def section(page: Page, title: str) -> tuple[Block, ...]:
    """Return the blocks under one heading."""
    start = page.text.index(f"## {title}\n")
    end = page.text.find("\n## ", start)
    return Page(page.name, page.text[start:end]).blocks


@pytest.mark.timeout(180)
async def test_the_five_minutes_of_the_readme(tmp_path: Path) -> None:
    """Manifests, check, serve, Envoy, a request: nothing is added but free ports."""
    async with Reader(tmp_path) as reader:
        await reader.read(section(pages.read("README.md"), "Five minutes, standalone"))
    programs = ["modelserver", "epp check", "epp serve", "epp envoy-config", "envoy -c", "curl"]
    done = "\n".join(reader.said)
    assert [program for program in programs if program not in done] == []


@pytest.mark.timeout(180)
async def test_the_quick_start(tmp_path: Path) -> None:
    """Every command of the page, and what it says they print."""
    page = pages.read("docs/quick-start.md")
    async with Reader(tmp_path) as reader:
        await reader.read(page.blocks)
    assert any("model_not_found" in block.text for block in page.blocks)
    assert len(reader.said) >= 10
