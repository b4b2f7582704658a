# SPDX-License-Identifier: Apache-2.0
"""Instants and periods. Accounting stores times as whole seconds since 1970 (UTC); only input and output have zones."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from hami_hpc.accounting.errors import AccountingError

# Beyond, a date would not fit into what Python calls one in every zone, or make a bill of millions of days.
FIRST_YEAR, LAST_YEAR = 1970, 2999


@dataclass(frozen=True, slots=True)
class Period:
    """The time from start_s up to but not including end_s, seconds since 1970."""

    start_s: int
    end_s: int

    def __post_init__(self) -> None:
        if self.end_s <= self.start_s:
            raise AccountingError("the period ends before it starts; --start must be before --end")


@dataclass(frozen=True, slots=True)
class Bucket:
    """A part of a period under one label (a day, a month)."""

    label: str
    period: Period


def zone(name: str) -> ZoneInfo:
    """Returns the time zone ``name``, such as Europe/Berlin. Raises AccountingError for an unknown one."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise AccountingError(f"'{name}' is not a time zone; write one such as Europe/Berlin or UTC") from error


def parse_instant(text: str, tz: ZoneInfo) -> int:
    """Parses ``2026-11``, ``2026-11-21`` or ``2026-11-21T10:30[:00]``, in ``tz`` unless the text has an offset."""
    if re.fullmatch(r"\d{4}-\d{2}", text):
        text += "-01"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise AccountingError(f"'{text}' is not a date; write 2026-11, 2026-11-21 or 2026-11-21T10:30") from error
    _refuse_far(text, moment.year)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=tz)).timestamp())


def month_period(text: str, tz: ZoneInfo) -> Period:
    """Parses the calendar month ``YYYY-MM`` in ``tz``. Raises AccountingError for any other text."""
    if not re.fullmatch(r"\d{4}-\d{2}", text):
        raise AccountingError(f"'{text}' is not a month; write it as 2026-11")
    try:
        first = date(int(text[:4]), int(text[5:]), 1)
    except ValueError as error:
        raise AccountingError(f"'{text}' is not a month; write it as 2026-11") from error
    _refuse_far(text, first.year)
    return Period(_midnight(first, tz), _midnight(next_month(first), tz))


def next_month(day: date) -> date:
    """Returns the first day of the month after ``day``'s."""
    return date(day.year + day.month // 12, day.month % 12 + 1, 1)


def day_start(day: date, tz: ZoneInfo) -> int:
    """Returns the instant at which ``day`` begins in ``tz``."""
    return _midnight(day, tz)


def local_date(instant_s: int, tz: ZoneInfo) -> date:
    """Returns the calendar day of an instant in ``tz``."""
    return datetime.fromtimestamp(instant_s, tz).date()


def today(tz: ZoneInfo) -> date:
    """Returns the present calendar day in ``tz``, which may be another one than this machine's."""
    return local_date(int(time.time()), tz)


def split_days(period: Period, tz: ZoneInfo) -> tuple[Bucket, ...]:
    """Splits the period at local midnights. A day has 23 or 25 hours when the clocks change."""
    return _split(period, tz, lambda day: day + timedelta(days=1), "%Y-%m-%d")


def split_months(period: Period, tz: ZoneInfo) -> tuple[Bucket, ...]:
    """Splits the period where local months begin."""
    return _split(period, tz, next_month, "%Y-%m")


def iso_utc(instant_s: int) -> str:
    """Returns an instant in ISO 8601 with a Z."""
    return datetime.fromtimestamp(instant_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def iso_local(instant_s: int, tz: ZoneInfo) -> str:
    """Returns an instant in ISO 8601 with the zone's offset."""
    return datetime.fromtimestamp(instant_s, tz).isoformat(timespec="seconds")


def _refuse_far(text: str, year: int) -> None:
    if not FIRST_YEAR <= year <= LAST_YEAR:
        raise AccountingError(f"'{text}' is too far away; allowed are the years {FIRST_YEAR} to {LAST_YEAR}")


def _midnight(day: date, tz: ZoneInfo) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=tz).timestamp())


def _split(period: Period, tz: ZoneInfo, following: Callable[[date], date], label_format: str) -> tuple[Bucket, ...]:
    buckets: list[Bucket] = []
    start_s = period.start_s
    while start_s < period.end_s:
        day = local_date(start_s, tz)
        end_s = min(_midnight(following(day), tz), period.end_s)
        buckets.append(Bucket(day.strftime(label_format), Period(start_s, end_s)))
        start_s = end_s
    return tuple(buckets)
