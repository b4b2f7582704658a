# SPDX-License-Identifier: Apache-2.0
"""Makes the bill: GPU time held, summed by the given dimensions, with lines that add up to the total. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.pricing.apportion import apportion
from hami_hpc.accounting.pricing.held_time import PPM_SECONDS_PER_HOUR, HeldTime, HeldTimes, LeftOut, Segment
from hami_hpc.accounting.pricing.price import Priced, billed_units, unit
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.times import Period

HOUR_DIGITS = 4
_HOUR_UNIT = PPM_SECONDS_PER_HOUR // 10**HOUR_DIGITS

DIMENSIONS: Mapping[str, Callable[[HeldTime, Sequence[Segment]], str]] = {
    "cluster": lambda group, _: group.cluster,
    "account": lambda group, _: group.account,
    "user": lambda group, _: group.user,
    "partition": lambda group, _: group.partition,
    "qos": lambda group, _: group.qos,
    "model": lambda group, _: group.model,
    "mode": lambda group, _: group.mode.value,
    "class": lambda group, _: group.service_class,
    "billable": lambda group, _: "yes" if group.billable else "no",
    "day": lambda group, segments: segments[group.segment].bucket,
    "month": lambda group, segments: segments[group.segment].bucket[: len("2026-11")],
}


@dataclass(frozen=True, slots=True)
class Line:
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
    suspended time.
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


def check_dimensions(dimensions: Sequence[str]) -> None:
    """Raises AccountingError unless these are names in DIMENSIONS, each once."""
    unknown = [name for name in dimensions if name not in DIMENSIONS]
    if unknown:
        raise AccountingError(f"cannot bill by '{unknown[0]}'; allowed are {', '.join(DIMENSIONS)}")
    doubled = [name for name in dimensions if dimensions.count(name) > 1]
    if doubled:
        raise AccountingError(f"--by names {doubled[0]} twice; name it once")


def make_bill(
    held_times: HeldTimes,
    priced: Sequence[Priced],
    segments: Sequence[Segment],
    dimensions: Sequence[str],
    rates: Rates | None,
) -> Bill:
    """Sums the groups by ``dimensions`` (names in DIMENSIONS), sorted by label. rates: None for a bill without cost."""
    check_dimensions(dimensions)
    readers = [DIMENSIONS[name] for name in dimensions]
    sums: dict[tuple[str, ...], list[int]] = {}
    for entry in priced:
        line = sums.setdefault(tuple(reader(entry.group, segments) for reader in readers), [0, 0, 0])
        line[0] += entry.group.runs
        line[1] += entry.group.held_ppm_s
        line[2] += entry.charge
    labels = sorted(sums)
    hours = to_hours([sums[label][1] for label in labels])
    costs = to_money([sums[label][2] for label in labels], rates.digits) if rates else [None] * len(labels)
    lines = tuple(
        Line(label, sums[label][0], hour, sums[label][1], cost)
        for label, hour, cost in zip(labels, hours, costs, strict=True)
    )
    return Bill(
        Period(segments[0].period.start_s, segments[-1].period.end_s),
        tuple(dimensions),
        rates.currency if rates else "",
        lines,
        sum(line.runs for line in lines),
        sum(hours, Decimal(0).scaleb(-HOUR_DIGITS)),
        sum((cost for cost in costs if cost is not None), Decimal(0).scaleb(-rates.digits)) if rates else None,
        beyond_held(priced) if rates else Decimal(0),
        unpriced(priced) if rates else (),
        held_times.left_out,
        held_times.still_running,
        held_times.spread,
    )


def to_hours(exact: Sequence[int]) -> list[Decimal]:
    """Converts millionths of a GPU times seconds to GPU-hours, rounded so that they add up."""
    return [Decimal(hours).scaleb(-HOUR_DIGITS) for hours in apportion(exact, _HOUR_UNIT)]


def to_money(charges: Sequence[int], digits: int) -> list[Decimal]:
    """Converts charges (price.py) to amounts, rounded so that they add up."""
    return [Decimal(amount).scaleb(-digits) for amount in apportion(charges, unit(digits))]


def beyond_held(priced: Sequence[Priced]) -> Decimal:
    """Returns the GPU-hours charged in addition to those held."""
    charged = [entry for entry in priced if entry.group.billable and not entry.problem]
    return to_hours([sum(billed_units(entry) - entry.group.held_ppm_s for entry in charged)])[0]


def unpriced(priced: Sequence[Priced]) -> tuple[Unpriced, ...]:
    """Returns the GPU time without a rate, by what is missing."""
    sums: dict[str, list[int]] = {}
    days: dict[str, set[str]] = {}
    for entry in priced:
        if entry.problem:
            what, _, day = entry.problem.rpartition(" on ")
            days.setdefault(what, set()).add(day)
            line = sums.setdefault(what, [0, 0])
            line[0] += entry.group.runs
            line[1] += entry.group.held_ppm_s
    missing = sorted(sums)
    hours = to_hours([sums[what][1] for what in missing])
    return tuple(
        Unpriced(f"{what} on {_days(days[what])}", sums[what][0], hour)
        for what, hour in zip(missing, hours, strict=True)
    )


def _days(days: Collection[str]) -> str:
    """Returns the first of some days, and how many there are."""
    others = len(days) - 1
    return min(days) + (f" and {others:,} other day{'' if others == 1 else 's'}" if others else "")
