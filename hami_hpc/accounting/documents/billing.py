# SPDX-License-Identifier: Apache-2.0
"""What an invoice says beside its lines: who pays whom, for which days, with which tax, and until when. Pure.

It is part of the document, so finance.toml may change after the day of issue. Tax is on what is left after discount and
credits, and is rounded once, half up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from hami_hpc.accounting.documents.invoice import Content
from hami_hpc.accounting.pricing.finance import Finance, Party, Recipient
from hami_hpc.accounting.times import next_month


@dataclass(frozen=True, slots=True)
class Billing:
    """All values are texts, days in ISO. tax_category: empty if the site says nothing of tax. tax, payable: amounts.
    due: empty if the site gives no time. service_start, service_end: the first and the last day."""

    seller: Party
    buyer: Party
    cost_centre: str
    purchase_order: str
    buyer_reference: str
    service_start: str
    service_end: str
    terms: str
    due: str
    iban: str
    bic: str
    tax_category: str
    tax_percent: str
    tax_reason: str
    tax: str
    payable: str
    customization: str

    def due_after(self, issued: str, days: int | None) -> Billing:
        """Returns it with its day of payment."""
        if days is None:
            return self
        return replace(self, due=(date.fromisoformat(issued) + timedelta(days=days)).isoformat())


def build(finance: Finance, content: Content) -> Billing:
    """Returns what finance.toml says for the account and month of ``content``."""
    month = date.fromisoformat(f"{content.month}-01")
    recipient = finance.accounts.get(content.account, Recipient(Party(name=content.account)))
    tax = finance.tax(content.account, month)
    net = Decimal(content.total)
    amount = (net * (tax.percent if tax else 0) / 100).quantize(net, ROUND_HALF_UP)
    return Billing(
        finance.seller,
        recipient.party,
        recipient.cost_centre,
        recipient.purchase_order,
        recipient.buyer_reference,
        month.isoformat(),
        (next_month(month) - timedelta(days=1)).isoformat(),
        finance.terms,
        "",
        finance.iban,
        finance.bic,
        tax.category if tax else "",
        f"{tax.percent.normalize():f}" if tax else "",
        tax.reason if tax else "",
        str(amount),
        str(net + amount),
        finance.customization,
    )


def parse(raw: Mapping[str, Any]) -> Billing:
    """Returns what a document's file has. Raises TypeError and KeyError."""
    return Billing(**{**raw, "seller": Party(**raw["seller"]), "buyer": Party(**raw["buyer"])})


def fields(billing: Billing) -> dict[str, Any]:
    """Returns what the document's file has."""
    plain = {name: getattr(billing, name) for name in billing.__slots__}
    for name in ("seller", "buyer"):
        party = plain[name]
        plain[name] = {key: getattr(party, key) for key in party.__slots__}
    return plain
