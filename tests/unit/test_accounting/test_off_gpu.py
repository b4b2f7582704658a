# SPDX-License-Identifier: Apache-2.0
"""Time for which a job's memory was off the GPU: what it costs, and where it is shown. Amounts were worked out by
hand."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami_hpc.accounting.documents import efficiency, invoice
from hami_hpc.accounting.documents.annex import annexes
from hami_hpc.accounting.documents.bill import Bill
from hami_hpc.accounting.documents.notes import by_account
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.formats import html, tables
from hami_hpc.accounting.pricing import held_time
from hami_hpc.accounting.pricing.price import FACTOR_UNITS
from hami_hpc.accounting.pricing.priced_period import PricedPeriod, price_period
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.store import job_records, store_files, usage_table
from hami_hpc.accounting.times import Bucket, Period, month_period, parse_instant, split_days, zone
from hami_hpc.cli import accounting_reports

from .samples import GPUS, HOUR, ONE_H200, VGPU_HALF, Job, fill, make_bill, rates, run, write_settings
from .test_efficiency import _record, _runs, _spool

D = Decimal
UTC = zone("UTC")
NS = 1_000_000_000
T0 = parse_instant("2026-09-02", UTC)
SEPTEMBER = month_period("2026-09", UTC)
H200 = {"model": "h200", "per_gpu_hour": D("2.00")}
TWO_SLICES = "gres/vgpu:std=2,gres/vgpu=2,gres/vgpu_cores=100,gres/vgpu_mem=16384"
FREE = {"off_gpu_factor": 0}


def _prices(*terms: dict[str, Any], **more: Any) -> Rates:
    return rates(rates=[H200], terms=list(terms), **more)


def _collect(root: Path, *records: dict[str, Any]) -> None:
    spool = _spool(root.parent / f"spool{len(list(root.parent.iterdir()))}", *records)
    usage_table.collect(root, spool, "c1", False)


def _off(seconds: float, job_id: int = 1, start: int = T0, end: int = T0 + 4 * HOUR, **more: Any) -> dict[str, Any]:
    return _record(job_id, start, end, off_gpu_ns=int(seconds * NS), **more)


def _store(tmp_path: Path, *records: dict[str, Any], **job: Any) -> Path:
    """A store with a run of half a GPU for 4 h, 2 GPU-hours, and its usage records."""
    values = {"submit": T0, "start": T0, "end": T0 + 4 * HOUR, "tres": VGPU_HALF, **job}
    fill(tmp_path / "s", [Job(**values)])
    if records:
        _collect(tmp_path / "s", *records)
    return tmp_path / "s"


def _bill(root: Path, *terms: dict[str, Any], by: str = "account", period: Period = SEPTEMBER) -> Bill:
    return make_bill(root, period, by, _prices(*terms))


def _cost(root: Path, *terms: dict[str, Any]) -> D | None:
    return _bill(root, *terms).cost


def _days(root: Path, prices: Rates, detail: str = held_time.NOTHING) -> PricedPeriod:
    records = job_records.from_store(root, SEPTEMBER, 256)
    return price_period(records, GPUS, prices, split_days(SEPTEMBER, UTC), UTC, detail)


@pytest.mark.parametrize(
    ("terms", "cost", "spared"),
    [
        ([], "4.00", "0"),
        ([{"off_gpu_factor": 1}], "4.00", "0"),
        ([{"off_gpu_factor": D("0.5")}], "3.50", "0.2500"),
        ([FREE], "3.00", "0.5000"),
        ([{"off_gpu_factor": D("0.0001")}], "3.00", "0.5000"),
    ],
)
def test_an_hour_off_the_gpu_costs_the_part_that_the_site_says(
    tmp_path: Path, terms: list[dict[str, Any]], cost: str, spared: str
) -> None:
    """Half a GPU for 4 h at 2.00, 1 h of it off the GPU: half a GPU-hour, which is 1.00."""
    made = _bill(_store(tmp_path, _off(HOUR)), *terms)
    assert (made.gpu_hours, made.cost, made.off_gpu) == (D("2.0000"), D(cost), D(spared))
    assert made.beyond_held == 0


@pytest.mark.parametrize("records", [(), (_record(1, T0, T0 + 4 * HOUR),)])
def test_without_evidence_nobody_pays_less(tmp_path: Path, records: Sequence[dict[str, Any]]) -> None:
    """No record of the run, or one of a node without an agent."""
    root = _store(tmp_path, *records)
    _collect(root, _off(HOUR, job_id=99))
    made = _bill(root, FREE)
    assert (made.cost, made.off_gpu) == (D("4.00"), D(0))


def test_no_more_is_free_than_the_run_held(tmp_path: Path) -> None:
    root = _store(tmp_path, _off(100 * HOUR))
    made = _bill(root, FREE)
    assert (made.gpu_hours, made.cost, made.off_gpu) == (D("2.0000"), D("0.00"), D("2.0000"))
    assert _cost(root, {"off_gpu_factor": D("0.25")}) == D("1.00")


def test_parts_of_a_second_are_not_given(tmp_path: Path) -> None:
    prices = rates(rates=[{"model": "h200", "per_gpu_hour": 7200}], terms=[FREE])
    root = _store(tmp_path, _off(2.999))
    assert make_bill(root, SEPTEMBER, "account", prices).cost == D("14398.00"), "a slice is 1.00 each second"


@pytest.mark.parametrize(
    ("offs", "cost"),
    [
        ((HOUR, HOUR), "6.00"),
        ((HOUR, 0), "7.00"),
        ((HOUR,), "7.00"),  # of the other node there is no record
        ((8 * HOUR, 0), "0.00"),  # one record of both slices has their sum
    ],
)
def test_of_several_slices_each_has_its_own(tmp_path: Path, offs: tuple[int, ...], cost: str) -> None:
    """Two half GPUs for 4 h are 8.00, and an hour of one of them 1.00."""
    root = _store(tmp_path, *(_off(off, gpu_uuid=f"GPU-{i}") for i, off in enumerate(offs)), tres=TWO_SLICES)
    assert _cost(root, FREE) == D(cost)


def test_whole_gpus_are_never_off(tmp_path: Path) -> None:
    root = _store(tmp_path, _off(HOUR), tres=ONE_H200)
    assert _cost(root, FREE) == D("8.00")


@pytest.mark.parametrize(
    ("off_h", "suspended_h", "terms", "cost"),
    [
        (1, 1, FREE, "3.00"),  # the hour that it was suspended, which costs nothing already
        (3, 1, FREE, "1.00"),  # 3 h held, 2 of them off
        (1, 2, FREE, "2.00"),
        (9, 1, FREE, "0.00"),
        (1, 1, {**FREE, "suspended_factor": D("0.5")}, "3.50"),  # suspended time has its own price, off the GPU or not
        (2, 1, {**FREE, "suspended_factor": 1}, "3.00"),
    ],
)
def test_suspended_time_is_not_spared_twice(
    tmp_path: Path, off_h: int, suspended_h: int, terms: dict[str, Any], cost: str
) -> None:
    root = _store(tmp_path, _off(off_h * HOUR), suspended=suspended_h * HOUR)
    assert _cost(root, terms) == D(cost)


def test_a_run_over_two_months_has_its_time_off_the_gpu_in_proportion(tmp_path: Path) -> None:
    """1 h in September and 3 h in October, 2 h off the GPU: a quarter of them in September."""
    october = parse_instant("2026-10-01", UTC)
    start, end = october - HOUR, october + 3 * HOUR
    root = _store(tmp_path, _off(2 * HOUR, start=start, end=end), submit=start, start=start, end=end)
    both = Period(start, end)
    made = _bill(root, FREE, by="month", period=both)
    assert [(line.labels[0], line.gpu_hours, line.cost) for line in made.lines] == [
        ("2026-09", D("0.5000"), D("0.50")),
        ("2026-10", D("1.5000"), D("1.50")),
    ]
    # The rule may hold for a part of the run only.
    october_only: list[dict[str, Any]] = [{"until": date(2026, 10, 1)}, {**FREE, "from": date(2026, 10, 1)}]
    assert [line.cost for line in _bill(root, *october_only, by="month", period=both).lines] == [D("1.00"), D("1.50")]


def test_only_the_run_of_a_requeued_job_that_was_moved_costs_less(tmp_path: Path) -> None:
    first = Job(1, T0, T0, T0 + HOUR, VGPU_HALF, state="REQUEUED", user="first")
    second = Job(1, T0 + HOUR, T0 + HOUR + 40, T0 + 2 * HOUR + 40, VGPU_HALF, user="second")
    fill(tmp_path / "s", [first, second])
    _collect(tmp_path / "s", _off(HOUR // 2, start=T0 + HOUR + 41, end=T0 + 2 * HOUR))
    made = _bill(tmp_path / "s", FREE, by="user")
    assert [(line.labels[0], line.cost) for line in made.lines] == [("first", D("1.00")), ("second", D("0.50"))]


def test_terms_of_certain_jobs_have_their_own(tmp_path: Path) -> None:
    root = _store(tmp_path, _off(HOUR))
    assert _cost(root, {}, {"partition": "gpu", **FREE}) == D("3.00")
    assert _cost(root, FREE, {"mode": "vgpu", "off_gpu_factor": 1}) == D("4.00")
    assert _cost(root, FREE, {"mode": "vgpu", "minimum_s": 60}) == D("3.00"), "from the terms without conditions"


def test_what_is_free_anyway_spares_nothing_and_cpus_cost_as_before(tmp_path: Path) -> None:
    root = _store(tmp_path, _off(HOUR), state="NODE_FAIL")
    terms = {**FREE, "unbilled_states": ["NODE_FAIL"]}
    made = _bill(root, terms)
    assert (made.cost, made.off_gpu) == (D("0.00"), D(0))
    assert [entry.spared for entry in _days(root, _prices(terms)).sums("billable", numbers=("spared",))] == [0]
    prices = _prices(FREE, resources=[{"resource": "cpu", "per_hour": 1}])
    assert make_bill(root, SEPTEMBER, "account", prices).cost == D("7.00"), "4 CPU-hours and 3 h of half a GPU"


def test_the_minimum_is_of_the_time_held(tmp_path: Path) -> None:
    """10 min of half a GPU, all off the GPU, as 1 h: the 50 min that were added."""
    root = _store(tmp_path, _off(600, end=T0 + 600), end=T0 + 600)
    made = _bill(root, {**FREE, "minimum_s": HOUR})
    assert (made.cost, made.off_gpu, made.beyond_held) == (D("0.83"), D("0.0833"), D("0.4167"))


def test_bill_invoice_annex_and_chart_agree_to_the_cent(tmp_path: Path) -> None:
    """Two accounts' runs of odd lengths: the lines of each document add up to the same amount, and the hours of an
    invoice's line times its rate are its amount."""
    runs = [(1, 12_345, 4_321, "phys"), (2, 7, 3, "phys"), (3, 9_999, 9_999, "phys"), (4, 5_000, 1, "chem")]
    fill(tmp_path / "s", [Job(n, T0, T0, T0 + long, VGPU_HALF, account) for n, long, _, account in runs])
    _collect(tmp_path / "s", *(_off(off, n, T0, T0 + long) for n, long, off, _ in runs))
    prices = _prices({"off_gpu_factor": D("0.3")}, discounts=[{"from_gpu_hours": 0, "percent": 10}])
    priced = _days(tmp_path / "s", prices)
    notes = by_account(priced, {}, {})
    assert notes["phys"] == ("not charged of the time held: 1.3925 GPU-hours, in which jobs' memory was off the GPU",)
    # 0.5 GPU x (22351 s - 0.7 x 14323 s) at 2.00 an hour
    held = invoice.account_times(priced, prices)["phys"]
    made = invoice.build("phys", date(2026, 9, 1), held, priced.segments, prices, {}, notes["phys"])
    assert (made.subtotal, made.gpu_hours, made.discount) == ("3.42", "1.7118", "-0.34")
    assert [(line.gpu_hours, line.amount) for line in made.lines] == [("1.7118", "3.42")]
    assert sum(D(hours) for _, hours in made.days) == D(made.gpu_hours)
    for by in ("account", "account,job", "account,day,class,model"):
        lines = [line for line in _made(tmp_path / "s", prices, by).lines if line.labels[0] == "phys"]
        assert abs(sum(line.cost or D(0) for line in lines) - D(made.subtotal)) <= D("0.01")
    by_job = _days(tmp_path / "s", prices, held_time.JOB)
    (own, other) = (lines for _, lines in annexes(by_job, prices, ("phys", "chem")))
    assert (sum(line.amount for line in own), sum(line.gpu_hours for line in own)) == (D("3.42"), D("1.7118"))
    assert [(line.amount, line.gpu_hours) for line in other] == [(D("1.39"), D("0.6943"))]


