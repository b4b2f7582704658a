# SPDX-License-Identifier: Apache-2.0
"""Makes an account's invoice for a calendar month: lines, volume discount, credits, total.

Rounding: the subtotal is rounded once, half to even, and divided among the lines (apportion.py); the discount is
rounded half to even; credits are exact. So lines + discount + credits is exactly the total.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from functools import cache
from itertools import pairwise

from hami_hpc.accounting.documents.bill import billed_hours, to_hours, to_money
from hami_hpc.accounting.documents.charged import RuleCredit, quantity, rule_credits
from hami_hpc.accounting.documents.credits import CreditUse, Ref, take
from hami_hpc.accounting.pricing.apportion import apportion
from hami_hpc.accounting.pricing.billing_sql import RESOURCE_UNITS
from hami_hpc.accounting.pricing.discount import PER_RUN, Held, of_account, reduction
from hami_hpc.accounting.pricing.held_time import PPM_SECONDS_PER_HOUR
from hami_hpc.accounting.pricing.price import (
    ALL,
    BY_RULE,
    FACTOR_UNITS,
    OF_GPUS,
    OF_RESOURCES,
    PRICED,
    USUAL,
    Sum,
    unit,
)
from hami_hpc.accounting.pricing.priced_period import PricedPeriod
from hami_hpc.accounting.pricing.rates import MICRO, Discount, Rates
from hami_hpc.accounting.pricing.segment import Segment


@dataclass(frozen=True, slots=True)
class InvoiceLine:
    """One line. labels: what was held (model, mode, class, partition, rate) or by whom. gpu_hours: as billed. quantity:
    of CPUs, memory and licences, which have no GPU-hours: their hours with the unit."""

    labels: tuple[str, ...]
    jobs: int
    gpu_hours: str
    amount: str
    quantity: str = ""


@dataclass(frozen=True, slots=True)
class DiscountStep:
    """A part of a discount: of gpu_hours, those beyond from_gpu_hours, percent of their mean price is subtracted."""

    from_gpu_hours: str
    gpu_hours: str
    percent: str
    amount: str


@dataclass(frozen=True, slots=True)
class Content:
    """An invoice without its number and date. Equal content means equal invoices. Amounts and hours are decimal text.

    days: GPU-hours billed on each day. unbilled_gpu_hours: those that cost nothing because of how their runs ended.
    notes: what a reader must know, such as GPU time without a rate. discount_steps: how the discount was computed,
    where it is by tiers of the month alone; documents of before have none. credited: by the site's rules; the discount
    is off what is left.
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
    discount_steps: tuple[DiscountStep, ...] = ()
    credited: tuple[RuleCredit, ...] = ()


@dataclass(frozen=True, slots=True)
class AccountTime:
    """What an account held in a month and has a rate: sums by what was held, by user and by day, each with the account
    as its first label.

    resources: CPUs, memory and licences, as lines. models: of GPUs, by model, with what is credited. rules: of runs
    that a rule credits, by rule. runs: of GPUs, by model and run, where a discount is per run.
    """

    lines: list[Sum] = field(default_factory=list)
    users: list[Sum] = field(default_factory=list)
    days: list[Sum] = field(default_factory=list)
    resources: list[Sum] = field(default_factory=list)
    models: list[Sum] = field(default_factory=list)
    rules: list[Sum] = field(default_factory=list)
    runs: list[Sum] = field(default_factory=list)

    @property
    def billed(self) -> int:
        """All time charged, as price.Sum has it."""
        return sum(entry.billed for entry in self.lines)

    @property
    def charge(self) -> int:
        """The charge of all of it, as price.Sum has it."""
        return sum(entry.charge for entry in (*self.lines, *self.resources))


def account_times(priced_period: PricedPeriod, rates: Rates | None = None) -> dict[str, AccountTime]:
    """Returns the GPU time of each account that has any, also if none of it has a rate. priced_period: by day.

    rates: to leave out what they do not ask for; its runs are not filled here (add_runs). Users and days have only the
    numbers that an invoice shows.
    """
    times = {entry.labels[0]: AccountTime() for entry in priced_period.sums("account", numbers=())}
    wanted: list[tuple[str, tuple[str, ...], str, tuple[str, ...]]] = [
        ("lines", _LINE, f"{PRICED} AND {OF_GPUS}", USUAL),
        ("users", ("user",), PRICED, ("billed", "charge")),
        ("days", ("day",), PRICED, ("billed",)),
    ]
    if rates is None or rates.discounts:
        wanted.append(("models", ("model",), f"{PRICED} AND {OF_GPUS}", ALL))
    if rates is None or rates.resources:
        wanted.append(("resources", _LINE, f"{PRICED} AND {OF_RESOURCES}", ALL))
    if rates is None or rates.credit_rules:
        wanted.append(("rules", ("rule",), BY_RULE, ALL))
    for name, by, condition, numbers in wanted:
        for entry in priced_period.sums("account", *by, condition=condition, numbers=numbers):
            getattr(times[entry.labels[0]], name).append(entry)
    return times


