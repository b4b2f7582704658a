# SPDX-License-Identifier: Apache-2.0
"""The bill against a brute-force reckoning that shares no code with it: every record, second by second, in Decimal."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from itertools import pairwise
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami_hpc.accounting.documents import bill
from hami_hpc.accounting.pricing.priced_period import price_period
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.store import ingest, job_records, store_files, usage_table
from hami_hpc.accounting.store.database import one_row
from hami_hpc.accounting.times import Bucket, Period, day_start, local_date, zone

from .samples import GPUS, ONE_H200, VGPU_HALF, Job, ingest_file, rates, write_export
from .test_efficiency import _record, _spool

T0 = 1_790_000_000
SPAN = 4000
UTC = zone("UTC")
# tres -> (share of one GPU, in millionths, worked out by hand; price per GPU-hour with its class's factor)
HELD = {
    ONE_H200: (1_000_000, Decimal("2.50")),
    VGPU_HALF: (500_000, Decimal("2.50")),
    "gres/gpu:h200_1g.18gb=2,gres/gpu=2": (285_714, Decimal("2.50")),
    "gres/vgpu:lc=1,gres/vgpu=1,gres/vgpu_cores=10,gres/vgpu_mem=71578": (500_000, Decimal("3.125")),
    "gres/vgpu:be=1,gres/vgpu=1,gres/vgpu_cores=5,gres/vgpu_mem=1": (50_000, Decimal("1.50")),
    "cpu=4,mem=1G": (0, Decimal(0)),
}
PRICES = {
    "rates": [{"model": "h200", "per_gpu_hour": Decimal("2.50")}],
    "factors": [{"class": "lc", "factor": Decimal("1.25")}, {"class": "be", "factor": Decimal("0.6")}],
}
RATES = rates(**PRICES)


@st.composite
def runs(draw: st.DrawFn) -> Job:
    """A run of few possible jobs, so that several runs of one number, and several versions of one run, occur."""
    start = draw(st.integers(T0 - 500, T0 + SPAN))
    length = draw(st.integers(0, 2000))
    return Job(
        job_id=draw(st.integers(1, 12)),
        submit=T0 - 1000 + draw(st.integers(0, 3)),
        start=start,
        end=start + length,
        tres=draw(st.sampled_from(sorted(HELD))),
        account=draw(st.sampled_from(["phys", "chem"])),
        user=draw(st.sampled_from(["ann", "bob"])),
    )


def _unique(jobs: Sequence[Job]) -> list[Job]:
    """One version of each run: the property says nothing of which, so the first."""
    seen: dict[tuple[int, int], Job] = {}
    for job in jobs:
        seen.setdefault((job.job_id, job.submit), job)
    return list(seen.values())


def _oracle(jobs: Sequence[Job], period: Period) -> dict[tuple[str, str], tuple[int, Decimal]]:
    """(account, user) to (millionths of a GPU times seconds, exact money). One second at a time."""
    sums: dict[tuple[str, str], tuple[int, Decimal]] = {}
    for job in jobs:
        share, price = HELD[job.tres]
        for second in range(job.start or 0, job.end or 0):
            if share and period.start_s <= second < period.end_s:
                held, money = sums.get((job.account, job.user), (0, Decimal(0)))
                cost = Decimal(share) / 1_000_000 * price / 3600
                sums[job.account, job.user] = (held + share, money + cost)
    return sums


def _ask(root: Path, period: Period, prices: Rates = RATES) -> bill.Bill:
    records = job_records.from_store(root, period, 256)
    priced_period = price_period(records, GPUS, prices, (Bucket("", period),), UTC)
    made = bill.make_bill(priced_period, ("account", "user"), prices)
    records.con.close()
    return made


def _fill(root: Path, batches: Sequence[Sequence[Job]]) -> None:
    for batch in batches:
        export = write_export(root.parent / "export", batch)
        ingest_file(root, export, ingest.Source(UTC, memory_mib=256), T0 + 10 * SPAN)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(runs(), min_size=1, max_size=15), st.lists(st.integers(1, SPAN - 1), max_size=3), st.data())
def test_any_partition_and_any_order_of_ingestion_comes_to_what_brute_force_finds(
    drawn: list[Job], cuts: list[int], data: st.DataObject
) -> None:
    jobs = _unique(drawn)
    edges = [T0, *sorted({T0 + cut for cut in cuts}), T0 + SPAN]
    shuffled = data.draw(st.permutations(jobs))
    split = data.draw(st.integers(0, len(jobs)))
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "store"
        # Some records are read twice, in another order.
        _fill(root, [shuffled[:split], shuffled[split:], jobs[: split + 1]])
        whole = _ask(root, Period(edges[0], edges[-1]))
        parts = [_ask(root, Period(*edge)) for edge in pairwise(edges)]
    expected = _oracle(jobs, Period(edges[0], edges[-1]))
    lines = {(line.labels[0], line.labels[1]): line for line in whole.lines if line.exact}
    assert {labels: line.exact for labels, line in lines.items()} == {k: v[0] for k, v in expected.items()}
    assert sum(line.exact for part in parts for line in part.lines) == sum(line.exact for line in whole.lines)
    assert whole.cost == _rounded(expected)
    assert sum((line.cost or Decimal(0) for line in whole.lines), Decimal(0)) == whole.cost
    assert all(abs((line.cost or Decimal(0)) - expected[key][1]) < Decimal("0.01") for key, line in lines.items())
    assert sum(line.gpu_hours for line in whole.lines) == whole.gpu_hours


SPARING = rates(**PRICES, terms=[{"unbilled_disturbed": True}])


def _disturbed(jobs: Sequence[Job], began: Sequence[tuple[int, int]]) -> list[Job]:
    """The runs that the records (job, start) of disturbed allocations belong to."""
    disturbed = []
    for job_id, second in began:
        near = [
            ((abs(second - start), start, job.submit), job)
            for job in jobs
            if (start := job.start or 0) - 60 <= second <= (job.end or 0) + 60
            and (job.job_id, HELD[job.tres][0] > 0) == (job_id, True)
        ]
        disturbed += [min(near, key=lambda entry: entry[0])[1]] if near else []
    return disturbed


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(runs(), min_size=1, max_size=15), st.lists(st.integers(1, SPAN - 1), max_size=3), st.data())
def test_disturbed_runs_cost_nothing_in_a_period_and_in_all_parts_of_it(
    drawn: list[Job], cuts: list[int], data: st.DataObject
) -> None:
    jobs = [job.with_(tres=VGPU_HALF) if job.tres == ONE_H200 else job for job in _unique(drawn)]
    # Records that begin where a run does or near it: within the minute that clocks may differ, and beyond.
    began = [
        (job.job_id, (job.start or 0) + data.draw(st.integers(-70, 70)), data.draw(st.integers(0, 2)))
        for job in data.draw(st.lists(st.sampled_from(jobs), max_size=6, unique_by=lambda job: (job.job_id, job.start)))
    ]
    edges = [T0, *sorted({T0 + cut for cut in cuts}), T0 + SPAN]
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "store"
        _fill(root, [jobs])
        spool = [
            _record(job_id, second, second + 1, gpu_uuid=f"GPU-{index}", disturbed_count=count)
            for index, (job_id, second, count) in enumerate(began)
        ]
        usage_table.collect(root, _spool(Path(directory) / "u", *spool), "c1", False)
        whole = _ask(root, Period(edges[0], edges[-1]), SPARING)
        plain = _ask(root, Period(edges[0], edges[-1]))
        parts = [_ask(root, Period(*edge), SPARING) for edge in pairwise(edges)]
    free = _disturbed(jobs, [(job_id, second) for job_id, second, count in began if count])
    assert whole.cost == _rounded(_oracle([job for job in jobs if job not in free], Period(T0, T0 + SPAN)))
    costs = [part.cost or Decimal(0) for part in parts]
    assert abs(sum(costs, Decimal(0)) - whole.cost) <= Decimal("0.01") * len(parts)
    # They still held what they held.
    assert [line.exact for line in whole.lines] == [line.exact for line in plain.lines]
    assert plain.cost == _rounded(_oracle(jobs, Period(T0, T0 + SPAN)))


def _rounded(sums: dict[tuple[str, str], tuple[int, Decimal]]) -> Decimal:
    """The money in cents. The sums are inexact in their 28th digit, which is far from a cent."""
    total = sum((money for _, money in sums.values()), Decimal(0))
    return round(total, 20).quantize(Decimal("0.01"), ROUND_HALF_EVEN)


# A price that changes in the middle of the span, where a day ends, a minimum, and suspended time
# that costs a fifth: what could make the parts of a period cost something else than the period.
TOKYO = zone("Asia/Tokyo")
CHANGE_S = day_start(local_date(T0, TOKYO) + timedelta(days=1), TOKYO)
CHANGING = rates(
    timezone="Asia/Tokyo",
    rates=[
        {"model": "h200", "per_gpu_hour": Decimal("2.5"), "until": local_date(CHANGE_S, TOKYO)},
        {"model": "h200", "per_gpu_hour": Decimal("3.1"), "from": local_date(CHANGE_S, TOKYO)},
    ],
    terms=[{"minimum_s": 600, "suspended_factor": Decimal("0.2"), "unbilled_states": ["NODE_FAIL"]}],
)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(runs(), min_size=1, max_size=12), st.lists(st.integers(-3999, 3999), max_size=4), st.data())
def test_the_parts_of_a_period_cost_what_it_costs_with_changing_prices_suspended_time_and_minimum(
    drawn: list[Job], cuts: list[int], data: st.DataObject
) -> None:
    shift = CHANGE_S - SPAN // 2 - T0
    jobs = []
    for job in _unique(drawn):
        start, end = (job.start or 0) + shift, (job.end or 0) + shift
        suspended = data.draw(st.integers(0, (end - start) // 2))
        running = data.draw(st.booleans())
        jobs.append(
            job.with_(
                start=start,
                end=None if running else end,
                elapsed=end - start - suspended,
                suspended=suspended,
                state="RUNNING" if running else data.draw(st.sampled_from(["COMPLETED", "NODE_FAIL"])),
            )
        )
    edges = [CHANGE_S - SPAN, *sorted({CHANGE_S + cut for cut in cuts}), CHANGE_S + SPAN]
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "store"
        _fill(root, [jobs])
        whole = _charges(root, Period(edges[0], edges[-1]))
        parts = [_charges(root, Period(*edge)) for edge in pairwise(edges)]
    assert tuple(map(sum, zip(*parts, strict=True))) == whole


def _charges(root: Path, period: Period) -> tuple[int, int, int]:
    """(GPU time held, suspended, charge), in the smallest units that there are."""
    records = job_records.from_store(root, period, 256)
    price_period(records, GPUS, CHANGING, (Bucket("", period),), TOKYO)
    query = "SELECT sum(held_ppm_s)::HUGEINT, sum(suspended_ppm_s)::HUGEINT, sum(charge)::HUGEINT FROM priced"
    held, suspended, charge = (value or 0 for value in one_row(records.con, query))
    records.con.close()
    return held, suspended, charge


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(runs(), min_size=2, max_size=10), st.randoms(use_true_random=False))
def test_no_run_is_billed_twice_and_none_is_lost_however_often_versions_of_it_are_read(
    drawn: list[Job], random: object
) -> None:
    """Versions of one run compete: whichever order they come in, the store ends up with the same one of each."""
    forward, backward = [drawn[i : i + 3] for i in range(0, len(drawn), 3)], [[job] for job in reversed(drawn)]
    contents = []
    with tempfile.TemporaryDirectory() as directory:
        for name, batches in (("a", forward), ("b", backward)):
            root = Path(directory) / name / "store"
            root.parent.mkdir()
            _fill(root, batches)
            records = job_records.from_store(root, None, 256)
            rows = records.con.execute(f"SELECT * FROM {records.source} ORDER BY job_id, submit_s").fetchall()
            records.con.close()
            contents.append(rows)
            assert len(rows) == sum(file.rows for file in store_files.read_manifest(root).files)
    assert contents[0] == contents[1]
    assert [(row[1], row[8]) for row in contents[0]] == sorted({(job.job_id, job.submit) for job in drawn})
