# SPDX-License-Identifier: Apache-2.0
"""The last ingest can be taken back, whole or not at all; what a wrong zone makes of a file is refused or told."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from click.testing import CliRunner, Result
from forked import fork, points

from hami_hpc.accounting.documents import invoice_files
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.store import ingest, job_records, overlaps, store_files, undo, usage_table
from hami_hpc.accounting.times import Period, zone
from hami_hpc.cli import main

from .samples import HOUR, VGPU_HALF, Job, export_text, fill, make_bill, write_export
from .test_efficiency import _record, _spool

RECORDS = Path(__file__).parent / "records"
T0 = 1_790_000_000  # 2026-09-21
DAY = 86400
SITE = 'version = 1\n[gpu_models.h200]\ntotal_mib = 143156\n[partitions.gpu]\ngpu_models = ["h200"]\n'


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "hami-hpc.toml").write_text(SITE, encoding="utf-8")
    (tmp_path / "hami-hpc.toml").chmod(0o644)
    monkeypatch.setenv("HAMI_HPC_CONFIG", str(tmp_path / "hami-hpc.toml"))
    return tmp_path


def _run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def _content(root: Path) -> tuple[Any, ...]:
    """Everything that a bill depends on: records, rejects, the sources' progress, the zone."""
    manifest = store_files.read_manifest(root)
    records = job_records.from_store(root, None, 256)
    rows = records.con.execute(f"SELECT * FROM {records.source} ORDER BY ALL").fetchall()
    rejects = records.con.execute(f"SELECT * FROM {records.rejects} ORDER BY ALL").fetchall()
    records.con.close()
    return rows, rejects, dict(manifest.read_until_s), manifest.timezone


def _no_stray_files(root: Path) -> bool:
    names = {str(path.relative_to(root)) for path in root.rglob("*.parquet")}
    return names == store_files.read_manifest(root).by_name().keys()


FIRST = [Job(1), Job(2, end=None, state="RUNNING", elapsed=60), Job(3, tres="gres/gpu"), Job(4, end=T0 + 40 * DAY)]
# It changes runs, ends one, mends a reject and adds one, in two months.
SECOND = [Job(1, state="FAILED"), Job(2, end=T0 + HOUR), Job(3), Job(5), Job(6, tres="x"), Job(7, end=T0 + 40 * DAY)]


def test_after_it_everything_is_as_before_and_the_next_ingest_works(tmp_path: Path) -> None:
    root = tmp_path / "s"
    fill(root, FIRST)
    before = _content(root)
    fill(root, SECOND, observed=1_900_000_001)
    after = _content(root)
    entry = undo.undo(root)
    assert (entry.what, entry.added, entry.changed, entry.rejected) == (f"{tmp_path}/s.export", 3, 2, 1)
    assert _content(root) == before
    assert _no_stray_files(root)
    fill(root, SECOND, observed=1_900_000_001)
    assert _content(root) == after
    assert _no_stray_files(root)


def test_each_ingest_can_be_taken_back_down_to_an_empty_store(tmp_path: Path) -> None:
    root = tmp_path / "s"
    contents = []
    for number in range(12):  # files of a month are joined in between
        fill(root, [Job(job_id) for job_id in range(number + 1)])
        contents.append(_content(root))
    for content in reversed(contents[:-1]):
        undo.undo(root)
        assert _content(root) == content
        assert _no_stray_files(root)
    undo.undo(root)
    assert not store_files.read_manifest(root).files
    with pytest.raises(AccountingError, match="has no ingest to take back"):
        undo.undo(root)
    assert make_bill(root, Period(T0, T0 + DAY)).lines == ()


def test_no_more_ingests_are_kept_than_can_be_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo, "DEPTH", 3)
    root = tmp_path / "s"
    for number in range(6):
        fill(root, [Job(number, end=None, state="RUNNING", elapsed=60)])
    assert len(store_files.read_manifest(root).ingests) == 3
    assert len(list(root.rglob("*.parquet"))) == 4
    assert _no_stray_files(root)


def test_usage_records_that_came_later_stay(tmp_path: Path) -> None:
    root = tmp_path / "s"
    fill(root, [Job(tres=VGPU_HALF)], [Job(2)])
    usage_table.collect(root, _spool(tmp_path / "u", _record()), "c1", True)
    undo.undo(root)
    records = job_records.from_store(root, None, 256)
    assert records.con.execute(f"SELECT job_id FROM {records.used}").fetchall() == [(1,)]
    assert len(_content(root)[0]) == 1


