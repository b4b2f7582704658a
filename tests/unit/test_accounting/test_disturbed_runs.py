# SPDX-License-Identifier: Apache-2.0
"""Runs that others disturbed: which runs they are, and that they cost nothing where the terms say so."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

from hami_hpc.accounting.documents.bill import Bill
from hami_hpc.accounting.pricing import priced_period
from hami_hpc.accounting.pricing.segment import Segment
from hami_hpc.accounting.store import job_records, store_files, usage_table
from hami_hpc.accounting.times import Period

from .samples import HOUR, VGPU_HALF, Job, fill, make_bill, rates
from .test_efficiency import _record, _runs, _spool

T0 = 1_790_000_000  # 2026-09-21
END = T0 + 50 * HOUR
H200 = {"model": "h200", "per_gpu_hour": Decimal(2)}
NEW = ("disturbed_count", "gpu_fault")
TWO_SLICES = "gres/vgpu:std=2,gres/vgpu=2,gres/vgpu_cores=100,gres/vgpu_mem=16384"


def _collect(root: Path, *records: dict[str, Any], cluster: str = "c1") -> None:
    usage_table.collect(root, _spool(root.parent / f"spool{len(list(root.parent.iterdir()))}", *records), cluster, True)


def _bill(root: Path, start: int = T0, end: int = END, by: str = "user", **terms: Any) -> Bill:
    prices = rates(rates=[H200], terms=[{"unbilled_disturbed": True, **terms}])
    return make_bill(root, Period(start, end), by, prices)


def _costs(made: Bill) -> list[tuple[str, Decimal, Decimal | None]]:
    return [(line.labels[0], line.gpu_hours, line.cost) for line in made.lines]


def test_a_disturbed_run_costs_nothing_and_still_held_its_gpu(tmp_path: Path) -> None:
    root = tmp_path / "s"
    fill(root, [Job(tres=VGPU_HALF), Job(job_id=2, tres=VGPU_HALF, user="bob")])
    _collect(root, _record(disturbed_count=1), _record(2))
    half, one = Decimal("0.5000"), Decimal("1.00")
    assert _costs(_bill(root)) == [("ann", half, Decimal("0.00")), ("bob", half, one)]
    assert _costs(_bill(root, by="billable")) == [("no", half, Decimal("0.00")), ("yes", half, one)]
    assert _costs(_bill(root, unbilled_disturbed=False)) == [("ann", half, one), ("bob", half, one)]


def test_it_is_not_topped_up_to_the_minimum_and_its_suspended_time_is_free_too(tmp_path: Path) -> None:
    root = tmp_path / "s"
    fill(root, [Job(tres=VGPU_HALF, suspended=1800)])
    _collect(root, _record(disturbed_count=1))
    made = _bill(root, minimum_s=2 * HOUR, suspended_factor=Decimal("0.5"))
    assert (made.cost, made.beyond_held, made.gpu_hours) == (Decimal("0.00"), Decimal(0), Decimal("0.2500"))


def test_of_a_requeued_job_only_the_run_that_was_disturbed_is_free(tmp_path: Path) -> None:
    root = tmp_path / "s"
    first = Job(tres=VGPU_HALF, end=T0 + HOUR, state="REQUEUED", user="first")
    second = Job(tres=VGPU_HALF, submit=T0 + HOUR, start=T0 + HOUR + 40, end=T0 + 2 * HOUR + 40, user="second")
    fill(root, [first, second])
    _collect(root, _record(start=T0 + HOUR + 41, end=T0 + 2 * HOUR, disturbed_count=2))
    assert [(user, cost) for user, _, cost in _costs(_bill(root))] == [
        ("first", Decimal("1.00")),
        ("second", Decimal("0.00")),
    ]
    # A bill that ends before the second run began does not give its record to the first, nor does one of a single day.
    assert _bill(root, T0, T0 + HOUR).cost == Decimal("1.00")
    assert _bill(root, T0 + HOUR, END).cost == Decimal("0.00")


def test_the_other_run_is_found_in_the_files_of_another_month(tmp_path: Path) -> None:
    """The second run ended in October, so it lies in a file that a bill of September does not need otherwise."""
    root = tmp_path / "s"
    october = 1_790_812_800  # 2026-10-01T00:00:00Z
    first = Job(tres=VGPU_HALF, submit=T0, start=october - HOUR, end=october - 30, state="REQUEUED")
    second = first.with_(submit=october, start=october + 10, end=october + HOUR, state="COMPLETED")
    fill(root, [first, second])
    _collect(root, _record(start=october + 11, end=october + HOUR, disturbed_count=1))
    assert len(store_files.read_manifest(root).of(store_files.JOBS)) == 2
    assert _bill(root, october - HOUR, october).cost == Decimal("0.99")  # 3570 s of half a GPU at 2.00
    assert _bill(root, october, october + HOUR).cost == Decimal("0.00")


@pytest.mark.parametrize("counts", [(0, 1), (1, 0), (1, 1)])
def test_of_a_run_on_several_nodes_one_disturbed_record_suffices(tmp_path: Path, counts: tuple[int, int]) -> None:
    root = tmp_path / "s"
    fill(root, [Job(tres=TWO_SLICES)])
    _collect(root, *(_record(gpu_uuid=f"GPU-{i}", disturbed_count=count) for i, count in enumerate(counts)))
    made = _bill(root)
    assert (made.runs, made.gpu_hours, made.cost) == (1, Decimal("1.0000"), Decimal("0.00"))


def test_a_record_of_another_cluster_or_of_another_time_frees_nobody(tmp_path: Path) -> None:
    root = tmp_path / "s"
    fill(root, [Job(tres=VGPU_HALF)])
    _collect(root, _record(disturbed_count=1) | {"cluster": "c2"}, cluster="")
    _collect(root, _record(start=T0 + HOUR + 61, end=T0 + 2 * HOUR, disturbed_count=1))
    assert _bill(root).cost == Decimal("1.00")
    _collect(root, _record(start=T0 + 2, disturbed_count=1), cluster="")
    assert _bill(root).cost == Decimal("0.00")


def test_the_rule_holds_for_the_days_of_its_terms(tmp_path: Path) -> None:
    """A run of two hours around midnight: the hour before the rule begins is billed."""
    root = tmp_path / "s"
    midnight = 1_790_035_200  # 2026-09-22T00:00:00Z
    fill(root, [Job(tres=VGPU_HALF, submit=T0, start=midnight - HOUR, end=midnight + HOUR)])
    _collect(root, _record(start=midnight - HOUR, end=midnight + HOUR, disturbed_count=1))
    day = date(2026, 9, 22)
    prices = rates(rates=[H200], terms=[{"until": day}, {"unbilled_disturbed": True, "from": day}])
    made = make_bill(root, Period(midnight - 2 * HOUR, midnight + 2 * HOUR), "day", prices)
    assert _costs(made) == [
        ("2026-09-21", Decimal("0.5000"), Decimal("1.00")),
        ("2026-09-22", Decimal("0.5000"), Decimal("0.00")),
    ]


def test_a_run_that_was_open_when_it_was_last_read_is_free_once_its_record_is_there(tmp_path: Path) -> None:
    root = tmp_path / "s"
    fill(root, [Job(tres=VGPU_HALF, end=None, state="RUNNING", elapsed=HOUR)], observed=T0 + HOUR)
    _collect(root, _record(disturbed_count=1))
    made = _bill(root)
    assert (made.still_running, made.gpu_hours, made.cost) == (1, Decimal("0.5000"), Decimal("0.00"))


def test_a_usage_table_from_before_the_field_reads_as_never_disturbed(tmp_path: Path) -> None:
    root = tmp_path / "s"
    fill(root, [Job(tres=VGPU_HALF), Job(job_id=2, tres=VGPU_HALF)])
    _collect(root, _record(disturbed_count=1))
    manifest = store_files.read_manifest(root)
    (file,) = manifest.of(store_files.USED)
    new = tuple(name for name in usage_table.USED_COLUMNS if name.startswith("observed_") or name in NEW)
    old = replace(file, name=f"{store_files.USED}/old.parquet")
    duckdb.execute(f"COPY (SELECT * EXCLUDE ({', '.join(new)}) FROM '{root / file.name}') TO '{root / old.name}'")
    others = tuple(entry for entry in manifest.files if entry.kind != store_files.USED)
    store_files.commit(root, replace(manifest, files=(*others, old)))
    assert len(new) == 8
    assert _bill(root).cost == Decimal("2.00")
    assert [(run.measured, run.peak_bytes >> 20, run.gpu_busy_s) for run in _runs(root)] == [
        (True, 2000, 720.0),
        (False, 0, 0.0),
    ]
    # A record with the field goes beside the old ones.
    _collect(root, _record(2, disturbed_count=1))
    assert _bill(root).cost == Decimal("1.00")
    records = job_records.from_store(root, None, 256)
    counts = records.con.execute(f"SELECT disturbed_count FROM {records.used} ORDER BY job_id").fetchall()
    assert counts == [(0,), (1,)]


BOTH = {"unbilled_disturbed": True, "unbilled_gpu_fault": True}


@pytest.mark.parametrize(
    ("terms", "free"),
    [
        ({"unbilled_disturbed": False, "unbilled_gpu_fault": True}, ("bob", "eve")),
        ({"unbilled_disturbed": True}, ("ann", "eve")),
        (BOTH, ("ann", "bob", "eve")),
        ({"unbilled_disturbed": False}, ()),
    ],
)
def test_each_of_the_two_reasons_frees_its_own_runs(
    tmp_path: Path, terms: dict[str, Any], free: tuple[str, ...]
) -> None:
    root = tmp_path / "s"
    fill(root, [Job(job_id=n, tres=VGPU_HALF, user=user) for n, user in enumerate(("ann", "bob", "eve", "kim"), 1)])
    _collect(
        root,
        _record(1, disturbed_count=1),
        _record(2, gpu_fault=79),
        _record(3, disturbed_count=2, gpu_fault=48),
        _record(4),
    )
    assert tuple(user for user, _, cost in _costs(_bill(root, **terms)) if cost == 0) == free


def test_of_a_run_on_several_gpus_one_fault_suffices_and_the_other_node_may_be_disturbed(tmp_path: Path) -> None:
    root = tmp_path / "s"
    fill(root, [Job(tres=TWO_SLICES)])
    _collect(root, _record(gpu_uuid="GPU-0", gpu_fault=79), _record(gpu_uuid="GPU-1", disturbed_count=1))
    for key in BOTH:
        others: dict[str, Any] = dict.fromkeys(BOTH, False)
        assert _bill(root, **{**others, key: True}).cost == 0


def test_without_usage_records_the_note_names_the_keys_that_are_not_applied() -> None:
    records: Any = SimpleNamespace(used="")
    span = Period(T0, END)
    segment = Segment("", span, unbilled_disturbed=True, unbilled_gpu_fault=True)
    table, (note,) = priced_period._disturbed(records, rates(), [segment], span)
    assert table == ""
    assert "unbilled_disturbed and unbilled_gpu_fault of rates.toml is not applied" in note
    assert "disturbed and faulted runs are billed" in note
