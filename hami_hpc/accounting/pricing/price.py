# SPDX-License-Identifier: Apache-2.0
"""Multiplies held time by rates, exactly, and sums it by whatever a document has lines of.

A charge is an integer in the product of the smallest units: GPU share in millionths, time in seconds, rate in
millionths of the currency per hour, factors for suspended time and time off the GPU in ten-thousandths. Only printed
amounts are rounded (apportion.py), so charges add up over any breakdown and any division of a period. The database
multiplies and sums, in integers of 128 bits: a bill of 200,000 accounts needs one row of each here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import repeat
from typing import NamedTuple
from zoneinfo import ZoneInfo

import duckdb

from hami_hpc.accounting.pricing.gpu_share import PPM
from hami_hpc.accounting.pricing.held_time import LABELS
from hami_hpc.accounting.pricing.rates import MICRO, RateMissing, Rates, effective_rate, resource_rate
from hami_hpc.accounting.pricing.segment import Segment
from hami_hpc.accounting.store.database import columns, halves, joined
from hami_hpc.accounting.times import local_date

# How many parts of a millionth of a GPU billed time is counted in.
FACTOR_UNITS = 10_000
# How many parts of a percent a credit rule's percentage is counted in.
_PERCENT_UNITS = 10_000
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
    "week": "strftime(bucket::DATE, '%G-W%V')",  # ISO 8601: 2026-W48 begins on a Monday
    "month": f"left(bucket, {len('2026-11')})",
    "window": "win",
    "rule": "rule::VARCHAR",
    "rate": "coalesce(rate::VARCHAR, '')",
    "problem": "problem",
    "since": "day",
}
# A rate depends on these and on the day; of a factor's other names only those that it has.
_LABELS = ("cluster", "account", "user", "partition", "qos", "model", "mode", "class")

# billed: time charged, in 1/FACTOR_UNITS of a millionth of a GPU, times seconds: the time held, without what is spared,
# the time added up to the minimum, and the priced part of suspended time. What has no rate is charged nothing.
# spared: the part of the time off the GPU that is not charged.
# amount: the same of GPUs and of resources. credited: what credit rules take off the charge.
_PRICED = """
CREATE OR REPLACE TEMP VIEW priced AS
SELECT h.* {replaced}, r.bucket, r.win, r.rate, r.problem, r.day,
  if(billable, off_ppm_s * ({units} - r.off_factor), 0)::HUGEINT AS spared,
  if(billable, (h.held_ppm_s + top_up_ppm_s) * {units} + suspended_ppm_s * r.factor - spared, 0)::HUGEINT AS amount,
  {billed} AS billed, amount * coalesce(r.rate, 0) AS charge, {credited} AS credited
