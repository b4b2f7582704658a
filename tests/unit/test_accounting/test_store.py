# SPDX-License-Identifier: Apache-2.0
"""The store: each run once, whatever is read again, and whole whenever a writer dies."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hami_hpc.accounting.documents import efficiency
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.store import ingest, job_records, merge, store_files, usage_table
from hami_hpc.accounting.store.database import connect
from hami_hpc.accounting.times import Period, zone

from .samples import GPUS, HOUR, Job, export_text, fill, ingest_file, make_bill, run, write_export, write_settings

RECORDS = Path(__file__).parent / "records"
T0 = 1_790_000_000
MONTH_S = 31 * 86400


def _hours(root: Path) -> str:
    return str(make_bill(root, Period(T0 - MONTH_S, T0 + 3 * MONTH_S)).gpu_hours)


def _data_files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*.parquet")}


def test_reading_the_same_records_again_changes_nothing_not_even_a_file(tmp_path: Path) -> None:
    root = tmp_path / "store"
    jobs = [Job(job_id=i, start=T0 + i * MONTH_S // 4, end=T0 + i * MONTH_S // 4 + HOUR) for i in range(8)]
    fill(root, jobs)
    files, hours = _data_files(root), _hours(root)
    (step,) = fill(root, jobs, observed=1_950_000_000)
    assert (step.merged.added, step.merged.changed, step.merged.unchanged) == (0, 0, 8)
    assert (_data_files(root), _hours(root)) == (files, hours)


def test_a_running_job_is_replaced_by_its_end_in_whichever_order_they_are_read(tmp_path: Path) -> None:
    running = Job(end=None, state="RUNNING", elapsed=600)
    ended = Job(end=T0 + 2 * HOUR)
    for name, batches in (("a", ([running], [ended])), ("b", ([ended], [running])), ("c", ([running, ended],))):
        root = tmp_path / name
        fill(root, *batches)
        assert _hours(root) == "2.0000", name
        assert not store_files.read_manifest(root).of(store_files.OPEN)


def test_an_old_export_with_a_new_date_does_not_reopen_a_job_that_has_ended(tmp_path: Path) -> None:
    """Without Elapsed, a running job was last seen when its file was made, and copying a file makes it new."""
    from hami_hpc.accounting.sources.sacct import ASKED

    from .samples import export_text

    root = tmp_path / "store"
    fill(root, [Job(end=T0 + 2 * HOUR)], observed=1_900_000_000)
    columns = tuple(name for name in ASKED if name != "ElapsedRaw")
    (tmp_path / "x").write_text(export_text([Job(end=None, state="RUNNING")], columns), encoding="utf-8")
    ingest_file(root, tmp_path / "x", ingest.Source(zone("UTC")), 1_900_000_001)
    assert _hours(root) == "2.0000"


def test_a_running_job_counts_up_to_when_it_was_read(tmp_path: Path) -> None:
    root = tmp_path / "store"
    fill(root, [Job(end=None, state="RUNNING", elapsed=1800)])
    assert _hours(root) == "0.5000"
    fill(root, [Job(end=None, state="RUNNING", elapsed=5400)])
    assert _hours(root) == "1.5000"
    fill(root, [Job(end=None, state="RUNNING", elapsed=3600)])
    assert _hours(root) == "1.5000"


def test_each_run_of_a_requeued_job_is_a_run_of_its_own(tmp_path: Path) -> None:
    again = Job(submit=T0 + HOUR, start=T0 + 2 * HOUR, end=T0 + 3 * HOUR)
    fill(tmp_path / "store", [Job(state="REQUEUED"), again])
    assert _hours(tmp_path / "store") == "2.0000"


def test_a_run_whose_end_moves_to_another_month_moves_with_it(tmp_path: Path) -> None:
    root = tmp_path / "store"
    fill(root, [Job(), Job(job_id=2)], observed=1_900_000_000)
    (step,) = fill(root, [Job(end=T0 + MONTH_S)], observed=1_900_000_001)
    assert (step.merged.added, step.merged.changed) == (0, 1)
    assert sum(file.rows for file in store_files.read_manifest(root).files) == 2


def test_jobs_of_two_clusters_with_one_number_are_two_jobs(tmp_path: Path) -> None:
    fill(tmp_path / "store", [Job(cluster="c1"), Job(cluster="c2")])
    assert _hours(tmp_path / "store") == "2.0000"


def test_an_export_that_names_no_cluster_is_not_stored_beside_records_that_do(tmp_path: Path) -> None:
    from hami_hpc.accounting.sources.sacct import ASKED

    from .samples import export_text

    columns = tuple(name for name in ASKED if name != "Cluster")
    (tmp_path / "x").write_text(export_text([Job()], columns), encoding="utf-8")
    root = tmp_path / "store"
    fill(root, [Job()])
    with pytest.raises(AccountingError, match="name of the cluster with --clusters"):
        ingest_file(root, tmp_path / "x", ingest.Source(zone("UTC")), T0)
    step = ingest_file(root, tmp_path / "x", ingest.Source(zone("UTC"), cluster="c1"), T0)
    assert (step.merged.added, step.merged.unchanged) == (0, 1)


def test_many_small_ingests_end_in_few_files(tmp_path: Path) -> None:
    root = tmp_path / "store"
    for i in range(3 * merge.FILES_PER_MONTH):
        fill(root, [Job(job_id=i)])
    manifest = store_files.read_manifest(root)
    assert sum(file.rows for file in manifest.files) == 3 * merge.FILES_PER_MONTH
    assert len(manifest.files) <= merge.FILES_PER_MONTH
    assert _data_files(root) == manifest.by_name().keys()


@pytest.mark.parametrize("dies_in", ["_write_new", "_joined", "_merge_rejects", "commit"])
def test_a_writer_that_dies_leaves_the_store_as_it_was_and_the_next_one_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_in: str
) -> None:
    root = tmp_path / "store"
    fill(root, [Job(job_id=1)])
    with monkeypatch.context() as patch:
        module = store_files if dies_in == "commit" else merge
        original = getattr(module, dies_in)

        def die(*arguments: object) -> object:
            if dies_in != "commit":
                original(*arguments)
            raise KeyboardInterrupt

        patch.setattr(module, dies_in, die)
        with pytest.raises(KeyboardInterrupt):
            fill(root, [Job(job_id=2)])
    assert _hours(root) == "1.0000"
    fill(root, [Job(job_id=2)])
    assert _hours(root) == "2.0000"
    assert _data_files(root) == store_files.read_manifest(root).by_name().keys()
    assert not list(root.glob(".ingest-*"))


def test_two_writers_at_once_are_one_writer_and_one_clear_refusal(tmp_path: Path) -> None:
    export = write_export(tmp_path / "export", [Job()])
    with store_files.locked(tmp_path / "store"), pytest.raises(AccountingError, match="another hami-hpc ingest"):
        ingest_file(tmp_path / "store", export, ingest.Source(zone("UTC")), T0)


def test_a_reject_is_forgotten_once_its_run_is_read_whole(tmp_path: Path) -> None:
    root = tmp_path / "store"
    fill(root, [Job(tres="gres/gpu")])
    assert store_files.read_manifest(root).of(store_files.REJECTS)[0].rows == 1
    fill(root, [Job(tres="gres/gpu")])
    assert store_files.read_manifest(root).of(store_files.REJECTS)[0].rows == 1
    fill(root, [Job()])
    assert not store_files.read_manifest(root).of(store_files.REJECTS)
    assert _hours(root) == "1.0000"


@pytest.mark.parametrize("cut", [1, 20, 120])
def test_a_line_that_was_cut_is_forgotten_once_the_whole_export_is_read(tmp_path: Path, cut: int) -> None:
    """Cut at the newline, in the constraints, and in the allocation."""
    root = tmp_path / "store"
    jobs = [Job(1), Job(2, constraints="vgpu_type_h200")]
    whole = export_text(jobs)
    assert whole[:-cut].splitlines()[-1].startswith("2|phys|ann|gpu|COMPLETED|1790000000|")
    torn = tmp_path / "torn"
    torn.write_text(whole[:-cut], encoding="utf-8")
    ingest_file(root, torn, ingest.Source(zone("UTC"), is_new_cluster=True, memory_mib=256), T0)
    assert store_files.read_manifest(root).of(store_files.REJECTS)[0].rows == 1
    fill(root, [Job(2, submit=1_790_000_001)])  # another run of that job
    assert store_files.read_manifest(root).of(store_files.REJECTS)[0].rows == 1
    fill(root, jobs)
    assert not store_files.read_manifest(root).of(store_files.REJECTS)


def test_a_period_reads_only_the_files_that_touch_it(tmp_path: Path) -> None:
    root = tmp_path / "store"
    fill(root, [Job(job_id=i, start=T0 + i * MONTH_S, end=T0 + i * MONTH_S + HOUR) for i in range(6)])
    manifest = store_files.read_manifest(root)
    assert store_files.records(root, manifest, Period(T0, T0 + HOUR)).count(".parquet") == 1
    assert store_files.records(root, manifest, None).count(".parquet") == 6


def test_a_store_that_is_not_there_or_not_ours_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccountingError, match="run hami-hpc ingest"):
        job_records.from_store(tmp_path, None)
    (tmp_path / "manifest.json").write_text('{"version": 9}', encoding="utf-8")
    with pytest.raises(AccountingError, match="reads version 1 and 2"):
        job_records.from_store(tmp_path, None)


def _sacct(directory: Path, text: str) -> str:
    """A stand-in for sacct: prints its file, and notes how it was called."""
    (directory / "lines").write_text(text, encoding="utf-8")
    script = directory / "sacct"
    script.write_text(
        f'#!/bin/sh\necho "$SLURM_TIME_FORMAT $*" >> {directory}/calls\ncat {directory}/lines\n', encoding="utf-8"
    )
    script.chmod(0o755)
    return str(script)


def test_an_ingest_goes_on_where_the_last_one_stopped_and_reads_an_overlap(tmp_path: Path) -> None:
    from .samples import export_text

    source = ingest.Source(zone("UTC"), sacct=_sacct(tmp_path, export_text([Job()])), memory_mib=256)
    steps: list[ingest.Step] = []
    day = 86400
    ingest.ingest_slurmdbd(tmp_path / "store", source, T0 - 10 * day, T0 + day, 7 * day, steps.append)
    ingest.ingest_slurmdbd(tmp_path / "store", source, None, T0 + 2 * day, 7 * day, steps.append)
    calls = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    assert [call.split(" -S ")[1] for call in calls] == [
        f"uts{T0 - 10 * day} -E uts{T0 - 3 * day}",
        f"uts{T0 - 3 * day} -E uts{T0 + day}",
        f"uts{T0 + day - ingest.OVERLAP_S} -E uts{T0 + 2 * day}",
    ]
    assert all(call.startswith("%s -a -D -X -P --noconvert --delimiter=") for call in calls)
    assert [step.merged.added for step in steps] == [1, 0, 0]


def test_an_open_run_that_the_windows_do_not_show_is_asked_for_by_number(tmp_path: Path) -> None:
    from .samples import export_text

    day = 86400
    source = ingest.Source(zone("UTC"), sacct=_sacct(tmp_path, export_text([])), memory_mib=256)
    root = tmp_path / "store"
    fill(root, [Job(job_id=77, end=None, state="RUNNING", elapsed=60)])
    vanished = ingest.ingest_slurmdbd(root, source, T0 + 8 * day, T0 + 9 * day, 7 * day, lambda step: None)
    assert vanished == 1
    assert "-j 77" in (tmp_path / "calls").read_text(encoding="utf-8").splitlines()[-1]


def test_a_sacct_that_fails_is_quoted_and_changes_nothing(tmp_path: Path) -> None:
    script = tmp_path / "sacct"
    script.write_text("#!/bin/sh\necho 'sacct: error: slurmdbd: Connection refused' >&2\nexit 1\n", encoding="utf-8")
    script.chmod(0o755)
    source = ingest.Source(zone("UTC"), sacct=str(script))
    with pytest.raises(AccountingError, match="Connection refused"):
        ingest.ingest_slurmdbd(tmp_path / "store", source, T0, T0 + 86400, 86400, lambda step: None)
    assert not store_files.read_manifest(tmp_path / "store").generation


def test_a_session_spills_to_disk_rather_than_exceed_its_memory(tmp_path: Path) -> None:
    con = connect(64, spill=tmp_path)
    (limit,) = con.execute("SELECT current_setting('memory_limit')").fetchall()[0]
    assert limit.startswith("64")


@pytest.fixture
def version_1(tmp_path: Path) -> Path:
    """A copy of a store that hami_hpc wrote while the column display_id was called job_name."""
    return shutil.copytree(RECORDS / "store-version-1", tmp_path / "store")


def _display_ids(root: Path) -> list[tuple[int, str | None]]:
    records = job_records.from_store(root, None, 256)
    rows = records.con.execute(f"SELECT job_id, display_id FROM {records.source} ORDER BY 1").fetchall()
    records.con.close()
    return rows


OLD_IDS = [(5, None), (7, None), (103, "100_3"), (104, "100_4"), (200, "200+0"), (201, "200+1")]


def test_a_store_of_before_is_read_as_it_is(version_1: Path) -> None:
    """Held: 1 h of job 5, 1 of 7, 2 of 200, and of half a GPU 1 h each of 103 and 201; 104 ran for 10 min."""
    before = _data_files(version_1)
    assert _display_ids(version_1) == OLD_IDS
    assert _hours(version_1) == "5.1667"
    assert _data_files(version_1) == before
    used = usage_table.stored(version_1, store_files.read_manifest(version_1))
    records = job_records.from_store(version_1, None, 256)
    (run,) = efficiency.runs(efficiency.choose(records, "display_id = $1", ["100_3"]), used, GPUS)
    assert (run.job, run.measured) == ("100_3", True)


def test_a_store_of_before_is_written_on_and_its_files_stay_until_they_are_replaced(version_1: Path) -> None:
    array = [Job(job_id=job, name=name) for job, name in ((8, ""), (301, "300_1"))]
    (step,) = fill(version_1, [*array, Job(job_id=200, name="200+0", end=T0 + 2 * HOUR)])
    # Job 200 changes once: files of before have no CPUs, memory and licences.
    assert (step.merged.added, step.merged.changed, step.merged.unchanged) == (2, 1, 0)
    versions = {file.columns for file in store_files.read_manifest(version_1).of(store_files.JOBS)}
    assert versions == {1, store_files.COLUMNS_VERSION}
    assert _display_ids(version_1) == [*OLD_IDS[:2], (8, None), *OLD_IDS[2:], (301, "300_1")]
    assert _hours(version_1) == "7.1667"
    # The run that went on has ended, and another has changed: their files are written anew, in today's columns.
    (step,) = fill(version_1, [Job(job_id=104, name="100_4", end=T0 + HOUR), Job(job_id=5, state="FAILED")],
                   observed=1_900_000_001)  # fmt: skip
    assert (step.merged.added, step.merged.changed) == (0, 2)
    assert _display_ids(version_1) == [*OLD_IDS[:2], (8, None), *OLD_IDS[2:], (301, "300_1")]
    for i in range(merge.FILES_PER_MONTH):
        fill(version_1, [Job(job_id=1000 + i)])
    ids = _display_ids(version_1)
    assert (ids[3], ids[-1]) == ((103, "100_3"), (1007, None))


def test_a_program_of_before_does_not_take_a_store_of_today_for_one_of_its_own(tmp_path: Path) -> None:
    """It refuses any version of the manifest but 1, with a message that says so."""
    fill(tmp_path / "store", [Job()])
    assert json.loads((tmp_path / "store" / "manifest.json").read_text(encoding="utf-8"))["version"] == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda whole: [], "manifest.json cannot be read"),
        (lambda whole: None, "manifest.json cannot be read"),
        (lambda whole: {**whole, "generation": "1"}, "manifest.json cannot be read"),
        (lambda whole: {**whole, "files": [{**whole["files"][0], "zone": 1}]}, "manifest.json cannot be read"),
        (lambda whole: {**whole, "files": None}, "manifest.json cannot be read"),
        (lambda whole: {**whole, "read_until_s": None}, "manifest.json cannot be read"),
        (lambda whole: {**whole, "version": 4}, "has version 4; this hami_hpc reads version 1 and 2 and 3: use the"),
    ],
)
def test_a_manifest_that_is_damaged_or_of_another_release_is_named(
    tmp_path: Path, change: Callable[[Any], Any], said: str
) -> None:
    write_settings(tmp_path)
    fill(tmp_path / "store", [Job()])
    manifest = tmp_path / "store" / "manifest.json"
    manifest.write_text(json.dumps(change(json.loads(manifest.read_text()))))
    for words in (("bill", "--month", "2026-09"), ("store", "undo"), ("ingest",)):
        result = run(tmp_path, *words)
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1), result.output
        assert said in result.stderr


@pytest.mark.parametrize("content", [b"", b"PAR1", b"x" * 300, None])
def test_a_file_of_the_store_that_is_damaged_or_missing_is_named_with_what_to_do(
    tmp_path: Path, content: bytes | None
) -> None:
    write_settings(tmp_path)
    fill(tmp_path / "store", [Job()])
    (file,) = (tmp_path / "store" / "jobs").rglob("*.parquet")
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    for words in (("bill", "--month", "2026-09"), ("efficiency", "1")):
        result = run(tmp_path, *words)
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1), result.output
        assert str(file) in result.stderr
        assert "restore the store from a backup" in result.stderr
        assert "make room" not in result.stderr


def test_a_page_of_a_file_that_is_damaged_is_named(tmp_path: Path) -> None:
    write_settings(tmp_path)
    fill(tmp_path / "store", [Job()])
    (file,) = (tmp_path / "store" / "jobs").rglob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[:200] + bytes(100) + whole[300:])
    result = run(tmp_path, "bill", "--month", "2026-09")
    assert (result.exit_code, result.stderr.startswith("Error: a file of the store is damaged (")) == (1, True)
