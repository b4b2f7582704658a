# SPDX-License-Identifier: Apache-2.0
"""Rounds lines so that they add up exactly to their rounded total.

The total is rounded once, half to even, from the exact sum. The lines are rounded down, and the missing units are added
to the lines with the largest remainders (the largest-remainder method; the earlier line first). So every line is within
one unit of its exact value, and every breakdown of one bill has the same total.
"""

from __future__ import annotations

from collections.abc import Sequence


def apportion(exact: Sequence[int], unit: int) -> list[int]:
    """Returns each exact value in whole units of ``unit``; their sum is the total, rounded half to even."""
    floors = [value // unit for value in exact]
    whole, rest = divmod(sum(exact), unit)
    total = whole + (2 * rest > unit or (2 * rest == unit and whole % 2 == 1))
    if missing := total - sum(floors):
        remainders = [value % unit for value in exact]
        for index in sorted(range(len(exact)), key=remainders.__getitem__, reverse=True)[:missing]:  # stable
            floors[index] += 1
    return floors
