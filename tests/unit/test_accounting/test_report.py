# SPDX-License-Identifier: Apache-2.0
"""The monthly report's figures, each worked out by hand."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from hami_hpc.accounting.documents import month_report
from hami_hpc.accounting.documents.efficiency import choose, costs, runs
from hami_hpc.accounting.formats import html
from hami_hpc.accounting.pricing.priced_period import PricedPeriod, price_period
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.store import job_records, store_files, usage_table
from hami_hpc.accounting.times import month_period, parse_instant, split_days, zone

from .samples import GPUS, HOUR, ONE_H200, VGPU_HALF, Job, fill, rates
from .test_efficiency import NS, _record, _spool

UTC = zone("UTC")
DAY = 24 * HOUR
T0 = parse_instant("2026-09-01", UTC)
END = parse_instant("2026-10-01", UTC)
TWO_H200 = rates(gpus={"h200": {"total_mib": 143156, "count": 2}})


def _report(root: Path, prices: Rates = TWO_H200, until: int = END) -> month_report.MonthReport:
    period = month_period("2026-09", UTC)
    records = job_records.from_store(root, period, 256)
    priced_period = price_period(records, GPUS, prices, split_days(period, UTC), UTC)
    used = usage_table.stored(root, store_files.read_manifest(root))
    uses = runs(choose(records, "true", []), used, GPUS)
    made = month_report.build("2026-09", priced_period, prices, uses, (), until)
    records.con.close()
    return made


def _job(number: int, start: int, hours: float, waited: int = 0, tres: str = ONE_H200, user: str = "ann") -> Job:
    return Job(number, T0 + start - waited, T0 + start, T0 + start + int(hours * HOUR), tres, user=user)


def test_utilisation_is_what_was_held_of_what_there_was(tmp_path: Path) -> None:
    """Two H200 for 720 h are 1,440 GPU-hours. Held: 72 h of one, and 144 h of half of one: 144, a tenth. A run that
    began before the month counts from its first hour on, one that goes on up to its last."""
    before = Job(3, T0 - DAY, T0 - DAY, T0 + 10 * HOUR)
    after = Job(4, END - 6 * HOUR, END - 6 * HOUR, END + DAY)
    fill(tmp_path / "s", [_job(1, 0, 56), _job(2, DAY, 144, tres=VGPU_HALF), before, after])
    made = _report(tmp_path / "s")
    (model,) = made.models
    assert (model.held_hours, model.capacity_hours, model.percent) == (144.0, 1440.0, 10.0)
    assert (made.jobs, made.gpu_hours) == (4, 144.0)
    # By the tenth of the month 216 h have gone by, 432 GPU-hours.
    (model,) = _report(tmp_path / "s", until=T0 + 9 * DAY).models
    assert model.capacity_hours == 432.0


def test_days_add_up_to_the_month_in_each_mode(tmp_path: Path) -> None:
    """A GPU from 12:00 on the first for 24 h, half a GPU on the third for 4 h."""
    fill(tmp_path / "s", [_job(1, DAY // 2, 24), _job(2, 2 * DAY, 4, tres=VGPU_HALF)])
    made = _report(tmp_path / "s")
    modes = dict(made.modes)
    assert (modes["gpu"][:3], modes["vgpu"][:3]) == ((12.0, 12.0, 0.0), (0.0, 0.0, 2.0))
    assert sum(map(sum, modes.values())) == made.gpu_hours == 26.0
    assert (len(made.days), made.days[0], made.days[-1]) == (30, "2026-09-01", "2026-09-30")


def test_waiting_is_from_eligible_to_start_of_the_runs_that_began(tmp_path: Path) -> None:
    """Waits of 0, 10, 20 and 130 s: the median lies between 10 and 20, 95 of 100 within 20 + 0.85 x 110 = 113.5 s."""
    waits = [0, 10, 20, 130]
    jobs = [_job(i, DAY * (i + 1), 1, wait) for i, wait in enumerate(waits)]
    earlier = Job(9, T0 - 90_000, T0 - 10, T0 + HOUR)  # began before the month: its wait is August's
    fill(tmp_path / "s", [*jobs, earlier])
    (line,) = _report(tmp_path / "s").waiting
    assert (line.label, line.jobs, line.median_s, line.longest_s) == ("gpu", 4, 15.0, 130.0)
    assert line.p95_s == pytest.approx(113.5)


def test_endings_count_runs_by_state_and_preemptions_stand_out(tmp_path: Path) -> None:
    """Two preempted runs with 1 h and 3 h, one of them of half a GPU: 1 + 1.5. A run that ends in October is not in."""
    jobs = [
        _job(1, 0, 5),
        _job(2, DAY, 1).with_(state="PREEMPTED"),
        _job(3, DAY, 3, tres=VGPU_HALF).with_(state="PREEMPTED"),
        Job(4, END - HOUR, END - HOUR, END + HOUR, state="FAILED"),
    ]
    fill(tmp_path / "s", jobs)
    made = _report(tmp_path / "s")
    assert [(ending.label, ending.jobs, ending.gpu_hours) for ending in made.endings] == [
        ("PREEMPTED", 2, 2.5),
        ("COMPLETED", 1, 5.0),
    ]
    assert made.preempted == month_report.LabelledHours("PREEMPTED", 2, 2.5)


def test_free_while_a_job_waited_is_what_stood_free_in_its_wait_and_no_more(tmp_path: Path) -> None:
    """Two H200. Job 1 holds one for 10 h. Job 2, half a GPU, is eligible at hour 2 and starts at hour 5: for 3 h one
    GPU stands free while it waits: 3. Job 3 waits from hour 4 to 6: from 5 to 6 half a GPU is free: 0.5 more (in the
    hour that both wait, the free GPU counts once). Nobody waits on the idle days after."""
    jobs = [
        _job(1, 0, 10),
        _job(2, 5 * HOUR, 1, 3 * HOUR, VGPU_HALF),
        _job(3, 6 * HOUR, 2, 2 * HOUR),
    ]
    fill(tmp_path / "s", jobs)
    (model,) = _report(tmp_path / "s").models
    assert model.wanted_hours == pytest.approx(3.5)
    # Without the number of GPUs nothing is known of what was free.
    (unknown,) = _report(tmp_path / "s", rates()).models
    assert (unknown.wanted_hours, unknown.percent, unknown.capacity_hours) == (None, None, None)


def test_who_held_most_without_using_it_comes_first(tmp_path: Path) -> None:
    """Half a GPU each. ann: 4 h held for 2 GPU-hours, busy for 1. bob: 2 h and 8 h, 5 GPU-hours, busy for 0 and 2.5.
    eve's whole GPU is not measured, and she is not judged."""
    root = tmp_path / "s"
    jobs = [
        _job(1, 0, 4, tres=VGPU_HALF),
        _job(2, 0, 2, tres=VGPU_HALF, user="bob"),
        _job(3, DAY, 8, tres=VGPU_HALF, user="bob"),
        _job(4, DAY, 100, user="eve"),
    ]
    fill(root, jobs)
    busy_hours = {1: 1.0, 2: 0.0, 3: 2.5}
    records = [
        _record(job.job_id, (job.start or 0) + 1, job.end or 0, gpu_busy_ns=int(busy_hours[job.job_id] * HOUR) * NS)
        for job in jobs[:3]
    ]
    records[1]["peak_bytes"] = 0  # it never opened the GPU, which is known, and not unmeasured
    usage_table.collect(root, _spool(tmp_path / "u", *records), "c1", False)
    made = _report(root)
    assert [(w.user, w.jobs, w.gpu_hours, w.used_hours, w.wasted_hours) for w in made.wasters] == [
        ("bob", 2, 5.0, 2.5, 2.5),
        ("ann", 1, 2.0, 1.0, 1.0),
    ]
    assert [(run.job, run.wasted_gpu_s / 3600) for run in made.wasted_runs] == [("3", 1.5), ("1", 1.0), ("2", 1.0)]
    assert (made.measured_jobs, made.measured_hours, made.used_hours) == (3, 7.0, 3.5)


