# SPDX-License-Identifier: Apache-2.0
"""Converts HTML to PDF with WeasyPrint, which is optional and slow to import."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from hami_hpc.accounting.errors import AccountingError


def html_to_pdf(text: str) -> bytes:
    """Converts HTML to a tagged PDF (PDF/UA-1). The same HTML, WeasyPrint and fonts give the same bytes.

    Raises AccountingError when WeasyPrint, or a library that it needs, is not installed.
    """
    pdf: bytes = _weasyprint().HTML(string=text).write_pdf(pdf_variant="pdf/ua-1")
    return pdf


def require_weasyprint() -> None:
    """Raises AccountingError when PDF files cannot be made here."""
    _weasyprint()


def _weasyprint() -> ModuleType:
    try:
        return import_module("weasyprint")
    except ImportError as error:
        raise AccountingError(f"--pdf needs WeasyPrint ({error}): pip install weasyprint") from error
    except OSError as error:
        library = str(error).partition(":")[0]
        raise AccountingError(
            f"--pdf needs Pango, and WeasyPrint does not find it ({library}): "
            "apt-get install libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0 fonts-dejavu-core"
        ) from error
