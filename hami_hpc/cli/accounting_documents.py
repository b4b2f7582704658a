# SPDX-License-Identifier: Apache-2.0
"""The files that `hami-hpc invoice --output` writes for each document: HTML, PDF, e-invoice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hami_hpc.accounting.documents.invoice_files import Document
from hami_hpc.accounting.formats import html, ubl
from hami_hpc.accounting.formats.pdf import html_to_pdf, require_weasyprint
from hami_hpc.cli.accounting_files import file_name, make_directory, write_file
from hami_hpc.cli.accounting_options import wrong_usage


def prepare(output: Path | None, **wanted: bool) -> None:
    """Finds out that files cannot be written before numbers are assigned, because that cannot be undone. wanted: the
    options that write more files."""
    option = next((name for name, is_given in wanted.items() if is_given), "")
    if option and not output:
        raise wrong_usage(f"--{option} needs --output: the directory for the files")
    if wanted.get("pdf"):
        require_weasyprint()
    if output:
        make_directory(output)


def file_names(documents: Sequence[Document]) -> list[tuple[str, Document]]:
    """Returns the documents with the names of their files, without a suffix."""
    return [
        (document.number if document.sequence else f"DRAFT-{file_name(document.content.account)}", document)
        for document in documents
    ]


def write_documents(
    named: Sequence[tuple[str, Document]], directory: Path, pdf: bool, e_invoice: bool, templates: Path | None
) -> None:
    """Writes the files of file_names's documents. Drafts are no e-invoices."""
    for name, document in named:
        text = html.invoice(document, templates)
        write_file(directory / f"{name}.html", text.encode())
        if pdf:
            write_file(directory / f"{name}.pdf", html_to_pdf(text))
        if e_invoice and document.sequence:
            write_file(directory / f"{name}.xml", ubl.write(document))
