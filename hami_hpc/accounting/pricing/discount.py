# SPDX-License-Identifier: Apache-2.0
"""Volume discounts on an account's month. Pure.

A discount on a model is on that model's hours; those without a model are on the hours of all models together that have
no discount of their own. An account with discounts of its own has only those. What is counted together has one price:
the mean price of its hours, so it does not matter which of them were expensive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction

from hami_hpc.accounting.pricing.rates import Discount, Rates

# Billed time is in 1/10,000 of a millionth of a GPU, times seconds (price.py), percentages in 1/10,000.
_PER_HOUR = 3_600 * 1_000_000 * 10_000
_PERCENT_UNITS = 10_000
PER_RUN = "run"


@dataclass(frozen=True, slots=True)
class Held:
    """GPU time charged, and what is to be paid for it before discounts, as price.Sum has them."""

    billed: int
    charge: int

    def __add__(self, other: Held) -> Held:
        return Held(self.billed + other.billed, self.charge + other.charge)


NOTHING = Held(0, 0)


def of_account(rates: Rates, account: str, month: date) -> list[Discount]:
    """Returns the discounts that an account has in a month."""
    own = [entry for entry in rates.discounts_of(account) if entry.valid.holds_on(month)]
    return own or [entry for entry in rates.discounts_of("") if entry.valid.holds_on(month)]


def needs_runs(rates: Rates, month: date) -> bool:
    """Returns whether some discount of a month is on each run by itself."""
    return any(entry.per == PER_RUN and entry.valid.holds_on(month) for entry in rates.discounts)


def reduction(
    discounts: Sequence[Discount], models: Mapping[str, Held], runs: Iterable[Mapping[str, Held]]
) -> Fraction:
    """Returns what an account's discounts take off its month's charge, in charge units.

    discounts: of_account's. models: the month's time by GPU model. runs: that of each run by GPU model, for discounts
    per run; theirs are rounded to whole charge units.
    """
    scopes: dict[str, list[Discount]] = {}
    for entry in sorted(discounts, key=lambda entry: entry.from_gpu_hours):
        scopes.setdefault(entry.model, []).append(entry)

    def together(scope: str, held: Mapping[str, Held]) -> Held:
        return sum((value for model, value in held.items() if (model if model in scopes else "") == scope), NOTHING)

    total = Fraction(0)
    for scope, tiers in scopes.items():
        if tiers[0].per == PER_RUN:
            total += sum(round(_reduced(tiers, together(scope, run))) for run in runs)
        else:
            total += _reduced(tiers, together(scope, models))
    return total


def _reduced(tiers: Sequence[Discount], held: Held) -> Fraction:
    """Returns what tiers, ascending, take off what is counted together."""
    edges = [int(tier.from_gpu_hours * _PER_HOUR) for tier in tiers]
    percents = [int(tier.percent * _PERCENT_UNITS) for tier in tiers]
    if not held.billed or held.billed < edges[0]:
        return Fraction(0)
    if tiers[0].kind == "all":
        reached = max(index for index, edge in enumerate(edges) if edge <= held.billed)
        return Fraction(held.charge * percents[reached], 100 * _PERCENT_UNITS)
    tops = [min(held.billed, edge) for edge in edges[1:]] + [held.billed]
    weighed = sum(max(0, top - edge) * percent for top, edge, percent in zip(tops, edges, percents, strict=True))
    return Fraction(held.charge * weighed, held.billed * 100 * _PERCENT_UNITS)
