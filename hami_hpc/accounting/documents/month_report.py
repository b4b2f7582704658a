# SPDX-License-Identifier: Apache-2.0
"""Makes the monthly cluster report: utilisation, waiting times, final states, fragmentation, unused GPU time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from hami_hpc.accounting.documents.efficiency import RunUse
from hami_hpc.accounting.pricing.held_time import PPM_SECONDS_PER_HOUR
from hami_hpc.accounting.pricing.price import Sum
from hami_hpc.accounting.pricing.priced_period import PricedPeriod
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.times import Period

MOST_ROWS = 25
OTHERS = "others"


@dataclass(frozen=True, slots=True)
class LabelledHours:
    """GPU-hours and runs under one label."""

    label: str
    jobs: int
    gpu_hours: float


@dataclass(frozen=True, slots=True)
class ModelHours:
    """One GPU model. capacity_hours and percent are None if rates.toml does not give the number of GPUs.

    wanted_hours: GPU-hours that were free while a job that later ran on this model waited. The cause is fragmentation,
    but also limits, priorities or a lack of CPUs.
    """

    name: str
    jobs: int
    held_hours: float
    capacity_hours: float | None
    percent: float | None
    wanted_hours: float | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Time from eligible to start of the GPU runs that began in the month, by partition, seconds."""

    partition: str
    jobs: int
    median_s: float
    p95_s: float
    longest_s: float


@dataclass(frozen=True, slots=True)
class Waster:
    """A user's measured runs. gpu_hours: held; used_hours: GPU busy; wasted_hours: held and not used."""

    user: str
    jobs: int
    gpu_hours: float
    used_hours: float
    wasted_hours: float


@dataclass(frozen=True, slots=True)
class MonthReport:
    """The report of a month.

    measured_jobs: runs whose use is known; they held measured_hours and used used_hours.
    """

    month: str
    period: Period
    jobs: int
    users: int
    accounts: int
    gpu_hours: float
    days: tuple[str, ...]
    modes: tuple[tuple[str, tuple[float, ...]], ...]
    models: tuple[ModelHours, ...]
    by_account: tuple[LabelledHours, ...]
    by_user: tuple[LabelledHours, ...]
    waiting: tuple[Waiting, ...]
    endings: tuple[LabelledHours, ...]
    preempted: LabelledHours
    measured_jobs: int
    measured_hours: float
    used_hours: float
    wasters: tuple[Waster, ...]
    wasted_runs: tuple[RunUse, ...]
    notes: tuple[str, ...]


def build(
    month: str,
    priced_period: PricedPeriod,
    rates: Rates,
    runs: Sequence[RunUse],
    notes: Sequence[str],
    read_until_s: int,
) -> MonthReport:
    """Returns the report of the period that ``priced_period`` covers, by day.

    runs: the period's runs with what they used. read_until_s: up to when the records were read; in a month that has not
    ended, the capacity is counted up to then.
    """
    period = Period(priced_period.segments[0].period.start_s, priced_period.segments[-1].period.end_s)
    known = Period(period.start_s, max(period.start_s + 1, min(period.end_s, read_until_s)))
    con = priced_period.con
    by_account, by_user = priced_period.sums("account"), priced_period.sums("user")
    endings = _endings(con, period)
    measured = [run for run in runs if run.time_measured and not run.damaged]
    days = tuple(dict.fromkeys(segment.bucket for segment in priced_period.segments))
    return MonthReport(
        month=month,
        period=period,
        jobs=sum(entry.runs for entry in by_account),
        users=len(by_user),
        accounts=len(by_account),
        gpu_hours=sum(entry.held_ppm_s for entry in by_account) / PPM_SECONDS_PER_HOUR,
        days=days,
        modes=_by_day(priced_period, days),
        models=_models(con, known, priced_period.sums("model"), rates),
        by_account=_largest(by_account),
        by_user=_largest(by_user),
        waiting=_waiting(con, period),
        endings=endings,
        preempted=next(
            (ending for ending in endings if ending.label == "PREEMPTED"), LabelledHours("PREEMPTED", 0, 0.0)
        ),
        measured_jobs=len(measured),
        measured_hours=sum(run.held_gpu_s for run in measured) / 3600,
        used_hours=sum(run.gpu_busy_s for run in measured) / 3600,
        wasters=_wasters(measured),
        wasted_runs=tuple(sorted(measured, key=lambda run: -run.wasted_gpu_s)[:MOST_ROWS]),
        notes=tuple(notes),
    )


def _by_day(priced_period: PricedPeriod, days: Sequence[str]) -> tuple[tuple[str, tuple[float, ...]], ...]:
    sums: dict[str, dict[str, int]] = {}
    for entry in priced_period.sums("mode", "day"):
        mode, day = entry.labels
        sums.setdefault(mode, dict.fromkeys(days, 0))[day] += entry.held_ppm_s
    return tuple(
        (mode, tuple(held / PPM_SECONDS_PER_HOUR for held in values.values())) for mode, values in sorted(sums.items())
    )


