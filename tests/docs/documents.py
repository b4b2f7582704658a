# SPDX-License-Identifier: Apache-2.0
"""The project's documents: their fenced blocks, the commands in these, their links and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_PROMPT = re.compile(r"^(?:\w+)?[$#] (.*)$")  # "$ ", "# " or, as the demo prints it, "games$ "


@dataclass(frozen=True)
class Block:
    """A fenced block of a document (path relative to the checkout)."""

    document: str
    language: str
    text: str

    @property
    def is_script(self) -> bool:
        return self.text.startswith("#!")

    def commands(self) -> list[str]:
        """The command lines of a sh block, or of a console block those after a prompt. Comments are taken off."""
        if self.language not in ("sh", "console") or self.is_script:
            return []
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            lines = [match[1] for line in lines if (match := _PROMPT.match(line.strip()))]
        stripped = [re.sub(r"(^|\s+)#.*$", "", line).strip() for line in lines]
        return [" ".join(line.split()) for line in stripped if line]


def documents() -> list[str]:
    """The documents for people, relative to the checkout."""
    paths = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
    return [str(path.relative_to(ROOT)) for path in [*paths, *sorted((ROOT / "docs").rglob("*.md"))]]


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document: str) -> list[Block]:
    return [Block(document, match["language"], _dedented(match)) for match in _FENCE.finditer(text_of(document))]


def _dedented(match: re.Match[str]) -> str:
    return re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE)


def all_commands() -> Iterator[tuple[str, str]]:
    """(document, command) for every command in a fenced block."""
    for document in documents():
        for block in blocks(document):
            for command in block.commands():
                yield document, command


def without_blocks(document: str) -> str:
    """The document's text outside of fenced blocks."""
    return _FENCE.sub("", text_of(document))


def inline_code(document: str) -> list[str]:
    """What stands between single backticks, outside of fenced blocks."""
    return re.findall(r"`([^`\n]+)`", without_blocks(document))


def anchors(document: str) -> set[str]:
    """The anchors that GitHub makes from a document's headings."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(document), re.MULTILINE)
    found: dict[str, int] = {}
    names = set()
    for heading in headings:
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if name in found else name)
        found[name] = found.get(name, 0) + 1
    return names


def links(document: str) -> list[str]:
    """Targets of links and pictures."""
    text = re.sub(r"`[^`\n]+`", "", without_blocks(document))
    return re.findall(r"\]\(([^)\s]+)\)", text)


def links_with_text(document: str) -> list[tuple[str, str]]:
    """(text, target) of links."""
    return re.findall(r"\[([^]]*)\]\(([^)\s]+)\)", without_blocks(document))
