# SPDX-License-Identifier: Apache-2.0
"""Epilog: usage to the spool, then the run directory and the ledger row go."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_testbed import GPU_MIB, UID, UUIDS, Node, can_mount, job_environment, names_in, unmount_below

from hami_hpc.accounting.sources import usage_spool as spool_reader
from hami_hpc.contract import constants as c
from hami_hpc.core.records import USAGE_FILE_SIZE, pack_limits
from hami_hpc.shell import ledger, region, spool
from hami_hpc.stages import common
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


def record(node: Node, name: str = "7.json") -> dict[str, object]:
    data = json.loads((node.root / "state" / "usage" / name).read_text())
    assert isinstance(data, dict)
    return data


def test_the_spool_gets_what_the_job_used_and_nothing_is_left_behind(node: Node) -> None:
    before = time.time_ns()
    node.prolog(7, mem_mib=4096)
    node.write_usage(7, peak_bytes=3 << 30, oom_count=2, device_oom_count=3, gpu_busy_ns=1000, throttled_ns=500)
    assert node.run("epilog", job_environment(7, mem_mib=4096)) == (0, "")
    found = record(node)
    start, end = found.pop("start_unix_ns"), found.pop("end_unix_ns")
    assert isinstance(start, int)
    assert isinstance(end, int)
    assert before <= start < end <= time.time_ns()
    assert found == {
        "version": 1,
        "job_id": 7,
        "uid": UID,
        "class": "std",
        "mode": "share",
        "gpu_uuid": UUIDS[0],
        "model": "h200",
        "mem_mib": 4096,
        "cores": 50,
        "start": start // 10**9,
        "end": end // 10**9,
        "usage": "ok",
        "peak_bytes": 3 << 30,
        "oom_count": 2,
        "device_oom_count": 3,
        "gpu_busy_ns": 1000,
        "throttled_ns": 500,
    }
    node.assert_nothing_is_held()


def test_processes_that_died_without_cleaning_up_count(node: Node) -> None:
    node.prolog(7)
    with (node.jobs / "7" / c.FILE_USAGE).open("r+b") as file:
        base = c.USAGE_SIZE + c.USAGE_STEP_SIZE * c.USAGE_STEP_COUNT + 5 * c.USAGE_SLOT_SIZE
        for name, value in (("state", 1), ("gpu_busy_ns", 70), ("throttled_ns", 30)):
            offset, width, _ = c.USAGE_SLOT_FIELDS[name]
            file.seek(base + offset)
            file.write(value.to_bytes(width, "little"))
    node.write_usage(7, gpu_busy_ns=1000)
    node.epilog(7)
    assert (record(node)["gpu_busy_ns"], record(node)["throttled_ns"]) == (1070, 30)


@given(st.dictionaries(st.text(PLAIN, max_size=8), st.integers(-(2**63), 2**63 - 1) | st.text(PLAIN), max_size=25))
def test_any_record_is_written_as_json_that_reads_back(values: dict[str, int | str]) -> None:
    assert json.loads(spool.to_json(values)) == values


def test_a_record_that_cannot_be_read_gives_way(node: Node) -> None:
    node.prolog(7)
    (node.root / "state" / "usage").mkdir(parents=True)
    (node.root / "state" / "usage" / "7.json").write_text('{"half')
    assert node.epilog(7) == 0
    assert record(node)["job_id"] == 7


def test_running_twice_is_harmless_and_keeps_the_record(node: Node) -> None:
    node.prolog(7)
    node.write_usage(7, peak_bytes=99)
    assert node.epilog(7) == 0
    first = record(node)
    assert node.epilog(7) == 0
    assert record(node) == first
    assert node.spooled() == ["7.json"]


def test_an_epilog_without_a_prolog_is_fine(node: Node) -> None:
    assert node.run("epilog", job_environment(7)) == (0, "")
    assert node.run("epilog", {"SLURM_JOB_ID": "7"}) == (0, "")
    assert node.spooled() == []


def test_an_epilog_whose_vgpu_variables_are_gone_still_cleans_up(node: Node) -> None:
    node.prolog(7)
    assert node.run("epilog", {"SLURM_JOB_ID": "7"}) == (0, "")
    node.assert_nothing_is_held()
    assert node.spooled() == ["7.json"]


def test_a_requeued_job_has_a_record_for_each_of_its_runs(node: Node) -> None:
    for peak in (11, 22):
        node.prolog(7)
        node.write_usage(7, peak_bytes=peak)
        assert node.epilog(7) == 0
    names = node.spooled()
    assert len(names) == 2
    assert {record(node, name)["peak_bytes"] for name in names} == {11, 22}
    starts = {record(node, name)["start_unix_ns"] for name in names}
    assert len(starts) == 2


def test_the_epilog_kills_no_process(node: Node) -> None:
    node.prolog(7)
    bystander = subprocess.Popen(["sleep", "60"], cwd=node.jobs / "7")
    try:
        assert node.epilog(7) == 0
        assert bystander.poll() is None
    finally:
        bystander.send_signal(signal.SIGKILL)
        bystander.wait()


def waiting(node: Node) -> list[str]:
    """The usage records that wait in the run directory."""
    return names_in(node.root / "run" / spool.WAITING)


def break_spool(node: Node) -> Path:
    """Makes the spool take nothing; returns what is in the way."""
    in_the_way = node.root / "state" / "usage"
    in_the_way.parent.mkdir(exist_ok=True)
    in_the_way.write_text("")
    return in_the_way


def break_waiting(node: Node) -> Path:
    """Makes the run directory's own spool take nothing; returns what is in the way."""
    in_the_way = node.root / "run" / spool.WAITING
    in_the_way.write_text("")
    return in_the_way


