# SPDX-License-Identifier: Apache-2.0
"""A PDF file as its reader has it. PDFium, the PDF reader of Chromium, reads and draws it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pypdfium2

A4_POINTS = (595, 842)
LEAST_MARGIN_POINTS = 28  # 10 mm, which every printer leaves
BAR = (0x00, 0x72, 0xB2)  # the first colour of charts
_SCALE = 2


@contextmanager
def opened(content: bytes) -> Iterator[pypdfium2.PdfDocument]:
    """The document, until the end of the block."""
    document = pypdfium2.PdfDocument(content)
    try:
        yield document
    finally:
        document.close()


def page_words(page: pypdfium2.PdfPage) -> str:
    """All text of a page, with single blanks."""
    return " ".join(page.get_textpage().get_text_bounded().split())


def page_lines(page: pypdfium2.PdfPage) -> list[str]:
    """The lines of a page without their blanks, of which PDFium sees too few on some pages that Chromium prints."""
    return ["".join(line.split()) for line in page.get_textpage().get_text_bounded().splitlines()]


def assert_on_paper(pdf: pypdfium2.PdfDocument) -> None:
    """Every page is A4 and says which it is, and no letter stands nearer to its edge than 10 mm."""
    for number, page in enumerate(pdf, 1):
        width, height = page.get_size()
        assert (round(width), round(height)) == A4_POINTS
        assert f"page{number}of{len(pdf)}" in "".join(page_lines(page))
        text = page.get_textpage()
        for index in range(text.count_chars()):
            left, bottom, right, top = text.get_charbox(index)
            if left == right:  # blanks that PDFium makes up between words have no box
                continue
            nearest = min(left, bottom, width - right, height - top)
            assert nearest >= LEAST_MARGIN_POINTS, (number, text.get_text_range(max(0, index - 20), 20))


def bars(page: pypdfium2.PdfPage) -> int:
    """The most bars that lie along one line of the page as drawn: runs of the charts' first colour."""
    pixels = np.asarray(page.render(scale=_SCALE).to_pil().convert("RGB"))
    coloured = np.abs(pixels.astype(int) - BAR).max(axis=2) <= 2  # colours are rounded on their way through a PDF
    begins = coloured & ~np.roll(coloured, 1, axis=1)  # the left margin is white
    return int(begins.sum(axis=1).max())
