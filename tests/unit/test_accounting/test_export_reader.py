# SPDX-License-Identifier: Apache-2.0
"""What sacct prints becomes a record, or is named: nothing is guessed and nothing vanishes."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.sources import sacct
from hami_hpc.accounting.sources.sacct_json import job_fields, open_input
from hami_hpc.accounting.store import export_reader
from hami_hpc.accounting.store.database import connect
from hami_hpc.accounting.times import zone

from .samples import HOUR, VGPU_HALF, Job, export_text, write_export

BERLIN = ZoneInfo("Europe/Berlin")
T0 = 1_790_000_000


def _load(
    path: Path, zone_name: str = "UTC"
) -> tuple[export_reader.Counts, list[tuple[object, ...]], dict[str, list[object]]]:
    """(counts, (job_id, start_s, end_s, held) of the records, reject reason -> job ids)."""
    con = connect(256)
    counts = export_reader.load(con, open_input(path, path.parent), zone(zone_name), "", T0 + 10**6, path.parent)
    rows = con.execute("SELECT job_id, start_s, end_s, held FROM records ORDER BY job_id, submit_s").fetchall()
    rejects: dict[str, list[object]] = {}
    for reason, job_id in con.execute("SELECT reason, job_id FROM rejects ORDER BY 1, 2").fetchall():
        rejects.setdefault(reason, []).append(job_id)
    con.close()
    return counts, rows, rejects


def _local_export(path: Path, *rows: tuple[int, str, str, str]) -> Path:
    """An export in local time: (job, start, end, Elapsed)."""
    lines = ["JobIDRaw|Account|User|Partition|State|Submit|Start|End|Elapsed|AllocTRES|Cluster"]
    lines += [
        f"{job}|phys|ann|gpu|COMPLETED|2026-10-20T00:00:00|{start}|{end}|{elapsed}|gres/gpu:h200=1,gres/gpu=1|c1"
        for job, start, end, elapsed in rows
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("number", [-5, 1 << 32])
def test_a_number_that_no_job_has_is_named(tmp_path: Path, number: int) -> None:
    counts, rows, rejects = _load(write_export(tmp_path / "x", [Job(job_id=number), Job(job_id=(1 << 32) - 3)]))
    assert rejects == {"job": [None]}
    assert [row[0] for row in rows] == [(1 << 32) - 3]
    assert counts.rejected == 1


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (Job(start=T0, end=T0 - 5), "negative"),
        (Job(elapsed=-3600), "negative"),
        (Job(elapsed=HOUR + 7), "elapsed"),
        (Job(suspended=2 * HOUR, elapsed=HOUR), "suspended"),
        (Job(end=None, elapsed=5), "no end"),
        (Job(tres="cpu=1,gres/gp"), "tres"),
        (Job(tres="gres/vgpu=1,gres/vgpu:std=1"), "tres"),
        (Job(start=None, state="RUNNING", tres="cpu=1"), "time"),
        (Job(start=None, state="", tres="cpu=1"), "time"),
        (Job(end=None, state="", elapsed=5), "no end"),
        *((Job().with_(**{name: 1 << 63}), "time") for name in ("submit", "start", "end")),
        *((Job().with_(**{name: (1 << 63) - 1}), "time") for name in ("submit", "start", "end")),
        (Job(elapsed=(1 << 63) - 1), "duration"),
        (Job(suspended=(1 << 63) - 1), "duration"),
        (Job(suspended=(1 << 31) * HOUR), "duration"),
    ],
)
def test_a_record_that_cannot_be_is_left_out_and_named(tmp_path: Path, job: Job, reason: str) -> None:
    counts, rows, rejects = _load(write_export(tmp_path / "x", [job, Job(job_id=2)]))
    assert rejects == {reason: [1]}
    assert [row[0] for row in rows] == [2]
    assert (counts.lines, counts.records, counts.rejected) == (2, 1, 1)


def test_truncated_lines_are_named_and_the_others_are_read(tmp_path: Path) -> None:
    text = export_text([Job(job_id=1), Job(job_id=2), Job(job_id=3)])
    lines = text.splitlines()
    (tmp_path / "x").write_text("\n".join([lines[0], lines[1], lines[2][:40], lines[3]]) + "\n", encoding="utf-8")
    counts, rows, rejects = _load(tmp_path / "x")
    assert ([row[0] for row in rows], list(rejects), counts.lines) == ([1, 3], ["line"], 3)


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_last_line_without_its_newline_is_never_believed(tmp_path: Path, cut: int) -> None:
    """It may have been cut within a number: vgpu_mem=8192 to vgpu_mem=81."""
    whole = export_text([Job(job_id=1), Job(job_id=2, tres=VGPU_HALF)])
    (tmp_path / "x").write_text(whole[:-cut], encoding="utf-8")
    counts, rows, rejects = _load(tmp_path / "x")
    assert ([row[0] for row in rows], list(rejects), counts.lines) == ([1], ["line"], 2)


def test_a_field_with_the_separator_in_it_does_not_shift_the_others(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(export_text([Job(user="a|b"), Job(job_id=2)]), encoding="utf-8")
    counts, rows, rejects = _load(tmp_path / "x")
    assert ([row[0] for row in rows], counts.rejected) == ([2], 1)
    assert set(rejects) <= {"line", "time"}


def test_a_constraint_with_alternatives_is_read_from_our_own_calls(tmp_path: Path) -> None:
    text = export_text([Job(tres=VGPU_HALF)]).replace("|", sacct.DELIMITER)
    (tmp_path / "x").write_text(text.rstrip("\n") + "vgpu_type_h200|vgpu_type_a100\n", encoding="utf-8")
    con = connect(256)
    export_reader.load(con, sacct.open_export(tmp_path / "x"), zone("UTC"), "", T0, tmp_path)
    assert con.execute("SELECT features FROM records").fetchall() == [("vgpu_type_h200|vgpu_type_a100",)]


def test_steps_and_runs_that_never_started_are_counted_and_no_record(tmp_path: Path) -> None:
    jobs = [Job(), Job(job_id=2, start=None, end=None, state="PENDING", tres=""), Job(job_id=3)]
    text = export_text(jobs).replace("\n3|", "\n3.batch|")
    (tmp_path / "x").write_text(text, encoding="utf-8")
    counts, rows, _ = _load(tmp_path / "x")
    assert (counts.records, counts.steps, counts.never_started, counts.rejected) == (1, 1, 1, 0)
    assert len(rows) == 1


def test_every_line_is_accounted_for(tmp_path: Path) -> None:
    jobs = [Job(job_id=i, tres="gres/gpu" if i % 3 else VGPU_HALF, start=None if i % 5 == 0 else T0) for i in range(60)]
    jobs = [job if job.start is None or job.end is None else job.with_(end=T0 + HOUR) for job in jobs]
    counts, _, _ = _load(write_export(tmp_path / "x", jobs))
    assert counts.lines == 60 == counts.records + counts.rejected + counts.steps + counts.never_started


def test_the_hour_that_clocks_repeat_is_settled_by_elapsed(tmp_path: Path) -> None:
    """On 2026-10-25 02:30 comes twice in Berlin: at 00:30 and at 01:30 UTC."""
    first, second = (int(datetime(2026, 10, 25, 2, 30, fold=fold, tzinfo=BERLIN).timestamp()) for fold in (0, 1))
    assert second - first == HOUR
    path = _local_export(
        tmp_path / "x",
        (1, "2026-10-25T01:30:00", "2026-10-25T02:30:00", "01:00:00"),  # ends in the first
        (2, "2026-10-25T01:30:00", "2026-10-25T02:30:00", "02:00:00"),  # ends in the second
        (3, "2026-10-25T02:30:00", "2026-10-25T04:30:00", "03:00:00"),  # begins in the first
        (4, "2026-10-25T02:30:00", "2026-10-25T04:30:00", "02:00:00"),  # begins in the second
        (5, "2026-10-25T02:30:00", "2026-10-25T02:30:00", "01:00:00"),  # from the first to the second
        (6, "2026-10-24T02:30:00", "2026-10-26T02:30:00", "2-01:00:00"),  # right through
        (7, "2026-10-25T02:30:00", "2026-10-25T04:30:00", "02:30:00"),  # fits neither
    )
    _, rows, rejects = _load(path, "Europe/Berlin")
    times = {row[0]: (row[1], row[2]) for row in rows}
    assert (times[1][1], times[2][1], times[3][0], times[4][0]) == (first, second, first, second)
    assert times[5] == (first, second)
    assert times[6][1] - times[6][0] == 49 * HOUR  # type: ignore[operator]
    assert rejects == {"clock": [7]}


def test_the_hour_that_clocks_skip_is_no_time(tmp_path: Path) -> None:
    path = _local_export(tmp_path / "x", (1, "2026-03-29T02:30:00", "2026-03-29T04:30:00", "02:00:00"))
    assert _load(path, "Europe/Berlin")[2] == {"clock": [1]}


def test_local_times_agree_with_the_standard_library_around_the_year(tmp_path: Path) -> None:
    days = [datetime(2026, month, day, 12, 34, 56) for month in range(1, 13) for day in (1, 28)]
    rows = [(i, day.isoformat(), day.replace(hour=13).isoformat(), "01:00:00") for i, day in enumerate(days)]
    _, found, rejects = _load(_local_export(tmp_path / "x", *rows), "Europe/Berlin")
    assert [row[1] for row in found] == [int(day.replace(tzinfo=BERLIN).timestamp()) for day in days]
    assert not rejects


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("JobIDRaw|User", "has no column Account"),
        (export_text([]).strip() + "|End", "has the column End twice"),
        ("", "has no column"),
    ],
)
def test_a_file_that_is_no_export_is_refused_with_the_call_that_makes_one(
    tmp_path: Path, header: str, says: str
) -> None:
    (tmp_path / "x").write_text(header + "\n", encoding="utf-8")
    with pytest.raises(AccountingError, match=says) as raised:
        sacct.open_export(tmp_path / "x")
    assert "sacct -a -D -X -P --noconvert" in str(raised.value)


def test_binary_noise_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(range(256)) * 40)
    with pytest.raises(AccountingError, match="has no column"):
        sacct.open_export(tmp_path / "x")


def test_json_with_holes_is_named_and_never_crashes(tmp_path: Path) -> None:
    document = {"jobs": [{}, {"job_id": "x", "time": 5}, {"job_id": 3, "state": {"current": []}}]}
    (tmp_path / "j").write_text(json.dumps(document), encoding="utf-8")
    counts, _, rejects = _load(tmp_path / "j")
    assert (counts.rejected, counts.records) == (3, 0)
    assert set(rejects) <= {"job", "time"}
    (tmp_path / "j").write_text('{"jobs": [', encoding="utf-8")
    with pytest.raises(AccountingError, match="not a complete JSON"):
        open_input(tmp_path / "j", tmp_path)


def test_array_tasks_and_heterogeneous_components_keep_the_names_that_users_know() -> None:
    assert job_fields({"job_id": 7, "array": {"job_id": 5, "task_id": 2}})["JobID"] == "5_2"
    assert job_fields({"job_id": 7, "het": {"job_id": 6, "job_offset": 1}})["JobID"] == "6+1"