def _made(root: Path, prices: Rates, by: str) -> Bill:
    return make_bill(root, SEPTEMBER, by, prices)


def test_the_bill_says_how_much_and_so_does_its_json(tmp_path: Path) -> None:
    made = _bill(_store(tmp_path, _off(HOUR)), FREE)
    said = "not charged of the time held: 0.5000 GPU-hours, in which jobs' memory was off the GPU"
    assert said in tables.notes(made, ())
    assert json.loads(tables.bill_json(made, UTC, ()))["off_gpu_not_charged_gpu_hours"] == "0.5000"


def test_without_usage_records_the_bill_says_that_the_rule_is_not_applied(tmp_path: Path) -> None:
    root = _store(tmp_path)
    (gap,) = _days(root, _prices(FREE)).gaps
    assert "off_gpu_factor of rates.toml is not applied, and time off the GPU costs the whole price" in gap
    (gap,) = _days(root, _prices({**FREE, "unbilled_disturbed": True})).gaps
    assert (
        "unbilled_disturbed and off_gpu_factor of rates.toml is not applied, and disturbed runs are billed and" in gap
    )
    assert _days(root, _prices({})).gaps == ()
    assert [_prices(terms).needs_usage for terms in ({}, FREE, {"off_gpu_factor": 1})] == [False, True, False]


