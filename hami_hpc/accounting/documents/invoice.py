# SPDX-License-Identifier: Apache-2.0
"""Makes an account's invoice for a calendar month: lines, volume discount, credits, total.

Rounding: the subtotal is rounded once, half to even, and divided among the lines (apportion.py); the discount is
rounded half to even; credits are exact. So lines + discount + credits is exactly the total.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction

from hami_hpc.accounting.documents.bill import billed_hours, to_hours, to_money
from hami_hpc.accounting.documents.credits import CreditUse, Ref, take
from hami_hpc.accounting.pricing.held_time import PPM_SECONDS_PER_HOUR, Segment
from hami_hpc.accounting.pricing.price import FACTOR_UNITS, PRICED, Sum, unit
from hami_hpc.accounting.pricing.priced_period import PricedPeriod
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


@dataclass(frozen=True, slots=True)
class AccountTime:
    """What an account held in a month and has a rate: sums by what was held, by user and by day, each with the account
    as its first label."""

    lines: Sequence[Sum] = ()
    users: Sequence[Sum] = ()
    days: Sequence[Sum] = ()

    @property
    def billed(self) -> int:
        """All time charged, as price.Sum has it."""
        return sum(entry.billed for entry in self.lines)

    @property
    def charge(self) -> int:
        """The charge of all of it, as price.Sum has it."""
        return sum(entry.charge for entry in self.lines)


def account_times(priced_period: PricedPeriod) -> dict[str, AccountTime]:
    """Returns the GPU time of each account that has any, also if none of it has a rate. priced_period: by day."""
    times = {entry.labels[0]: AccountTime([], [], []) for entry in priced_period.sums("account")}
    for name, by in (("lines", _LINE), ("users", ("user",)), ("days", ("day",))):
        for entry in priced_period.sums("account", *by, condition=PRICED):
            getattr(times[entry.labels[0]], name).append(entry)
    return times


def build(
    account: str,
    month: date,
    held: AccountTime,
    segments: Sequence[Segment],
    rates: Rates,
    uses: Mapping[Ref, Decimal],
    notes: Sequence[str],
) -> Content:
    """Returns the content of one account's invoice.

    held: of the month. segments: of the month, by day. uses: what other invoices took from credits. notes: on the
    account's own jobs (notes.py), also on those without a rate.
    """
    subtotal = to_money([held.charge], rates.digits)[0]
    discount = _discount(held, account, month, rates)
    credit_uses = _credits(account, month, rates, uses, subtotal + discount)
    total = subtotal + discount - sum((Decimal(use.amount) for use in credit_uses), Decimal(0))
    unbilled = sum(entry.held_ppm_s for entry in held.lines if entry.labels[-1] == "no")
    return Content(
        account=account,
        month=month.strftime("%Y-%m"),
        timezone=rates.timezone,
        currency=rates.currency,
        lines=_lines([(_line_labels(entry.labels), entry) for entry in held.lines], rates),
        users=_lines([(entry.labels[1:], entry) for entry in held.users], rates),
        days=_days(held, segments),
        jobs=sum(entry.runs for entry in held.lines),
        gpu_hours=str(billed_hours([held.billed])[0]),
        unbilled_gpu_hours=str(to_hours([unbilled])[0]),
        subtotal=str(subtotal),
        discount=str(discount),
        credits=credit_uses,
        total=str(total),
        notes=tuple(notes),
    )


# What a line is by (docs/accounting.md), and whether it cost anything.
_LINE = ("model", "mode", "class", "partition", "rate", "billable")


def _line_labels(labels: Sequence[str]) -> tuple[str, ...]:
    _, model, mode, service_class, partition, rate, _ = labels
    return (model, mode, service_class, partition, f"{Decimal(rate) / MICRO:.4f}")


def _lines(entries: Sequence[tuple[tuple[str, ...], Sum]], rates: Rates) -> tuple[InvoiceLine, ...]:
    sums: dict[tuple[str, ...], list[int]] = {}
    for labels, entry in entries:
        line = sums.setdefault(labels, [0, 0, 0])
        line[0] += entry.runs
        line[1] += entry.billed
        line[2] += entry.charge
    ordered = sorted(sums)
    hours = billed_hours([sums[labels][1] for labels in ordered])
    amounts = to_money([sums[labels][2] for labels in ordered], rates.digits)
    return tuple(
        InvoiceLine(labels, sums[labels][0], str(hour), str(amount))
        for labels, hour, amount in zip(ordered, hours, amounts, strict=True)
    )


def _days(held: AccountTime, segments: Sequence[Segment]) -> tuple[tuple[str, str], ...]:
    days = dict.fromkeys((segment.bucket for segment in segments), 0)
    days.update({entry.labels[1]: entry.billed for entry in held.days})
    return tuple((day, str(hour)) for day, hour in zip(days, billed_hours(list(days.values())), strict=True))


def _discount(held: AccountTime, account: str, month: date, rates: Rates) -> Decimal:
    """Returns the volume discount, as a negative amount.

    A tier's percentage applies to the hours in that tier. The discount on the whole charge is the mean percentage over
    the hours, so it does not depend on which hours were expensive.
    """
    tiers = _tiers(account, month, rates)
    hours = Fraction(held.billed, PPM_SECONDS_PER_HOUR * FACTOR_UNITS)
    if not tiers or not hours:
        return Decimal(0).scaleb(-rates.digits)
    discounted_hours = Fraction(0)
    for tier, next_tier in zip(tiers, [*tiers[1:], None], strict=True):
        top = min(hours, Fraction(next_tier.from_gpu_hours)) if next_tier else hours
        discounted_hours += max(Fraction(0), top - Fraction(tier.from_gpu_hours)) * Fraction(tier.percent) / 100
    exact = held.charge * discounted_hours / hours
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
