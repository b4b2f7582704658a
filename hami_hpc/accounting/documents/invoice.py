# SPDX-License-Identifier: Apache-2.0
"""What one account owes for one calendar month: lines, volume discount, credits, total. Pure.

Rounding: the subtotal is rounded once, half to even, and shared out over the lines (apportion.py); the discount is
rounded half to even; credits are exact. So lines + discount + credits is the total, to the last cent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction

from hami_hpc.accounting.documents.bill import to_hours, to_money
from hami_hpc.accounting.pricing.held_time import PPM_SECONDS_PER_HOUR, Segment
from hami_hpc.accounting.pricing.price import Priced, billed_units, unit
from hami_hpc.accounting.pricing.rates import MICRO, Credit, Discount, Rates, Validity


@dataclass(frozen=True, slots=True)
class InvoiceLine:
    """One line. labels: what was held (model, mode, class, partition, rate) or by whom. gpu_hours: as billed."""

    labels: tuple[str, ...]
    jobs: int
    gpu_hours: str
    amount: str


@dataclass(frozen=True, slots=True)
class CreditUse:
    """Part of a credit that an invoice takes. key: of the credit (credit_key)."""

    key: str
    note: str
    amount: str


@dataclass(frozen=True, slots=True)
class Content:
    """An invoice but for its number and date: equal content, equal invoice. Amounts and hours as decimal text.

    days: GPU-hours billed on each day. unbilled: GPU-hours that cost nothing because of how their runs ended.
    notes: what a reader must know, such as GPU time for which there is no rate.
    """

    account: str
    month: str
    timezone: str
    currency: str
    lines: tuple[InvoiceLine, ...]
    users: tuple[InvoiceLine, ...]
    days: tuple[tuple[str, str], ...]
    jobs: int
    gpu_hours: str
    unbilled_gpu_hours: str
    subtotal: str
    discount: str
    credits: tuple[CreditUse, ...]
    total: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Balance:
    """A credit, what invoices that stand have taken of it, and what is left, in the currency."""

    account: str
    note: str
    valid: Validity
    granted: Decimal
    used: Decimal
    left: Decimal


def balances(rates: Rates, used_credit: Callable[[str], Mapping[str, Decimal]]) -> tuple[Balance, ...]:
    """All credits of all accounts, in order. used_credit: what an account's invoices took, by credit_key."""
    found = []
    for credit in sorted(rates.credits, key=lambda credit: (credit.account, credit.valid.end, credit.valid.start)):
        used = used_credit(credit.account).get(credit_key(credit), Decimal(0))
        found.append(Balance(credit.account, credit.note, credit.valid, credit.amount, used, credit.amount - used))
    return tuple(found)


def credit_key(credit: Credit) -> str:
    """What tells one credit of an account from another."""
    return f"{credit.valid.start}/{credit.valid.end}/{credit.amount}/{credit.note}"


def accounts_of(priced: Sequence[Priced]) -> tuple[str, ...]:
    """The accounts that held anything, in order."""
    return tuple(sorted({entry.group.account for entry in priced}))


def build(
    account: str,
    month: date,
    priced: Sequence[Priced],
    segments: Sequence[Segment],
    rates: Rates,
    used_credit: Mapping[str, Decimal],
    notes: Sequence[str],
) -> Content:
    """The content of one account's invoice. priced: the month's held time by day, of any accounts. used_credit: what
    other invoices have taken of each of the account's credits (by credit_key)."""
    mine = [entry for entry in priced if entry.group.account == account]
    subtotal = to_money([sum(entry.charge for entry in mine)], rates.digits)[0]
    discount = _discount(mine, account, month, rates)
    taken = _credits(account, month, rates, used_credit, subtotal + discount)
    total = subtotal + discount - sum((Decimal(use.amount) for use in taken), Decimal(0))
    unbilled = sum(entry.group.held_ppm_s for entry in mine if not entry.group.billable)
    gaps = sorted({entry.problem for entry in mine if entry.problem})
    return Content(
        account=account,
        month=month.strftime("%Y-%m"),
        timezone=rates.timezone,
        currency=rates.currency,
        lines=_lines(mine, rates, _line_labels),
        users=_lines(mine, rates, lambda entry: (entry.group.user,)),
        days=_days(mine, segments),
        jobs=sum(entry.group.runs for entry in mine),
        gpu_hours=str(to_hours([_total_hours(mine)])[0]),
        unbilled_gpu_hours=str(to_hours([unbilled])[0]),
        subtotal=str(subtotal),
        discount=str(discount),
        credits=taken,
        total=str(total),
        notes=(*notes, *(f"without a price, and not on this invoice: {gap}" for gap in gaps)),
    )


