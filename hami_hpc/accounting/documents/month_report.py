# SPDX-License-Identifier: Apache-2.0
"""Makes the monthly cluster report: utilisation, waiting times, final states, fragmentation, unused GPU time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

import duckdb

from hami_hpc.accounting.documents.bill import to_money
from hami_hpc.accounting.documents.efficiency import RunUse
from hami_hpc.accounting.pricing.budget import BudgetState
from hami_hpc.accounting.pricing.held_time import PPM_SECONDS_PER_HOUR
from hami_hpc.accounting.pricing.price import OF_GPUS
from hami_hpc.accounting.pricing.priced_period import PricedPeriod
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.times import Period

MOST_ROWS = 25
OTHERS = "others"


@dataclass(frozen=True, slots=True)
class LabelledHours:
    """GPU-hours and runs under one label. cost: before discounts and credits; None without rates. before: the same of
    the month before; None where that is not known."""

    label: str
    jobs: int
    gpu_hours: float
    cost: Decimal | None = None
    before: LabelledHours | None = None

    @property
    def change_percent(self) -> float | None:
        """Of the cost, or without rates of the GPU-hours, against the month before; None if there was none."""
        if self.before is None:
            return None
        now, then = (self.gpu_hours, self.before.gpu_hours)
        if self.cost is not None and self.before.cost is not None:
            now, then = float(self.cost), float(self.before.cost)
        return 100 * (now - then) / then if then else None


@dataclass(frozen=True, slots=True)
class Sums:
    """A month by account, user and model, as LabelledHours: what the next month's report compares with."""

    total: LabelledHours
    accounts: Mapping[str, LabelledHours]
    users: Mapping[str, LabelledHours]
    models: Mapping[str, LabelledHours]


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
    cost: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Time from eligible to start of the GPU runs that began in the month, by partition or account, seconds."""

    label: str
    jobs: int
    median_s: float
    p95_s: float
    longest_s: float


@dataclass(frozen=True, slots=True)
class Waster:
    """A user's measured runs. gpu_hours: held; used_hours: GPU busy; wasted_hours: held and not used. wasted_cost: the
    same part of what they cost; None without rates."""

    user: str
    jobs: int
    gpu_hours: float
    used_hours: float
    wasted_hours: float
    wasted_cost: Decimal | None = None


@dataclass(frozen=True, slots=True)
class MonthReport:
    """The report of a month.

    measured_jobs: runs whose use is known; they held measured_hours, off_gpu_hours of them while their memory was
    off the GPU, and used used_hours. total: of all jobs, with the
    month before. currency: empty without rates. has_resources: whether jobs without GPUs are in it, because CPUs,
    memory or licences have a price. waiting_accounts: those that waited longest, by their median.
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
    total: LabelledHours = LabelledHours("", 0, 0.0)
    before: str = ""
    currency: str = ""
    has_resources: bool = False
    off_gpu_hours: float = 0.0
    waiting_accounts: tuple[Waiting, ...] = ()
    budgets: tuple[BudgetState, ...] = ()


def sums_of(priced_period: PricedPeriod, rates: Rates | None) -> Sums:
    """Returns a month's sums. rates: None for no cost."""

    def by(name: str) -> dict[str, LabelledHours]:
        entries = priced_period.sums(name)
        costs = to_money([entry.charge for entry in entries], rates.digits) if rates else [None] * len(entries)
        return {
            entry.labels[0]: LabelledHours(entry.labels[0], entry.runs, entry.held_ppm_s / PPM_SECONDS_PER_HOUR, cost)
            for entry, cost in zip(entries, costs, strict=True)
        }

    accounts = by("account")
    return Sums(_together("", list(accounts.values()), rates is not None), accounts, by("user"), by("model"))


def build(
    month: str,
    priced_period: PricedPeriod,
    rates: Rates,
    runs: Sequence[RunUse],
    notes: Sequence[str],
    read_until_s: int,
    previous: tuple[str, Sums] | None = None,
    has_rates: bool = False,
    budgets: Sequence[BudgetState] = (),
) -> MonthReport:
    """Returns the report of the period that ``priced_period`` covers, by day.

    runs: the period's runs with what they used, and with has_rates what they cost. read_until_s: up to when the records
    were read; in a month that has not ended, the capacity is counted up to then. previous: the month before, and its
    sums.
    """
    period = Period(priced_period.segments[0].period.start_s, priced_period.segments[-1].period.end_s)
    known = Period(period.start_s, max(period.start_s + 1, min(period.end_s, read_until_s)))
    con = priced_period.con
    sums = sums_of(priced_period, rates if has_rates else None)
    then = previous[1] if previous else None
    endings = _endings(con, period)
    measured = [run for run in runs if run.time_measured and not run.damaged]
    days = tuple(dict.fromkeys(segment.bucket for segment in priced_period.segments))
    return MonthReport(
        month=month,
        period=period,
        jobs=sums.total.jobs,
        users=len(sums.users),
        accounts=len(sums.accounts),
        gpu_hours=sums.total.gpu_hours,
        days=days,
        modes=_by_day(priced_period, days),
        models=_models(con, known, sums.models, rates),
        by_account=_largest(sums.accounts, then.accounts if then else None),
        by_user=_largest(sums.users, then.users if then else None),
        waiting=_waiting(con, period, "partition"),
        endings=endings,
        preempted=next(
            (ending for ending in endings if ending.label == "PREEMPTED"), LabelledHours("PREEMPTED", 0, 0.0)
        ),
        measured_jobs=len(measured),
        measured_hours=sum(run.held_gpu_s for run in measured) / 3600,
        off_gpu_hours=sum(run.held_gpu_s - run.on_gpu_s for run in measured) / 3600,
        used_hours=sum(run.used_gpu_s for run in measured) / 3600,
        wasters=_wasters(measured),
        wasted_runs=tuple(sorted(measured, key=lambda run: -run.wasted_gpu_s)[:MOST_ROWS]),
        notes=tuple(notes),
        total=replace(sums.total, before=then.total if then else None),
        before=previous[0] if previous else "",
        currency=rates.currency if has_rates else "",
        has_resources=bool(rates.resources),
        waiting_accounts=tuple(
            sorted(_waiting(con, period, "account"), key=lambda line: (-line.median_s, line.label))[:MOST_ROWS]
        ),
        budgets=tuple(budgets),
    )


