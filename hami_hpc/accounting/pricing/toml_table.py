# SPDX-License-Identifier: Apache-2.0
"""A table of rates.toml while it is read: typed keys, ranges, and the refusal of what is not known."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import combinations
from typing import Any, TypeVar

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.pricing.validity import Validity
from hami_hpc.accounting.times import next_month

_T = TypeVar("_T")


class Table:
    """A TOML table while it is read. close() refuses the keys that were not taken."""

    def __init__(self, where: str, values: Any) -> None:
        self.where = where
        if not isinstance(values, Mapping):
            raise AccountingError(f"{where} is not a table")
        self.values = values
        self.known: set[str] = set()

    def take(self, key: str, default: Any = None) -> Any:
        self.known.add(key)
        return self.values.get(key, default)

    def refuse(self, key: str, allowed: str) -> AccountingError:
        fault = f"= {str(self.values[key])[:40]!r}" if key in self.values else "is missing"
        return AccountingError(f"{self.where}: {key} {fault}; allowed is {allowed}")

    def text(self, key: str, default: str, pattern: str = r"[^\x00-\x1f]{1,200}") -> str:
        value = self.take(key, default)
        if not isinstance(value, str) or not (value == default or re.fullmatch(pattern, value)):
            raise self.refuse(key, f"a text like {pattern}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.take(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise self.refuse(key, "a list of texts")
        return tuple(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.take(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return value

    def whole(self, key: str, default: int, least: int, most: int) -> int:
        value = self.take(key, default)
        if type(value) is not int or not least <= value <= most:
            raise self.refuse(key, f"a whole number from {least} to {most}")
        return value

    def decimal(self, key: str, least: str, most: str, digits: int, default: str | None = None) -> Decimal:
        value = self.take(key, default)
        is_default = key not in self.values
        number = Decimal(value) if type(value) is int or (is_default and type(value) is str) else value
        if not isinstance(number, Decimal) or not number.is_finite():
            raise self.refuse(key, f"a number from {least} to {most}")
        if not Decimal(least) <= number <= Decimal(most) or number != round(number, digits):
            raise self.refuse(key, f"a number from {least} to {most} with at most {digits} digits after the point")
        return number

    def validity(self) -> Validity:
        start, end = self._day("from", date.min), self._day("until", date.max)
        if start >= end:
            raise AccountingError(f"{self.where}: from {start} is not before until {end}")
        return Validity(start, end)

    def months(self) -> Validity:
        """Returns the validity of an entry that acts on calendar months as a whole."""
        valid = self.validity()
        for key, day in (("from", valid.start), ("until", valid.end)):
            if day not in (date.min, date.max) and day.day != 1:
                first = next_month(day) if day.year < date.max.year else day.replace(day=1)
                raise self.refuse(key, f"the first day of a month, such as {first}: it acts on whole months")
        return valid

    def _day(self, key: str, default: date) -> date:
        value = self.take(key, default)
        if not isinstance(value, date) or isinstance(value, datetime):
            raise self.refuse(key, "a date such as 2026-01-01, without quotes")
        return value

    def close(self) -> None:
        for key in self.values:
            if key not in self.known:
                near = difflib.get_close_matches(key, self.known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(self.known))}"
                raise AccountingError(f"{self.where}: unknown key '{key[:40]}'; {hint}")


def each(top: Table, key: str, read: Callable[[Table], _T]) -> Iterable[_T]:
    entries = top.take(key, [])
    if not isinstance(entries, list):
        raise top.refuse(key, f"tables, each under [[{key}]]")
    for number, values in enumerate(entries, 1):
        table = Table(f"{top.where}, [[{key}]] number {number}", values)
        yield read(table)
        table.close()


def refuse_overlaps(path: str, key: str, entries: Sequence[Any], identity: Callable[[Any], str]) -> None:
    """Raises AccountingError for two entries for the same thing on one day: the price would depend on their order."""
    alike: dict[str, list[Any]] = {}
    for entry in entries:
        alike.setdefault(identity(entry), []).append(entry)
    for name, same in alike.items():
        for first, second in combinations(same, 2):
            if first.valid.overlaps(second.valid):
                day = max(first.valid.start, second.valid.start)
                raise AccountingError(f"{path}: two [[{key}]] {name} are valid on {day}; set from and until")
