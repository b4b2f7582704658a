# SPDX-License-Identifier: Apache-2.0
"""Epilog: usage to the spool, then the run directory and the ledger row go."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_testbed import GPU_MIB, UID, UUIDS, Node, job_environment

from hami_hpc.contract import constants as c
from hami_hpc.shell import region, spool
from hami_hpc.stages.reconcile import reconcile

PLAIN = st.characters(exclude_categories=["Cs"], exclude_characters="\0")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node")


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 KiB: large enough for a ledger, quick to fill."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", folder], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


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
    node.write_usage(7, peak_bytes=3 << 30, oom_count=2, gpu_busy_ns=1000, throttled_ns=500)
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
    assert json.loads(spool._json(values)) == values


def test_a_record_that_cannot_be_read_gives_way(node: Node) -> None:
    node.prolog(7)
    (node.root / "state" / "usage").mkdir()
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


def assert_reconcile_spools_what_was_set_aside(node: Node) -> None:
    results = reconcile(node.settings, lambda: frozenset({8}), dry_run=False)
    assert [result.error for result in results if result.error] == []
    spooled = json.loads((Path(node.settings.state_dir) / "usage" / "7.json").read_text())
    assert (spooled["peak_bytes"], spooled["model"], spooled["job_id"]) == (4242, "h200", 7)
    assert node.names() == ["8"]
    assert sorted(node.grants()) == [8]


def test_a_spool_that_takes_nothing_is_the_nodes_fault_and_reconcile_writes_the_record_later(node: Node) -> None:
    assert node.prolog(7) == 0
    node.write_usage(7, peak_bytes=4242)
    in_the_way = node.root / "state" / "usage"
    in_the_way.write_text("")
    status, errors = node.run("epilog", job_environment(7))
    assert status == 1
    assert "usage of job 7 cannot be written" in errors
    assert "hami-hpc reconcile" in errors
    assert [name.startswith(region.ENDED) for name in node.names()] == [True]
    assert node.grants() == {}
    in_the_way.unlink()
    assert node.prolog(8, mem_mib=GPU_MIB) == 0, "the next job runs, and gets what the ended one held"
    assert_reconcile_spools_what_was_set_aside(node)


@pytest.mark.parametrize("runs_again", [False, True])
def test_a_full_state_disk_at_the_end_loses_no_usage(tmp_path: Path, tmpfs: Path, runs_again: bool) -> None:
    node = Node.make(tmp_path / "node", state=tmpfs / "state")
    assert node.prolog(7) == 0
    node.write_usage(7, peak_bytes=4242)
    filler = fill(tmpfs)
    status, errors = node.run("epilog", job_environment(7))
    assert status == 1
    assert "df" in errors
    assert [name.startswith(region.ENDED) for name in node.names()] == [True]
    filler.unlink()
    if runs_again:
        assert node.epilog(7) == 0
        node.assert_nothing_is_held()
    assert node.prolog(8, mem_mib=GPU_MIB - 8192) == 0, "the next job runs"
    assert_reconcile_spools_what_was_set_aside(node)


def test_a_prolog_on_a_full_state_disk_is_the_nodes_fault_and_works_after(tmp_path: Path, tmpfs: Path) -> None:
    node = Node.make(tmp_path / "node", state=tmpfs / "state")
    filler = fill(tmpfs)
    status, errors = node.run("prolog", job_environment(7))
    assert status == 1
    assert "disk is full" in errors
    assert "df" in errors
    assert node.names() == []
    filler.unlink()
    assert node.prolog(7) == 0
    node.assert_job_is_ready(7)


def test_a_full_run_directory_fails_the_prolog_and_not_the_job_later(tmp_path: Path, tmpfs: Path) -> None:
    node = Node.make(tmp_path / "node", run=tmpfs / "run")
    assert node.prolog(7) == 0
    status, errors = node.run("prolog", job_environment(8))
    assert status == 1
    assert "No space left on device" in errors
    assert node.names() == ["7"], "nothing half made is left"
    node.epilog(7)
    assert node.prolog(8) == 0
    node.assert_job_is_ready(8)


def test_a_read_only_state_directory_is_the_nodes_fault(tmp_path: Path, tmpfs: Path) -> None:
    node = Node.make(tmp_path / "node", state=tmpfs / "state")
    subprocess.run(["mount", "-o", "remount,ro", tmpfs], check=True)
    status, errors = node.run("prolog", job_environment(7))
    assert status == 1
    assert "read-only" in errors.lower()


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


def test_a_usage_file_linked_elsewhere_gives_its_space_back(node: Node, tmp_path: Path) -> None:
    node.prolog(7)
    elsewhere = tmp_path / "kept"
    os.link(node.jobs / "7" / c.FILE_USAGE, elsewhere)
    assert node.epilog(7) == 0
    assert elsewhere.stat().st_size == 0
    node.assert_nothing_is_held()


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
            f"cat '{job}/{c.FILE_JOB_LIMITS}' >/dev/null && echo reached; rm -f '{job}/usage'; ln -s /etc '{job}/x'"
        )
        as_user = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
        done = subprocess.run([*as_user, "sh", "-c", script], capture_output=True, text=True)
        assert "reached" in done.stdout
        assert done.stderr.count("Permission denied") == 2
        node.assert_job_is_ready(7)