def _by_day(priced_period: PricedPeriod, days: Sequence[str]) -> tuple[tuple[str, tuple[float, ...]], ...]:
    sums: dict[str, dict[str, int]] = {}
    for entry in priced_period.sums("mode", "day", condition=OF_GPUS):
        mode, day = entry.labels
        sums.setdefault(mode, dict.fromkeys(days, 0))[day] += entry.held_ppm_s
    return tuple(
        (mode, tuple(held / PPM_SECONDS_PER_HOUR for held in values.values())) for mode, values in sorted(sums.items())
    )


def _largest(lines: Mapping[str, LabelledHours], then: Mapping[str, LabelledHours] | None) -> tuple[LabelledHours, ...]:
    """Returns the labels with most GPU-hours, and one line for the rest, so that the lines add up to the total. then:
    the month before; labels that only it has are in the rest."""
    gone = [
        LabelledHours(label, 0, 0.0, _nothing(line.cost)) for label, line in (then or {}).items() if label not in lines
    ]
    ordered = sorted([*lines.values(), *gone], key=lambda line: (-line.gpu_hours, line.label))
    rows = [replace(line, before=_before(line, then)) for line in ordered]
    if len(rows) <= MOST_ROWS + 1:
        return tuple(rows)
    rest = rows[MOST_ROWS:]
    return (*rows[:MOST_ROWS], _together(f"{len(rest):,} {OTHERS}", rest, rows[0].cost is not None))


def _before(line: LabelledHours, then: Mapping[str, LabelledHours] | None) -> LabelledHours | None:
    return then.get(line.label, LabelledHours(line.label, 0, 0.0, _nothing(line.cost))) if then is not None else None


def _nothing(cost: Decimal | None) -> Decimal | None:
    return None if cost is None else cost * 0


def _together(label: str, lines: Sequence[LabelledHours], has_cost: bool) -> LabelledHours:
    """Returns the sum of some lines, and of the month before if they have it."""
    cost = sum((line.cost for line in lines if line.cost is not None), Decimal(0)) if has_cost else None
    earlier = [line.before for line in lines if line.before is not None]
    before = _together(label, earlier, has_cost) if earlier else None
    return LabelledHours(label, sum(line.jobs for line in lines), sum(line.gpu_hours for line in lines), cost, before)


def _models(
    con: duckdb.DuckDBPyConnection, period: Period, lines: Mapping[str, LabelledHours], rates: Rates
) -> tuple[ModelHours, ...]:
    models = []
    resources = {price.resource for price in rates.resources}
    for name in sorted({*lines, *rates.gpu_counts} - resources):
        line = lines.get(name, LabelledHours(name, 0, 0.0))
        count = rates.gpu_counts.get(name)
        capacity_hours = count * (period.end_s - period.start_s) / 3600 if count else None
        wanted_hours = _wanted_hours(con, period, name, count) if count else None
        percent = 100 * line.gpu_hours / capacity_hours if capacity_hours else None
        models.append(ModelHours(name, line.jobs, line.gpu_hours, capacity_hours, percent, wanted_hours, line.cost))
    return tuple(models)


def _wanted_hours(con: duckdb.DuckDBPyConnection, period: Period, model: str, count: int) -> float:
    """Returns the model's GPU-hours that were free while a job waited that later ran on this model."""
    row = con.execute(_WANTED, [model, period.start_s, period.end_s, count * 1_000_000]).fetchone()
    return (row[0] or 0) / PPM_SECONDS_PER_HOUR if row else 0.0


def _waiting(con: duckdb.DuckDBPyConnection, period: Period, by: str) -> tuple[Waiting, ...]:
    rows = con.execute(
        f"SELECT {by}, count(*), median(wait), quantile_cont(wait, 0.95), max(wait) FROM ("
        f"SELECT {by}, greatest(0, start_s - eligible_s) AS wait FROM active "
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
    costs: dict[str, Decimal] = {}
    for run in measured:
        line = sums.setdefault(run.user, [0, 0.0, 0.0, 0.0])
        for index, value in enumerate((1, run.held_gpu_s / 3600, run.used_gpu_s / 3600, run.wasted_gpu_s / 3600)):
            line[index] += value
        if run.cost is not None and run.held_gpu_s:
            part = run.cost * Decimal(run.wasted_gpu_s / run.held_gpu_s)
            costs[run.user] = costs.get(run.user, Decimal(0)) + part
    wasters = [
        Waster(user, int(jobs), held, used, wasted, costs.get(user))
        for user, (jobs, held, used, wasted) in sums.items()
    ]
    return tuple(sorted(wasters, key=lambda waster: (-waster.wasted_hours, waster.user))[:MOST_ROWS])


_SAME_KIND = (
    "r.held = p.held AND r.placed_in = p.partition AND r.placed_on = p.host AND r.features = p.features "
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
