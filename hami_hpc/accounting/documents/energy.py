# SPDX-License-Identifier: Apache-2.0
"""Sums the energy of a period's runs, and what it costs and emits by the site's factors.

A run's energy is what the agent measured of its GPUs, if all of its usage records have it, else what Slurm measured of
its nodes (sacct's ConsumedEnergyRaw, which AllocTRES has too). Where neither has it, it is not known: such runs are
counted, and never taken as 0. In the same way a measured 0 is not known, because neither says "nothing" otherwise.

Energy is whole millijoules. A run over the edge of a month or of the period has it spread evenly over its time, so that
the parts add up to the whole. Money and CO2 are rounded so that lines add up (apportion.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from zoneinfo import ZoneInfo

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.pricing.apportion import apportion
from hami_hpc.accounting.pricing.finance import Energy, Finance
from hami_hpc.accounting.pricing.held_time import JOB
from hami_hpc.accounting.store import usage_table
from hami_hpc.accounting.store.job_records import JobRecords
from hami_hpc.accounting.times import Period, split_months

# What lines can be of: a run has one of each. SQL with the run as r.
DIMENSIONS = {
    "cluster": "r.cluster",
    "account": "r.account",
    "user": "r.username",
    "job": JOB,
    "partition": "r.partition",
    "qos": "r.qos",
    "month": "s.month",
}
_MJ_PER_J, _MJ_PER_WH = 1000, 3_600_000
_TEN = 10_000  # parts of one, in which overhead is whole
_MICRO = 1_000_000  # the same for prices and grams


@dataclass(frozen=True, slots=True)
class EnergySum:
    """Energy of some runs. known: runs of which it is known. joules, wh: of the jobs, each rounded so that lines add
    up; cost and co2_g: with the site's overhead, None where finance.toml does not say for every month. All None if it
    is known of no run."""

    runs: int
    known: int
    joules: int | None
    wh: int | None
    cost: Decimal | None
    co2_g: int | None


NONE = EnergySum(0, 0, None, None, None, None)


@dataclass(frozen=True, slots=True)
class EnergyUse:
    """lines: by labels. total: of all; the lines add up to it."""

    lines: Mapping[tuple[str, ...], EnergySum]
    total: EnergySum
    has_price: bool
    has_co2: bool

    def note(self) -> str:
        """Returns a sentence that says of how many runs the energy is known."""
        if not self.total.known:
            return (
                f"energy: not known of any of {self.total.runs:,} jobs: neither hami-hpc agent nor Slurm "
                "(AcctGatherEnergyType) measured it"
            )
        missing = self.total.runs - self.total.known
        if missing:
            return f"energy: known of {self.total.known:,} of {self.total.runs:,} jobs, and missing of {missing:,}"
        return f"energy: known of all {self.total.runs:,} jobs"


def check_dimensions(dimensions: Sequence[str]) -> None:
    """Raises AccountingError for a dimension by which the energy of a run cannot be divided."""
    for name in dimensions:
        if name not in DIMENSIONS:
            raise AccountingError(f"--energy goes with --by {', '.join(DIMENSIONS)}: a job's energy has no {name}")


def measure(
    records: JobRecords, period: Period, tz: ZoneInfo, dimensions: Sequence[str], finance: Finance, digits: int
) -> EnergyUse:
    """Returns the energy of the runs of ``period``, for which price_period must have been called."""
    check_dimensions(dimensions)
    months = split_months(period, tz)
    con = records.con
    con.execute(
        "CREATE OR REPLACE TEMP TABLE energy_months AS SELECT unnest($1::VARCHAR[]) AS month, "
        "unnest($2::BIGINT[]) AS from_s, unnest($3::BIGINT[]) AS to_s",
        [[b.label for b in months], [b.period.start_s for b in months], [b.period.end_s for b in months]],
    )
    measured = "SELECT ''::VARCHAR AS cluster, 0 AS job_id, 0 AS submit_s, NULL::HUGEINT AS mj WHERE false"
    if records.used:
        measured = (
            "SELECT cluster, job_id, submit_s, sum(observed_energy_mj)::HUGEINT AS mj "
            f"FROM ({usage_table.assigned('active', records.used)}) GROUP BY ALL HAVING min(observed_energy_mj) > 0"
        )
    keys = ", ".join([*(DIMENSIONS[name] for name in dimensions), "s.month"])
    positions = ", ".join(str(index + 1) for index in range(len(dimensions) + 1))
    rows = con.execute(_SUMS.format(keys=keys, positions=positions, measured=measured, start=period.start_s)).fetchall()
    return _priced([(row[: len(dimensions)], *row[len(dimensions) :]) for row in rows], finance, digits)


def _priced(rows: Sequence[tuple[tuple[str, ...], str, int, int, int]], finance: Finance, digits: int) -> EnergyUse:
    factors = {row[1]: finance.energy_in(date.fromisoformat(f"{row[1]}-01")) for row in rows if row[3] or row[4]}
    labels = list(dict.fromkeys(row[0] for row in rows))
    sums = {label: [0, 0, 0, 0, 0] for label in labels}  # runs, known, mJ, cost, grams
    has_price = bool(factors) and all(entry and entry.per_kwh is not None for entry in factors.values())
    has_co2 = bool(factors) and all(entry and entry.co2_g_per_kwh is not None for entry in factors.values())
    for label, month, runs, known, mj in rows:
        line, factor = sums[label], factors.get(month)
        for index, value in enumerate((runs, known, mj, *_charges(mj, factor))):
            line[index] += value
    measured = [line[2] for line in sums.values()]
    joules, wh = apportion(measured, _MJ_PER_J), apportion(measured, _MJ_PER_WH)
    scale = _MJ_PER_WH * 1000 * _TEN * _MICRO
    costs = apportion([line[3] for line in sums.values()], scale // int(10**digits))
    grams = apportion([line[4] for line in sums.values()], scale)

    def made(runs: int, known: int, j: int, watt_hours: int, cost: int, gram: int) -> EnergySum:
        """Nothing is known if no run's energy is, also none of a part of a run."""
        if not known and not j:
            return EnergySum(runs, 0, None, None, None, None)
        money = Decimal(cost).scaleb(-digits) if has_price else None
        return EnergySum(runs, known, j, watt_hours, money, gram if has_co2 else None)

    figures = [
        (line[0], line[1], *rounded)
        for line, rounded in zip(sums.values(), zip(joules, wh, costs, grams, strict=True), strict=True)
    ]
    total = [sum(column) for column in zip(*figures, strict=True)] or [0] * 6
    lines = {label: made(*values) for label, values in zip(sums, figures, strict=True)}
    return EnergyUse(lines, made(*total), has_price, has_co2)


