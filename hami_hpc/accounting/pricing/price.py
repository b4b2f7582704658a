# SPDX-License-Identifier: Apache-2.0
"""Multiplies held time by rates, exactly. Pure.

A charge is an integer in the product of the smallest units: GPU share in millionths, time in seconds, rate in
millionths of the currency per hour, factor for suspended time in ten-thousandths. Only printed amounts are rounded
(apportion.py), so charges add up over any breakdown and any division of a period.
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
    """A group with its price.

    rate: millionths of the currency per GPU-hour; None if there is none, and then the charge is 0 and ``problem`` says
    why. charge: in 1/PER_CURRENCY of the currency.
    """

    group: HeldTime
    rate: int | None
    charge: int
    suspended_factor: Decimal = Decimal(0)
    problem: str = ""


def price(groups: Sequence[HeldTime], segments: Sequence[Segment], rates: Rates, tz: ZoneInfo) -> tuple[Priced, ...]:
    """Returns each group's charge at the rates of its segment."""
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
    """Returns the time charged, in millionths of a GPU times seconds: the time held, the time added up to the minimum,
    and the priced part of suspended time (rounded down)."""
    return _amount(entry.group, entry.suspended_factor) // _FACTOR_UNITS if entry.group.billable else 0


def _amount(group: HeldTime, suspended_factor: Decimal) -> int:
    return (group.held_ppm_s + group.top_up_ppm_s) * _FACTOR_UNITS + group.suspended_ppm_s * int(
        suspended_factor * _FACTOR_UNITS
    )


def unit(digits: int) -> int:
    """Returns the charge units in the currency's smallest unit (a cent: digits 2)."""
    return PER_CURRENCY // int(10**digits)
