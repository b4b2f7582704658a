# SPDX-License-Identifier: Apache-2.0
"""What the site's finance.toml says: who issues invoices and to whom, tax, terms of payment, and what energy costs.

Everything in it is optional. Issued documents keep what it said on the day of issue, so editing it changes none.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from itertools import combinations
from pathlib import Path
from typing import Any

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.pricing.rates import Validity
from hami_hpc.accounting.pricing.rates_file import _read
from hami_hpc.accounting.pricing.toml_table import Table, each

VERSION = 1
FILE_NAME = "finance.toml"
_CATEGORIES = {
    "S": "standard or reduced rate",
    "Z": "zero rated",
    "E": "exempt",
    "AE": "reverse charge",
    "O": "not subject to tax",
}
EN_16931 = "urn:cen.eu:en16931:2017"
# One line of printable text: it is printed, and becomes a field of CSV and XML.
_LINE = r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]{1,200}"


@dataclass(frozen=True, slots=True)
class Party:
    """Who issues or receives an invoice. Texts may be empty. registration: in a register of companies or the like.
    endpoint: the electronic address, and the code of its scheme (EAS)."""

    name: str = ""
    street: str = ""
    postcode: str = ""
    city: str = ""
    country: str = ""
    contact: str = ""
    phone: str = ""
    email: str = ""
    vat_id: str = ""
    registration: str = ""
    endpoint: str = ""
    endpoint_scheme: str = ""

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines of the address on paper."""
        town = f"{self.postcode} {self.city}".strip()
        vat = f"VAT {self.vat_id}" if self.vat_id else ""
        return tuple(filter(None, (self.name, self.contact, self.street, town, self.country, vat)))


_NOBODY = Party()
_ALWAYS = Validity()


@dataclass(frozen=True, slots=True)
class Recipient:
    """Who pays an account's invoices. purchase_order, cost_centre, buyer_reference: what the recipient books by."""

    party: Party
    cost_centre: str = ""
    purchase_order: str = ""
    buyer_reference: str = ""


@dataclass(frozen=True, slots=True)
class Tax:
    """A tax on invoices. category: a code of EN 16931 (S, Z, E, AE, O). account: empty for all that have none of
    their own. reason: why nothing is charged."""

    category: str
    percent: Decimal
    reason: str = ""
    account: str = ""
    valid: Validity = _ALWAYS


@dataclass(frozen=True, slots=True)
class Energy:
    """What energy costs: in the currency per kWh, and g of CO2 per kWh; None if not known. overhead: the site's energy
    for one kWh of the jobs (PUE)."""

    per_kwh: Decimal | None
    co2_g_per_kwh: Decimal | None
    overhead: Decimal
    valid: Validity = _ALWAYS


@dataclass(frozen=True, slots=True)
class Finance:
    """The contents of finance.toml."""

    seller: Party = _NOBODY
    iban: str = ""
    bic: str = ""
    terms: str = ""
    due_days: int | None = None
    customization: str = EN_16931
    taxes: tuple[Tax, ...] = ()
    accounts: Mapping[str, Recipient] = field(default_factory=dict)
    energy: tuple[Energy, ...] = ()

    def tax(self, account: str, month: date) -> Tax | None:
        """Returns the tax on an account's invoice for the month, if there is one."""
        valid = [tax for tax in self.taxes if tax.valid.holds_on(month) and tax.account in ("", account)]
        return max(valid, key=lambda tax: bool(tax.account), default=None)

    def energy_in(self, month: date) -> Energy | None:
        """Returns what energy costs in the month, if it is known."""
        return next((energy for energy in self.energy if energy.valid.holds_on(month)), None)

    @property
    def bills(self) -> bool:
        """Whether it says something that invoices have."""
        return bool(self.accounts or self.taxes or self.terms or self.seller.name or self.due_days is not None)


def load_finance(path: Path) -> Finance:
    """Reads and checks finance.toml. Raises AccountingError with file, table and key for any fault."""
    try:
        document = tomllib.loads(_read(path), parse_float=Decimal)
    except OSError as error:
        raise AccountingError(f"{path} cannot be read ({error.strerror}); give another with --finance") from error
    except ValueError as error:
        raise AccountingError(f"{path} is not valid TOML: {error}") from error
    except RecursionError:
        raise AccountingError(f"{path} is nested too deeply for finance.toml") from None
    return parse_finance(document, str(path))


