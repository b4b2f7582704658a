# SPDX-License-Identifier: Apache-2.0
"""Makes the bill: GPU time held, summed by the given dimensions, with lines that add up to the total."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import repeat
from typing import NamedTuple
from zoneinfo import ZoneInfo

from hami_hpc.accounting.documents.charged import ResourceCharge, RuleCredit, resource_charges, rule_credits
from hami_hpc.accounting.errors import AccountingError, printable
from hami_hpc.accounting.pricing.apportion import apportion
from hami_hpc.accounting.pricing.held_time import PPM_SECONDS_PER_HOUR, LeftOut
from hami_hpc.accounting.pricing.price import ALL, BY_RULE, CHARGED, FACTOR_UNITS, OF_RESOURCES, UNPRICED, Sum, unit
from hami_hpc.accounting.pricing.priced_period import PricedPeriod
from hami_hpc.accounting.pricing.rates import Rates, Terms
from hami_hpc.accounting.times import Bucket, Period, split_days, split_months

HOUR_DIGITS = 4
_HOUR_UNIT = PPM_SECONDS_PER_HOUR // 10**HOUR_DIGITS

DIMENSIONS = (
    "cluster",
    "account",
    "user",
    "job",
    "partition",
    "qos",
    "model",
    "mode",
    "class",
    "window",
    "billable",
    "day",
    "week",
    "month",
)
# What takes buckets of days to sum by.
_OF_DAYS = ("day", "week")


class Line(NamedTuple):
    """One line of a bill. labels: one for each dimension. exact: time held in millionths of a GPU times seconds.

    cost: in the currency; None on a bill without rates.
    """

    labels: tuple[str, ...]
    runs: int
    gpu_hours: Decimal
    exact: int
    cost: Decimal | None


@dataclass(frozen=True, slots=True)
class Unpriced:
    """GPU time without a rate. It is on the bill's lines, but not in their cost."""

    problem: str
    runs: int
    gpu_hours: Decimal


@dataclass(frozen=True, slots=True)
class Bill:
    """A bill. The lines' gpu_hours and cost add up exactly to the totals (apportion.py).

    beyond_held: GPU-hours charged in addition to those held: up to the minimum time of a run, and the priced part of
    suspended time. off_gpu: GPU-hours held and not charged because memory was off the GPU. credited: what credit rules
    take off the cost. resources: what of the cost is for CPUs, memory and licences. accounts: those that it is of; none
    for all.
    """

    period: Period
    dimensions: tuple[str, ...]
    currency: str
    lines: tuple[Line, ...]
    runs: int
    gpu_hours: Decimal
    cost: Decimal | None
    beyond_held: Decimal
    unpriced: tuple[Unpriced, ...]
    left_out: tuple[LeftOut, ...]
    still_running: int
    spread: int
    credited: tuple[RuleCredit, ...] = ()
    resources: tuple[ResourceCharge, ...] = ()
    off_gpu: Decimal = Decimal(0)
    accounts: tuple[str, ...] = ()

    @property
    def net(self) -> Decimal | None:
        """The cost after credits by rule; None on a bill without rates."""
        return None if self.cost is None else self.cost + sum(Decimal(entry.amount) for entry in self.credited)


def check_dimensions(dimensions: Sequence[str]) -> None:
    """Raises AccountingError unless these are names in DIMENSIONS, each once."""
    unknown = [name for name in dimensions if name not in DIMENSIONS]
    if unknown:
        raise AccountingError(f"cannot bill by '{unknown[0]}'; allowed are {', '.join(DIMENSIONS)}")
    doubled = [name for name in dimensions if dimensions.count(name) > 1]
    if doubled:
        raise AccountingError(f"--by names {doubled[0]} twice; name it once")


def buckets(period: Period, dimensions: Sequence[str], tz: ZoneInfo) -> tuple[Bucket, ...]:
    """Returns the parts of the period that a bill by these dimensions needs: its days, else its months."""
    return (split_days if any(name in _OF_DAYS for name in dimensions) else split_months)(period, tz)


