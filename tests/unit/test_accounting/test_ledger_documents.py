# SPDX-License-Identifier: Apache-2.0
"""The ledger of documents, as CSV and in FOCUS 1.2, by the specification's column rules."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from xml.etree import ElementTree as Tree

import pytest

from hami_hpc.accounting.documents import ledger
from hami_hpc.accounting.documents.charged import RuleCredit
from hami_hpc.accounting.documents.invoice import InvoiceLine
from hami_hpc.accounting.documents.invoice_files import Document
from hami_hpc.accounting.formats import ubl

from .samples import run
from .test_finance import CAC, CBC, FINANCE, MONTH, RATES, _ledger, _number, issue, site

__all__ = ["site"]


def test_the_ledger_has_each_document_with_its_tax_and_a_formula_is_no_formula(site: Path) -> None:
    issue(site, finance=FINANCE.replace('cost_centre = "KST-4711"', 'cost_centre = "=1+1"'))
    chem, phys = _ledger(site)
    assert (phys["net"], phys["tax"], phys["payable"], phys["status"]) == ("70.86", "13.46", "84.32", "open")
    assert phys["cost_centre"] == "'=1+1"
    assert phys["purchase_order"] == 'PO, "7"'
    assert (chem["recipient"], chem["tax_category"]) == ("Chemistry", "E")
    assert "not paid: EUR" in run(site, "ledger").stdout


def test_a_cancelled_invoice_and_its_credit_note_leave_nothing_to_pay(site: Path) -> None:
    issue(site)
    (site / "rates.toml").write_text(RATES.replace("2.5", "2.4"), encoding="utf-8")
    documents = issue(site, "--correct")
    rows = _ledger(site)
    assert [row["status"] for row in rows[:2]] == ["cancelled", "cancelled"]
    standing = sum(Decimal(d.payable) for d in documents[2:] if d.kind == "invoice")
    assert ledger.unpaid(rows) == {"EUR": standing}


def test_nobody_is_reminded_of_an_invoice_with_nothing_to_pay(site: Path) -> None:
    (site / "rates.toml").write_text(
        RATES + '[[discounts]]\naccount = "phys"\nfrom_gpu_hours = 0\npercent = 100\n', encoding="utf-8"
    )
    documents = issue(site)
    assert [(d.content.account, Decimal(d.payable) > 0) for d in documents] == [("chem", True), ("phys", False)]
    for day, status in (("2026-12-01", "open"), ("2099-01-01", "overdue")):
        rows = ledger.rows(documents, {}, date.fromisoformat(day))
        assert [row["status"] for row in rows] == [status, "settled"]


# FOCUS 1.2: feature levels, types and nulls of github.com/FinOps-Open-Cost-and-Usage-Spec/FOCUS_Spec, tag v1.2,
# specification/columns/*.md and specification/attributes/*.md.
MANDATORY = {
    *(
        "BilledCost",
        "BillingAccountId",
        "BillingAccountName",
        "BillingCurrency",
        "BillingPeriodEnd",
        "BillingPeriodStart",
        "ChargeCategory",
        "ChargeClass",
        "ChargeDescription",
        "ChargePeriodEnd",
        "ChargePeriodStart",
        "ContractedCost",
        "EffectiveCost",
        "InvoiceIssuerName",
        "ListCost",
        "PricingQuantity",
        "PricingUnit",
        "ProviderName",
        "PublisherName",
        "ServiceCategory",
        "ServiceName",
    )
}
NOT_NULL = MANDATORY - {"BillingAccountName", "ChargeClass", "ChargeDescription", "PricingQuantity", "PricingUnit"}
DECIMALS = {
    *(
        "BilledCost",
        "ContractedCost",
        "EffectiveCost",
        "ListCost",
        "ConsumedQuantity",
        "PricingQuantity",
        "ListUnitPrice",
        "ContractedUnitPrice",
    )
}
UNIT_PRICES = ("ListUnitPrice", "ContractedUnitPrice", "PricingCategory", "SkuId", "SkuPriceId", "PricingQuantity")


def check_focus(rows: list[dict[str, str]]) -> None:
    """The rules of the specification that a row can break."""
    for row in rows:
        assert set(row) >= MANDATORY
        assert all(row[name].strip() for name in NOT_NULL)
        for name in DECIMALS & set(row):
            assert not row[name] or re.fullmatch(r"-?\d+(\.\d+)?", row[name]), (name, row[name])
        for name in ("BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd"):
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row[name])
        assert re.fullmatch(r"[A-Z]{3}", row["BillingCurrency"])
        assert row["ChargeCategory"] in ("Usage", "Purchase", "Tax", "Credit", "Adjustment")
        assert row["ChargeClass"] in ("", "Correction")
        assert row["ChargeFrequency"] in ("One-Time", "Recurring", "Usage-Based")
        assert (row["ServiceCategory"], row["ServiceSubcategory"]) == ("Compute", "Other (Compute)")
        assert bool(row["PricingUnit"]) == bool(row["PricingQuantity"])
        assert bool(row["ConsumedUnit"]) == bool(row["ConsumedQuantity"]) == (row["ChargeCategory"] == "Usage")
        if row["ChargeCategory"] == "Usage":
            assert all(row[name] for name in UNIT_PRICES)
            for cost in ("List", "Contracted"):
                product = Decimal(row["PricingQuantity"]) * Decimal(row[f"{cost}UnitPrice"])
                assert product == Decimal(row[f"{cost}Cost"])
                assert Decimal(row[f"{cost}UnitPrice"]) >= 0
        else:
            assert not any(row[name] for name in UNIT_PRICES)
        if row["ChargeCategory"] in ("Credit", "Adjustment"):
            assert row["ListCost"] == row["ContractedCost"] == row["EffectiveCost"] == row["BilledCost"]
        unknown = [name for name in row if name not in MANDATORY and not name.startswith("x_") and name not in KNOWN]
        assert not unknown


KNOWN = {
    *("ChargeFrequency", "ConsumedQuantity", "ConsumedUnit", "ContractedUnitPrice", "InvoiceId", "ListUnitPrice"),
    *("PricingCategory", "ServiceSubcategory", "SkuId", "SkuMeter", "SkuPriceDetails", "SkuPriceId"),
}


def test_the_focus_export_keeps_the_specifications_rules_and_adds_up_to_what_is_to_be_paid(site: Path) -> None:
    issue(site)
    (site / "rates.toml").write_text(RATES.replace("2.5", "2.4"), encoding="utf-8")
    documents = issue(site, "--correct")
    rows = _ledger(site, "focus")
    check_focus(rows)
    assert {row["ChargeCategory"] for row in rows} == {"Usage", "Adjustment", "Credit", "Tax"}
    for document in documents:
        own = [row for row in rows if row["InvoiceId"] == document.number]
        sign = -1 if document.kind == "credit note" else 1
        assert sum(Decimal(row["BilledCost"]) for row in own) == Decimal(document.payable) * sign
        assert {row["ChargeClass"] for row in own} == {"Correction" if document.refers_to else ""}


def test_focus_keeps_commas_newlines_and_quotes_of_names_in_their_fields(site: Path) -> None:
    phys = issue(site)[1]
    assert phys.billing
    name = 'a,"b"\nc;=d'
    billing = replace(phys.billing, buyer=replace(phys.billing.buyer, name=name))
    rows = ledger.focus([replace(phys, billing=billing)])
    assert {row["BillingAccountName"] for row in rows} == {name}


def test_focus_without_an_issuer_is_refused(site: Path) -> None:
    (site / "rates.toml").write_text(RATES.replace('issuer = ["Computing Centre"]\n', ""), encoding="utf-8")
    issue(site, finance="")
    result = run(site, "ledger", "--format", "focus")
    assert result.exit_code == 1
    assert "names no issuer" in result.stderr


def with_resources_and_rules(document: Document) -> Document:
    """The document with 20 CPU-hours of 2.00 more, and 1.50 credited by a rule."""
    assert document.billing
    content = document.content
    lines = (*content.lines, InvoiceLine(("", "cpu", "", "gpu", "0.1000"), 1, "0.00", "2.00", "20.00 CPU-hours"))
    net = Decimal(content.total) + Decimal("0.50")
    return replace(
        document,
        content=replace(
            content,
            lines=lines,
            subtotal=str(Decimal(content.subtotal) + 2),
            credited=(RuleCredit("Node faults", 2, "3.00", "-1.50"),),
            total=str(net),
        ),
        billing=replace(document.billing, payable=str(net + Decimal(document.billing.tax))),
    )


def test_resources_and_credits_by_rule_are_in_the_ledger_and_in_focus(site: Path) -> None:
    phys = with_resources_and_rules(issue(site)[1])
    (row,) = ledger.rows([phys], {}, date(2026, 10, 2))
    amounts = [Decimal(row[name]) for name in ("subtotal", "discount", "credits", "net")]
    assert sum(amounts[:3]) == amounts[3]
    assert Decimal(row["credits"]) == Decimal("-2.51")
    rows = ledger.focus([phys])
    check_focus(rows)
    assert sum(Decimal(one["BilledCost"]) for one in rows) == Decimal(phys.payable)
    (cpu,) = (one for one in rows if one["ChargeDescription"] == "cpu, gpu")
    assert (cpu["PricingQuantity"], cpu["PricingUnit"], cpu["ServiceName"]) == ("20.00", "CPU-Hours", "CPU time")
    (credited,) = (one for one in rows if one["ChargeDescription"] == "Credited: Node faults")
    assert (credited["ChargeCategory"], credited["BilledCost"]) == ("Credit", "-1.50")


def test_resources_and_credits_by_rule_are_in_e_invoices(site: Path) -> None:
    root = Tree.fromstring(ubl.write(with_resources_and_rules(issue(site)[1])))
    lines = [_number(line, "cbc:LineExtensionAmount") for line in root.iter(f"{CAC}InvoiceLine")]
    allowances = [_number(entry, "cbc:Amount") for entry in root.findall(f"{CAC}AllowanceCharge")]
    total = "cac:LegalMonetaryTotal/cbc:"
    assert _number(root, f"{total}LineExtensionAmount") == sum(lines)
    assert _number(root, f"{total}AllowanceTotalAmount") == sum(allowances)
    assert _number(root, f"{total}TaxExclusiveAmount") == sum(lines) - sum(allowances)
    assert next(e.text for e in root.iter(f"{CBC}AllowanceChargeReason")) == "Credited: Node faults"
    cpu = list(root.iter(f"{CAC}InvoiceLine"))[-1]
    assert cpu.findtext(f"{CBC}InvoicedQuantity") == "20.00"
    assert cpu.findtext(f"{CAC}Item/{CBC}Name") == "CPU-hours, cpu"


@pytest.mark.parametrize("is_paid", [False, True])
def test_what_is_open_adds_up_to_what_is_not_paid(site: Path, is_paid: bool) -> None:
    """A credit note of an invoice that was paid is open, as the money goes back; one of an unpaid invoice is not."""
    issue(site)
    phys = next(row for row in json.loads(run(site, "ledger", "--format", "json").stdout) if row["account"] == "phys")
    if is_paid:
        assert run(site, "invoice", "paid", phys["number"], "--date", phys["issued"]).exit_code == 0
    (site / "rates.toml").write_text((site / "rates.toml").read_text().replace("2.5", "2.4"))
    assert run(site, "invoice", *MONTH, "--correct").exit_code == 0
    rows = json.loads(run(site, "ledger", "--format", "json").stdout)
    (note,) = (row for row in rows if row["kind"] == "credit note" and row["refers_to"] == phys["number"])
    assert note["status"] == ("open" if is_paid else "settled")
    still_open = sum(Decimal(row["payable"]) for row in rows if row["status"] == "open")
    assert run(site, "ledger").stdout.endswith(f"not paid: EUR {still_open}\n")