def parse_finance(document: Mapping[str, Any], path: str) -> Finance:
    """Returns the contents of a parsed document. ``path`` is used in messages."""
    top = Table(path, document)
    if top.take("version") != VERSION:
        raise AccountingError(f"{path} needs version = {VERSION}; this hami_hpc reads no other version")
    seller = Table(f"{path}, [seller]", top.take("seller", {}))
    payment = Table(f"{path}, [payment]", top.take("payment", {}))
    accounts = Table(f"{path}, [accounts]", top.take("accounts", {})).values
    finance = Finance(
        seller=_party(seller),
        iban=_checked(payment, "iban", r"[A-Z]{2}\d{2}[A-Z0-9]{8,30}"),
        bic=_checked(payment, "bic", r"[A-Z0-9]{8}([A-Z0-9]{3})?"),
        terms=payment.text("terms", "", _LINE),
        due_days=payment.whole("due_days", 0, 0, 3650) if payment.take("due_days") is not None else None,
        customization=payment.text("customization", EN_16931, r"[!-~]{1,200}"),
        taxes=tuple(each(top, "tax", _tax)),
        accounts={name: _recipient(f"{path}, [accounts.{name}]", values) for name, values in accounts.items()},
        energy=tuple(each(top, "energy", _energy)),
    )
    for table in (seller, payment, top):
        table.close()
    for first, second in combinations(finance.taxes, 2):
        if first.account == second.account and first.valid.overlaps(second.valid):
            day = max(first.valid.start, second.valid.start)
            raise AccountingError(f"{path}: two [[tax]] {first.account} are valid on {day}; set from and until")
    for one, other in combinations(finance.energy, 2):
        if one.valid.overlaps(other.valid):
            day = max(one.valid.start, other.valid.start)
            raise AccountingError(f"{path}: two [[energy]] are valid on {day}; set from and until")
    return finance


def _checked(table: Table, key: str, pattern: str) -> str:
    value = table.text(key, "", _LINE)
    packed = value.replace(" ", "").upper()
    if packed and not re.fullmatch(pattern, packed):
        raise table.refuse(key, f"a text like {pattern}")
    return packed


def _party(table: Table) -> Party:
    texts = {name: table.text(name, "", _LINE) for name in Party.__slots__ if name not in ("country", "vat_id")}
    party = Party(
        **texts, country=table.text("country", "", r"[A-Z]{2}"), vat_id=_checked(table, "vat_id", r"[A-Z]{2}[A-Z0-9]+")
    )
    if party.endpoint and not re.fullmatch(r"[0-9A-Z]{2,4}", party.endpoint_scheme):
        raise AccountingError(
            f'{table.where}: endpoint needs endpoint_scheme, the code of its kind of address, such as "EM" for e-mail'
        )
    return party


def _recipient(where: str, values: Any) -> Recipient:
    table = Table(where, values)
    party = _party(table)
    if not party.name:
        raise table.refuse("name", "the name of who pays")
    own = {name: table.text(name, "", _LINE) for name in ("cost_centre", "purchase_order", "buyer_reference")}
    table.close()
    return Recipient(party, **own)


def _tax(table: Table) -> Tax:
    category = table.text("category", "", r"[A-Z]{1,2}")
    if category not in _CATEGORIES:
        raise table.refuse("category", ", ".join(f"{code} ({meaning})" for code, meaning in _CATEGORIES.items()))
    percent = table.decimal("percent", "0", "100", 4, "0")
    if (percent > 0) != (category == "S"):
        raise table.refuse("percent", "more than 0 with category S, and 0 with every other")
    reason = table.text("reason", "", _LINE)
    if not reason and category not in ("S", "Z"):
        raise table.refuse("reason", f"why nothing is charged: category {category} needs it on the invoice")
    return Tax(category, percent, reason, table.text("account", ""), table.months())


def _energy(table: Table) -> Energy:
    price, co2 = (
        table.decimal(key, "0", "100000", 6) if table.take(key) is not None else None
        for key in ("per_kwh", "co2_g_per_kwh")
    )
    return Energy(price, co2, table.decimal("overhead", "1", "10", 4, "1"), table.months())
