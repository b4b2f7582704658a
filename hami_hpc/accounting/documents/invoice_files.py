# SPDX-License-Identifier: Apache-2.0
"""Writes and reads issued invoices, which are numbered without gaps and never changed.

Issuing an account's month again returns the existing invoice if nothing changed, else it issues a credit note for that
invoice and a new invoice. Each is a JSON file in STORE/invoices, named by its number, with the digest of its content.
The HTML is made from this file, at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from hami_hpc.accounting.documents.credits import CreditUse, Ref, ref
from hami_hpc.accounting.documents.invoice import Content, InvoiceLine
from hami_hpc.accounting.errors import AccountingError

VERSION = 1
INVOICE = "invoice"
CREDIT_NOTE = "credit note"


@dataclass(frozen=True, slots=True)
class Document:
    """One issued invoice or credit note.

    refers_to: for a credit note the invoice that it cancels; for an invoice the one that it replaces; else empty.
    issued: a day, ISO.
    """

    number: str
    sequence: int
    kind: str
    refers_to: str
    issued: str
    issuer: tuple[str, ...]
    content: Content


def digest(content: Content) -> str:
    """Returns the SHA-256 of the content."""
    return hashlib.sha256(json.dumps(asdict(content), sort_keys=True).encode()).hexdigest()


def read_all(root: Path) -> tuple[Document, ...]:
    """Reads all documents in the order of their numbers. Raises AccountingError for a missing or changed one."""
    documents = [_read(path) for path in (root / "invoices").glob("*.json")] if (root / "invoices").exists() else []
    documents.sort(key=lambda document: document.sequence)
    for expected, document in enumerate(documents, 1):
        if document.sequence != expected:
            raise AccountingError(f"invoice number {expected} is missing in {root}/invoices; restore it from a backup")
    return tuple(documents)


def standing(documents: Sequence[Document], account: str, month: str) -> Document | None:
    """Returns the account's invoice for the month that no credit note cancels, or None."""
    cancelled = {document.refers_to for document in documents if document.kind == CREDIT_NOTE}
    for document in documents:
        is_of_month = document.content.account == account and document.content.month == month
        if is_of_month and document.kind == INVOICE and document.number not in cancelled:
            return document
    return None


def credit_uses(documents: Sequence[Document], but_for: Document | None = None) -> Mapping[Ref, Decimal]:
    """Returns what invoices that are not cancelled, except ``but_for``, took from each credit."""
    cancelled = {document.refers_to for document in documents if document.kind == CREDIT_NOTE}
    uses: dict[Ref, Decimal] = {}
    for document in documents:
        if document.kind != INVOICE or document.number in cancelled or document == but_for:
            continue
        for use in document.content.credits:
            credit = ref(document.content.account, use.key)
            uses[credit] = uses.get(credit, Decimal(0)) + Decimal(use.amount)
    return uses


def issue(
    root: Path,
    documents: list[Document],
    account: str,
    month: str,
    build: Callable[[Mapping[Ref, Decimal]], Content],
    today: str,
    issuer: tuple[str, ...],
    prefix: str,
) -> tuple[Document, ...]:
    """Returns the account's existing invoice for the month, or the documents that are newly issued, in order.

    The store must be locked. documents: all existing ones (read_all); new ones are added to it. build: makes the
    content from what other invoices took from credits.
    """
    current = standing(documents, account, month)
    content = build(credit_uses(documents, current))
    if current is not None and digest(current.content) == digest(content):
        return (current,)

    last_sequence = len(documents)

    def make_document(offset: int, kind: str, document_content: Content) -> Document:
        sequence = last_sequence + offset
        number = f"{prefix}-{today[:4]}-{sequence:05d}"
        return Document(number, sequence, kind, current.number if current else "", today, issuer, document_content)

    credit_note = (make_document(1, CREDIT_NOTE, current.content),) if current else ()
    new_documents = (*credit_note, make_document(1 + len(credit_note), INVOICE, content))
    for document in new_documents:
        _write(root, document)
        documents.append(document)
    return new_documents


def _write(root: Path, document: Document) -> None:
    """Writes the document's file completely or not at all, and never over another."""
    folder = root / "invoices"
    folder.mkdir(mode=0o750, exist_ok=True)
    path = folder / f"{document.number}.json"
    text = json.dumps({"version": VERSION, "digest": digest(document.content), **asdict(document)}, indent=1)
    temporary = folder / f".{document.number}"
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        raise AccountingError(f"{path} exists already; another program has used its number") from error
    finally:
        temporary.unlink()


def _read(path: Path) -> Document:
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version, stated = fields.pop("version"), fields.pop("digest")
        raw = fields.pop("content")
        content = Content(
            **{
                **raw,
                "lines": _lines(raw["lines"]),
                "users": _lines(raw["users"]),
                "days": tuple((day, hours) for day, hours in raw["days"]),
                "credits": tuple(CreditUse(**use) for use in raw["credits"]),
                "notes": tuple(raw["notes"]),
            }
        )
        document = Document(**{**fields, "issuer": tuple(fields["issuer"]), "content": content})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AccountingError(f"{path} cannot be read ({error}); restore it from a backup") from error
    if version != VERSION or digest(content) != stated:
        raise AccountingError(f"{path} was changed after it was issued; restore it from a backup")
    return document


def _lines(raw: Sequence[Mapping[str, Any]]) -> tuple[InvoiceLine, ...]:
    return tuple(InvoiceLine(**{**line, "labels": tuple(line["labels"])}) for line in raw)