def _largest(sums: Sequence[Sum]) -> tuple[LabelledHours, ...]:
    """Returns the labels with most GPU-hours, and one line for the rest, so that the lines add up to the total."""
    ordered = sorted(sums, key=lambda entry: (-entry.held_ppm_s, entry.labels))
    rows = [LabelledHours(entry.labels[0], entry.runs, entry.held_ppm_s / PPM_SECONDS_PER_HOUR) for entry in ordered]
    if len(rows) <= MOST_ROWS + 1:
        return tuple(rows)
    rest = rows[MOST_ROWS:]
    return (
        *rows[:MOST_ROWS],
        LabelledHours(f"{len(rest):,} {OTHERS}", sum(row.jobs for row in rest), sum(row.gpu_hours for row in rest)),
    )


def _models(
    con: duckdb.DuckDBPyConnection, period: Period, sums: Sequence[Sum], rates: Rates
) -> tuple[ModelHours, ...]:
    held = {entry.labels[0]: (entry.runs, entry.held_ppm_s / PPM_SECONDS_PER_HOUR) for entry in sums}
    models = []
    for name in sorted({*held, *rates.gpu_counts}):
        runs, held_hours = held.get(name, (0, 0.0))
        count = rates.gpu_counts.get(name)
        capacity_hours = count * (period.end_s - period.start_s) / 3600 if count else None
        wanted_hours = _wanted_hours(con, period, name, count) if count else None
        percent = 100 * held_hours / capacity_hours if capacity_hours else None
        models.append(ModelHours(name, runs, held_hours, capacity_hours, percent, wanted_hours))
    return tuple(models)


def _wanted_hours(con: duckdb.DuckDBPyConnection, period: Period, model: str, count: int) -> float:
    """Returns the model's GPU-hours that were free while a job waited that later ran on this model."""
    row = con.execute(_WANTED, [model, period.start_s, period.end_s, count * 1_000_000]).fetchone()
    return (row[0] or 0) / PPM_SECONDS_PER_HOUR if row else 0.0


def _waiting(con: duckdb.DuckDBPyConnection, period: Period) -> tuple[Waiting, ...]:
    rows = con.execute(
        "SELECT partition, count(*), median(wait), quantile_cont(wait, 0.95), max(wait) FROM ("
        "SELECT partition, greatest(0, start_s - eligible_s) AS wait FROM active "
        "WHERE start_s >= $1 AND start_s < $2 AND eligible_s IS NOT NULL) GROUP BY 1 ORDER BY 1",
        [period.start_s, period.end_s],
    ).fetchall()
    return tuple(Waiting(*row) for row in rows)


def _endings(con: duckdb.DuckDBPyConnection, period: Period) -> tuple[LabelledHours, ...]:
    """Returns the GPU runs that ended in the month by final state, with all their GPU-hours, also of earlier months."""
    rows = con.execute(
        f"SELECT state, count(*), sum(held_s) / 3600e6 FROM ("
        f"SELECT state, (until_s - start_s - suspended_s) * sum(p.share) AS held_s FROM active AS r JOIN parts AS p "
        f"ON {_SAME_KIND} WHERE p.problem = '' AND r.end_s > $1 AND r.end_s <= $2 "
        "GROUP BY state, until_s, start_s, suspended_s, r.cluster, r.job_id, r.submit_s) GROUP BY 1 ORDER BY 2 DESC, 1",
        [period.start_s, period.end_s],
    ).fetchall()
    return tuple(LabelledHours(state, jobs, float(hours)) for state, jobs, hours in rows)


def _wasters(measured: Sequence[RunUse]) -> tuple[Waster, ...]:
    sums: dict[str, list[float]] = {}
    for run in measured:
        line = sums.setdefault(run.user, [0, 0.0, 0.0, 0.0])
        for index, value in enumerate((1, run.held_gpu_s / 3600, run.gpu_busy_s / 3600, run.wasted_gpu_s / 3600)):
            line[index] += value
    wasters = [Waster(user, int(jobs), held, used, wasted) for user, (jobs, held, used, wasted) in sums.items()]
    return tuple(sorted(wasters, key=lambda waster: (-waster.wasted_hours, waster.user))[:MOST_ROWS])


_SAME_KIND = (
    "r.held = p.held AND r.partition = p.partition AND r.placed_on = p.host AND r.features = p.features "
    "AND r.era = p.era"
)

# Two step functions of time, the share held and the number of waiting jobs, as one sequence of changes.
_WANTED = f"""
WITH mine AS (
  SELECT start_s, until_s, least(coalesce(eligible_s, start_s), start_s) AS eligible_s, sum(p.share) AS share
  FROM active AS r JOIN parts AS p ON {_SAME_KIND} WHERE p.model = $1 AND p.problem = ''
  GROUP BY start_s, until_s, eligible_s, r.cluster, r.job_id, r.submit_s
), changes AS (
  SELECT greatest(start_s, $2) AS t, share AS held, -1 AS waiting FROM mine
  UNION ALL SELECT least(until_s, $3), -share, 0 FROM mine
  UNION ALL SELECT greatest(eligible_s, $2), 0, 1 FROM mine
), steps AS (
  SELECT t, sum(held) AS held, sum(waiting) AS waiting FROM changes GROUP BY t
), lines AS (
  SELECT sum(held) OVER w AS held, sum(waiting) OVER w AS waiting, lead(t, 1, $3) OVER w - t AS lasted
  FROM steps WINDOW w AS (ORDER BY t ROWS UNBOUNDED PRECEDING)
)
SELECT sum(greatest(0, $4 - held)::HUGEINT * lasted) FROM lines WHERE waiting > 0 AND lasted > 0
"""