def test_a_store_from_before_the_field_reads_as_never_off(tmp_path: Path) -> None:
    root = _store(tmp_path, _off(HOUR))
    manifest = store_files.read_manifest(root)
    (file,) = manifest.of(store_files.USED)
    old = replace(file, name=f"{store_files.USED}/old.parquet")
    duckdb.execute(f"COPY (SELECT * EXCLUDE (off_gpu_ns) FROM '{root / file.name}') TO '{root / old.name}'")
    others = tuple(entry for entry in manifest.files if entry.kind != store_files.USED)
    store_files.commit(root, replace(manifest, files=(*others, old)))
    assert _cost(root, FREE) == D("4.00")
    older = _off(0, 2)
    del older["off_gpu_ns"]
    _collect(root, older)
    assert [run.off_gpu_s for run in _runs(root)] == [0.0]


@pytest.mark.parametrize("factor", ["1.1", "-0.1", "0.00001", '"a"'])
def test_a_factor_that_cannot_be_is_refused(tmp_path: Path, factor: str) -> None:
    with pytest.raises(AccountingError, match=r"off_gpu_factor = .*; allowed is a number from 0 to 1"):
        _prices({"off_gpu_factor": "a" if factor == '"a"' else D(factor)})


PRICES = 'version = 1\n[[rates]]\nmodel = "h200"\nper_gpu_hour = 2.00\n[[terms]]\noff_gpu_factor = 0.25\n'