def make_bill(priced_period: PricedPeriod, dimensions: Sequence[str], rates: Rates | None) -> Bill:
    """Sums the GPU time by ``dimensions`` (names in DIMENSIONS), sorted by label. rates: None for no cost."""
    check_dimensions(dimensions)
    # By column, and totals from whole units: line by line takes twice as long, which 200,000 lines show.
    labels, runs, numbers = priced_period.sums_by_column(*dimensions, numbers=("held_ppm_s", "charge"))
    held = numbers["held_ppm_s"]
    hour_units = apportion(held, _HOUR_UNIT)
    cost_units = apportion(numbers["charge"], unit(rates.digits)) if rates else []
    costs: Iterable[Decimal | None] = _decimals(cost_units, rates.digits) if rates else repeat(None, len(held))
    lines = tuple(map(Line, labels, runs, _decimals(hour_units, HOUR_DIGITS), held, costs))
    segments, facts = priced_period.segments, priced_period.facts
    return Bill(
        Period(segments[0].period.start_s, segments[-1].period.end_s),
        tuple(dimensions),
        rates.currency if rates else "",
        lines,
        sum(runs),
        Decimal(sum(hour_units)).scaleb(-HOUR_DIGITS),
        Decimal(sum(cost_units)).scaleb(-rates.digits) if rates else None,
        _beyond_held(priced_period) if rates and any(map(_charges_more, rates.terms)) else Decimal(0),
        unpriced(priced_period.sums("problem", "since", condition=UNPRICED)) if rates else (),
        facts.left_out,
        facts.still_running,
        facts.spread,
        rule_credits(priced_period.sums("rule", condition=BY_RULE, numbers=ALL), rates)
        if rates and rates.credit_rules
        else (),
        resource_charges(priced_period.sums("model", "mode", condition=OF_RESOURCES, numbers=ALL), rates)
        if rates and rates.resources
        else (),
        _off_gpu(priced_period) if rates and any(terms.off_gpu_factor != 1 for terms in rates.terms) else Decimal(0),
    )


def cluster_notes(priced_period: PricedPeriod, dimensions: Sequence[str]) -> list[str]:
    """Returns a note if lines by job may be of two jobs, as each cluster numbers its own; and one for each partition of
    the settings that counts for several clusters."""
    row = priced_period.con.execute("SELECT count(DISTINCT cluster) FROM counted").fetchone()
    if not row or row[0] < 2:
        return []
    notes = []
    if "job" in dimensions and "cluster" not in dimensions:
        notes = [f"jobs of {row[0]} clusters that have one number are on one line: see --by cluster,job and --clusters"]
    shared = priced_period.con.execute(
        "SELECT placed_in, list(DISTINCT cluster ORDER BY cluster) FROM active GROUP BY 1 "
        "HAVING count(DISTINCT cluster) > 1 ORDER BY 1"
    ).fetchall()
    return notes + [
        f"[partitions.{printable(name)}] says which GPUs {' and '.join(map(printable, names))} have there: where they "
        f'differ, write [partitions."{printable(names[-1])}/{printable(name)}"] into rates.toml'
        for name, names in shared
    ]


def _charges_more(terms: Terms) -> bool:
    """Returns whether terms charge time that was not held."""
    return bool(terms.minimum_s or terms.suspended_factor)


def _beyond_held(priced_period: PricedPeriod) -> Decimal:
    sums = priced_period.sums("billable", condition=CHARGED, numbers=("held_ppm_s", "billed", "spared"))
    return billed_hours([sum(entry.beyond for entry in sums)])[0]


def _off_gpu(priced_period: PricedPeriod) -> Decimal:
    sums = priced_period.sums("billable", condition=CHARGED, numbers=("spared",))
    return billed_hours([sum(entry.spared for entry in sums)])[0]


def to_hours(exact: Sequence[int]) -> list[Decimal]:
    """Converts millionths of a GPU times seconds to GPU-hours, rounded so that they add up."""
    return _decimals(apportion(exact, _HOUR_UNIT), HOUR_DIGITS)


def billed_hours(billed: Sequence[int]) -> list[Decimal]:
    """Converts billed time (price.Sum) to GPU-hours, rounded so that they add up."""
    return _decimals(apportion(billed, _HOUR_UNIT * FACTOR_UNITS), HOUR_DIGITS)


def to_money(charges: Sequence[int], digits: int) -> list[Decimal]:
    """Converts charges (price.py) to amounts, rounded so that they add up."""
    return _decimals(apportion(charges, unit(digits)), digits)


def _decimals(units: Iterable[int], digits: int) -> list[Decimal]:
    """Returns whole units as numbers with so many digits after the point."""
    smallest = Decimal(1).scaleb(-digits)
    return [number * smallest for number in units]


def unpriced(sums: Iterable[Sum]) -> tuple[Unpriced, ...]:
    """Returns the GPU time without a rate, by what is missing. sums: by problem and since."""
    found: dict[str, list[Sum]] = {}
    for entry in sums:
        found.setdefault(entry.labels[0], []).append(entry)
    hours = to_hours([sum(entry.held_ppm_s for entry in entries) for entries in found.values()])
    return tuple(
        Unpriced(f"{what} on {_days({entry.labels[1] for entry in entries})}", sum(e.runs for e in entries), hour)
        for (what, entries), hour in zip(found.items(), hours, strict=True)
    )


def _days(days: Collection[str]) -> str:
    """Returns the first of some days, and how many there are."""
    others = len(days) - 1
    return min(days) + (f" and {others:,} other day{'' if others == 1 else 's'}" if others else "")
