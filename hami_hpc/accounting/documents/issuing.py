# SPDX-License-Identifier: Apache-2.0
"""What an account's month comes to beside the invoice that stands for it, and the documents that change this. Pure."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from hami_hpc.accounting.documents.credits import Ref, ref
from hami_hpc.accounting.documents.invoice import Content
from hami_hpc.accounting.documents.invoice_files import CREDIT_NOTE, INVOICE, Document, sealed

Build = Callable[[Mapping[Ref, Decimal]], Content]


class Issued:
    """All issued documents, in order, and what follows from them."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self.documents: list[Document] = []
        self._invoices: dict[str, Document] = {}
        self._standing: dict[tuple[str, str], Document] = {}
        self._uses: dict[str, dict[Ref, Decimal]] = {}  # by currency
        for document in documents:
            self.add(document)

    def add(self, document: Document) -> None:
        """Adds the next document."""
        self.documents.append(document)
        where = (document.content.account, document.content.month)
        if document.kind == INVOICE:
            self._invoices[document.number] = document
            self._standing[where] = document
            self._count_uses(document, 1)
        elif cancelled := self._invoices.get(document.refers_to):
            if self._standing.get(where) is cancelled:
                del self._standing[where]
            self._count_uses(cancelled, -1)

    def standing(self, account: str, month: str) -> Document | None:
        """Returns the account's invoice for the month that no credit note cancels, or None."""
        return self._standing.get((account, month))

    def accounts(self, month: str) -> set[str]:
        """Returns the accounts with a document for the month."""
        return {document.content.account for document in self.documents if document.content.month == month}

    def credit_uses(self, currency: str, but_for: Document | None = None) -> Mapping[Ref, Decimal]:
        """Returns what invoices in ``currency`` that are not cancelled, except ``but_for``, took from each credit."""
        uses = self._uses.setdefault(currency, {})
        without: dict[Ref, Decimal] = {}
        if but_for is not None and but_for.content.currency == currency:
            for use in but_for.content.credits:
                credit = ref(but_for.content.account, use.key)
                without[credit] = without.get(credit, uses[credit]) - Decimal(use.amount)
        return ChainMap(without, uses)

    def used_in_others(self, currency: str) -> Mapping[Ref, str]:
        """Returns the credits that invoices in other currencies took from, with one of these currencies."""
        return {
            credit: other
            for other, uses in self._uses.items()
            if other != currency
            for credit, amount in uses.items()
            if amount
        }

    def _count_uses(self, document: Document, sign: int) -> None:
        uses = self._uses.setdefault(document.content.currency, {})
        for use in document.content.credits:
            credit = ref(document.content.account, use.key)
            uses[credit] = uses.get(credit, Decimal(0)) + sign * Decimal(use.amount)


@dataclass(frozen=True, slots=True)
class Letterhead:
    """What new documents have in common. today: the day of issue, ISO."""

    today: str
    issuer: tuple[str, ...]
    prefix: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """What an account's month comes to by today's records and rates, and its invoice that stands, if one does."""

    content: Content
    standing: Document | None

    @property
    def differs(self) -> bool:
        """Whether the standing invoice says something else. Its notes, and how credits are called, do not count."""
        return self.standing is not None and _compared(self.standing.content) != _compared(self.content)

    @property
    def difference(self) -> Decimal:
        """What is to be paid by the content beyond the standing invoice."""
        return Decimal(self.content.total) - (Decimal(self.standing.content.total) if self.standing else 0)


def propose(issued: Issued, account: str, month: str, currency: str, build: Build) -> Proposal:
    """Returns the proposal. build: makes the content from what other invoices in ``currency`` took from credits."""
    standing = issued.standing(account, month)
    return Proposal(build(issued.credit_uses(currency, standing)), standing)


def issue(issued: Issued, proposal: Proposal, letterhead: Letterhead) -> tuple[Document, ...]:
    """Adds an invoice of the proposal to ``issued``, after a credit note for the one that stands; returns both."""
    current = proposal.standing
    refers_to = current.number if current else ""
    kinds = [(CREDIT_NOTE, current.content)] if current else []
    new = []
    for kind, content in [*kinds, (INVOICE, proposal.content)]:
        sequence = len(issued.documents) + 1
        number = f"{letterhead.prefix}-{letterhead.today[:4]}-{sequence:05d}"
        document = Document(number, sequence, kind, refers_to, letterhead.today, letterhead.issuer, content)
        issued.add(sealed(document, issued.documents[-1] if issued.documents else None))
        new.append(issued.documents[-1])
    return tuple(new)


def _compared(content: Content) -> Content:
    return replace(content, notes=(), credits=())
