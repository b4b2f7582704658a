# SPDX-License-Identifier: Apache-2.0
"""The epilog and reconcile where the spool, the ledger or the run directory cannot be written."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from harness.mounting import can_mount
from hypothesis import strategies as st
from node_testbed import GPU_MIB, Node, job_environment, names_in

from hami_hpc.contract import constants as c
from hami_hpc.node import ended_dirs, job_dirs, ledger, usage_spool
from hami_hpc.stages.epilog import spool_usage
from hami_hpc.stages.reconcile import reconcile

PLAIN = st.characters(exclude_categories=["Cs"], exclude_characters="\0")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node")


def fill(folder: Path) -> Path:
    """Takes all the space there is; returns the file to remove."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return path


def waiting(node: Node) -> list[str]:
    """The usage records that wait in the run directory."""
    return names_in(node.root / "run" / usage_spool.WAITING)


def break_spool(node: Node) -> Path:
    """Makes the spool take nothing; returns what is in the way."""
    in_the_way = node.root / "state" / "usage"
    in_the_way.parent.mkdir(exist_ok=True)
    in_the_way.write_text("")
    return in_the_way


def break_waiting(node: Node) -> Path:
    """Makes the run directory's own spool take nothing; returns what is in the way."""
    in_the_way = node.root / "run" / usage_spool.WAITING
    in_the_way.write_text("")
    return in_the_way


def test_a_record_that_the_spool_does_not_take_waits_and_the_next_epilog_moves_it(node: Node) -> None:
    assert node.prolog(7) == 0
    node.write_usage(7, peak_bytes=4242)
    in_the_way = break_spool(node)
    status, errors = node.run("epilog", job_environment(7))
    assert status == 0, "the bill's disk drains no node"
    assert errors.startswith("hami_hpc: epilog: usage of job 7 cannot be written")
    assert "hami-hpc reconcile" in errors
    node.assert_nothing_is_held()
    assert len(waiting(node)) == 1
    assert node.prolog(8, mem_mib=GPU_MIB) == 0, "the next job runs, and gets what the ended one held"
    assert node.epilog(8) == 0
    assert len(waiting(node)) == 2
    in_the_way.unlink()
    assert node.run("epilog", {"SLURM_JOB_ID": "9"}) == (0, ""), "a job without vgpu moves them too"
    assert node.spooled() == ["7.json", "8.json"]
    assert node.record()["peak_bytes"] == 4242
    assert waiting(node) == []


def test_records_of_two_runs_of_a_job_wait_and_arrive_both(node: Node) -> None:
    in_the_way = break_spool(node)
    for peak in (11, 22):
        node.prolog(7)
        node.write_usage(7, peak_bytes=peak)
        assert node.epilog(7) == 0
    in_the_way.unlink()
    both = [node.start("epilog", {"SLURM_JOB_ID": "9"}) for _ in range(8)]
    assert [process.communicate(timeout=60)[1] for process in both] == [""] * 8
    assert {node.record(name)["peak_bytes"] for name in node.spooled()} == {11, 22}
    assert waiting(node) == []


def test_a_run_that_has_a_record_keeps_it(node: Node) -> None:
    """An epilog that was killed after it had written the record, and runs again later."""
    node.prolog(7)
    node.write_usage(7, peak_bytes=5)
    grant = node.grants()[7]
    for later_ns in (10, 20):
        spool_usage(node.settings, (grant,), str(node.jobs / "7"), grant.created_unix_ns + later_ns)
    assert node.spooled() == ["7.json"]
    assert node.record()["end_unix_ns"] == grant.created_unix_ns + 10


def test_a_record_that_waits_is_written_once(node: Node) -> None:
    """An epilog that was killed after it had put the record aside, and runs again with another disk."""
    node.prolog(7)
    node.write_usage(7, peak_bytes=5)
    grant = node.grants()[7]
    settings = node.settings
    in_the_way = break_spool(node)
    spool_usage(settings, (grant,), str(node.jobs / "7"), grant.created_unix_ns + 10)
    in_the_way.unlink()
    assert node.epilog(7) == 0
    assert node.spooled() == ["7.json"]
    assert (node.record()["peak_bytes"], node.record()["end_unix_ns"]) == (5, grant.created_unix_ns + 10)


