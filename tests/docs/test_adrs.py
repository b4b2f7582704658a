# SPDX-License-Identifier: Apache-2.0
"""Decisions (docs/adr) have one form and are in the index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import ROOT, text_of

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
