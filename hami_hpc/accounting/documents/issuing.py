# SPDX-License-Identifier: Apache-2.0
"""What an account's month comes to beside the invoice that stands for it, and the documents that change this. Pure."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from hami_hpc.accounting.documents.billing import Billing
from hami_hpc.accounting.documents.credits import Ref, ref
from hami_hpc.accounting.documents.invoice import Content
from hami_hpc.accounting.documents.invoice_files import CREDIT_NOTE, INVOICE, Document, sealed
from hami_hpc.accounting.store import anonymous

Build = Callable[[Mapping[Ref, Decimal]], Content]
# What finance.toml adds to a content; None without one.
Bill = Callable[[Content], Billing | None]


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
    """What new documents have in common. today: the day of issue, ISO. due_days: from then on, to pay."""

    today: str
    issuer: tuple[str, ...]
    prefix: str
    due_days: int | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """What an account's month comes to by today's records and rates, and its invoice that stands, if one does."""

    content: Content
    standing: Document | None
    billing: Billing | None = None

    @property
    def differs(self) -> bool:
        """Whether the standing invoice says something else. Its notes, how credits are called, and to whom it is
        addressed do not count."""
        if self.standing is None:
            return False
        old, new, nameless = self.standing.content, self.content, _is_nameless(self.content)
        is_same = _compared(old, nameless) == _compared(new, nameless)
        return not is_same or _taxed(self.standing.billing) != _taxed(self.billing)

    @property
    def payable(self) -> str:
        """What is to be paid by it, with tax."""
        return self.billing.payable if self.billing else self.content.total

    @property
    def difference(self) -> Decimal | None:
        """What is to be paid by it beyond the standing invoice; None if that is in another currency."""
        if self.standing is None:
            return Decimal(self.payable)
        same_money = self.standing.content.currency == self.content.currency
        return Decimal(self.payable) - Decimal(self.standing.payable) if same_money else None


def propose(
    issued: Issued, account: str, month: str, currency: str, build: Build, bill: Bill | None = None
) -> Proposal:
    """Returns the proposal. build: makes the content from what other invoices in ``currency`` took from credits."""
    standing = issued.standing(account, month)
    content = build(issued.credit_uses(currency, standing))
    return Proposal(content, standing, bill(content) if bill else None)


def issue(issued: Issued, proposal: Proposal, letterhead: Letterhead) -> tuple[Document, ...]:
    """Adds an invoice of the proposal to ``issued``, after a credit note for the one that stands; returns both."""
    current = proposal.standing
    refers_to = current.number if current else ""
    kinds = [(CREDIT_NOTE, current.content, current.billing)] if current else []
    new = []
    for kind, content, billing in [*kinds, (INVOICE, proposal.content, proposal.billing)]:
        sequence = len(issued.documents) + 1
        number = f"{letterhead.prefix}-{letterhead.today[:4]}-{sequence:05d}"
        document = Document(number, sequence, kind, refers_to, letterhead.today, letterhead.issuer, content)
        if billing:
            days = letterhead.due_days if kind == INVOICE else None
            document = replace(document, billing=replace(billing, due="").due_after(letterhead.today, days))
        issued.add(sealed(document, issued.documents[-1] if issued.documents else None))
        new.append(issued.documents[-1])
    return tuple(new)


def _compared(content: Content, nameless: bool) -> Content:
    lines = tuple(replace(line, labels=_with_short_rate(line.labels)) for line in content.lines)
    compared = replace(content, lines=lines, notes=(), credits=(), discount_steps=())
    return replace(compared, users=()) if nameless else compared


def _with_short_rate(labels: tuple[str, ...]) -> tuple[str, ...]:
    """Returns a line's labels with four digits of its rate: an older hami_hpc wrote no more of them for GPUs."""
    return (*labels[:-1], f"{Decimal(labels[-1]):.4f}")


def _is_nameless(content: Content) -> bool:
    """Whether the store no longer has all the users' names, so that an invoice of before lists other users."""
    names = [line.labels[0] for line in content.users]
    return any(name == anonymous.PRUNED or name.startswith(anonymous.PREFIX) for name in names)


def _taxed(billing: Billing | None) -> tuple[str, str]:
    """Returns what of an invoice's tax makes another invoice of it."""
    return (billing.tax_category, billing.tax) if billing and billing.tax_category else ("", "")
