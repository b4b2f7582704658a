# SPDX-License-Identifier: Apache-2.0
"""docs/troubleshooting.md quotes what the programs print: what stands under "you see" is in the sources."""

from __future__ import annotations

import re

import pytest
from documents import ROOT, text_of

SUFFIXES = {".py", ".c", ".h", ".lua", ".toml", ".j2"}
FOLDERS = ("hami_hpc", "native/interposer", "native/include", "slurm-plugins", "prolog")
# Between two literals that a compiler or Python joins: quotes, and what stands between them. C's, Python's and Lua's.
JOINED = re.compile(r"""["'](?:\s*\)?\s*\.\.)?\s*\\?\n\s*(?:\.\.\s*)?f?["']""")
OURS = ("you see", "you see in explain")
SLURMS = "(Slurm's words)"
LEAST = 6  # characters of a piece between placeholders that is looked for


def quoted() -> list[str]:
    """The messages of the tables whose first or second column is headed as ours."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", text_of("docs/troubleshooting.md"), re.MULTILINE):
        rows = [re.split(r"(?<!\\) \| ", row.strip("| \n")) for row in block.splitlines()]
        for column, heading in enumerate(rows[0]):
            if heading in OURS:
                cells = [row[column] for row in rows[2:] if SLURMS not in row[column]]
                found += [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]
    return found


def sources() -> str:
    texts = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and (path.suffix in SUFFIXES or folder == "prolog"):
                texts.append(JOINED.sub("", path.read_text(encoding="utf-8", errors="replace")))
    return "\n".join(texts)


SOURCES = sources()


def missing(message: str) -> list[str]:
    """The pieces between the placeholders of a message that no source has."""
    pieces = [piece.strip() for piece in message.split("...")]
    looked_for = [piece for piece in pieces if len(piece) >= LEAST] or [max(pieces, key=len)]
    return [piece for piece in looked_for if piece not in SOURCES]


@pytest.mark.parametrize("message", quoted())
def test_what_is_quoted_is_what_a_program_prints(message: str) -> None:
    assert missing(message) == []


def test_the_page_quotes_many_messages_and_an_invented_one_is_noticed() -> None:
    assert len(quoted()) > 60
    assert missing("the GPU is tired, and job ... has to wait") != []
    assert missing("did not reach its breakfast") != []
