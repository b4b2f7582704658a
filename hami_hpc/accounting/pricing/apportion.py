# SPDX-License-Identifier: Apache-2.0
"""Rounding that closes: lines that add up to their total, to the last digit.

The total is rounded once, half to even, from the exact sum. The lines are rounded down, and the units that are
then missing go to the lines that lost most (the largest-remainder method; ties to the earlier line). So every
line is within one unit of its exact value, and every breakdown of one bill has the same total.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


def apportion(exact: Sequence[int], unit: int) -> list[int]:
    """Whole units of ``unit`` for each of the exact values; their sum is round_half_even(sum(exact), unit)."""
    floors = [value // unit for value in exact]
    missing = round(Fraction(sum(exact), unit)) - sum(floors)
    by_loss = sorted(range(len(exact)), key=lambda index: (-(exact[index] % unit), index))
    for index in by_loss[:missing]:
        floors[index] += 1
    return floors
