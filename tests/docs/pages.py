"""The project's pages as values: their code blocks, links, anchors and inline code."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(
    r"^(?P<mark>```+)(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^(?P=mark)$", re.S | re.M
)
_LINK = re.compile(r"\[[^\]\[]*\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"`(?P<code>[^`\n]+)`")
_HEADING = re.compile(r"^#{1,6} +(?P<title>.+?) *$", re.M)
_COMMENT = re.compile(r"<!--.*?-->", re.S)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block; `line` is where its text begins."""

    language: str
    text: str
    line: int

    @property
    def file(self) -> str:
        """The file that the block's first line names, "" if none: `# models/llama.yaml`."""
        named = re.match(r"# (\S+\.(?:ya?ml|json))\n", self.text)
        return named[1] if named else ""


@dataclass(frozen=True)
class Page:
    """One Markdown file of the repository; `name` is its path from the root."""

    name: str
    text: str

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Its fenced blocks, in order."""
        return tuple(
            Block(found["language"], found["text"], self.text.count("\n", 0, found.start()) + 2)
            for found in _FENCE.finditer(self.text)
        )

    @cached_property
    def prose(self) -> str:
        """The page without its blocks and comments."""
        return _COMMENT.sub("", _FENCE.sub("", self.text))

    @property
    def links(self) -> list[str]:
        """Where its links go."""
        return [found["target"] for found in _LINK.finditer(_CODE.sub("", self.prose))]

    @property
    def inline(self) -> list[str]:
        """Its inline code."""
        return [found["code"] for found in _CODE.finditer(self.prose)]

    @property
    def anchors(self) -> set[str]:
        """The anchors of its headings."""
        return {slug(found["title"]) for found in _HEADING.finditer(self.prose)}


def slug(title: str) -> str:
    """Return a heading's anchor, as GitHub and MkDocs both make it of plain words."""
    kept = re.sub(r"[^\w\s-]", "", title.replace("`", "")).strip().lower()
    return re.sub(r"\s", "-", kept)


def read(name: str) -> Page:
    """Read one page by its path from the root."""
    return Page(name, (ROOT / name).read_text("utf-8"))


def every() -> list[Page]:
    """Return every page that a reader of the repository meets."""
    found = [*ROOT.glob("*.md")]
    for folder in ("docs", "deploy", "benchmarks"):
        found += (ROOT / folder).rglob("*.md")
    return [read(str(path.relative_to(ROOT))) for path in sorted(found)]