FROM held AS h JOIN rated AS r ON r.segment = h.segment AND r.is_gpu = h.is_gpu AND {same}
"""
_GPU_ONLY = {"replaced": "REPLACE (if(h.is_gpu, held_ppm_s, 0) AS held_ppm_s)", "billed": "if(h.is_gpu, amount, 0)"}
_GPUS_AND_NOTHING_ELSE = {"replaced": "", "billed": "amount"}

# Conditions of sums().
CHARGED = "billable AND problem = ''"
PRICED = "problem = ''"
UNPRICED = "problem <> ''"
OF_GPUS = "is_gpu"
OF_RESOURCES = "NOT is_gpu"
BY_RULE = "rule >= 0 AND billable AND problem = ''"

_SUMS = """
SELECT {keys}sum(runs)::BIGINT{numbers}
FROM priced WHERE {condition} GROUP BY {positions} ORDER BY {positions}
"""
# Numbers of a Sum, beside its runs: those that most documents have, and all. Each takes its time to fetch.
USUAL = ("held_ppm_s", "billed", "charge")
ALL = (*USUAL, "credited", "amount", "spared")


class Sum(NamedTuple):
    """GPU time with the same labels. held_ppm_s: millionths of a GPU times seconds. billed: time charged, in
    1/FACTOR_UNITS of these. charge: in 1/PER_CURRENCY of the currency. credited: what credit rules take off it. amount:
    as billed, and of resources the number of them instead of GPUs. spared: as billed, time held and not charged because
    memory was off the GPU."""

    labels: tuple[str, ...]
    runs: int
    held_ppm_s: int
    billed: int
    charge: int
    credited: int = 0
    amount: int = 0
    spared: int = 0

    @property
    def beyond(self) -> int:
        """What of ``billed`` was not held, if all of it is CHARGED. It takes ``spared``, too."""
        return self.billed + self.spared - self.held_ppm_s * FACTOR_UNITS

    def plus(self, other: Sum) -> Sum:
        """Returns both together, with the labels of the first."""
        return Sum(self.labels, *(one + two for one, two in zip(self[1:], other[1:], strict=True)))


def price(con: duckdb.DuckDBPyConnection, segments: Sequence[Segment], rates: Rates, tz: ZoneInfo) -> None:
    """Creates the view ``priced``: each group of ``held`` with the charge at the rates of its segment.

    ``held`` must have the labels that needed() returns.
    """
    keys = [
        COLUMNS[label]
        if label == "model"
        else f"if(list_contains({_list(values)}, {COLUMNS[label]}), {COLUMNS[label]}, '')"
        if values
        else "''"
        for label, values in _named(rates).items()
    ]
    names = [f"key_{label}" for label in _LABELS]
    selected = ", ".join(f"{key} AS {name}" for key, name in zip(keys, names, strict=True))
    kinds = con.execute(f"SELECT DISTINCT segment, is_gpu, {selected} FROM held").fetchall()
    by_number: dict[int, Segment] = {}
    for segment in segments:
        by_number.setdefault(segment.number, segment)
    rows = [(*kind, *_rated(rates, kind[1], kind[2:], by_number[kind[0]], tz)) for kind in kinds]
    types = {"segment": "BIGINT", "is_gpu": "BOOLEAN", "rate": "BIGINT", "factor": "BIGINT", "off_factor": "BIGINT"}
    columns = ("segment", "is_gpu", *names, "rate", "factor", "off_factor", "problem", "day", "bucket", "win")
    unnested = ", ".join(f"unnest(${i}::{types.get(name, 'VARCHAR')}[]) AS {name}" for i, name in enumerate(columns, 1))
    con.execute(
        f"CREATE OR REPLACE TEMP TABLE rated AS SELECT {unnested}",
        [[row[i] for row in rows] for i in range(len(columns))],
    )
    same = " AND ".join(f"{key} = r.{name}" for key, name in zip(keys, names, strict=True))
    shape = _GPU_ONLY if rates.resources else _GPUS_AND_NOTHING_ELSE
    con.execute(_PRICED.format(units=FACTOR_UNITS, same=same, credited=_credited(rates), **shape))


def _named(rates: Rates) -> dict[str, list[str]]:
    """Returns for each label that a price may depend on the values that prices name."""
    conditions = [
        *(entry.where for entry in rates.factors),
        *(entry.where for entry in rates.rates),
        *(entry.where for entry in rates.resources),
        *(entry.where for entry in rates.terms),
    ]
    return {label: sorted({where[label] for where in conditions if label in where}) for label in _LABELS}


def needed(by: Collection[str], rates: Rates) -> frozenset[str]:
    """Returns which of held_time.LABELS must be kept apart for sums by these names of COLUMNS.

    All, where rules credit runs: what a rule takes off is rounded for each group.
    """
    if rates.credit_rules:
        return LABELS
    return LABELS & {*by, *(label for label, values in _named(rates).items() if values)}


def _credited(rates: Rates) -> str:
    """Returns SQL for what the rule of a group takes off its charge, in whole charge units."""
    cases = " ".join(
        f"WHEN {index} THEN charge * {int(rule.percent * _PERCENT_UNITS)} // {100 * _PERCENT_UNITS}"
        for index, rule in enumerate(rates.credit_rules)
    )
    return f"(CASE rule {cases} ELSE 0 END)::HUGEINT" if cases else "0"


def _rated(
    rates: Rates, is_gpu: bool, values: Sequence[str], segment: Segment, tz: ZoneInfo
) -> tuple[int | None, int, int, str, str, str, str]:
    """Returns rate, factors of suspended time and of time off the GPU, problem, day, bucket and window."""
    day = local_date(segment.period.start_s, tz)
    labels = {**dict(zip(_LABELS, values, strict=True)), "window": segment.window}
    terms = rates.terms_on(day, labels)
    factors = int(terms.suspended_factor * FACTOR_UNITS), int(terms.off_gpu_factor * FACTOR_UNITS)
    rest = (day.isoformat(), segment.bucket, segment.window)
    try:
        return (effective_rate if is_gpu else resource_rate)(rates, labels, day), *factors, "", *rest
    except RateMissing as error:
        return None, *factors, str(error), *rest


def _list(values: Sequence[str]) -> str:
    quoted = ("'" + value.replace("'", "''") + "'" for value in values)
    return f"[{', '.join(quoted)}]::VARCHAR[]"


def sums(
    con: duckdb.DuckDBPyConnection, by: Sequence[str], condition: str = "true", numbers: Sequence[str] = USUAL
) -> list[Sum]:
    """Returns the sums of ``priced`` by these names of COLUMNS, sorted by them. condition: one of those above.

    numbers: of ALL; those that are not asked for are 0.
    """
    labels, runs, whole = sums_by_column(con, by, condition, numbers)
    return list(map(Sum, labels, runs, *(whole.get(name, repeat(0)) for name in ALL)))


def sums_by_column(
    con: duckdb.DuckDBPyConnection, by: Sequence[str], condition: str, numbers: Sequence[str]
) -> tuple[list[tuple[str, ...]], list[int], dict[str, list[int]]]:
    """Returns labels, runs, and by name the numbers that are asked for, of what sums() returns."""
    if condition == UNPRICED and not con.execute("FROM rated WHERE problem <> '' LIMIT 1").fetchall():
        return [], [], {name: [] for name in numbers}
    count = len(by)
    keys = "".join(f"{COLUMNS[name]}, " for name in by)
    positions = ", ".join(map(str, range(1, count + 1)))
    asked = "".join(f", {halves(f'sum({name})')}" for name in numbers)
    found = columns(con, _SUMS.format(keys=keys, numbers=asked, condition=condition, positions=positions))
    labels, runs, parts = zip(*found[:count], strict=True), found[count], found[count + 1 :]
    return list(labels), runs, dict(zip(numbers, map(joined, parts[::2], parts[1::2]), strict=True))


def unit(digits: int) -> int:
    """Returns the charge units in the currency's smallest unit (a cent: digits 2)."""
    return PER_CURRENCY // int(10**digits)
