# SPDX-License-Identifier: Apache-2.0
"""The same records from pyslurm as from sacct, on a real slurmdbd: `make test-pyslurm`.

It needs pyslurm built for the Slurm at hand (scripts/pyslurm), so pytest collects it only where it is named.
HAMI_HPC_RECORD=DIRECTORY keeps what both answered there (tests/unit/test_accounting/records).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from accounting_week import CLUSTER, Run, make_cluster, remove_cluster, seconds, write_runs
from billed_week import RUNS, USERS
from harness import daemons, jobs, services
from harness.layout import Layout

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.sources import pyslurm_source, sacct
from hami_hpc.accounting.store import export_reader, ingest, store_files
from hami_hpc.accounting.store.database import connect
from hami_hpc.accounting.times import Period

AROUND = Period(seconds("2026-10-12T00:00+00:00"), seconds("2026-10-27T00:00+00:00"))
# Two hours between runs of the jobs below; their edges are edges of records.
NARROW = Period(seconds("2026-10-21T05:00+02:00"), seconds("2026-10-21T06:59+02:00"))
TENTH = "--gres=vgpu:mem=1G,cores=10"
_UNSET = 18446744073709551614  # as slurmctld leaves energy that nobody measures


def _run(job: int, state: str, start: int, end: int, het: tuple[int, int] | None = None) -> Run:
    tres = {"cpu": 1, "mem": 2048, "energy": _UNSET, "node": 1, "gres/gpu": 1, "gres/gpu:h200": 1}
    first, last = (f"2026-10-21T{hour:02d}:00+02:00" for hour in (start, end))
    return Run(job, "bob", "phys", state, first, last, tres, het=het)


# Beside the billed week: requeued once more, requeued before the others, requeued three times, requeued in one second
# with another, and a heterogeneous job that was requeued and of which the second component went on.
REQUEUED = (
    _run(5, "PREEMPTED", 4, 5),
    _run(63, "PREEMPTED", 4, 5),
    _run(63, "COMPLETED", 6, 7),
    _run(7, "PREEMPTED", 4, 5),
    _run(7, "NODE_FAIL", 6, 7),
    _run(7, "PREEMPTED", 8, 9),
    _run(7, "COMPLETED", 10, 12),
    _run(80, "PREEMPTED", 4, 5, het=(80, 0)),
    _run(81, "PREEMPTED", 4, 5, het=(80, 1)),
    _run(80, "COMPLETED", 6, 7, het=(80, 0)),
    _run(81, "COMPLETED", 6, 9, het=(80, 1)),
)


@pytest.fixture
def slurm(cluster: Layout, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """The private cluster, as what this process and those that it starts call Slurm."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.slurm_conf))
    return cluster


@pytest.fixture
def week(slurm: Layout) -> Iterator[Layout]:
    """The billed week, and jobs that were requeued in more ways."""
    make_cluster(slurm, USERS)
    write_runs(slurm, (*RUNS, *REQUEUED))
    daemons.stop(slurm, "slurmdbd")  # It reads the numbers of new TRES when it starts.
    daemons.start(slurm, services.describe(slurm, "slurmdbd"))
    yield slurm
    remove_cluster(slurm, USERS)


def _lines(export: sacct.Export) -> list[list[str]]:
    """The export's lines, sorted, without those of what has not started, of which no record comes, and without the
    elapsed and suspended time of those that have no end: it goes on between two calls. From 24.11 on sacct prints the
    number of a user whom nobody knows as its name."""
    lines = []
    for line in export.path.read_text(encoding="utf-8").splitlines():
        cells = dict(zip(export.columns, line.split(export.delimiter), strict=True))
        if cells["User"] == cells["UID"]:
            cells["User"] = ""
        if cells["Start"] not in ("Unknown", "None"):
            lines.append(
                [*(cells | ({"ElapsedRaw": "", "Suspended": ""} if cells["End"] == "Unknown" else {})).values()]
            )
    return sorted(lines)


def _both(period: Period, directory: Path, clusters: str) -> tuple[list[list[str]], list[list[str]]]:
    return (
        _lines(sacct.fetch(period, directory / "sacct", clusters)),
        _lines(pyslurm_source.fetch(period, directory / "pyslurm", clusters)),
    )