def _line_labels(entry: Priced) -> tuple[str, ...]:
    group = entry.group
    rate = Decimal(entry.rate or 0) / MICRO
    return (group.model, group.mode.value, group.service_class, group.partition, f"{rate:.4f}")


def _lines(
    mine: Sequence[Priced], rates: Rates, labels_of: Callable[[Priced], tuple[str, ...]]
) -> tuple[InvoiceLine, ...]:
    sums: dict[tuple[str, ...], list[int]] = {}
    for entry in mine:
        if entry.problem:
            continue
        line = sums.setdefault(labels_of(entry), [0, 0, 0])
        line[0] += entry.group.runs
        line[1] += billed_units(entry)
        line[2] += entry.charge
    labels = sorted(sums)
    hours = to_hours([sums[label][1] for label in labels])
    amounts = to_money([sums[label][2] for label in labels], rates.digits)
    return tuple(
        InvoiceLine(label, sums[label][0], str(hour), str(amount))
        for label, hour, amount in zip(labels, hours, amounts, strict=True)
    )


def _days(mine: Sequence[Priced], segments: Sequence[Segment]) -> tuple[tuple[str, str], ...]:
    days: dict[str, int] = {segment.bucket: 0 for segment in segments}
    for entry in mine:
        days[segments[entry.group.segment].bucket] += billed_units(entry)
    return tuple((day, str(hour)) for day, hour in zip(days, to_hours(list(days.values())), strict=True))


def _total_hours(mine: Sequence[Priced]) -> int:
    return sum(billed_units(entry) for entry in mine if not entry.problem)


def _discount(mine: Sequence[Priced], account: str, month: date, rates: Rates) -> Decimal:
    """The volume discount, as a negative amount. Each tier's percentage is of the hours that lie in it, so what is
    taken off the whole is the mean over the hours, and does not depend on which hour was dear."""
    tiers = _tiers(account, month, rates)
    held = Fraction(_total_hours(mine), PPM_SECONDS_PER_HOUR)
    if not tiers or not held:
        return Decimal(0).scaleb(-rates.digits)
    off = Fraction(0)
    for tier, following in zip(tiers, [*tiers[1:], None], strict=True):
        top = min(held, Fraction(following.from_gpu_hours)) if following else held
        off += max(Fraction(0), top - Fraction(tier.from_gpu_hours)) * Fraction(tier.percent) / 100
    exact = sum(entry.charge for entry in mine) * off / held
    return -Decimal(round(exact / unit(rates.digits))).scaleb(-rates.digits)


def _tiers(account: str, month: date, rates: Rates) -> list[Discount]:
    holding = [tier for tier in rates.discounts if tier.valid.holds_on(month)]
    own = [tier for tier in holding if tier.account == account]
    return sorted(own or [tier for tier in holding if not tier.account], key=lambda tier: tier.from_gpu_hours)


def _credits(
    account: str, month: date, rates: Rates, used: Mapping[str, Decimal], owed: Decimal
) -> tuple[CreditUse, ...]:
    """What the account's credits pay of ``owed``; the credit that ends first is used first."""
    uses = []
    mine = [credit for credit in rates.credits if credit.account == account and credit.valid.holds_on(month)]
    for credit in sorted(mine, key=lambda credit: (credit.valid.end, credit.valid.start, credit.note)):
        key = credit_key(credit)
        amount = min(owed, credit.amount - used.get(key, Decimal(0)))
        if amount > 0:
            uses.append(CreditUse(key, credit.note, str(amount)))
            owed -= amount
    return tuple(uses)
