# SPDX-License-Identifier: Apache-2.0
"""What `hami-hpc invoice` prints: the documents, drafts beside what stands, and what was not corrected.

A document keeps the currency of its day of issue, so one table may have several.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from decimal import Decimal

from hami_hpc.accounting.documents import issuing
from hami_hpc.accounting.documents.invoice_files import CREDIT_NOTE, Document
from hami_hpc.accounting.errors import printable
from hami_hpc.accounting.formats import html, tables
from hami_hpc.cli import colours

# An amount with its currency; without one it is a zero of any currency. None where there is no amount.
_Money = tuple[str, Decimal] | None


def documents_json(documents: Sequence[Document]) -> str:
    """Returns the documents with all their fields."""
    return json.dumps([asdict(document) for document in documents], indent=2)


def documents_table(documents: Sequence[Document]) -> str:
    """Returns a line for each document, with what is to be paid, negative for credit notes."""
    amounts = [(d.content.currency, Decimal(d.payable) * (-1 if d.kind == CREDIT_NOTE else 1)) for d in documents]
    currency, cells, total = _column(amounts)
    rows = [
        [d.number, d.kind, d.content.account or "(none)", d.refers_to or "-", cell]
        for d, cell in zip(documents, cells, strict=True)
    ]
    headings = ["Number", "Kind", "Account", "Refers to", currency or "Amount"]
    return colours.table_head(tables.table(headings, rows, 1, ["Total", "", "", "", total]))


def drafts_json(proposals: Sequence[issuing.Proposal], documents: Sequence[Document]) -> str:
    """Returns each draft, with the invoice that stands (null if none does) and the difference to it (null between
    currencies)."""
    entries = []
    for proposal, document in zip(proposals, documents, strict=True):
        standing, difference = proposal.standing, proposal.difference
        stands = None
        if standing:
            stands = {"number": standing.number, "total": standing.payable, "currency": standing.content.currency}
        said = None if difference is None else str(difference)
        entries.append({**asdict(document), "stands": stands, "difference": said})
    return json.dumps(entries, indent=2)


def drafts_table(proposals: Sequence[issuing.Proposal], documents: Sequence[Document]) -> str:
    """Returns the drafts; if an invoice stands for one of them, with what stands and the differences."""
    if not any(proposal.standing for proposal in proposals):
        return documents_table(documents)
    columns = [
        _column([_standing_amount(proposal) for proposal in proposals]),
        _column([(proposal.content.currency, Decimal(proposal.payable)) for proposal in proposals]),
        _column([_difference(proposal) for proposal in proposals]),
    ]
    rows = []
    for index, proposal in enumerate(proposals):
        standing = proposal.standing
        change = "new" if standing is None else "differs" if proposal.differs else "unchanged"
        number = standing.number if standing else "-"
        rows.append([proposal.content.account or "(none)", number, change, *(cells[index] for _, cells, _ in columns)])
    stands, draft = (f"{columns[0][0] or 'Amount'}, stands", f"{columns[1][0] or 'Amount'}, draft")
    total = ["Total", "", "", *(total for _, _, total in columns)]
    headings = ["Account", "Stands", "Draft", stands, draft, "Difference"]
    return colours.table_head(tables.table(headings, rows, 3, total))


def kept_text(proposal: issuing.Proposal) -> str:
    """Returns what is said of an invoice that stands although it would be another one today."""
    standing, content = proposal.standing, proposal.content
    assert standing is not None
    difference = "" if proposal.difference is None else f" (difference {html.number(proposal.difference)})"
    return (
        f"{standing.number} of {printable(content.account) or '(none)'} stands with "
        f"{standing.content.currency} {html.number(standing.payable)}; by today's records and rates it would be "
        f"{content.currency} {html.number(proposal.payable)}{difference}: --draft shows it, --correct issues a credit "
        "note and a new invoice"
    )


def _standing_amount(proposal: issuing.Proposal) -> _Money:
    if standing := proposal.standing:
        return (standing.content.currency, Decimal(standing.payable))
    return ("", Decimal(proposal.payable) * 0)


def _difference(proposal: issuing.Proposal) -> _Money:
    return None if proposal.difference is None else (proposal.content.currency, proposal.difference)


def _column(amounts: Sequence[_Money]) -> tuple[str, list[str], str]:
    """Returns the currency that the amounts have in common (empty: they have several, and each is named), the cells and
    the total, which is of each currency by itself, and '-' where an amount is missing."""
    sums: dict[str, Decimal] = {}
    for currency, amount in filter(None, amounts):
        sums[currency] = sums.get(currency, Decimal(0)) + amount
    if len(sums) > 1:
        sums.pop("", None)
    is_one = len(sums) == 1

    def cell(currency: str, amount: Decimal) -> str:
        return html.number(amount) if is_one or not currency else f"{currency} {html.number(amount)}"

    cells = ["-" if money is None else cell(*money) for money in amounts]
    total = "-" if None in amounts else ", ".join(cell(*money) for money in sums.items())
    return next(iter(sums)) if is_one else "", cells, total
