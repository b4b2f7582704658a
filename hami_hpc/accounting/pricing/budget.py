# SPDX-License-Identifier: Apache-2.0
"""Budgets: what an account has used of them, when it will have used them up, and the warnings. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction

from hami_hpc.accounting.pricing.held_time import PPM_SECONDS_PER_HOUR
from hami_hpc.accounting.pricing.price import FACTOR_UNITS, PER_CURRENCY
from hami_hpc.accounting.pricing.quota import WARN_AT_PERCENT
from hami_hpc.accounting.pricing.rates import Budget
from hami_hpc.accounting.pricing.validity import Validity

PACE_DAYS = 30
HOURS = "GPU-hours"
_PER_HOUR = PPM_SECONDS_PER_HOUR * FACTOR_UNITS
_FAR_DAYS = 36_525


@dataclass(frozen=True, slots=True)
class Used:
    """What an account was charged in a time: hours as price.Sum.billed has them, and the charge after credits by
    rule."""

    billed: int = 0
    charge: int = 0

    def __add__(self, other: Used) -> Used:
        return Used(self.billed + other.billed, self.charge + other.charge)


@dataclass(frozen=True, slots=True)
class BudgetState:
    """How much of one limit of a budget is used.

    unit: HOURS, or the currency. percent: of it, rounded down; 100 of one of 0. warning: the highest threshold of
    WARN_AT_PERCENT that is reached (100 if it is used up), or 0. empty_on: the day on which it will be used up at the
    pace of the last PACE_DAYS days, if that is before its end; None if it lasts or is used up already.
    """

    account: str
    valid: Validity
    unit: str
    granted: Decimal
    used: Decimal
    left: Decimal
    percent: int
    warning: int
    pace_per_day: Decimal
    empty_on: date | None

    @property
    def last_day(self) -> date:
        """The last day on which it holds."""
        return self.valid.end - timedelta(days=1)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left."""
        return self.percent >= 100


def states(
    budget: Budget, before: Used, recent: Used, recent_days: Fraction, today: date, currency: str, digits: int
) -> list[BudgetState]:
    """Returns the state of each of a budget's limits.

    before, recent: what was used up to the last days, and in these. recent_days: how many these are, at most PACE_DAYS.
    """
    used = before + recent
    result = []
    for unit, granted, exact, pace, places in (
        (HOURS, budget.gpu_hours, Fraction(used.billed, _PER_HOUR), Fraction(recent.billed, _PER_HOUR), 4),
        (currency, budget.amount, Fraction(used.charge, PER_CURRENCY), Fraction(recent.charge, PER_CURRENCY), digits),
    ):
        if granted is None:
            continue
        percent = int(exact * 100 / Fraction(granted)) if granted else 100
        per_day = pace / recent_days if recent_days > 0 else Fraction(0)
        shown = _rounded(exact, places)
        result.append(
            BudgetState(
                budget.account,
                budget.valid,
                unit,
                granted,
                shown,
                _rounded(Fraction(granted), places) - shown,
                percent,
                max((level for level in (*WARN_AT_PERCENT, 100) if percent >= level), default=0),
                _rounded(per_day, places),
                _empty_on(Fraction(granted) - exact, per_day, today, budget.valid.end),
            )
        )
    return result


def holding(budgets: Sequence[Budget], day: date, account: str | None = None) -> list[Budget]:
    """Returns the budgets that hold on a day, of all accounts or of one."""
    return [entry for entry in budgets if entry.valid.holds_on(day) and account in (None, entry.account)]


def sentence(state: BudgetState) -> str:
    """Returns a warning on one limit."""
    what = f"{state.granted:,} {HOURS}" if state.unit == HOURS else f"{state.unit} {state.granted:,}"
    days = f"{state.valid.start} to {state.last_day}"
    text = f"budget: account {state.account} has used {state.percent} % of {what} of {days}"
    if state.empty_on:
        text += f"; at the pace of the last {PACE_DAYS} days it is used up on {state.empty_on}"
    return text


def used_by(sums: Mapping[str, Used], account: str) -> Used:
    """Returns what an account used; nothing if it has no runs."""
    return sums.get(account, Used())


def _empty_on(left: Fraction, per_day: Fraction, today: date, end: date) -> date | None:
    if left <= 0 or per_day <= 0 or left / per_day > _FAR_DAYS:
        return None
    day = today + timedelta(days=int(left / per_day))
    return day if day < end else None


def _rounded(value: Fraction, digits: int) -> Decimal:
    return Decimal(round(value * 10**digits)).scaleb(-digits)