def test_a_month_without_a_job_is_a_report_with_nothing_in_it(tmp_path: Path) -> None:
    fill(tmp_path / "s", [Job(1, END + DAY, END + DAY, END + DAY + HOUR)])
    made = _report(tmp_path / "s")
    assert (made.jobs, made.gpu_hours, made.waiting, made.endings, made.wasters) == (0, 0, (), (), ())
    assert made.preempted.jobs == 0
    assert [(model.name, model.percent, model.wanted_hours) for model in made.models] == [("h200", 0.0, 0.0)]


def test_costs_are_compared_with_the_month_before(tmp_path: Path) -> None:
    """August: ann 100 h of an H200, chem 50 h. September: ann 150 h at 2.00, dora 10 h: 320.00 after 300.00, + 6.7 %;
    phys 300.00 after 200.00, + 50 %. Whoever had jobs in August only is a line too."""
    start = T0 - 20 * DAY
    august = [Job(11, start, start, start + 100 * HOUR), Job(12, start, start, start + 50 * HOUR, account="chem")]
    late = _job(2, 0, 10, user="dora").with_(account="bio")
    fill(tmp_path / "s", [*august, _job(1, 0, 150), late])
    priced = rates(rates=[{"model": "h200", "per_gpu_hour": 2}], gpus={"h200": {"total_mib": 143156, "count": 2}})
    before = _priced(tmp_path / "s", "2026-08", priced)
    then = month_report.sums_of(before, priced)
    before.con.close()
    now = _priced(tmp_path / "s", "2026-09", priced)
    made = month_report.build("2026-09", now, priced, (), (), END, ("2026-08", then), True)
    now.con.close()
    assert (made.total.cost, made.currency, made.models[0].cost) == (Decimal("320.00"), "EUR", Decimal("320.00"))
    assert made.total.change_percent == pytest.approx(100 * 20 / 300)
    lines = {line.label: (line.cost, line.before and line.before.cost, line.change_percent) for line in made.by_account}
    assert lines == {
        "phys": (Decimal("300.00"), Decimal("200.00"), 50.0),
        "bio": (Decimal("20.00"), Decimal(0), None),
        "chem": (Decimal(0), Decimal("100.00"), -100.0),
    }
    page = html.report(made, UTC)
    assert "EUR 320.00</b>before discounts and credits, +6.7 % from 2026-08" in page
    assert '<td class="n">300.00</td>' in page
    assert '<td class="n">+50.0 %</td>' in page


