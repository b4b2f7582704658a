# SPDX-License-Identifier: Apache-2.0
"""What invoices take from accounts' credits, and what is left of them. Pure.

A credit is known by its id, so its note, days and amount may be edited. Invoices of before the ids name a credit by a
text of these (former_text); such a use counts for the credit of that account that still has this text, or that names
it in ``formerly``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.pricing.rates import Credit, Rates, Validity

# A credit as an invoice names it: ("", id), or of before the ids (account, former_text).
Ref = tuple[str, str]
_NOTHING = Decimal(0)


@dataclass(frozen=True, slots=True)
class CreditUse:
    """The part of a credit that an invoice uses. key: its id; of before the ids, its former_text."""

    key: str
    note: str
    amount: str


@dataclass(frozen=True, slots=True)
class Balance:
    """A credit, what valid invoices used of it, and the rest, in the currency."""

    credit: str
    account: str
    note: str
    valid: Validity
    granted: Decimal
    used: Decimal
    left: Decimal


def former_text(credit: Credit) -> str:
    """Returns the text by which invoices of before the ids name a credit."""
    return f"{credit.valid.start}/{credit.valid.end}/{credit.amount}/{credit.note}"


def ref(account: str, key: str) -> Ref:
    """Returns the credit that an invoice of ``account`` names by ``key``: no id has a slash, each former text has."""
    return (account if "/" in key else "", key)


def spent(credits: Sequence[Credit], uses: Mapping[Ref, Decimal]) -> Mapping[str, Decimal]:
    """Returns by id what is spent of these credits, which are all that their accounts have."""
    used = {credit.id: uses.get(("", credit.id), _NOTHING) for credit in credits}
    for former, claimants in _claims(credits).items():
        rest = uses.get(former, _NOTHING)
        # Two credits of before the ids may have had the same text: together they have spent what is spent of it.
        for credit in claimants[:-1]:
            part = min(rest, max(_NOTHING, credit.amount - used[credit.id]))
            used[credit.id] += part
            rest -= part
        used[claimants[-1].id] += rest
    return used


def take(credits: Sequence[Credit], day: date, uses: Mapping[Ref, Decimal], owed: Decimal) -> tuple[CreditUse, ...]:
    """Returns what an account's credits that hold on ``day`` pay of ``owed``, the one that ends first before others.

    credits: all of the account's. uses: what other invoices took.
    """
    used = spent(credits, uses)
    taken = []
    holding = [credit for credit in credits if credit.valid.holds_on(day)]
    for credit in sorted(holding, key=lambda credit: (credit.valid.end, credit.valid.start, credit.id)):
        amount = min(owed, credit.amount - used[credit.id])
        if amount > 0:
            taken.append(CreditUse(credit.id, credit.note, str(amount)))
            owed -= amount
    return tuple(taken)


def balances(rates: Rates, uses: Mapping[Ref, Decimal]) -> tuple[Balance, ...]:
    """Returns all credits of all accounts, sorted. uses: what invoices that stand took."""
    used = spent(rates.credits, uses)
    return tuple(
        Balance(
            credit.id, credit.account, credit.note, credit.valid, credit.amount, used[credit.id],
            credit.amount - used[credit.id],
        )
        for credit in sorted(rates.credits, key=lambda credit: (credit.account, credit.valid.end, credit.id))
    )  # fmt: skip


def unknown_uses(rates: Rates, uses: Mapping[Ref, Decimal]) -> tuple[str, ...]:
    """Returns a sentence for each credit that invoices took from and that is not in rates.toml.

    Without its entry it cannot be known whether another credit is the same one, and is spent already.
    """
    known = {("", credit.id) for credit in rates.credits} | _claims(rates.credits).keys()
    faults = []
    for (account, key), amount in sorted(uses.items()):
        if not amount or (account, key) in known:
            continue
        if account:
            faults.append(
                f"invoices of {account} took {amount} from a credit of before credits had ids, and rates.toml has none "
                f"with its days, amount and note: add formerly = [{json.dumps(key, ensure_ascii=False)}] to the "
                "[[credits]] that it is now"
            )
        else:
            faults.append(
                f"invoices took {amount} from the credit {key}, which is not in rates.toml: put it back with that id; "
                "one that is spent or over stays there"
            )
    return tuple(faults)


def refuse_unknown_uses(rates: Rates, uses: Mapping[Ref, Decimal], elsewhere: Mapping[Ref, str]) -> None:
    """Raises AccountingError if an invoice took from a credit that is not in rates.toml, or that was in other money.

    elsewhere: the credits that invoices in another currency took from, with that currency.
    """
    for fault in unknown_uses(rates, uses):
        raise AccountingError(fault)
    claims = _claims(rates.credits)
    ids = {credit.id for credit in rates.credits}
    for (account, key), currency in sorted(elsewhere.items()):
        if (account, key) in claims or (not account and key in ids):
            name = claims[account, key][0].id if account else key
            raise AccountingError(
                f"invoices in {currency} took from the credit {name}, and rates.toml is in {rates.currency}: remove "
                "it, and grant what is left of it under a new id"
            )


def _claims(credits: Sequence[Credit]) -> dict[Ref, list[Credit]]:
    """Returns the credits that a former text may mean: those that name it, else those that have it."""
    naming: dict[Ref, list[Credit]] = {}
    having: dict[Ref, list[Credit]] = {}
    for credit in credits:
        having.setdefault((credit.account, former_text(credit)), []).append(credit)
        for text in dict.fromkeys(credit.formerly):
            naming.setdefault((credit.account, text), []).append(credit)
    return {**having, **naming}