def test_more_records_than_may_wait_go_to_the_log(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(usage_spool, "WAITING_AT_MOST", 1)
    break_spool(node)
    for job in (7, 8):
        assert node.prolog(job) == 0
        node.write_usage(job, peak_bytes=job)
        assert node.epilog(job) == 0
    assert [name.partition("-")[0] for name in waiting(node)] == ["7"]
    assert '"peak_bytes":8' in capsys.readouterr().err
    node.assert_nothing_is_held()


def test_what_can_be_written_nowhere_is_set_aside_and_a_later_epilog_ends_it(node: Node) -> None:
    assert node.prolog(7) == 0
    node.write_usage(7, peak_bytes=4242)
    obstacles = break_spool(node), break_waiting(node)
    status, errors = node.run("epilog", job_environment(7))
    assert status == 0
    assert "cannot be kept" in errors
    assert [name.startswith(job_dirs.ENDED) for name in node.names()] == [True]
    assert node.grants() == {}
    assert node.prolog(8, mem_mib=GPU_MIB) == 0, "the next job runs, and gets what the ended one held"
    for obstacle in obstacles:
        obstacle.unlink()
    assert node.epilog(8) == 0
    assert node.record()["peak_bytes"] == 4242
    assert node.record()["model"] == "h200"
    node.assert_nothing_is_held()


def test_what_neither_ledger_nor_spool_takes_is_told_and_left_for_reconcile(node: Node) -> None:
    assert node.prolog(7) == 0
    break_spool(node)
    break_waiting(node)
    with closing(sqlite3.connect(node.root / "run" / "ledger.db")) as connection:
        connection.executescript("UPDATE version SET number = 99; PRAGMA user_version = 99")
    status, errors = node.run("epilog", job_environment(7))
    assert status == 0
    ledger_line, usage_line = errors.splitlines()
    assert ledger_line.startswith(f"{c.ERROR_PREFIX}epilog: job 7: ")
    assert "version 99" in ledger_line
    assert usage_line.startswith(f"{c.ERROR_PREFIX}epilog: job 7: ")
    assert usage_line.endswith(". hami-hpc reconcile will finish this")
    assert [name.startswith(job_dirs.ENDED) for name in node.names()] == [True]


def test_reconcile_ends_what_was_set_aside(node: Node) -> None:
    assert node.prolog(7) == 0
    node.write_usage(7, peak_bytes=4242)
    obstacles = break_spool(node), break_waiting(node)
    assert node.epilog(7) == 0
    for obstacle in obstacles:
        obstacle.unlink()
    results = reconcile(node.settings, lambda: frozenset(), dry_run=False)
    assert [result.error for result in results if result.error] == []
    assert node.record()["peak_bytes"] == 4242
    node.assert_nothing_is_held()


def test_a_ledger_that_cannot_be_opened_at_the_end_holds_nothing_up(node: Node) -> None:
    assert node.prolog(7) == 0
    node.write_usage(7, peak_bytes=4242)
    with closing(sqlite3.connect(node.root / "run" / "ledger.db")) as connection:
        connection.executescript("UPDATE version SET number = 99; PRAGMA user_version = 99")
    status, errors = node.run("epilog", job_environment(7))
    assert status == 0
    assert "has version 99" in errors
    assert node.record()["peak_bytes"] == 4242
    with closing(sqlite3.connect(node.root / "run" / "ledger.db")) as connection:
        connection.execute(f"PRAGMA user_version = {ledger.SCHEMA_VERSION}")
    assert sorted(node.grants()) == [7], "the row could not be deleted"
    assert node.prolog(8, mem_mib=GPU_MIB) == 0, "and gives way to the next job"
    assert sorted(node.grants()) == [8]
    assert node.epilog(8, mem_mib=GPU_MIB) == 0
    assert node.spooled() == ["7.json", "8.json"]
    node.assert_nothing_is_held()


def test_a_fault_of_our_own_at_the_end_sets_one_job_aside_and_the_node_goes_on(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_arguments: object) -> None:
        raise OverflowError("too much")

    node.prolog(7)
    with monkeypatch.context() as broken:
        broken.setattr(usage_spool, "to_json", fails)
        assert node.epilog(7) == 0
    assert "unexpected OverflowError" in capsys.readouterr().err
    assert [name.startswith(f"{job_dirs.BAD}7-") for name in node.names()] == [True]
    assert node.grants() == {}
    assert node.prolog(8, mem_mib=GPU_MIB) == 0
    assert node.epilog(8) == 0
    problems = [result.action.text for result in reconcile(node.settings, lambda: frozenset(), dry_run=False)]
    assert len(problems) == 2
    assert problems[0].startswith(f"{job_dirs.BAD}7-")
    assert "nvidia-smi" in problems[1]


@pytest.mark.parametrize("state_dir", ["full", "read-only", "missing", "a file"])
def test_a_state_directory_of_any_kind_stops_no_job_and_loses_no_usage(node: Node, state_dir: str) -> None:
    state = node.root / "state"
    mounted = state_dir in ("full", "read-only") and can_mount()
    if mounted:
        state.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", state], check=True)
    if state_dir == "full" and mounted:
        fill(state)
    elif state_dir == "read-only" and mounted:
        subprocess.run(["mount", "-o", "remount,ro", state], check=True)
    elif state_dir != "missing":
        state.write_text("")  # in a container without mounts too, something that takes nothing
    assert node.run("prolog", job_environment(7)) == (0, "")
    node.write_usage(7, peak_bytes=4242)
    status, errors = node.run("epilog", job_environment(7))
    assert status == 0
    assert ("cannot be written" in errors) == (state_dir != "missing")
    node.assert_nothing_is_held()
    if mounted:
        subprocess.run(["umount", "--lazy", state], check=True)
    elif state_dir != "missing":
        state.unlink()
    results = reconcile(node.settings, lambda: frozenset(), dry_run=False)
    assert [result.error for result in results if result.error] == []
    assert node.record()["peak_bytes"] == 4242
    assert waiting(node) == []


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 KiB, quick to fill; where nothing can be mounted, the folder as it is."""
    folder = tmp_path / "small"
    folder.mkdir()
    if can_mount():
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", folder], check=True)
    yield folder
    if can_mount():
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_run_directory_is_the_nodes_fault_and_says_so(tmp_path: Path, tmpfs: Path) -> None:
    node = Node.make(tmp_path / "node", run=tmpfs / "run")
    assert node.prolog(7) == 0
    if not can_mount():
        return  # a file system of a certain size is not to be had
    filler = fill(tmpfs)
    status, errors = node.run("prolog", job_environment(8))
    assert status == 1
    assert "full" in errors or "No space left on device" in errors
    assert node.names() == ["7"], "nothing half made is left"
    assert node.epilog(7) == 0
    filler.unlink()
    assert node.prolog(8, mem_mib=GPU_MIB) == 0
    node.assert_job_is_ready(8)
    assert node.spooled() == ["7.json"]


def test_a_read_only_run_directory_fails_prologs_and_no_epilog(tmp_path: Path, tmpfs: Path) -> None:
    node = Node.make(tmp_path / "node", run=tmpfs / "run")
    assert node.prolog(7) == 0
    node.write_usage(7, peak_bytes=4242)
    if not can_mount():
        return  # a read-only file system is not to be had
    for point in (tmpfs, tmpfs / "run" / "jobs"):
        subprocess.run(["mount", "-o", "remount,ro", point], check=True)
    status, errors = node.run("prolog", job_environment(8))
    assert status == 1
    assert "read-only" in errors.lower()
    status, errors = node.run("epilog", job_environment(7))
    assert status == 0
    assert "hami-hpc reconcile" in errors
    assert node.record()["peak_bytes"] == 4242, "the spool's disk is another one"
    for point in (tmpfs, tmpfs / "run" / "jobs"):
        subprocess.run(["mount", "-o", "remount,rw", point], check=True)
    results = reconcile(node.settings, lambda: frozenset(), dry_run=False)
    assert [result.error for result in results if result.error] == []
    node.assert_nothing_is_held()
    assert node.spooled() == ["7.json"]


def test_a_job_that_was_set_aside_and_has_its_row_still_is_ended_with_its_usage(node: Node) -> None:
    node.prolog(7)
    node.write_usage(7, peak_bytes=77)
    ended_dirs.set_aside(node.settings.run_dir, node.grants()[7])
    assert node.epilog(7) == 0
    assert (node.record()["peak_bytes"], node.record()["model"]) == (77, "h200")
    node.assert_nothing_is_held()