def test_a_record_that_the_spool_does_not_take_waits_and_the_next_epilog_moves_it(node: Node) -> None:
    assert node.prolog(7) == 0
    node.write_usage(7, peak_bytes=4242)
    in_the_way = break_spool(node)
    status, errors = node.run("epilog", job_environment(7))
    assert status == 0, "the bill's disk drains no node"
    assert "usage of job 7 cannot be written" in errors
    assert "hami-hpc reconcile" in errors
    node.assert_nothing_is_held()
    assert len(waiting(node)) == 1
    assert node.prolog(8, mem_mib=GPU_MIB) == 0, "the next job runs, and gets what the ended one held"
    assert node.epilog(8) == 0
    assert len(waiting(node)) == 2
    in_the_way.unlink()
    assert node.run("epilog", {"SLURM_JOB_ID": "9"}) == (0, ""), "a job without vgpu moves them too"
    assert node.spooled() == ["7.json", "8.json"]
    assert record(node)["peak_bytes"] == 4242
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
    assert {record(node, name)["peak_bytes"] for name in node.spooled()} == {11, 22}
    assert waiting(node) == []


def test_a_record_that_waits_is_written_once(node: Node) -> None:
    """An epilog that was killed after it had put the record aside, and runs again with another disk."""
    node.prolog(7)
    node.write_usage(7, peak_bytes=5)
    grant = node.grants()[7]
    settings = node.settings
    in_the_way = break_spool(node)
    spool_usage(settings, grant, str(node.jobs / "7"), grant.created_unix_ns + 10)
    in_the_way.unlink()
    assert node.epilog(7) == 0
    assert node.spooled() == ["7.json"]
    assert (record(node)["peak_bytes"], record(node)["end_unix_ns"]) == (5, grant.created_unix_ns + 10)


def test_more_records_than_may_wait_go_to_the_log(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spool, "WAITING_AT_MOST", 1)
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
    assert [name.startswith(region.ENDED) for name in node.names()] == [True]
    assert node.grants() == {}
    assert node.prolog(8, mem_mib=GPU_MIB) == 0, "the next job runs, and gets what the ended one held"
    for obstacle in obstacles:
        obstacle.unlink()
    assert node.epilog(8) == 0
    assert record(node)["peak_bytes"] == 4242
    assert record(node)["model"] == "h200"
    node.assert_nothing_is_held()


