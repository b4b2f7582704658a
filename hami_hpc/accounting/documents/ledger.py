# SPDX-License-Identifier: Apache-2.0
"""All documents as rows, for a site's own bookkeeping: with what is paid, and in FOCUS 1.2. Pure.

FOCUS is the FinOps Open Cost and Usage Specification; its column rules are those of
github.com/FinOps-Open-Cost-and-Usage-Spec/FOCUS_Spec, tag v1.2, specification/columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from decimal import Decimal

from hami_hpc.accounting.documents.charged import hours_and_unit
from hami_hpc.accounting.documents.invoice_files import CREDIT_NOTE, Document
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.times import iso_utc, month_period, zone

# SETTLED: nothing is to be paid, as after a credit of all of it, so that nobody is reminded of it. The credit note of
# an invoice that was not paid is, too: else the open rows would not add up to what is still to be paid.
OPEN, OVERDUE, PAID, SETTLED, CANCELLED = "open", "overdue", "paid", "settled", "cancelled"
LEDGER_COLUMNS = (
    *("number", "kind", "account", "recipient", "cost_centre", "purchase_order", "month", "issued", "due", "refers_to"),
    *("status", "paid", "currency", "subtotal", "discount", "credits", "net", "tax_category", "tax_percent", "tax"),
    "payable",
)
FOCUS_VERSION = "1.2"
FOCUS_COLUMNS = (
    *("BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd"),
    *("BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency", "ChargePeriodEnd"),
    *("ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit", "ContractedCost", "ContractedUnitPrice"),
    *("EffectiveCost", "InvoiceId", "InvoiceIssuerName", "ListCost", "ListUnitPrice", "PricingCategory"),
    *("PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "ServiceCategory", "ServiceName"),
    *("ServiceSubcategory", "SkuId", "SkuMeter", "SkuPriceDetails", "SkuPriceId"),
    *("x_CostCentre", "x_PurchaseOrder", "x_RefersToInvoiceId"),
)
# The unit of a line's hours -> FOCUS's form of it, and what it is of.
_UNITS = {
    "GPU-hours": ("GPU-Hours", "GPU time"),
    "CPU-hours": ("CPU-Hours", "CPU time"),
    "GiB-hours": ("GiB-Hours", "Memory of nodes"),
    "licence-hours": ("License-Hours", "Licenses"),
}


def rows(documents: Sequence[Document], paid: Mapping[str, str], today: date) -> list[dict[str, str]]:
    """Returns a row of LEDGER_COLUMNS for each document; amounts of credit notes are negative.

    documents: all there are. paid: the day of payment by number.
    """
    cancelled = {document.refers_to for document in documents if document.kind == CREDIT_NOTE}
    return [_row(document, paid, document.number in cancelled, today) for document in documents]


def _row(document: Document, paid: Mapping[str, str], is_cancelled: bool, today: date) -> dict[str, str]:
    content, billing = document.content, document.billing
    due = billing.due if billing else ""
    by_rule = sum((Decimal(entry.amount) for entry in content.credited), Decimal(content.total) * 0)
    credits = by_rule - sum((Decimal(use.amount) for use in content.credits), Decimal(0))
    amounts: dict[str, str | Decimal] = {
        "subtotal": content.subtotal,
        "discount": content.discount,
        "credits": credits,
        "net": content.total,
        "tax": billing.tax if billing else Decimal(content.total) * 0,
        "payable": document.payable,
    }
    sign = -1 if document.kind == CREDIT_NOTE else 1
    texts = {
        "number": document.number,
        "kind": document.kind,
        "account": content.account,
        "recipient": billing.buyer.name if billing else "",
        "cost_centre": billing.cost_centre if billing else "",
        "purchase_order": billing.purchase_order if billing else "",
        "month": content.month,
        "issued": document.issued,
        "due": due,
        "refers_to": document.refers_to,
        "status": _status(document, paid, is_cancelled, today),
        "paid": paid.get(document.number, ""),
        "currency": content.currency,
        "tax_category": billing.tax_category if billing else "",
        "tax_percent": billing.tax_percent if billing else "",
        **{name: _signed(amount, sign) for name, amount in amounts.items()},
    }
    return {name: texts[name] for name in LEDGER_COLUMNS}


def _status(document: Document, paid: Mapping[str, str], is_cancelled: bool, today: date) -> str:
    if is_cancelled or document.number in paid:
        return CANCELLED if is_cancelled else PAID
    if not Decimal(document.payable) or (document.kind == CREDIT_NOTE and document.refers_to not in paid):
        return SETTLED
    due = document.billing.due if document.billing else ""
    return OVERDUE if due and due < today.isoformat() else OPEN


def unpaid(table: Iterable[Mapping[str, str]]) -> dict[str, Decimal]:
    """Returns what is still to be paid, by currency. An unpaid invoice and its unpaid credit note cancel out."""
    sums: dict[str, Decimal] = {}
    for row in table:
        if not row["paid"]:
            sums[row["currency"]] = sums.get(row["currency"], Decimal(0)) + Decimal(row["payable"])
    return sums


def focus(documents: Iterable[Document], seller: str = "") -> list[dict[str, str]]:
    """Returns the documents' charges as rows of FOCUS_COLUMNS; an empty text is null. For each InvoiceId, BilledCost
    adds up to what is to be paid.

    seller: the issuer's name, for documents that name none. Raises AccountingError where there is none.
    """
    table = []
    for document in documents:
        charges = [*_usage(document), *_reductions(document)]
        charges += _tax(document, charges)
        common = _common(document, seller)
        table += [{name: {**common, **charge}.get(name, "") for name in FOCUS_COLUMNS} for charge in charges]
    return table


def _common(document: Document, seller: str) -> dict[str, str]:
    content, billing = document.content, document.billing
    name = (billing.seller.name if billing else "") or next(iter(document.issuer), "") or seller
    if not name.strip():
        raise AccountingError(
            f"{document.number} names no issuer, which FOCUS asks for: set issuer in rates.toml, or [seller] name in "
            "finance.toml"
        )
    period = month_period(content.month, zone(content.timezone))
    start, end = iso_utc(period.start_s), iso_utc(period.end_s)
    return {
        "BillingAccountId": content.account or "(none)",
        "BillingAccountName": (billing.buyer.name if billing else "") or content.account,
        "BillingCurrency": content.currency,
        "BillingPeriodStart": start,
        "BillingPeriodEnd": end,
        "ChargePeriodStart": start,
        "ChargePeriodEnd": end,
        "ChargeClass": "Correction" if document.refers_to else "",
        "ChargeFrequency": "Usage-Based",
        "InvoiceId": document.number,
        "InvoiceIssuerName": name,
        "ProviderName": name,
        "PublisherName": name,
        "ServiceCategory": "Compute",
        "ServiceName": "GPU time",
        "ServiceSubcategory": "Other (Compute)",
        "x_CostCentre": billing.cost_centre if billing else "",
        "x_PurchaseOrder": billing.purchase_order if billing else "",
        "x_RefersToInvoiceId": document.refers_to,
    }


def _usage(document: Document) -> list[dict[str, str]]:
    sign = -1 if document.kind == CREDIT_NOTE else 1
    charges = []
    for line in document.content.lines:
        model, mode, service_class, partition, rate = line.labels
        held, unit = hours_and_unit(line.quantity, line.gpu_hours)
        unit, service = _UNITS[unit]
        hours = _signed(held, sign)
        listed = f"{Decimal(hours) * Decimal(rate):f}"
        charges.append(
            {
                "ChargeCategory": "Usage",
                "ChargeDescription": ", ".join(filter(None, (model, mode, service_class, partition))),
                "BilledCost": _signed(line.amount, sign),
                "EffectiveCost": _signed(line.amount, sign),
                "ListCost": listed,
                "ContractedCost": listed,
                "ListUnitPrice": rate,
                "ContractedUnitPrice": rate,
                "PricingCategory": "Standard",
                "PricingQuantity": hours,
                "PricingUnit": unit,
                "ConsumedQuantity": hours,
                "ConsumedUnit": unit,
                "ServiceName": service,
                "SkuId": f"{model}/{mode}",
                "SkuMeter": f"{service} held",
                "SkuPriceId": "/".join((model, mode, service_class, partition, rate)),
            }
        )
    return charges


def _reductions(document: Document) -> list[dict[str, str]]:
    content = document.content
    sign = -1 if document.kind == CREDIT_NOTE else 1
    found = [("Credit", f"Credited: {entry.rule}", entry.amount) for entry in content.credited]
    found += [("Adjustment", "Volume discount", content.discount)] if Decimal(content.discount) else []
    found += [("Credit", f"Credit: {use.note or use.key}", _signed(use.amount, -1)) for use in content.credits]
    costs = ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost")
    return [
        {"ChargeCategory": category, "ChargeDescription": text, **dict.fromkeys(costs, _signed(amount, sign))}
        for category, text, amount in found
    ]


def _tax(document: Document, charges: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    billing = document.billing
    if billing is None or not Decimal(billing.tax):
        return []
    percent = Decimal(billing.tax_percent)
    tax = _signed(billing.tax, -1 if document.kind == CREDIT_NOTE else 1)
    sums = {
        name: f"{sum((Decimal(charge[name]) for charge in charges), Decimal(0)) * percent / 100:f}"
        for name in ("ListCost", "ContractedCost")
    }
    text = f"VAT {billing.tax_percent} %"
    return [{"ChargeCategory": "Tax", "ChargeDescription": text, "BilledCost": tax, "EffectiveCost": tax, **sums}]


def _signed(amount: str | Decimal, sign: int) -> str:
    """Returns an amount times ``sign`` without a minus before zero."""
    signed = Decimal(amount) * sign
    return f"{signed if signed else abs(signed):f}"
