# SPDX-License-Identifier: Apache-2.0
"""Held time times rate, exact. Pure.

A charge is a whole number of the smallest unit that can occur: GPU share in millionths, time in seconds, rate in
millionths of the currency per hour, factor for suspended time in ten-thousandths. Only what is shown is rounded
(apportion.py), so charges add up over any breakdown and any partition of a period.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from zoneinfo import ZoneInfo

from hami_hpc.accounting.pricing.gpu_share import PPM
from hami_hpc.accounting.pricing.held_time import HeldTime, Segment
from hami_hpc.accounting.pricing.rates import MICRO, RateMissing, Rates, effective_rate
from hami_hpc.accounting.times import local_date

_FACTOR_UNITS = 10_000
# Charge units in one unit of the currency (one euro).
PER_CURRENCY = PPM * 3600 * MICRO * _FACTOR_UNITS


@dataclass(frozen=True, slots=True)
class Priced:
    """A group with its price. rate: millionths of the currency per GPU-hour; None when there is none, and then the
    charge is 0 and ``problem`` says why. charge: 1/PER_CURRENCY of the currency."""

    group: HeldTime
    rate: int | None
    charge: int
    suspended_factor: Decimal = Decimal(0)
    problem: str = ""


def price(groups: Sequence[HeldTime], segments: Sequence[Segment], rates: Rates, tz: ZoneInfo) -> tuple[Priced, ...]:
    """Each group's charge at the rates of its segment."""
    priced = []
    for group in groups:
        day = local_date(segments[group.segment].period.start_s, tz)
        try:
            rate = effective_rate(rates, group, day)
        except RateMissing as error:
            priced.append(Priced(group, None, 0, problem=str(error)))
            continue
        factor = rates.terms_on(day).suspended_factor
        priced.append(Priced(group, rate, _amount(group, factor) * rate if group.billable else 0, factor))
    return tuple(priced)


def billed_units(entry: Priced) -> int:
    """What is charged for, in millionths of a GPU times seconds: held, topped up, and the priced part of suspended
    time (rounded down)."""
    return _amount(entry.group, entry.suspended_factor) // _FACTOR_UNITS if entry.group.billable else 0


def _amount(group: HeldTime, suspended_factor: Decimal) -> int:
    return (group.held_ppm_s + group.top_up_ppm_s) * _FACTOR_UNITS + group.suspended_ppm_s * int(
        suspended_factor * _FACTOR_UNITS
    )


def unit(digits: int) -> int:
    """Charge units in the currency's smallest unit (a cent: digits 2)."""
    return PER_CURRENCY // int(10**digits)