def test_reconcile_ends_what_was_set_aside(node: Node) -> None:
    assert node.prolog(7) == 0
    node.write_usage(7, peak_bytes=4242)
    obstacles = break_spool(node), break_waiting(node)
    assert node.epilog(7) == 0
    for obstacle in obstacles:
        obstacle.unlink()
    results = reconcile(node.settings, lambda: frozenset(), dry_run=False)
    assert [result.error for result in results if result.error] == []
    assert record(node)["peak_bytes"] == 4242
    node.assert_nothing_is_held()


def test_a_ledger_that_cannot_be_opened_at_the_end_holds_nothing_up(node: Node) -> None:
    assert node.prolog(7) == 0
    node.write_usage(7, peak_bytes=4242)
    with closing(sqlite3.connect(node.root / "run" / "ledger.db")) as connection:
        connection.execute("PRAGMA user_version = 99")
    status, errors = node.run("epilog", job_environment(7))
    assert status == 0
    assert "is of version 99" in errors
    assert record(node)["peak_bytes"] == 4242
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
        broken.setattr(spool, "to_json", fails)
        assert node.epilog(7) == 0
    assert "unexpected OverflowError" in capsys.readouterr().err
    assert [name.startswith(f"{region.BAD}7-") for name in node.names()] == [True]
    assert node.grants() == {}
    assert node.prolog(8, mem_mib=GPU_MIB) == 0
    assert node.epilog(8) == 0
    problems = [result.action.text for result in reconcile(node.settings, lambda: frozenset(), dry_run=False)]
    assert len(problems) == 2
    assert problems[0].startswith(f"{region.BAD}7-")
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
    assert record(node)["peak_bytes"] == 4242
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
    assert record(node)["peak_bytes"] == 4242, "the spool's disk is another one"
    for point in (tmpfs, tmpfs / "run" / "jobs"):
        subprocess.run(["mount", "-o", "remount,rw", point], check=True)
    results = reconcile(node.settings, lambda: frozenset(), dry_run=False)
    assert [result.error for result in results if result.error] == []
    node.assert_nothing_is_held()
    assert node.spooled() == ["7.json"]


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 1 << 40])
def test_a_usage_file_that_its_user_resized_is_damaged_and_nothing_else(node: Node, size: int) -> None:
    node.prolog(7)
    os.truncate(node.jobs / "7" / c.FILE_USAGE, size)
    begin = time.monotonic()
    assert node.epilog(7) == 0
    assert time.monotonic() - begin < 5
    assert (record(node)["usage"], record(node)["peak_bytes"]) == ("damaged", 0)
    node.assert_nothing_is_held()


def test_numbers_that_cannot_be_are_bounded_and_called_damaged(node: Node) -> None:
    node.prolog(7, mem_mib=1)
    huge = 2**64 - 1
    node.write_usage(7, peak_bytes=huge, oom_count=huge, gpu_busy_ns=huge, throttled_ns=huge)
    assert node.epilog(7, mem_mib=1) == 0
    found = record(node)
    assert (found["usage"], found["peak_bytes"]) == ("damaged", 1 << 20)
    busy, start, end = found["gpu_busy_ns"], found["start_unix_ns"], found["end_unix_ns"]
    assert isinstance(busy, int)
    assert isinstance(start, int)
    assert isinstance(end, int)
    assert busy == end - start


def test_numbers_of_an_old_job_that_no_record_can_hold_are_bounded(node: Node) -> None:
    """2,048 slots of a job older than 52 days add up to more time than 63 bits hold."""
    node.prolog(7)
    ledger = common.open_ledger(node.settings)
    old = node.grants()[7]._replace(created_unix_ns=time.time_ns() - 60 * 86400 * 10**9)
    ledger.remove(node.grants()[7])
    ledger.restore(old)
    ledger.close()
    limits = node.jobs / "7" / c.FILE_JOB_LIMITS
    limits.write_bytes(pack_limits(old))
    with (node.jobs / "7" / c.FILE_USAGE).open("r+b") as file:
        slots_at = c.USAGE_SIZE + c.USAGE_STEP_SIZE * c.USAGE_STEP_COUNT
        file.seek(slots_at)
        file.write(b"\xff" * (USAGE_FILE_SIZE - slots_at))
    assert node.run("epilog", job_environment(7)) == (0, "")
    assert (record(node)["usage"], record(node)["throttled_ns"]) == ("damaged", 2**63 - 1)
    node.assert_nothing_is_held()


