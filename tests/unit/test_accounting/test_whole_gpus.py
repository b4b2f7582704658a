# SPDX-License-Identifier: Apache-2.0
"""Usage records of jobs with whole GPUs: efficiency and report show them, and no bill changes."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from hami_hpc.accounting.documents import efficiency
from hami_hpc.accounting.sources import usage_records
from hami_hpc.accounting.store import usage_table
from hami_hpc.accounting.times import Period
from hami_hpc.cli import accounting_reports
from hami_hpc.core.gpu_jobs import MODE
from hami_hpc.core.grant import Grant
from hami_hpc.core.records import OBSERVED_USAGE, Observed, usage_record

from .samples import HOUR, VGPU_HALF, Job, fill, make_bill, rates
from .test_efficiency import _record, _runs, _spool

T0 = 1_790_000_000
NS = 1_000_000_000
MIB = 1 << 20
TWO_H200 = "billing=1,cpu=1,gres/gpu:h200=2,gres/gpu=2,mem=1G,node=1"
TWO_NODES = "billing=1,cpu=2,gres/gpu:h200=2,gres/gpu=2,mem=1G,node=2"


def record(gpus: int = 2, busy_s: int = 3600, peak_mib: int = 14000, first: int = 1, **changes: Any) -> dict[str, Any]:
    """What the epilog writes of a job with whole H200s for an hour."""
    uuids = ",".join(f"GPU-{first + number}" for number in range(gpus))
    grant = Grant(1, 1001, uuids, 0, 0, "h200", gpus * 143156, 100 * gpus, "", "none", MODE, (T0 + 1) * NS)
    observed = Observed(HOUR * NS, peak_mib * MIB, busy_s * NS, 5, 6, 7)
    made = usage_record(grant, OBSERVED_USAGE, (T0 + HOUR) * NS, observed, gpu_count=gpus, history="0:1,2")
    return dict(made) | changes


def test_a_job_with_whole_gpus_is_told_what_it_used_of_all_of_them(tmp_path: Path) -> None:
    """Two GPUs for an hour, busy for an hour in all: half of what it held."""
    fill(tmp_path / "s", [Job(tres=TWO_H200)])
    usage_table.collect(tmp_path / "s", _spool(tmp_path / "u", record()), "c1", False)
    (run,) = _runs(tmp_path / "s")
    assert (run.measured, run.damaged, run.watched_gpus, run.slices) == (True, False, 2, 0)
    assert (run.gpu_percent, run.wasted_gpu_s) == (50.0, 3600.0)
    assert run.mem_percent == 100 * 14000 / (2 * 143156)
    assert efficiency.suggestion(run) is None
    said = accounting_reports._one_run(run)
    assert "held     2 GPU\n" in said
    assert "GPU      50.0 % used: busy for 01:00:00, as the agent saw it\n" in said
    assert "refused" not in said


def test_a_job_that_held_memory_and_computed_nothing_was_measured(tmp_path: Path) -> None:
    fill(tmp_path / "s", [Job(tres=TWO_H200)])
    usage_table.collect(tmp_path / "s", _spool(tmp_path / "u", record(busy_s=0)), "c1", False)
    (run,) = _runs(tmp_path / "s")
    assert (run.time_measured, run.gpu_percent, run.wasted_gpu_s) == (True, 0.0, 7200.0)
    assert efficiency.suggestion(run) is None


def test_the_time_of_a_mig_instance_is_unknown_and_its_memory_is_not(tmp_path: Path) -> None:
    """NVML tells no utilisation of a GPU that MIG divides."""
    fill(tmp_path / "s", [Job(tres=VGPU_HALF)])
    mig = record(gpus=1, busy_s=0, peak_mib=4096) | {"mode": "mig", "gpu_count": 1}
    usage_table.collect(tmp_path / "s", _spool(tmp_path / "u", mig), "c1", False)
    (run,) = _runs(tmp_path / "s")
    assert (run.measured, run.damaged, run.peak_bytes) == (True, False, 4096 * MIB)
    assert (run.time_measured, run.gpu_percent, run.wasted_gpu_s) == (False, None, 0.0)


def test_a_job_that_used_no_gpu_is_told_so(tmp_path: Path) -> None:
    fill(tmp_path / "s", [Job(tres=TWO_H200)])
    usage_table.collect(tmp_path / "s", _spool(tmp_path / "u", record(busy_s=0, peak_mib=0)), "c1", False)
    assert efficiency.suggestion(_runs(tmp_path / "s")[0]) == efficiency.NO_GPU


def test_the_records_of_a_jobs_nodes_are_one_run_and_one_that_lacks_makes_it_unknown(tmp_path: Path) -> None:
    nodes = [record(gpus=1, first=number, busy_s=900 * number) for number in (1, 2)]
    for count, expected in ((2, 37.5), (1, None)):
        root = tmp_path / str(count)
        fill(root, [Job(tres=TWO_NODES)])
        usage_table.collect(root, _spool(root / "u", *nodes[:count]), "c1", False)
        (run,) = _runs(root)
        assert (run.measured, run.gpu_percent) == (count == 2, expected), count
        assert ("not known" in accounting_reports._one_run(run)) == (count == 1)


def test_no_bill_changes_by_a_cent(tmp_path: Path) -> None:
    """With the records and without, also where disturbed runs are free."""
    jobs = [Job(tres=TWO_H200), Job(job_id=2, tres=VGPU_HALF, user="bob")]
    prices = rates(rates=[{"model": "h200", "per_gpu_hour": Decimal("2.35")}], terms=[{"unbilled_disturbed": True}])
    bills = []
    for records in ((), (record(),), (record(), _record(2, disturbed_count=0))):
        root = tmp_path / str(len(records))
        fill(root, jobs)
        usage_table.collect(root, _spool(root / "u", *records), "c1", False)
        made = make_bill(root, Period(T0, T0 + 50 * HOUR), "user", prices)
        bills.append([(line.labels, line.gpu_hours, line.cost) for line in made.lines])
    assert bills[0] == bills[1] == bills[2]
    assert bills[0][0][2] == Decimal("4.70")


@pytest.mark.parametrize(("unbilled", "cost"), [(True, "0.00"), (False, "4.70")])
def test_a_job_whose_gpu_failed_is_free_where_the_site_says_so(tmp_path: Path, unbilled: bool, cost: str) -> None:
    terms = [{"unbilled_gpu_fault": unbilled}]
    prices = rates(rates=[{"model": "h200", "per_gpu_hour": Decimal("2.35")}], terms=terms)
    fill(tmp_path / "s", [Job(tres=TWO_H200)])
    usage_table.collect(tmp_path / "s", _spool(tmp_path / "u", record(gpu_fault=79)), "c1", False)
    assert make_bill(tmp_path / "s", Period(T0, T0 + 50 * HOUR), "user", prices).cost == Decimal(cost)


def test_records_of_before_are_read_as_they_were_and_both_kinds_lie_in_one_store(tmp_path: Path) -> None:
    new = ("gpu_count", "observed_pcie_bytes", "observed_nvlink_bytes", "history")
    old = {name: value for name, value in _record(2).items() if name not in new}
    fill(tmp_path / "s", [Job(tres=TWO_H200), Job(job_id=2, tres=VGPU_HALF)])
    usage_table.collect(tmp_path / "s", _spool(tmp_path / "u1", old), "c1", False)
    usage_table.collect(tmp_path / "s", _spool(tmp_path / "u2", record()), "c1", False)
    first, second = _runs(tmp_path / "s")
    assert (first.watched_gpus, second.watched_gpus, second.measured) == (2, 0, True)
    values = dict(zip(usage_records.FIELDS, usage_records.parse_record(json.dumps(old)), strict=True))
    assert [values[name] for name in new[:3]] == [1, 0, 0]
    assert "history" not in values


@pytest.mark.parametrize("history", [5, None, "x" * 70_000])
def test_a_history_that_is_no_text_or_too_long_takes_nothing_else_down(tmp_path: Path, history: object) -> None:
    """It is not stored, so only the size of its file matters."""
    spool = _spool(tmp_path / "u", record(history=history), _record(2))
    fill(tmp_path / "s", [Job(tres=TWO_H200), Job(job_id=2, tres=VGPU_HALF)])
    collected = usage_table.collect(tmp_path / "s", spool, "c1", False)
    assert (collected.added, len(collected.faults)) == ((1, 1) if isinstance(history, str) else (2, 0))