def _charges(mj: int, factor: Energy | None) -> tuple[int, int]:
    """Returns cost and grams of CO2 in the units of _priced."""
    if factor is None:
        return 0, 0
    overhead = int(factor.overhead * _TEN)
    return (
        mj * overhead * int((factor.per_kwh or 0) * _MICRO),
        mj * overhead * int((factor.co2_g_per_kwh or 0) * _MICRO),
    )


# runs, known: runs whose first second in the period is in the month. A run counts as held_time.py counts it.
_SUMS = """
WITH measured AS ({measured}), counted AS (
  SELECT r.*, coalesce(m.mj, r.energy_j * 1000::HUGEINT) AS mj
  FROM active AS r LEFT JOIN measured AS m
    ON (m.cluster, m.job_id, m.submit_s) = (r.cluster, r.job_id, r.submit_s)
  WHERE EXISTS (FROM parts AS p WHERE p.problem = '' AND p.held = r.held AND p.partition = r.placed_in
    AND p.host = r.placed_on AND p.features = r.features AND p.era = r.era)
)
SELECT {keys},
  count(*) FILTER (greatest(r.start_s, {start}) >= s.from_s)::BIGINT,
  count(r.mj) FILTER (greatest(r.start_s, {start}) >= s.from_s)::BIGINT,
  coalesce(sum(CASE WHEN r.until_s = r.start_s THEN r.mj
    ELSE r.mj * (least(r.until_s, s.to_s) - r.start_s) // (r.until_s - r.start_s)
      - r.mj * (greatest(r.start_s, s.from_s) - r.start_s) // (r.until_s - r.start_s) END), 0)::HUGEINT
FROM counted AS r JOIN energy_months AS s
  ON r.start_s < s.to_s AND (r.until_s > s.from_s OR r.start_s >= s.from_s)
GROUP BY {positions} ORDER BY {positions}
"""