def test_a_clock_that_was_set_back_gives_a_record_that_accounting_takes(node: Node) -> None:
    node.prolog(7)
    ledger = common.open_ledger(node.settings)
    later = node.grants()[7]._replace(created_unix_ns=time.time_ns() + 10**12)
    ledger.remove(node.grants()[7])
    ledger.restore(later)
    ledger.close()
    assert node.epilog(7) == 0
    found = record(node)
    assert found["start_unix_ns"] == found["end_unix_ns"] == later.created_unix_ns
    spool_reader.parse_record(json.dumps(found))


HOLD = """
import fcntl, mmap, os, sys, time
os.chdir(os.path.dirname(sys.argv[1]))
file = open(sys.argv[1], "r+b", buffering=0)
memory = mmap.mmap(file.fileno(), 0)
memory[0:1] = b"x"
fcntl.flock(file, fcntl.LOCK_EX)
fcntl.lockf(file, fcntl.LOCK_EX)
os.chmod(sys.argv[1], 0)
print("held", flush=True)
sys.stdin.readline()
os.pwrite(file.fileno(), b"y" * 4096, 0)
print(os.fstat(file.fileno()).st_nlink, os.path.exists(sys.argv[1]), flush=True)
"""


def test_a_user_who_holds_the_usage_file_does_not_hold_the_epilog_up() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        node = Node.make(Path(folder))
        node.prolog(7)
        user = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "/usr/bin/python3", "-c", HOLD]
        with subprocess.Popen(
            [*user, str(node.jobs / "7" / c.FILE_USAGE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            begin = time.monotonic()
            assert node.epilog(7) == 0
            assert time.monotonic() - begin < 5
            node.assert_nothing_is_held()
            assert node.prolog(8, mem_mib=GPU_MIB) == 0
            after, _ = holder.communicate("go\n", timeout=10)
        assert after.split()[1:] == ["False"], "what is left of it is in no directory"
        node.assert_job_is_ready(8)
        assert node.epilog(8, mem_mib=GPU_MIB) == 0
        unmount_below(Path(folder))


def test_a_lease_on_the_usage_file_does_not_hold_the_epilog_up(node: Node) -> None:
    node.prolog(7)
    fd = os.open(node.jobs / "7" / c.FILE_USAGE, os.O_RDWR)
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGWINCH)  # the kernel's notice to a lease's holder; ignored by default
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        begin = time.monotonic()
        assert node.epilog(7) == 0
        assert time.monotonic() - begin < 5, "a lease may hold a blocking open for 45 s"
    finally:
        os.close(fd)
    assert record(node)["usage"] in ("missing", "ok")
    node.assert_nothing_is_held()


@pytest.mark.parametrize("mode", [0o000, 0o777])
def test_a_usage_file_of_any_mode_is_read_and_removed(node: Node, mode: int) -> None:
    node.prolog(7)
    node.write_usage(7, peak_bytes=5)
    (node.jobs / "7" / c.FILE_USAGE).chmod(mode)
    assert node.epilog(7) == 0
    assert record(node)["peak_bytes"] == 5
    node.assert_nothing_is_held()


def test_the_user_cannot_put_anything_into_the_jobs_directory() -> None:
    with tempfile.TemporaryDirectory(
        dir="/tmp"
    ) as folder:  # pytest's own are root's alone, so they would prove nothing
        Path(folder).chmod(0o755)
        node = Node.make(Path(folder))
        node.prolog(7)
        job = node.jobs / "7"
        script = (
            f"cat '{job}/{c.FILE_JOB_LIMITS}' >/dev/null && echo reached; rm -f '{job}/{c.FILE_USAGE}'; "
            f"ln -s /etc '{job}/x'; ln -s /etc '{job}/{region.SHARED}/x'; mv '{job}/{region.SHARED}' '{job}/y'"
        )
        as_user = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
        done = subprocess.run([*as_user, "sh", "-c", script], capture_output=True, text=True)
        assert "reached" in done.stdout
        assert done.stderr.count("Permission denied") == 4
        node.assert_job_is_ready(7)
        unmount_below(Path(folder))