@pytest.mark.parametrize("action", ["prune", "pseudonymise"])
def test_taking_names_out_of_the_store_changes_no_amount(tmp_path: Path, action: str) -> None:
    write_settings(tmp_path)
    (tmp_path / "rates.toml").write_text(PRICES, encoding="utf-8")
    (tmp_path / "key").write_bytes(bytes(range(32)))
    (tmp_path / "key").chmod(0o600)
    later = T0 + 60 * 24 * HOUR
    fill(tmp_path / "store", [Job(1, T0, T0, T0 + 4 * HOUR, VGPU_HALF), Job(2, later, later, later + HOUR, VGPU_HALF)])
    _collect(tmp_path / "store", _off(HOUR))

    def shown() -> Result:
        return run(tmp_path, "bill", "--month", "2026-09", "--by", "account", "--format", "json")

    before = shown().stdout
    assert json.loads(before)["total"]["cost"] == "3.25"
    words = ("--key", str(tmp_path / "key")) if action == "pseudonymise" else ()
    done = run(tmp_path, "store", action, *words, "--before", "2026-10-01")
    assert done.exit_code == 0, done.output
    assert shown().stdout == before


def test_efficiency_counts_no_time_off_the_gpu_against_the_user(tmp_path: Path) -> None:
    """4 h of half a GPU, 2 h off it: of the 3600 GPU-seconds that it could use 720 are a fifth, a tenth of the GPU."""
    root = _store(tmp_path, _off(2 * HOUR), _off(HOUR, 2))
    (found,) = _runs(root)
    assert (found.held_gpu_s, found.on_gpu_s, found.off_gpu_s) == (7200.0, 3600.0, 7200.0)
    assert (found.gpu_percent, found.wasted_gpu_s) == (20.0, 2880.0)
    assert efficiency.suggestion(found) == "--gres=vgpu:mem=2304M,cores=11"
    said = accounting_reports._one_run(found)
    assert "  off GPU  02:00:00 of it: moved to the host by root's order, and not counted as unused\n" in said
    assert accounting_reports._fields(found, None)["off_gpu_s"] == 7200.0
    assert "20.0 % of 1.00 GPU-hours used, and 1.00 held off the GPU" in accounting_reports._many_runs([found], 9, None)