def test_accounts_that_waited_longest_come_first_and_waste_has_its_cost(tmp_path: Path) -> None:
    """Waits of 10 s and 30 s, and of an hour. ann held half a GPU for 1 h, 1.00, and used 40 % of it: 0.60."""
    jobs = [_job(1, DAY, 1, 10, VGPU_HALF), _job(2, DAY, 1, 30), _job(3, DAY, 1, HOUR).with_(account="chem")]
    root = tmp_path / "s"
    fill(root, jobs)
    usage_table.collect(root, _spool(tmp_path / "u", _record(1, T0 + DAY, T0 + DAY + HOUR)), "c1", False)
    priced = rates(rates=[{"model": "h200", "per_gpu_hour": 2}])
    records = job_records.from_store(root, month_period("2026-09", UTC), 256)
    used = usage_table.stored(root, store_files.read_manifest(root))
    chosen = choose(records, "true", [])
    uses = runs(chosen, used, GPUS, costs(chosen, GPUS, priced, UTC))
    now = price_period(records, GPUS, priced, split_days(month_period("2026-09", UTC), UTC), UTC)
    made = month_report.build("2026-09", now, priced, uses, (), END, None, True)
    records.con.close()
    assert [(line.label, line.median_s) for line in made.waiting_accounts] == [("chem", 3600.0), ("phys", 20.0)]
    (waster,) = made.wasters
    assert round(waster.wasted_cost or Decimal(0), 2) == Decimal("0.60")
    assert "Not used, EUR" in html.report(made, UTC)


def _priced(root: Path, month: str, prices: Rates) -> PricedPeriod:
    period = month_period(month, UTC)
    records = job_records.from_store(root, period, 256)
    return price_period(records, GPUS, prices, split_days(period, UTC), UTC)
