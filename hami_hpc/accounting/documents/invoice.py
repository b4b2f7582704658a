# SPDX-License-Identifier: Apache-2.0
"""Makes an account's invoice for a calendar month: lines, volume discount, credits, total. Pure.

Rounding: the subtotal is rounded once, half to even, and divided among the lines (apportion.py); the discount is
rounded half to even; credits are exact. So lines + discount + credits is exactly the total.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction

from hami_hpc.accounting.documents.bill import to_hours, to_money
from hami_hpc.accounting.documents.credits import CreditUse, Ref, take
from hami_hpc.accounting.pricing.held_time import PPM_SECONDS_PER_HOUR, Segment
from hami_hpc.accounting.pricing.price import Priced, billed_units, unit
from hami_hpc.accounting.pricing.rates import MICRO, Discount, Rates


@dataclass(frozen=True, slots=True)
class InvoiceLine:
    """One line. labels: what was held (model, mode, class, partition, rate) or by whom. gpu_hours: as billed."""

    labels: tuple[str, ...]
    jobs: int
    gpu_hours: str
    amount: str


@dataclass(frozen=True, slots=True)
class Content:
    """An invoice without its number and date. Equal content means equal invoices. Amounts and hours are decimal text.

    days: GPU-hours billed on each day. unbilled_gpu_hours: those that cost nothing because of how their runs ended.
    notes: what a reader must know, such as GPU time without a rate.
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


def build(
    account: str,
    month: date,
    priced: Sequence[Priced],
    segments: Sequence[Segment],
    rates: Rates,
    uses: Mapping[Ref, Decimal],
    notes: Sequence[str],
) -> Content:
    """Returns the content of one account's invoice.

    priced: the month's held time by day, of any accounts; what has no rate is not on the invoice. uses: what other
    invoices took from credits. notes: on the account's own jobs (notes.py), also on those without a rate.
    """
    entries = [entry for entry in priced if entry.group.account == account and not entry.problem]
    subtotal = to_money([sum(entry.charge for entry in entries)], rates.digits)[0]
    discount = _discount(entries, account, month, rates)
    credit_uses = _credits(account, month, rates, uses, subtotal + discount)
    total = subtotal + discount - sum((Decimal(use.amount) for use in credit_uses), Decimal(0))
    unbilled = sum(entry.group.held_ppm_s for entry in entries if not entry.group.billable)
    return Content(
        account=account,
        month=month.strftime("%Y-%m"),
        timezone=rates.timezone,
        currency=rates.currency,
        lines=_lines(entries, rates, _line_labels),
        users=_lines(entries, rates, lambda entry: (entry.group.user,)),
        days=_days(entries, segments),
        jobs=sum(entry.group.runs for entry in entries),
        gpu_hours=str(to_hours([_total_hours(entries)])[0]),
        unbilled_gpu_hours=str(to_hours([unbilled])[0]),
        subtotal=str(subtotal),
        discount=str(discount),
        credits=credit_uses,
        total=str(total),
        notes=tuple(notes),
    )


def _line_labels(entry: Priced) -> tuple[str, ...]:
    group = entry.group
    rate = Decimal(entry.rate or 0) / MICRO
    return (group.model, group.mode.value, group.service_class, group.partition, f"{rate:.4f}")


def _lines(
    entries: Sequence[Priced], rates: Rates, labels_of: Callable[[Priced], tuple[str, ...]]
) -> tuple[InvoiceLine, ...]:
    sums: dict[tuple[str, ...], list[int]] = {}
    for entry in entries:
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


def _days(entries: Sequence[Priced], segments: Sequence[Segment]) -> tuple[tuple[str, str], ...]:
    days: dict[str, int] = {segment.bucket: 0 for segment in segments}
    for entry in entries:
        days[segments[entry.group.segment].bucket] += billed_units(entry)
    return tuple((day, str(hour)) for day, hour in zip(days, to_hours(list(days.values())), strict=True))


def _total_hours(entries: Sequence[Priced]) -> int:
    return sum(billed_units(entry) for entry in entries)


def _discount(entries: Sequence[Priced], account: str, month: date, rates: Rates) -> Decimal:
    """Returns the volume discount, as a negative amount.

    A tier's percentage applies to the hours in that tier. The discount on the whole charge is the mean percentage over
    the hours, so it does not depend on which hours were expensive.
    """
    tiers = _tiers(account, month, rates)
    hours = Fraction(_total_hours(entries), PPM_SECONDS_PER_HOUR)
    if not tiers or not hours:
        return Decimal(0).scaleb(-rates.digits)
    discounted_hours = Fraction(0)
    for tier, next_tier in zip(tiers, [*tiers[1:], None], strict=True):
        top = min(hours, Fraction(next_tier.from_gpu_hours)) if next_tier else hours
        discounted_hours += max(Fraction(0), top - Fraction(tier.from_gpu_hours)) * Fraction(tier.percent) / 100
    exact = sum(entry.charge for entry in entries) * discounted_hours / hours
    return -Decimal(round(exact / unit(rates.digits))).scaleb(-rates.digits)


def _tiers(account: str, month: date, rates: Rates) -> list[Discount]:
    valid = [tier for tier in rates.discounts if tier.valid.holds_on(month)]
    own = [tier for tier in valid if tier.account == account]
    return sorted(own or [tier for tier in valid if not tier.account], key=lambda tier: tier.from_gpu_hours)


def _credits(
    account: str, month: date, rates: Rates, uses: Mapping[Ref, Decimal], owed: Decimal
) -> tuple[CreditUse, ...]:
    """Returns what the account's credits that are valid in the month pay of ``owed``."""
    return take([credit for credit in rates.credits if credit.account == account], month, uses, owed)
