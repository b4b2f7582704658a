# SPDX-License-Identifier: Apache-2.0
"""Multiplies held time by rates, exactly, and sums it by whatever a document has lines of.

A charge is an integer in the product of the smallest units: GPU share in millionths, time in seconds, rate in
millionths of the currency per hour, factor for suspended time in ten-thousandths. Only printed amounts are rounded
(apportion.py), so charges add up over any breakdown and any division of a period. The database multiplies and sums, in
integers of 128 bits: a bill of 200,000 accounts needs one row of each here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from zoneinfo import ZoneInfo

import duckdb

from hami_hpc.accounting.pricing.gpu_share import PPM
from hami_hpc.accounting.pricing.held_time import Segment
from hami_hpc.accounting.pricing.rates import MICRO, RateMissing, Rates, effective_rate
from hami_hpc.accounting.times import local_date

# How many parts of a millionth of a GPU billed time is counted in.
FACTOR_UNITS = 10_000
# Charge units in one unit of the currency (one euro).
PER_CURRENCY = PPM * 3600 * MICRO * FACTOR_UNITS

# What can be summed by -> SQL. job, run: where sum_held_time has kept these. rate: millionths of the currency per
# GPU-hour, and the empty text if there is none; problem says why, and since is the first day of its time.
COLUMNS = {
    "cluster": "cluster",
    "account": "account",
    "user": "username",
    "partition": "partition",
    "qos": "qos",
    "model": "model",
    "mode": "mode",
    "class": "class",
    "job": "detail",
    "run": "detail",
    "billable": "if(billable, 'yes', 'no')",
    "day": "bucket",
    "month": f"left(bucket, {len('2026-11')})",
    "rate": "coalesce(rate::VARCHAR, '')",
    "problem": "problem",
    "since": "day",
}
# A rate depends on these and on the day; of a factor's other names only those that it has.
_LABELS = ("cluster", "account", "user", "partition", "qos", "model", "mode", "class")

# billed: time charged, in 1/FACTOR_UNITS of a millionth of a GPU, times seconds: the time held, the time added up to
# the minimum, and the priced part of suspended time. What has no rate is charged nothing.
_PRICED = """
CREATE OR REPLACE TEMP VIEW priced AS
SELECT h.*, s.bucket, r.rate, r.problem, r.day,
  if(billable, (held_ppm_s + top_up_ppm_s) * {units} + suspended_ppm_s * r.factor, 0)::HUGEINT AS billed,
  billed * coalesce(r.rate, 0) AS charge
FROM held AS h JOIN segments AS s USING (segment) JOIN rated AS r ON r.segment = h.segment AND {same}
"""

# Conditions of sums().
CHARGED = "billable AND problem = ''"
PRICED = "problem = ''"
UNPRICED = "problem <> ''"

_SUMS = """
SELECT {keys}sum(runs)::BIGINT, sum(held_ppm_s)::HUGEINT, sum(billed)::HUGEINT, sum(charge)::HUGEINT
FROM priced WHERE {condition} GROUP BY {positions} ORDER BY {positions}
"""


class Sum(NamedTuple):
    """GPU time with the same labels. held_ppm_s: millionths of a GPU times seconds. billed: time charged, in
    1/FACTOR_UNITS of these. charge: in 1/PER_CURRENCY of the currency."""

    labels: tuple[str, ...]
    runs: int
    held_ppm_s: int
    billed: int
    charge: int

    @property
    def beyond(self) -> int:
        """What of ``billed`` was not held, if all of it is CHARGED."""
        return self.billed - self.held_ppm_s * FACTOR_UNITS


def price(con: duckdb.DuckDBPyConnection, segments: Sequence[Segment], rates: Rates, tz: ZoneInfo) -> None:
    """Creates the view ``priced``: each group of ``held`` with the charge at the rates of its segment."""
    named = {label: sorted({f.where[label] for f in rates.factors if label in f.where}) for label in _LABELS}
    keys = [
        COLUMNS[label]
        if label == "model"
        else f"if(list_contains({_list(values)}, {COLUMNS[label]}), {COLUMNS[label]}, '')"
        for label, values in named.items()
    ]
    names = [f"key_{label}" for label in _LABELS]
    selected = ", ".join(f"{key} AS {name}" for key, name in zip(keys, names, strict=True))
    kinds = con.execute(f"SELECT DISTINCT segment, {selected} FROM held").fetchall()
    rows = [(*kind, *_rated(rates, kind[1:], segments[kind[0]], tz)) for kind in kinds]
    types = {"segment": "BIGINT", "rate": "BIGINT", "factor": "BIGINT"}
    columns = ("segment", *names, "rate", "factor", "problem", "day")
    unnested = ", ".join(f"unnest(${i}::{types.get(name, 'VARCHAR')}[]) AS {name}" for i, name in enumerate(columns, 1))
    con.execute(
        f"CREATE OR REPLACE TEMP TABLE rated AS SELECT {unnested}",
        [[row[i] for row in rows] for i in range(len(columns))],
    )
    same = " AND ".join(f"{key} = r.{name}" for key, name in zip(keys, names, strict=True))
    con.execute(_PRICED.format(units=FACTOR_UNITS, same=same))


def _rated(rates: Rates, values: Sequence[str], segment: Segment, tz: ZoneInfo) -> tuple[int | None, int, str, str]:
    """Returns rate, factor of suspended time, problem and day."""
    day = local_date(segment.period.start_s, tz)
    factor = int(rates.terms_on(day).suspended_factor * FACTOR_UNITS)
    try:
        return effective_rate(rates, dict(zip(_LABELS, values, strict=True)), day), factor, "", day.isoformat()
    except RateMissing as error:
        return None, factor, str(error), day.isoformat()


def _list(values: Sequence[str]) -> str:
    quoted = ("'" + value.replace("'", "''") + "'" for value in values)
    return f"[{', '.join(quoted)}]::VARCHAR[]"


def sums(con: duckdb.DuckDBPyConnection, by: Sequence[str], condition: str = "true") -> list[Sum]:
    """Returns the sums of ``priced`` by these names of COLUMNS, sorted by them. condition: one of those above."""
    count = len(by)
    keys = "".join(f"{COLUMNS[name]}, " for name in by)
    positions = ", ".join(map(str, range(1, count + 1)))
    query = _SUMS.format(keys=keys, condition=condition, positions=positions)
    return [Sum(row[:count], *row[count:]) for row in con.execute(query).fetchall()]


def unit(digits: int) -> int:
    """Returns the charge units in the currency's smallest unit (a cent: digits 2)."""
    return PER_CURRENCY // int(10**digits)