def _both_by_number(numbers: Sequence[int], directory: Path, clusters: str) -> tuple[list[list[str]], list[list[str]]]:
    return (
        _lines(sacct.fetch_jobs(numbers, directory / "sacct", clusters)),
        _lines(pyslurm_source.fetch_jobs(numbers, directory / "pyslurm", clusters)),
    )


@pytest.mark.parametrize("clusters", [CLUSTER, "all", "", f"demo,{CLUSTER}"])
@pytest.mark.parametrize("period", [AROUND, NARROW])
def test_pyslurm_gives_the_lines_that_sacct_prints_for_a_window(
    week: Layout, tmp_path: Path, period: Period, clusters: str
) -> None:
    printed, given = _both(period, tmp_path, clusters)
    assert given == printed
    assert len(given) > (30 if period is AROUND else 7) or not clusters


@pytest.mark.parametrize("numbers", [[7], [20, 5], [30], [31], [80, 81, 999], [999]])
def test_pyslurm_gives_the_lines_that_sacct_prints_for_jobs_by_number(
    week: Layout, tmp_path: Path, numbers: list[int]
) -> None:
    printed, given = _both_by_number(numbers, tmp_path, CLUSTER)
    assert given == printed
    assert len(given) == {7: 5, 20: 7, 30: 3, 31: 2, 80: 5, 999: 1}[numbers[0]]


def _records(root: Path) -> tuple[list[Any], list[Any]]:
    """Every record of the store but for when it was known, and which lines were left out and why."""
    manifest = store_files.read_manifest(root)
    columns = ", ".join(name for name in export_reader.JOB_COLUMNS if name != "observed_s")
    con = connect()
    table = store_files.scan(root, (*manifest.of(store_files.JOBS), *manifest.of(store_files.OPEN)), "")
    kept = con.execute(f"SELECT {columns} FROM {table} ORDER BY ALL").fetchall()
    left_out = con.execute(f"SELECT reason, job_id, submit_s FROM {store_files.rejects(root, manifest)} ORDER BY ALL")
    return kept, left_out.fetchall()


def _ingest(root: Path, reader: ingest.Reader, until_s: int, window_days: int = 5) -> None:
    source = ingest.Source(ZoneInfo("UTC"), clusters=CLUSTER, reader=reader)
    ingest.ingest_slurmdbd(root, source, AROUND.start_s, until_s, window_days * 86400, lambda step: None)


def test_a_store_made_through_pyslurm_has_the_records_of_one_made_through_sacct(week: Layout, tmp_path: Path) -> None:
    for reader in ingest.Reader:
        _ingest(tmp_path / reader, reader, AROUND.end_s)
    kept, left_out = _records(tmp_path / "sacct")
    assert _records(tmp_path / "pyslurm") == (kept, left_out)
    assert len(kept) == len(RUNS) + len(REQUEUED) - 2
    assert len(left_out) == 2


def test_either_goes_on_where_the_other_has_stopped(week: Layout, tmp_path: Path) -> None:
    middle_s = seconds("2026-10-21T06:30+02:00")
    _ingest(tmp_path / "sacct", ingest.Reader.SACCT, AROUND.end_s)
    for first, second in (("sacct", "pyslurm"), ("pyslurm", "sacct")):
        root = tmp_path / first / second
        _ingest(root, ingest.Reader(first), middle_s)
        _ingest(root, ingest.Reader(second), AROUND.end_s, window_days=1)
        assert _records(root) == _records(tmp_path / "sacct")