def test_efficiency_of_a_run_that_was_never_on_the_gpu_is_not_known(tmp_path: Path) -> None:
    (found,) = _runs(_store(tmp_path, _off(9 * HOUR, gpu_busy_ns=0, peak_bytes=0), suspended=HOUR))
    assert (found.off_gpu_s, found.on_gpu_s) == (3.0 * HOUR, 0.0)
    assert (found.gpu_percent, found.wasted_gpu_s, efficiency.suggestion(found)) == (None, 0.0, None)


def test_a_job_held_back_for_a_tenth_of_its_time_on_the_gpu_keeps_its_cores(tmp_path: Path) -> None:
    (found,) = _runs(_store(tmp_path, _off(3 * HOUR, throttled_ns=400 * NS)))
    assert efficiency.suggestion(found) == "--gres=vgpu:mem=2304M,cores=50"


def test_the_monthly_report_names_it(tmp_path: Path) -> None:
    from .test_report import _report

    made = _report(_store(tmp_path, _off(HOUR)))
    assert (made.measured_hours, made.off_gpu_hours) == (2.0, 0.5)
    page = " ".join(html.report(made, UTC).split())
    assert "They held 2.0 GPU-hours, 0.5 of them while their memory was off the GPU, and used 0.2." in page


@st.composite
def moved(draw: st.DrawFn) -> tuple[Job, int]:
    """A run of half an H200 around T0 to T0 + 4000, and its time off the GPU, which may be more than it ran."""
    start, length = draw(st.integers(T0 - 500, T0 + 4000)), draw(st.integers(0, 2000))
    suspended = draw(st.sampled_from([0, 0, length // 3, length]))
    return Job(0, T0 - 900, start, start + length, VGPU_HALF, suspended=suspended), draw(st.integers(0, 2500))


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(moved(), min_size=1, max_size=8), st.lists(st.integers(1, 3999), max_size=4))
def test_any_division_of_a_period_comes_to_what_it_costs(drawn: list[tuple[Job, int]], cuts: list[int]) -> None:
    jobs = [(job.with_(job_id=index), off) for index, (job, off) in enumerate(drawn, 1)]
    edges = [T0 - 1000, *sorted({T0 + cut for cut in cuts}), T0 + 9000]
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "s"
        fill(root, [job for job, _ in jobs])
        spool = [_off(off, job.job_id, job.start or 0, job.end or 0) for job, off in jobs]
        usage_table.collect(root, _spool(Path(directory) / "u", *spool), "c1", False)
        whole = _sums(root, Period(edges[0], edges[-1]))
        parts = [_sums(root, Period(*edge)) for edge in pairwise(edges)]
    assert tuple(map(sum, zip(*parts, strict=True))) == whole
    held = [(job.end or 0) - (job.start or 0) - job.suspended for job, _ in jobs]
    off = [max(0, min(off - job.suspended, net)) for (job, off), net in zip(jobs, held, strict=True)]
    assert whole[1:] == (sum(held) * 500_000 * FACTOR_UNITS - sum(off) * 500_000 * 7_500, sum(off) * 500_000 * 7_500)


def _sums(root: Path, period: Period) -> tuple[int, int, int]:
    """(charge, billed, spared), in the smallest units that there are, at a quarter of the price."""
    records = job_records.from_store(root, period, 256)
    prices = _prices({"off_gpu_factor": D("0.25")})
    priced = price_period(records, GPUS, prices, (Bucket("", period),), UTC)
    sums = priced.sums("cluster", numbers=("charge", "billed", "spared"))
    records.con.close()
    assert all(entry.spared >= 0 and entry.billed >= 0 for entry in sums)
    return (
        sum(entry.charge for entry in sums),
        sum(entry.billed for entry in sums),
        sum(entry.spared for entry in sums),
    )


def test_no_part_of_a_run_costs_less_than_nothing(tmp_path: Path) -> None:
    """All of it off the GPU but a second, second by second, with suspended time: each part is off for no more than it
    held."""
    root = _store(tmp_path, _off(98, end=T0 + 100), end=T0 + 100, suspended=31)
    buckets = [Bucket(f"{second:02}", Period(T0 + second, T0 + second + 1)) for second in range(100)]
    records = job_records.from_store(root, Period(T0, T0 + 100), 256)
    sums = price_period(records, GPUS, _prices(FREE), buckets, UTC).sums("day", numbers=("held_ppm_s", "spared"))
    records.con.close()
    assert all(0 <= entry.spared <= entry.held_ppm_s * FACTOR_UNITS for entry in sums)
    assert sum(entry.held_ppm_s for entry in sums) == 69 * 500_000
    assert sum(entry.spared for entry in sums) == 67 * 500_000 * FACTOR_UNITS
