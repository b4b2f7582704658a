# SPDX-License-Identifier: Apache-2.0
"""The epilog and what a user can do to the usage file."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from harness.mounting import unmount_below
from hypothesis import strategies as st
from node_testbed import GPU_MIB, UID, Node, job_environment

from hami_hpc.accounting.sources import usage_records as spool_reader
from hami_hpc.contract import constants as c
from hami_hpc.core.records import USAGE_FILE_SIZE, pack_limits
from hami_hpc.node import job_dirs
from hami_hpc.stages import common

PLAIN = st.characters(exclude_categories=["Cs"], exclude_characters="\0")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node")


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 1 << 40])
def test_a_usage_file_that_its_user_resized_is_damaged_and_nothing_else(node: Node, size: int) -> None:
    node.prolog(7)
    os.truncate(node.jobs / "7" / c.FILE_USAGE, size)
    begin = time.monotonic()
    assert node.epilog(7) == 0
    assert time.monotonic() - begin < 5
    assert (node.record()["usage"], node.record()["peak_bytes"]) == ("damaged", 0)
    node.assert_nothing_is_held()


def test_numbers_that_cannot_be_are_bounded_and_called_damaged(node: Node) -> None:
    node.prolog(7, mem_mib=1)
    huge = 2**64 - 1
    node.write_usage(7, peak_bytes=huge, oom_count=huge, gpu_busy_ns=huge, throttled_ns=huge)
    assert node.epilog(7, mem_mib=1) == 0
    found = node.record()
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
    ledger.restore((old,))
    ledger.close()
    limits = node.jobs / "7" / c.FILE_JOB_LIMITS
    limits.write_bytes(pack_limits(old))
    with (node.jobs / "7" / c.FILE_USAGE).open("r+b") as file:
        slots_at = c.USAGE_SIZE + c.USAGE_STEP_SIZE * c.USAGE_STEP_COUNT
        file.seek(slots_at)
        file.write(b"\xff" * (USAGE_FILE_SIZE - slots_at))
    assert node.run("epilog", job_environment(7)) == (0, "")
    assert (node.record()["usage"], node.record()["throttled_ns"]) == ("damaged", 2**63 - 1)
    node.assert_nothing_is_held()


def test_a_clock_that_is_set_back_while_a_job_runs_takes_no_gpu_time_from_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three hours by the time since boot, in whose middle the clock went back by five."""
    hour = 3600 * 10**9
    node.prolog(7)
    node.write_usage(7, gpu_busy_ns=2 * hour)
    genuine, now_ns, boot_ns = time.clock_gettime_ns, time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    boots = {time.CLOCK_BOOTTIME: boot_ns + 3 * hour}
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: boots.get(clock) or genuine(clock))
    monkeypatch.setattr(time, "time_ns", lambda: now_ns - 2 * hour)
    assert node.epilog(7) == 0
    record = node.record()
    assert (record["usage"], record["gpu_busy_ns"]) == ("ok", 2 * hour)
    assert abs(int(str(record["end_unix_ns"])) - int(str(record["start_unix_ns"])) - 3 * hour) < 10**9


def test_a_clock_that_was_set_back_gives_a_record_that_accounting_takes(node: Node) -> None:
    node.prolog(7)
    ledger = common.open_ledger(node.settings)
    later = node.grants()[7]._replace(created_unix_ns=time.time_ns() + 10**12)
    ledger.remove(node.grants()[7])
    ledger.restore((later,))
    ledger.close()
    assert node.epilog(7) == 0
    found = node.record()
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
    with tempfile.TemporaryDirectory() as folder:
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
    assert node.record()["usage"] in ("missing", "ok")
    node.assert_nothing_is_held()


@pytest.mark.parametrize("mode", [0o000, 0o777])
def test_a_usage_file_of_any_mode_is_read_and_removed(node: Node, mode: int) -> None:
    node.prolog(7)
    node.write_usage(7, peak_bytes=5)
    (node.jobs / "7" / c.FILE_USAGE).chmod(mode)
    assert node.epilog(7) == 0
    assert node.record()["peak_bytes"] == 5
    node.assert_nothing_is_held()


def test_the_user_cannot_put_anything_into_the_jobs_directory() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are root's alone, so they would prove nothing
        Path(folder).chmod(0o755)
        node = Node.make(Path(folder))
        node.prolog(7)
        job = node.jobs / "7"
        script = (
            f"cat '{job}/{c.FILE_JOB_LIMITS}' >/dev/null && echo reached; rm -f '{job}/{c.FILE_USAGE}'; "
            f"ln -s /etc '{job}/x'; ln -s /etc '{job}/{job_dirs.SHARED}/x'; mv '{job}/{job_dirs.SHARED}' '{job}/y'"
        )
        as_user = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
        done = subprocess.run([*as_user, "sh", "-c", script], capture_output=True, text=True)
        assert "reached" in done.stdout
        assert done.stderr.count("Permission denied") == 4
        node.assert_job_is_ready(7)
        unmount_below(Path(folder))
