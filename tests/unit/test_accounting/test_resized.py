# SPDX-License-Identifier: Apache-2.0
"""Jobs that give up nodes while they run. Slurm ends their record with the state RESIZING and begins another one, which
is submitted then, and starts then or, as sacct shows it most times, with the job (seen on 22.05.8)."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from hami_hpc.accounting.documents import sreport_check
from hami_hpc.accounting.store import job_records, overlaps
from hami_hpc.accounting.times import Period
from test_accounting.samples import Job, fill, make_bill, rates

T0 = 1_790_000_000
HALVES = "gres/vgpu:std={0},gres/vgpu={0},gres/vgpu_cores={1},gres/vgpu_mem={2},node={0}"
TWO, ONE = HALVES.format(2, 100, 16384), HALVES.format(1, 50, 8192)
DAY = Period(T0 - 3600, T0 + 86400)
# 20 s on two nodes, then 28 s on one, half a GPU on each.
FIRST = Job(submit=T0 - 1, start=T0, end=T0 + 20, tres=TWO, state="RESIZING", node="n[1-2]")
REST = Job(submit=T0 + 20, start=T0, end=T0 + 48, tres=ONE)


@pytest.mark.parametrize("start", [T0, T0 + 20])
def test_each_second_is_billed_with_what_the_job_had_in_it(tmp_path: Path, start: int) -> None:
    fill(tmp_path / "s", [FIRST, REST.with_(start=start)])
    (line,) = make_bill(tmp_path / "s", DAY).lines
    assert line.exact == (20 + 14) * 1_000_000
    assert overlaps.notes(job_records.from_store(tmp_path / "s", DAY, 256), DAY) == ()


def test_a_job_that_runs_on_is_billed_up_to_when_it_was_read(tmp_path: Path) -> None:
    fill(tmp_path / "s", [FIRST, REST.with_(end=None, state="RUNNING", elapsed=30)])
    (line,) = make_bill(tmp_path / "s", DAY).lines
    assert line.exact == (20 + 5) * 1_000_000


def test_several_changes_of_nodes_add_up(tmp_path: Path) -> None:
    three = Job(submit=T0, tres=HALVES.format(3, 150, 24576), end=T0 + 10, state="RESIZING")
    then = [REST.with_(submit=T0 + 10, end=T0 + 20, tres=TWO, state="RESIZING"), REST]
    fill(tmp_path / "s", [three.with_(start=T0), *then])
    (line,) = make_bill(tmp_path / "s", DAY).lines
    assert line.exact == (15 + 10 + 14) * 1_000_000


def test_the_minimum_is_of_the_end_of_the_job_alone(tmp_path: Path) -> None:
    """The last record has 14 GPU-seconds, and its 28 s become 60: 30."""
    fill(tmp_path / "s", [FIRST, REST])
    prices = rates(rates=[{"model": "h200", "per_gpu_hour": 3600}], terms=[{"minimum_s": 60}])
    assert make_bill(tmp_path / "s", DAY, prices=prices).cost == Decimal("50.00")


def test_time_suspended_before_is_not_taken_from_what_is_left(tmp_path: Path) -> None:
    fill(tmp_path / "s", [FIRST, REST.with_(suspended=40)])
    (line,) = make_bill(tmp_path / "s", DAY).lines
    assert line.exact == 20 * 1_000_000, "at most all of the 28 s, never less than none"


def test_a_submit_time_after_the_end_changes_no_start(tmp_path: Path) -> None:
    fill(tmp_path / "s", [Job(submit=T0 + 100, start=T0, end=T0 + 48, tres=ONE)])
    (line,) = make_bill(tmp_path / "s", DAY).lines
    assert line.exact == 24 * 1_000_000


def test_sreport_counts_the_time_before_twice_and_check_bill_says_so(tmp_path: Path) -> None:
    """Seen on 22.05.8: of such a job sreport had 2 x 20 s and 48 s."""
    fill(tmp_path / "s", [FIRST, REST])
    hours = Period(T0 - T0 % 3600, T0 - T0 % 3600 + 7200)
    records = job_records.from_store(tmp_path / "s", hours, 256)
    ours, suspended = sreport_check.device_seconds(records, hours)
    theirs = {("c1", "phys", "ann", "gres/vgpu"): 2 * 20 + 48}
    reasons = sreport_check.reasons_for(records, theirs, theirs, hours, hours.end_s + 7200)
    (difference,) = sreport_check.compare(theirs, ours, suspended, reasons).differences
    assert (difference.sreport_s, difference.records_s) == (88, 68)
    (reason,) = difference.reasons
    assert reason.startswith("1 jobs of the user gave up nodes while they ran: sreport counts their time before")
