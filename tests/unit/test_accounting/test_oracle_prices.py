# SPDX-License-Identifier: Apache-2.0
"""Time windows, prices of CPUs and credits by rule against a brute-force reckoning that shares no code with them: every
record, second by second, in Decimal, in the night in which clocks go back."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import datetime
from decimal import ROUND_HALF_EVEN, Decimal
from itertools import pairwise
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami_hpc.accounting.pricing.priced_period import price_period
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.store import job_records
from hami_hpc.accounting.store.database import one_row
from hami_hpc.accounting.times import Bucket, Period, zone

from .samples import GPUS, ONE_H200, Job, fill, rates

D = Decimal
BERLIN = zone("Europe/Berlin")
MIDNIGHT = 1_792_879_200  # 2026-10-25T00:00:00+02:00; at 03:00 clocks go back to 02:00
SPAN = 5 * 3600
PRICE, CPU_PRICE, NIGHT = D("2.5"), D("0.03"), D("0.4")


@st.composite
def runs(draw: st.DrawFn) -> Job:
    """A run in the hours around the change, of one H200 or of CPUs alone."""
    start = MIDNIGHT + draw(st.integers(0, SPAN))
    cpus = draw(st.integers(1, 64))
    held = draw(st.sampled_from([ONE_H200.replace("cpu=1,", ""), "mem=1G"]))
    return Job(
        job_id=draw(st.integers(1, 100_000)),
        submit=start,
        start=start,
        end=start + draw(st.integers(0, 7000)),
        tres=f"cpu={cpus},{held}",
        state=draw(st.sampled_from(["COMPLETED", "NODE_FAIL"])),
    )


def _first_second_at(minute: int) -> int:
    """The first second of the day at which clocks show this minute or a later one."""
    for second in range(MIDNIGHT, MIDNIGHT + 26 * 3600, 60):
        shown = datetime.fromtimestamp(second, BERLIN)
        if shown.hour * 60 + shown.minute >= minute:
            return second
    raise AssertionError


def _oracle(jobs: Sequence[Job], night: range) -> tuple[D, D]:
    """(money, credited), one second at a time."""
    money = credited = D(0)
    for job in jobs:
        cpus = int(job.tres.partition("=")[2].partition(",")[0])
        by_hour = cpus * CPU_PRICE + (PRICE if "gres" in job.tres else 0)
        seconds = range(job.start or 0, job.end or 0)
        by_night = len(range(max(seconds.start, night.start), min(seconds.stop, night.stop)))
        cost = by_hour * (len(seconds) - by_night + by_night * NIGHT) / 3600
        money += cost
        credited += cost * D("0.25") if job.state == "NODE_FAIL" else 0
    return money, credited


def _charges(root: Path, prices: Rates, period: Period) -> tuple[int, int]:
    records = job_records.from_store(root, period, 256)
    price_period(records, GPUS, prices, (Bucket("", period),), BERLIN)
    query = "SELECT coalesce(sum(charge), 0)::HUGEINT, coalesce(sum(credited), 0)::HUGEINT FROM priced"
    charge, credited = one_row(records.con, query)
    records.con.close()
    return charge, credited


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(runs(), min_size=1, max_size=12, unique_by=lambda job: job.job_id),
    st.integers(1, 290),
    st.integers(1, 300),
    st.lists(st.integers(1, SPAN), max_size=3),
)
def test_any_window_and_any_partition_come_to_what_brute_force_finds(
    jobs: list[Job], start: int, length: int, cuts: list[int]
) -> None:
    end = min(start + length, 299)
    if end <= start:
        end = start + 1
    window = {"name": "night", "start": f"{start // 60:02d}:{start % 60:02d}", "end": f"{end // 60:02d}:{end % 60:02d}"}
    prices = rates(
        timezone="Europe/Berlin",
        rates=[{"model": "h200", "per_gpu_hour": PRICE}],
        windows=[{**window, "days": ["sun"]}],
        factors=[{"window": "night", "factor": NIGHT}],
        resources=[{"resource": "cpu", "per_hour": CPU_PRICE}],
        credit_rules=[{"name": "Node", "on": "node_fault", "percent": 25}],
    )
    edges = [MIDNIGHT - 60, *sorted({MIDNIGHT + cut for cut in cuts}), MIDNIGHT + 2 * SPAN]
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "store"
        fill(root, jobs)
        whole = _charges(root, prices, Period(edges[0], edges[-1]))
        parts = [_charges(root, prices, Period(*edge)) for edge in pairwise(edges)]
    assert tuple(map(sum, zip(*parts, strict=True))) == whole
    expected = _oracle(jobs, range(_first_second_at(start), _first_second_at(end)))
    for exact, money in zip(whole, expected, strict=True):
        cents = (D(exact) / (1_000_000 * 3600 * 1_000_000 * 10_000)).quantize(D("0.01"), ROUND_HALF_EVEN)
        assert cents == round(money, 20).quantize(D("0.01"), ROUND_HALF_EVEN)