def test_all_windows_of_one_ingest_from_slurmdbd_are_taken_back_and_read_again(tmp_path: Path) -> None:
    script = tmp_path / "sacct"
    (tmp_path / "lines").write_text(export_text([Job(), Job(8, tres="x")]), encoding="utf-8")
    script.write_text(f"#!/bin/sh\nexec cat {tmp_path}/lines\n", encoding="utf-8")
    script.chmod(0o755)
    root, source = tmp_path / "s", ingest.Source(zone("UTC"), sacct=str(script), memory_mib=256)
    steps: list[ingest.Step] = []
    ingest.ingest_slurmdbd(root, source, T0 - 30 * DAY, T0, 7 * DAY, steps.append)
    first = _content(root)
    (tmp_path / "lines").write_text(export_text([Job(), Job(2)]), encoding="utf-8")
    ingest.ingest_slurmdbd(root, source, None, T0 + 20 * DAY, 7 * DAY, steps.append)
    second = _content(root)
    assert len(steps) == 9
    entry = undo.undo(root)
    assert (entry.what, entry.added, _content(root)) == ("slurmdbd", 1, first)
    ingest.ingest_slurmdbd(root, source, None, T0 + 20 * DAY, 7 * DAY, steps.append)
    assert _content(root) == second
    undo.undo(root)
    undo.undo(root)
    assert not store_files.read_manifest(root).read_until_s


