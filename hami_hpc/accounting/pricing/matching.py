# SPDX-License-Identifier: Apache-2.0
"""Finds the entry of rates.toml that holds for a job: the most specific of those whose conditions it meets. Pure.

An entry is more specific than another if it has all conditions of the other and more. Where two hold for one job and
neither is more specific, the price would depend on their order: such a rates.toml is refused (ambiguity).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from itertools import combinations
from typing import Protocol, TypeVar

from hami_hpc.accounting.pricing.validity import Validity


class Conditional(Protocol):
    """An entry with conditions (name -> value; all must be equal) and a validity."""

    @property
    def where(self) -> Mapping[str, str]: ...

    @property
    def valid(self) -> Validity: ...


C = TypeVar("C", bound=Conditional)


def most_specific(entries: Iterable[C], labels: Mapping[str, str], day: date) -> C | None:
    """Returns the entry with most conditions that holds on ``day`` for what has these labels, or None."""
    holding = [
        entry
        for entry in entries
        if entry.valid.holds_on(day) and all(labels.get(name) == value for name, value in entry.where.items())
    ]
    return max(holding, key=lambda entry: len(entry.where), default=None)


def ambiguity(entries: Sequence[C]) -> tuple[C, C, date] | None:
    """Returns two entries that may hold for one job on a day, with that day, neither more specific than the other and
    without a third one that has the conditions of both; None if there are none."""
    for first, second in combinations(entries, 2):
        if not first.valid.overlaps(second.valid):
            continue
        if any(second.where.get(name, value) != value for name, value in first.where.items()):
            continue
        if first.where.items() < second.where.items() or second.where.items() < first.where.items():
            continue
        both = {**first.where, **second.where}
        start = max(first.valid.start, second.valid.start)
        end = min(first.valid.end, second.valid.end)
        if first.where != second.where and any(
            entry.where == both and entry.valid.start <= start and end <= entry.valid.end for entry in entries
        ):
            continue
        return first, second, start
    return None


def shown(where: Mapping[str, str]) -> str:
    """Returns conditions as text: mode = mig, partition = old."""
    return ", ".join(f"{name} = {value}" for name, value in where.items()) or "without conditions"
