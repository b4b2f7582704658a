# SPDX-License-Identifier: Apache-2.0
"""Links between the documents lead somewhere, and every document can be reached from the README."""

from __future__ import annotations

import pytest
from documents import ROOT, anchors, blocks, documents, links

LANGUAGES = {"c", "python", "sh", "console", "toml", "yaml", "text", "mermaid"}


@pytest.mark.parametrize("document", documents())
def test_a_relative_link_names_a_file_and_a_heading_that_exist(document: str) -> None:
    for link in links(document):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = ((ROOT / document).parent / name).resolve() if name else ROOT / document
        assert target.exists(), f"{document}: {link}"
        assert target.is_relative_to(ROOT), f"{document}: {link}"
        if anchor:
            assert anchor in anchors(str(target.relative_to(ROOT))), f"{document}: {link}"


@pytest.mark.parametrize("document", documents())
def test_every_block_names_its_language(document: str) -> None:
    assert {block.language for block in blocks(document)} <= LANGUAGES


def test_every_document_can_be_reached_from_the_readme() -> None:
    reached = {"README.md"}
    waiting = ["README.md"]
    while waiting:
        document = waiting.pop()
        for link in links(document):
            target = ((ROOT / document).parent / link.partition("#")[0]).resolve()
            name = str(target.relative_to(ROOT)) if target.is_relative_to(ROOT) else ""
            if name.endswith(".md") and name not in reached and target.is_file():
                reached.add(name)
                waiting.append(name)
    assert set(documents()) - reached == set()


def test_the_readme_fits_two_screens() -> None:
    """As rendered: a line of the terminal or of a table is a line, a paragraph as many as it needs at 110 columns."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert sum(max(1, -(-len(line) // 110)) for line in lines if line) <= 130
