# SPDX-License-Identifier: Apache-2.0
"""Writes an issued document as an e-invoice: EN 16931 in UBL 2.1 (Invoice, CreditNote).

The order of elements is that of UBL's schemas; BT and BG numbers in comments are EN 16931's terms. faults() checks what
a site's settings may lack, by the standard's business rules, before a number is assigned; the sums are right by
construction (invoice.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from xml.etree import ElementTree as Tree

from hami_hpc.accounting.documents.billing import Billing
from hami_hpc.accounting.documents.charged import hours_and_unit
from hami_hpc.accounting.documents.invoice import InvoiceLine
from hami_hpc.accounting.documents.invoice_files import CREDIT_NOTE, Document
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.pricing.finance import Party

_UBL = "urn:oasis:names:specification:ubl:schema:xsd:"
_CAC, _CBC = f"{_UBL}CommonAggregateComponents-2", f"{_UBL}CommonBasicComponents-2"
_HOURS = "HUR"  # UN/ECE Recommendation 20
_CREDIT_TRANSFER = "30"  # UNTDID 4461
_MODES = {"gpu": "whole GPU", "mig": "MIG instance", "vgpu": "vGPU slice", "shard": "shards"}
# What XML 1.0 cannot have.
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def faults(document: Document) -> list[str]:
    """Returns why a document cannot be an e-invoice, each with the rule of EN 16931 and what to do; empty if it can."""
    billing, content = document.billing, document.content
    if billing is None:
        return ["it has no recipient and no tax, as there was no finance.toml when it was issued: write one"]
    own = f"[accounts.{content.account}]"
    vat, registered = billing.seller.vat_id, billing.seller.registration
    category = billing.tax_category
    wanted = [
        (billing.seller.name, "[seller] has no name (BR-06)"),
        (billing.seller.country, "[seller] has no country (BR-09)"),
        (billing.buyer.name, f"{own} has no name (BR-07)"),
        (billing.buyer.country, f"{own} has no country (BR-11)"),
        (category, f'no [[tax]] holds for {content.month} (BR-CO-18): say category = "O" where nothing is taxed'),
        (vat or registered, "[seller] has neither vat_id nor registration (BR-CO-26)"),
        (vat or category in ("", "O"), f"[seller] has no vat_id, which tax of category {category} needs (BR-S-02)"),
        (registered or category != "O", "[seller] has no registration, which category O needs (BR-CO-26)"),
        (billing.buyer.vat_id or category != "AE", f"{own} has no vat_id, which category AE needs (BR-AE-02)"),
        (
            billing.terms or billing.due or not Decimal(billing.payable),
            "[payment] has neither terms nor due_days (BR-CO-25)",
        ),
        (content.lines, "it has no line (BR-16)"),
        (_exponent(content.total) >= -2, "its amounts have more than two digits after the point (BR-DEC-23)"),
    ]
    return [fault for value, fault in wanted if not value]


def write(document: Document) -> bytes:
    """Returns the document as UTF-8 XML; the same document gives the same bytes. Raises AccountingError where it
    lacks what EN 16931 asks for."""
    if found := faults(document):
        raise AccountingError(f"{document.number} cannot be an e-invoice: {'; '.join(found)}")
    billing = document.billing
    assert billing is not None
    content = document.content
    is_credit = document.kind == CREDIT_NOTE
    kind = "CreditNote" if is_credit else "Invoice"
    root = Tree.Element(kind, {"xmlns": f"{_UBL}{kind}-2", "xmlns:cac": _CAC, "xmlns:cbc": _CBC})
    _text(root, "CustomizationID", billing.customization)  # BT-24
    _text(root, "ID", document.number)  # BT-1
    _text(root, "IssueDate", document.issued)  # BT-2
    if not is_credit:
        _text(root, "DueDate", billing.due)  # BT-9
    _text(root, f"{kind}TypeCode", "381" if is_credit else "380")  # BT-3, UNTDID 1001
    notes = [f"Account {content.account or '(none)'}, GPU time in {content.month}", *content.notes]
    _text(root, "Note", " / ".join(notes))  # BT-22
    _text(root, "DocumentCurrencyCode", content.currency)  # BT-5
    _text(root, "AccountingCost", billing.cost_centre)  # BT-19
    _text(root, "BuyerReference", billing.buyer_reference)  # BT-10
    period = Tree.SubElement(root, "cac:InvoicePeriod")  # BG-14
    _text(period, "StartDate", billing.service_start)
    _text(period, "EndDate", billing.service_end)
    if billing.purchase_order:
        _text(Tree.SubElement(root, "cac:OrderReference"), "ID", billing.purchase_order)  # BT-13
    if document.refers_to:
        reference = Tree.SubElement(root, "cac:BillingReference")  # BG-3
        _text(Tree.SubElement(reference, "cac:InvoiceDocumentReference"), "ID", document.refers_to)
    _party(Tree.SubElement(root, "cac:AccountingSupplierParty"), billing.seller, billing.tax_category)  # BG-4
    _party(Tree.SubElement(root, "cac:AccountingCustomerParty"), billing.buyer, billing.tax_category)  # BG-7
    _payment(root, billing)
    _allowances(root, document, billing)
    _totals(root, document, billing)
    for number, line in enumerate(content.lines, 1):
        _line(root, kind, number, line, document, billing)
    Tree.indent(root, " ")
    text = Tree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'.encode()


def _party(parent: Tree.Element, party: Party, category: str) -> None:
    element = Tree.SubElement(parent, "cac:Party")
    if party.endpoint:
        _text(element, "EndpointID", party.endpoint, schemeID=party.endpoint_scheme)  # BT-34, BT-49
    address = Tree.SubElement(element, "cac:PostalAddress")
    _text(address, "StreetName", party.street)
    _text(address, "CityName", party.city)
    _text(address, "PostalZone", party.postcode)
    _text(Tree.SubElement(address, "cac:Country"), "IdentificationCode", party.country)
    if party.vat_id and category != "O":  # BR-O-02: none where nothing is subject to tax
        tax = Tree.SubElement(element, "cac:PartyTaxScheme")
        _text(tax, "CompanyID", party.vat_id)  # BT-31, BT-48
        _text(Tree.SubElement(tax, "cac:TaxScheme"), "ID", "VAT")
    legal = Tree.SubElement(element, "cac:PartyLegalEntity")
    _text(legal, "RegistrationName", party.name)  # BT-27, BT-44
    _text(legal, "CompanyID", party.registration)  # BT-30, BT-47
    if party.contact or party.phone or party.email:
        contact = Tree.SubElement(element, "cac:Contact")
        _text(contact, "Name", party.contact)
        _text(contact, "Telephone", party.phone)
        _text(contact, "ElectronicMail", party.email)


def _payment(root: Tree.Element, billing: Billing) -> None:
    if billing.iban:
        means = Tree.SubElement(root, "cac:PaymentMeans")  # BG-16
        _text(means, "PaymentMeansCode", _CREDIT_TRANSFER)
        account = Tree.SubElement(means, "cac:PayeeFinancialAccount")
        _text(account, "ID", billing.iban)
        if billing.bic:
            _text(Tree.SubElement(account, "cac:FinancialInstitutionBranch"), "ID", billing.bic)
    if billing.terms:
        _text(Tree.SubElement(root, "cac:PaymentTerms"), "Note", billing.terms)  # BT-20


def _allowances(root: Tree.Element, document: Document, billing: Billing) -> None:
    """Writes the credits by rule, the discount and the credits (BG-20)."""
    for reason, amount in _reductions(document):
        allowance = Tree.SubElement(root, "cac:AllowanceCharge")
        _text(allowance, "ChargeIndicator", "false")
        _text(allowance, "AllowanceChargeReason", reason)
        _amount(allowance, "Amount", amount, document)
        _category(allowance, "cac:TaxCategory", billing)


def _reductions(document: Document) -> list[tuple[str, Decimal]]:
    content = document.content
    found = [(f"Credited: {entry.rule}", -Decimal(entry.amount)) for entry in content.credited]
    discount = -Decimal(content.discount)
    found += [("Volume discount", discount)] if discount else []
    return found + [(f"Credit: {use.note or use.key}", Decimal(use.amount)) for use in content.credits]


def _totals(root: Tree.Element, document: Document, billing: Billing) -> None:
    content = document.content
    tax = Tree.SubElement(root, "cac:TaxTotal")
    _amount(tax, "TaxAmount", Decimal(billing.tax), document)  # BT-110
    part = Tree.SubElement(tax, "cac:TaxSubtotal")  # BG-23
    _amount(part, "TaxableAmount", Decimal(content.total), document)
    _amount(part, "TaxAmount", Decimal(billing.tax), document)
    _category(part, "cac:TaxCategory", billing, billing.tax_reason)
    sums = Tree.SubElement(root, "cac:LegalMonetaryTotal")  # BG-22
    _amount(sums, "LineExtensionAmount", Decimal(content.subtotal), document)
    _amount(sums, "TaxExclusiveAmount", Decimal(content.total), document)
    _amount(sums, "TaxInclusiveAmount", Decimal(billing.payable), document)
    if reductions := _reductions(document):
        total = sum((amount for _, amount in reductions), Decimal(0))
        _amount(sums, "AllowanceTotalAmount", total, document)
    _amount(sums, "PayableAmount", Decimal(billing.payable), document)


def _line(root: Tree.Element, kind: str, number: int, line: InvoiceLine, document: Document, billing: Billing) -> None:
    element = Tree.SubElement(root, f"cac:{kind}Line")  # BG-25
    quantity = "CreditedQuantity" if kind == "CreditNote" else "InvoicedQuantity"
    _text(element, "ID", str(number))
    hours, unit = hours_and_unit(line.quantity, line.gpu_hours)
    _text(element, quantity, hours, unitCode=_HOURS)
    _amount(element, "LineExtensionAmount", Decimal(line.amount), document)
    model, mode, service_class, partition, rate = line.labels
    item = Tree.SubElement(element, "cac:Item")
    where: Sequence[str] = [f"class {service_class}"] if service_class else []
    _text(item, "Description", ", ".join([*where, f"partition {partition or '(none)'}"]))
    held = ", ".join(filter(None, (model, _MODES.get(mode, mode))))
    _text(item, "Name", f"{unit}, {held}")
    _category(item, "cac:ClassifiedTaxCategory", billing)
    price = Tree.SubElement(element, "cac:Price")
    _text(price, "PriceAmount", rate, currencyID=document.content.currency)


def _category(parent: Tree.Element, name: str, billing: Billing, reason: str = "") -> None:
    category = Tree.SubElement(parent, name)
    _text(category, "ID", billing.tax_category)
    if billing.tax_category != "O":
        _text(category, "Percent", billing.tax_percent)
    _text(category, "TaxExemptionReason", reason if billing.tax_category not in ("S", "Z") else "")
    _text(Tree.SubElement(category, "cac:TaxScheme"), "ID", "VAT")


def _amount(parent: Tree.Element, name: str, amount: Decimal, document: Document) -> None:
    _text(parent, name, str(amount), currencyID=document.content.currency)


def _text(parent: Tree.Element, name: str, text: str, **attributes: str) -> None:
    """Adds an element with a text, unless the text is empty."""
    if text:
        Tree.SubElement(parent, f"cbc:{name}", attributes).text = _NO_XML.sub("?", text)


def _exponent(amount: str) -> int:
    exponent = Decimal(amount).as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0
