# SPDX-License-Identifier: Apache-2.0
"""Plain text tables. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


def columns_of(text: str) -> int:
    """Returns how many columns a terminal shows the text in: two for a wide (CJK) character, none for an accent."""
    if text.isascii():
        return len(text)
    return sum(_columns_of_one(character) for character in text)


def _columns_of_one(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, columns: int) -> str:
    """Returns the text in at most this many columns; a text that is cut ends with `~`."""
    if columns_of(text) <= columns:
        return text
    kept, left = "", columns - 1
    for character in text:
        left -= _columns_of_one(character)
        if left < 0:
            break
        kept += character
    return kept + "~"


def table(head: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[int] = ()) -> str:
    """Returns rows as columns two blanks apart; those whose index is in `right` are right-aligned."""
    texts = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(columns_of(row[i]) for row in texts) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = (
            " " * (width - columns_of(cell)) + cell if i in right else cell + " " * (width - columns_of(cell))
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    return "\n".join(line(row) for row in texts)