def test_jobs_that_really_ran_are_the_same_lines_in_every_form(slurm: Layout, tmp_path: Path) -> None:
    done = jobs.submit(slurm, "news", TENTH, script="sleep 1")
    failed = jobs.submit(slurm, "news", TENTH, script="exit 3")
    array = jobs.submit(slurm, "news", TENTH, "--array=1-3%1", script="sleep 600")
    requeued = jobs.submit(slurm, "news", "--partition=cpu", "--requeue", script="sleep 600")
    cancelled, suspended, running = (jobs.submit(slurm, "news", TENTH, script="sleep 600") for _ in range(3))
    for job in (cancelled, requeued, suspended, running):
        jobs.wait_for_state(slurm, job, "RUNNING")
    for _ in range(2):
        jobs.admin(slurm, "scontrol", "requeue", str(requeued))
        jobs.wait(slurm, lambda: jobs.state(slurm, requeued) == "PENDING", "the job to be requeued", 60, requeued)
        time.sleep(1)  # In the second of its requeue slurmd would take its credential for the revoked one.
        jobs.admin(slurm, "scontrol", "update", f"JobId={requeued}", "StartTime=now")
        jobs.wait_for_state(slurm, requeued, "RUNNING")
    # Only the backfill scheduler starts it, and others wait behind it.
    het = jobs.submit(slurm, "news", TENTH, ":", "--partition=cpu", script="sleep 1")
    jobs.admin(slurm, "scontrol", "suspend", str(suspended))
    jobs.admin(slurm, "scancel", str(cancelled))
    for job, state in ((done, "COMPLETED"), (failed, "FAILED"), (cancelled, "CANCELLED"), (het, "COMPLETED")):
        jobs.wait_for_state(slurm, job, state, timeout_s=120)
    everything = [done, failed, array, cancelled, requeued, suspended, running, het]
    # slurmctld tells slurmdbd a little later.
    jobs.wait(slurm, lambda: _is_told(everything, tmp_path), "slurmdbd to know of all 11 runs", 30)

    printed, given = _both_by_number(everything, tmp_path, "")
    assert given == printed
    period = Period(seconds("2026-10-01T00:00+00:00"), seconds("2100-01-01T00:00+00:00"))
    printed, given = _both(period, tmp_path, "")
    assert given == printed
    states = {row[4].split()[0] for row in given}
    assert {"COMPLETED", "FAILED", "CANCELLED", "RUNNING", "SUSPENDED"} <= states
    assert sum(row[0] == str(requeued) for row in given) == 3
    ids = {row[sacct.ASKED.index("JobID")] for row in given}
    assert {f"{het}+0", f"{het}+1", f"{array}_1"} <= ids, given


def _is_told(numbers: Sequence[int], directory: Path) -> bool:
    """Of one run each, two components of the heterogeneous job, and three runs of the requeued one."""
    states = [row[4].split()[0] for row in _lines(sacct.fetch_jobs(numbers, directory / "sacct"))[:-1]]
    unended = ["RUNNING"] * 3 + ["SUSPENDED"]  # the requeued job, the array's first task, the running one
    return len(states) == 11 and sorted(state for state in states if state in unended) == unended


def test_a_slurmdbd_that_does_not_answer_is_said_to(week: Layout, tmp_path: Path) -> None:
    daemons.stop(week, "slurmdbd")
    try:
        with pytest.raises(AccountingError, match="slurmdbd does not answer"):
            pyslurm_source.fetch(AROUND, tmp_path / "pyslurm", CLUSTER)
    finally:
        daemons.start(week, services.describe(week, "slurmdbd"))


@pytest.mark.parametrize(("name", "numbers"), [("window", []), ("numbers", [5, 7, 20, 31, 54, 80, 999])])
def test_what_is_recorded_of_pyslurm_is_what_sacct_prints(
    week: Layout, tmp_path: Path, name: str, numbers: list[int]
) -> None:
    """The unit tests read these recordings; with HAMI_HPC_RECORD they are made anew."""
    export = (
        sacct.fetch_jobs(numbers, tmp_path / "x", CLUSTER) if numbers else sacct.fetch(AROUND, tmp_path / "x", CLUSTER)
    )
    start_s, end_s = (0, 0) if numbers else (AROUND.start_s, AROUND.end_s)
    command = (sys.executable, str(Path(__file__).parent / "pyslurm_recorder.py"), CLUSTER, str(start_s), str(end_s))
    done = subprocess.run((*command, *map(str, numbers)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    recorded: dict[str, Any] = json.loads(done.stdout)
    recorded["sacct"] = export.path.read_text(encoding="utf-8").splitlines()
    assert len(recorded["calls"]) > 3
    if directory := os.environ.get("HAMI_HPC_RECORD"):
        target = Path(directory) / f"pyslurm-{recorded['pyslurm']}-{name}.json"
        target.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