def test_an_ingest_that_died_between_two_files_is_taken_back_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"
    fill(root, FIRST)
    before = _content(root)
    paths = [write_export(tmp_path / name, [Job(job_id)]) for name, job_id in (("a", 11), ("b", 12), ("c", 13))]

    def tell(step: ingest.Step) -> None:
        if step.what.endswith("b"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest.ingest_files(root, paths, ingest.Source(zone("UTC"), memory_mib=256), tell)
    assert len(_content(root)[0]) == len(before[0]) + 2
    assert undo.undo(root).added == 2
    assert _content(root) == before


def test_a_kill_at_any_line_leaves_it_done_or_not_done(tmp_path: Path) -> None:
    root = tmp_path / "s"
    fill(root, FIRST)
    before = _content(root)
    fill(root, SECOND, observed=1_900_000_001)
    after = _content(root)
    outcomes = []
    for kill, line in enumerate(points()):
        copy = tmp_path / f"copy{line}"
        shutil.copytree(root, copy)
        status = _undo_killed_at(copy, line)
        outcomes.append(_content(copy))
        if status == 0:
            break
        assert status == -signal.SIGKILL
        if outcomes[-1] == after:
            undo.undo(copy)
            assert _no_stray_files(copy)
        elif kill % 3 == 0:
            fill(copy, [Job(99)])  # the next writer cleans up
            assert _no_stray_files(copy)
        shutil.rmtree(copy)
    assert line > 50
    kinds = [content == before for content in outcomes]
    assert kinds == sorted(kinds)
    assert all(content in (before, after) for content in outcomes)
    assert not kinds[0]
    assert kinds[-1]


def _undo_killed_at(root: Path, line: int) -> int:
    """Takes back the last ingest in a process that is killed before its ``line``-th line of the store's modules."""
    child = fork()
    if not child:
        left = line

        def trace(frame: FrameType, event: str, _argument: object) -> Any:
            nonlocal left
            if "accounting/store/" not in frame.f_code.co_filename:
                return None
            if event == "line":
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        undo.undo(root)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def test_a_store_without_a_file_that_it_needs_is_left_as_it_is(tmp_path: Path) -> None:
    root = tmp_path / "s"
    fill(root, FIRST, SECOND)
    gone = next(iter(store_files.read_manifest(root).kept))
    (root / gone.name).unlink()
    before = _content(root)
    with pytest.raises(AccountingError, match="is missing: restore it from a backup; nothing was taken back"):
        undo.undo(root)
    assert _content(root) == before


def test_a_store_of_an_older_hami_hpc_has_nothing_to_take_back_until_it_is_written(tmp_path: Path) -> None:
    root = shutil.copytree(RECORDS / "store-version-1", tmp_path / "store")
    before = _content(root)
    with pytest.raises(AccountingError, match="made by an older hami_hpc"):
        undo.undo(root)
    fill(root, [Job(5, state="FAILED"), Job(99)], observed=1_900_000_001)
    undo.undo(root)
    assert _content(root) == before


def test_two_at_once_are_one_and_a_refusal(tmp_path: Path) -> None:
    fill(tmp_path / "s", FIRST, SECOND)
    with store_files.locked(tmp_path / "s"), pytest.raises(AccountingError, match="another hami-hpc ingest"):
        undo.undo(tmp_path / "s")
    assert len(store_files.read_manifest(tmp_path / "s").ingests) == 2


def test_the_command_says_what_it_takes_back(site: Path) -> None:
    store = ("--store", site / "s")
    for name, jobs in (("a", [Job(1)]), ("b", [Job(2), Job(3, tres="x")]), ("c", [Job(1, state="FAILED")])):
        write_export(site / name, jobs)
    assert "there is no" not in _run("ingest", "--input", site / "a", *store).output
    os.utime(site / "c", (time.time() + 5, time.time() + 5))
    assert _run("ingest", "--input", site / "b", "--input", site / "c", *store).exit_code == 0
    manifest = store_files.read_manifest(site / "s")
    dry = _run("store", "undo", "--dry-run", *store)
    said = f"back the ingest of {time.strftime('%Y')}-"
    counts = f"from {site / 'b'}, {site / 'c'}: 1 new run, 1 changed, 1 line left out\n"
    assert (f"would take {said}" in dry.stdout, counts in dry.stdout) == (True, True), dry.output
    assert store_files.read_manifest(site / "s") == manifest
    done = _run("store", "undo", *store)
    assert dry.stdout == done.stdout.replace("took", "would take")
    assert done.stdout.endswith("\n1 ingest before it can be taken back too\n")
    assert _run("store", "undo", *store).exit_code == 0
    last = _run("store", "undo", *store)
    assert (last.exit_code, "has no ingest to take back" in last.output) == (1, True)
    assert _run("store", "undo", "--store", site / "none").exit_code == 1
    assert not (site / "none").exists()
    (site / "folder").mkdir()
    assert _run("store", "undo", "--store", site / "folder").exit_code == 1
    assert not list((site / "folder").iterdir())


def test_a_full_disk_leaves_it_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "s"
    fill(root, FIRST, SECOND)
    before = _content(root)

    def full(*_arguments: object, **_named: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            undo.undo(root)
    assert _content(root) == before
    assert undo.undo(root).what.endswith("s.export")


def test_invoices_that_were_issued_since_are_named(site: Path) -> None:
    (site / "rates.toml").write_text('version = 1\n[[rates]]\nmodel = "h200"\nper_gpu_hour = 1\n', encoding="utf-8")
    store = ("--store", site / "s")
    start = 1_756_684_800  # 2025-09-01
    write_export(site / "a", [Job(1, start, start, start + HOUR)])
    _run("ingest", "--input", site / "a", *store)
    assert _run("invoice", "--month", "2025-09", *store).exit_code == 0
    assert "invoices were issued since then" in _run("store", "undo", *store).stderr
    assert len(invoice_files.read_all(site / "s")) == 1


def _local(path: Path, start: str = "2026-10-05T12:00:00", end: str = "2026-10-05T13:00:00") -> Path:
    header = "JobIDRaw|Account|User|Partition|State|Submit|Start|End|Elapsed|AllocTRES|Cluster"
    line = f"1|phys|ann|gpu|COMPLETED|{start}|{start}|{end}|01:00:00|gres/gpu:h200=1,gres/gpu=1|c1"
    path.write_text(f"{header}\n{line}\n", encoding="utf-8")
    return path


def test_local_times_are_not_read_in_two_zones(site: Path) -> None:
    """Two hours apart, the run would be two runs, and billed twice."""
    words = ("ingest", "--input", _local(site / "x"), "--store", site / "s")
    assert _run(*words, "--timezone", "Europe/Berlin").exit_code == 0
    before = _content(site / "s")
    assert before[3] == "Europe/Berlin"
    refused = _run(*words)
    assert (refused.exit_code, len(refused.output.splitlines())) == (1, 1)
    assert (
        "has local times of Europe/Berlin, and these would be read in UTC: give --timezone Europe/B" in refused.output
    )
    assert _content(site / "s") == before
    assert "1 known" in _run(*words, "--timezone", "Europe/Berlin").output
    # Seconds since 1970 have no zone, nor has an export without records.
    assert _run("ingest", "--input", write_export(site / "e", [Job(2)]), "--store", site / "s").exit_code == 0
    assert _run("ingest", "--input", write_export(site / "e", []), "--store", site / "s").exit_code == 0
    assert _content(site / "s")[3] == "Europe/Berlin"


def test_an_undone_ingest_takes_its_zone_with_it(site: Path) -> None:
    words = ("ingest", "--input", _local(site / "x"), "--store", site / "s")
    assert _run(*words).exit_code == 0
    assert _run("store", "undo", "--store", site / "s").exit_code == 0
    assert _run(*words, "--timezone", "Europe/Berlin").exit_code == 0


def test_bills_and_invoices_in_another_zone_than_the_records_say_so_or_are_refused(site: Path) -> None:
    (site / "rates.toml").write_text('version = 1\n[[rates]]\nmodel = "h200"\nper_gpu_hour = 1\n', encoding="utf-8")
    store = ("--store", site / "s")
    local = _local(site / "x", "2025-09-30T23:30:00", "2025-10-01T00:30:00")
    assert _run("ingest", "--input", local, "--timezone", "Europe/Berlin", *store).exit_code == 0
    said = "has local times of Europe/Berlin, and days and months begin here as in UTC"
    assert said in _run("bill", "--month", "2025-09", *store).output
    assert said not in _run("bill", "--month", "2025-09", "--timezone", "Europe/Berlin", *store).output
    refused = _run("invoice", "--month", "2025-09", *store)
    assert (refused.exit_code, said in refused.output) == (1, True)
    assert _run("invoice", "--month", "2025-09", "--draft", *store).exit_code == 0
    other = _run("invoice", "--month", "2025-09", "--timezone", "Europe/Berlin", *store)
    assert (other.exit_code, "invoices are of months in UTC, as rates.toml says" in other.output) == (2, True)
    text = (site / "rates.toml").read_text(encoding="utf-8")
    (site / "rates.toml").write_text(f'timezone = "Europe/Berlin"\n{text}', encoding="utf-8")
    assert _run("invoice", "--month", "2025-09", *store).exit_code == 0


@pytest.mark.parametrize("suffix", ["+0200", "+02:00", "Z", ".5"])
def test_a_time_with_an_offset_is_not_read_as_a_local_one(site: Path, suffix: str) -> None:
    """SLURM_TIME_FORMAT=%FT%T%z: the offset would be applied, and then the zone's again."""
    local = _local(site / "x", f"2026-10-05T12:00:00{suffix}", f"2026-10-05T13:00:00{suffix}")
    result = _run("bill", "--month", "2026-10", "--input", local, "--timezone", "Europe/Berlin")
    assert "no GPU job ran in this period" in result.output
    assert "is not a time as sacct prints it (unset SLURM_TIME_FORMAT" in result.output


@pytest.mark.parametrize(
    ("second", "overlaps_it"),
    [
        (Job(submit=T0 + 60, start=T0 + 60, end=T0 + 120), True),  # within
        (Job(submit=T0 + 60, start=T0 + HOUR - 1, end=T0 + 2 * HOUR), True),
        (Job(submit=T0 + 60, start=T0 + HOUR, end=T0 + 2 * HOUR), False),  # requeued
        (Job(job_id=2, submit=T0 + 60), False),
        (Job(submit=T0 + 60, cluster="c2"), False),
        (Job(submit=T0 + 60, tres="cpu=1"), False),
    ],
)
def test_runs_of_one_job_that_overlap_are_told(tmp_path: Path, second: Job, overlaps_it: bool) -> None:
    fill(tmp_path / "s", [Job(), second, Job(job_id=9, start=T0 + 20 * DAY, end=T0 + 21 * DAY)])
    records = job_records.from_store(tmp_path / "s", None, 256)
    notes = overlaps.notes(records, Period(T0 - DAY, T0 + DAY))
    assert [note[:62] for note in notes] == [
        "1 job has runs that overlap in time, and all are billed (job 1)"[:62]
    ] * overlaps_it
    assert not overlaps.notes(records, Period(T0 + 10 * DAY, T0 + 11 * DAY))


def test_one_file_under_two_zones_is_told_on_every_document(site: Path) -> None:
    """In two files, by hand: the store refuses it."""
    (site / "rates.toml").write_text('version = 1\n[[rates]]\nmodel = "h200"\nper_gpu_hour = 1\n', encoding="utf-8")
    start = 1_756_720_800  # 2025-09-01T10:00:00Z
    jobs = [Job(1, start, start, start + 3 * HOUR), Job(1, start + HOUR, start + HOUR, start + 4 * HOUR)]
    write_export(site / "a", jobs)
    store = ("--store", site / "s")
    _run("ingest", "--input", site / "a", *store)
    for words in (("bill",), ("bill", "--format", "csv"), ("invoice", "--draft")):
        assert "1 job has runs that overlap in time" in _run(*words, "--month", "2025-09", *store).output
    assert "overlap" in _run("bill", "--month", "2025-09", "--input", site / "a").output
    assert "overlap" not in _run("bill", "--month", "2025-10", *store).output


def test_local_times_through_the_changes_of_the_clocks_are_the_same_runs_again(site: Path) -> None:
    """An export of summer read in winter: the zone decides by the date of the time, not by that of the reading."""
    store = ("--store", site / "s", "--timezone", "Europe/Berlin")
    for name, day in (("winter", "2026-01-05"), ("summer", "2026-07-05")):
        _local(site / name, f"{day}T12:00:00", f"{day}T13:00:00")
        for made in (T0, T0 + 100 * DAY):
            os.utime(site / name, (made, made))
            assert _run("ingest", "--input", site / name, *store).exit_code == 0
    starts = [row[10] for row in _content(site / "s")[0]]
    assert starts == [1_767_610_800, 1_783_245_600]  # 11:00 and 10:00 UTC