def add_runs(times: Mapping[str, AccountTime], priced_period: PricedPeriod) -> None:
    """Adds the time of each run, for discounts per run. priced_period: of the month, by run (held_time.RUN)."""
    condition = f"{PRICED} AND {OF_GPUS}"
    for entry in priced_period.sums("account", "cluster", "run", "model", condition=condition, numbers=ALL):
        times[entry.labels[0]].runs.append(entry)


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
    credited = rule_credits(held.rules, rates)
    reduced = subtotal + sum((Decimal(entry.amount) for entry in credited), Decimal(0))
    discounts = of_account(rates, account, month)
    discount = max(_discount(held, discounts, rates.digits), -reduced)
    credit_uses = take(rates.credits_of(account), month, uses, reduced + discount)
    total = reduced + discount - sum((Decimal(use.amount) for use in credit_uses), Decimal(0))
    unbilled = sum(entry.held_ppm_s for entry in held.lines if entry.labels[-1] == "no")
    return Content(
        account=account,
        month=month.strftime("%Y-%m"),
        timezone=rates.timezone,
        currency=rates.currency,
        lines=_lines(((_line_labels(entry.labels), entry) for entry in (*held.lines, *held.resources)), rates),
        users=_lines(((entry.labels[1:], entry) for entry in held.users), rates),
        days=_days(held, segments),
        jobs=sum(entry.runs for entry in (*held.lines, *held.resources)),
        gpu_hours=str(billed_hours([held.billed])[0]),
        unbilled_gpu_hours=str(to_hours([unbilled])[0]),
        subtotal=str(subtotal),
        discount=str(discount),
        credits=credit_uses,
        total=str(total),
        notes=tuple(notes),
        discount_steps=_discount_steps(held, discounts, discount, rates.digits),
        credited=credited,
    )


_NO_HOURS = str(billed_hours([0])[0])
# What a line is by (docs/accounting.md), and whether it cost anything.
_LINE = ("model", "mode", "class", "partition", "rate", "billable")


def _line_labels(labels: Sequence[str]) -> tuple[str, ...]:
    _, model, mode, service_class, partition, rate, _ = labels
    return (model, mode, service_class, partition, _rate_text(rate))


@cache
def _rate_text(rate: str) -> str:
    """Returns a rate in full, so that whoever multiplies it by the hours comes to the line's amount."""
    return f"{Decimal(rate) / MICRO:.{6 if int(rate) % 100 else 4}f}"


def _lines(entries: Iterable[tuple[tuple[str, ...], Sum]], rates: Rates) -> tuple[InvoiceLine, ...]:
    sums: dict[tuple[str, ...], Sum] = {}
    for labels, entry in entries:
        known = sums.get(labels)
        sums[labels] = known.plus(entry) if known else entry
    ordered = sorted(sums, key=lambda labels: (len(labels) > 1 and labels[1] in RESOURCE_UNITS, labels))
    hours = billed_hours([sums[labels].billed for labels in ordered])
    amounts = to_money([sums[labels].charge for labels in ordered], rates.digits)
    return tuple(
        InvoiceLine(
            labels,
            sums[labels].runs,
            str(hour),
            str(amount),
            quantity(labels[1], sums[labels].amount) if len(labels) > 1 else "",
        )
        for labels, hour, amount in zip(ordered, hours, amounts, strict=True)
    )


def _days(held: AccountTime, segments: Sequence[Segment]) -> tuple[tuple[str, str], ...]:
    hours = dict.fromkeys([segment.bucket for segment in segments], _NO_HOURS)
    billed = billed_hours([entry.billed for entry in held.days])
    hours.update(zip([entry.labels[1] for entry in held.days], map(str, billed), strict=True))
    return tuple(hours.items())


def _discount(held: AccountTime, discounts: Sequence[Discount], digits: int) -> Decimal:
    """Returns the volume discount on what is left after credits by rule, as a negative amount."""
    if not discounts:
        return Decimal(0).scaleb(-digits)
    runs: dict[tuple[str, ...], dict[str, Held]] = {}
    for entry in held.runs:
        runs.setdefault(entry.labels[1:3], {})[entry.labels[3]] = _held(entry)
    models = {entry.labels[1]: _held(entry) for entry in held.models}
    exact = reduction(discounts, models, runs.values())
    return -Decimal(round(exact / unit(digits))).scaleb(-digits)


def _held(entry: Sum) -> Held:
    return Held(entry.billed, entry.charge - entry.credited)


def _discount_steps(
    held: AccountTime, discounts: Sequence[Discount], discount: Decimal, digits: int
) -> tuple[DiscountStep, ...]:
    """Returns the parts of the discount, one for each tier that the account has reached; none if it is of another kind
    or they do not add up to it, since a wrong explanation is worse than none."""
    if not discount or held.rules or any(d.model or d.per == PER_RUN or d.kind != "tier" for d in discounts):
        return ()
    tiers = sorted(discounts, key=lambda tier: tier.from_gpu_hours)
    per_hour = PPM_SECONDS_PER_HOUR * FACTOR_UNITS
    reached = [tier for tier in tiers if tier.from_gpu_hours * per_hour < held.billed]
    edges = [int(tier.from_gpu_hours * per_hour) for tier in reached] + [held.billed]
    hours = billed_hours([top - bottom for bottom, top in pairwise(edges)])
    charge = sum(entry.charge for entry in held.lines)
    # Whole parts of the charge, with the percentage's four digits, so that apportion divides integers.
    exact = [
        charge * (top - bottom) * int(tier.percent * 10_000)
        for tier, (bottom, top) in zip(reached, pairwise(edges), strict=True)
    ]
    cents = apportion(exact, unit(digits) * held.billed * 1_000_000)
    if -sum(cents) != discount.scaleb(digits):
        return ()
    return tuple(
        DiscountStep(f"{tier.from_gpu_hours.normalize():f}", str(hour), f"{tier.percent.normalize():f}", str(amount))
        for tier, hour, amount in zip(reached, hours, (-Decimal(cent).scaleb(-digits) for cent in cents), strict=True)
    )
