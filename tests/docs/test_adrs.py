# SPDX-License-Identifier: Apache-2.0
"""Decisions (docs/adr) have one form and are in the index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import ROOT, documents, links_with_text, text_of

FOLDER = ROOT / "docs" / "adr"
SECTIONS = ["Context", "Decision", "Reasons", "Details", "Consequences", "Evidence"]
HEAD = re.compile(r"# (\d{3})\. (\S.*)\n\n(Accepted|Proposed), (\d{4}-\d\d-\d\d)\.\n\n## ")
DECISIONS = sorted(FOLDER.glob("[0-9]*.md"))


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.name[:3])
def test_a_decision_has_number_title_date_and_the_sections_in_order(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    match = HEAD.match(text)
    assert match, text[:80]
    assert path.name.startswith(f"{match[1]}-")
    sections = re.findall(r"^#+ (.*)$", text, re.MULTILINE)[1:]
    assert sections == [name for name in SECTIONS if name in sections]
    assert "Decision" in sections
    assert "\n\n\n" not in text


def test_the_index_has_a_row_for_each_decision() -> None:
    rows = []
    for path in DECISIONS:
        match = HEAD.match(path.read_text(encoding="utf-8"))
        assert match
        date = match[4] if match[3] == "Accepted" else f"{match[4]}, proposed"
        rows.append(f"| [{match[1]}]({path.name}) | {match[2]} | {date} |")
    assert re.findall(r"^\| \[.*$", text_of("docs/adr/README.md"), re.MULTILINE) == rows


@pytest.mark.parametrize("document", documents())
def test_a_link_that_names_a_decision_leads_to_it(document: str) -> None:
    for text, target in links_with_text(document):
        named, there = re.fullmatch(r"(?:ADR |adr/)?(\d{3})", text), re.search(r"(?:^|/)(\d{3})-[\w-]+\.md", target)
        if named and there:
            assert named[1] == there[1], f"{document}: [{text}]({target})"
