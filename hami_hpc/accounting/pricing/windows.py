# SPDX-License-Identifier: Apache-2.0
"""Times of the week with prices of their own (night, weekend), in the site's zone. Pure.

A window's edge is the first moment at which the site's clocks show its time or a later one. So where clocks go forward
over an edge it is the moment of the change, and where they repeat an hour it is the first of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import combinations
from zoneinfo import ZoneInfo

from hami_hpc.accounting.times import Period, local_date

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MIN = 24 * 60
_WEEK_MIN = 7 * DAY_MIN


@dataclass(frozen=True, slots=True)
class Window:
    """A part of certain days. days: indexes in DAYS, of the days on which it begins. start_min, end_min: minutes of the
    day; an end that is not after the start is on the next day. start, end: the days (the last not included) on which it
    may begin."""

    name: str
    days: tuple[int, ...]
    start_min: int
    end_min: int
    start: date = date.min
    end: date = date.max

    @property
    def length_min(self) -> int:
        """Minutes by the clock."""
        return self.end_min - self.start_min + (DAY_MIN if self.end_min <= self.start_min else 0)


@dataclass(frozen=True, slots=True)
class Span:
    """One occurrence of a window, seconds since 1970."""

    name: str
    start_s: int
    end_s: int


def spans(windows: Sequence[Window], period: Period, tz: ZoneInfo) -> list[Span]:
    """Returns the occurrences that overlap the period, in order."""
    found = []
    day = max(local_date(period.start_s, tz) - timedelta(days=2), date.min)
    last = local_date(period.end_s, tz)
    while day <= last:
        for window in windows:
            if day.weekday() in window.days and window.start <= day < window.end:
                start_s = _instant(day, window.start_min, tz)
                end_s = _instant(day, window.start_min + window.length_min, tz)
                if start_s < end_s and start_s < period.end_s and end_s > period.start_s:
                    found.append(Span(window.name, start_s, end_s))
        day += timedelta(days=1)
    return sorted(found, key=lambda span: span.start_s)


def overlap(windows: Sequence[Window]) -> tuple[Window, Window, str] | None:
    """Returns two windows that overlap, with a time at which they do, such as ``sat 00:00``; None if none do."""
    for first, second in combinations(windows, 2):
        for one, other in ((first, second), (second, first)):
            if _reaches_into(one, other):
                return first, second, f"{other.start}"
        if first.start >= second.end or second.start >= first.end:
            continue
        for start, end in _minutes(first):
            for other_start, other_end in _minutes(second):
                if max(start, other_start) < min(end, other_end):
                    day, minute = divmod(max(start, other_start) % _WEEK_MIN, DAY_MIN)
                    return first, second, f"{DAYS[day]} {clock(minute)}"
    return None


def clock(minute: int) -> str:
    """Returns minutes of the day as HH:MM."""
    return f"{minute // 60:02d}:{minute % 60:02d}"


def _reaches_into(first: Window, second: Window) -> bool:
    """Returns whether the last occurrence of ``first`` goes on into ``second``, which begins to hold the day after."""
    if first.end == date.max or second.start != first.end:
        return False
    last = first.end - timedelta(days=1)
    return (
        last.weekday() in first.days
        and second.start.weekday() in second.days
        and first.start_min + first.length_min - DAY_MIN > second.start_min
    )


def _minutes(window: Window) -> list[tuple[int, int]]:
    """Returns the minutes of the week that a window has, also as those of the week after."""
    starts = [day * DAY_MIN + window.start_min for day in window.days]
    return [(start + week, start + week + window.length_min) for start in starts for week in (0, _WEEK_MIN)]


def _instant(day: date, minute: int, tz: ZoneInfo) -> int:
    """Returns the first instant at which clocks show this minute of the day (from 1440 on: of the next), or later."""
    local = datetime(day.year, day.month, day.day, tzinfo=tz) + timedelta(minutes=minute)
    early, late = sorted(int(local.replace(fold=fold).timestamp()) for fold in (0, 1))
    if datetime.fromtimestamp(early, tz).replace(tzinfo=None) == local.replace(tzinfo=None):
        return early  # fold 0: in a repeated hour it is the first
    while late - early > 1:  # the clocks skip it, at a moment between the two
        middle = (early + late) // 2
        shown = datetime.fromtimestamp(middle, tz).replace(tzinfo=None)
        early, late = (early, middle) if shown >= local.replace(tzinfo=None) else (middle, late)
    return late
