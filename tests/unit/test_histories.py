# SPDX-License-Identifier: Apache-2.0
"""The file `history` of a job: what the agent writes, who reads it, and that a killed agent loses a minute at most."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_states import make_job
from harness.mounting import unmount_below
from node_testbed import UID, Node

from hami_hpc.agent import histories as agent_histories
from hami_hpc.agent.histories import OPEN_MAX, Histories
from hami_hpc.contract import constants as c
from hami_hpc.core.agent_state import JobState
from hami_hpc.core.gpu_jobs import GpuJob
from hami_hpc.core.history import FILE_SIZE, MINUTE_NS, ROWS, Head, Minute, pack_head
from hami_hpc.isolation.table import backend_of
from hami_hpc.node import gpu_jobs, history_file, job_dirs

MIB = 1 << 20
SECOND = 1_000_000_000


class Run:
    """One job's directory, and an agent that looks at it each second."""

    def __init__(self, node: Node, job_id: int = 7) -> None:
        self.node, self.job_id = node, job_id
        self.directory = str(node.jobs / str(job_id))
        found = history_file.read(self.directory)
        assert found is not None
        self.head = found[0]
        self.now_ns = self.head.start_boot_ns
        self.histories = Histories(node.settings.run_dir)
        self.job = make_job(
            job_id, 0, created_unix_ns=self.head.start_unix_ns, busy_ns=0, watched_ns=0, used_bytes=0, peak_bytes=0
        )

    def look(self, seconds: int, mib: int, percent: int, gpus: int = 1) -> None:
        for _ in range(seconds):
            self.now_ns += SECOND
            self.job = self.job._replace(
                used_bytes=mib * MIB,
                busy_ns=self.job.busy_ns + SECOND * percent * gpus // 100,
                watched_ns=self.job.watched_ns + SECOND,
            )
            self.histories.update([self.job], self.now_ns)

    def minutes(self) -> list[Minute]:
        found = history_file.read(self.directory)
        assert found is not None
        return list(found[1])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node.make(tmp_path / "node")
    node.config.write_text(node.config.read_text() + "[agent]\n")
    assert node.prolog(7) == 0
    yield node
    unmount_below(tmp_path)


@pytest.fixture
def run(node: Node) -> Run:
    return Run(node)


def test_a_minute_has_the_most_memory_and_the_mean_of_the_time(run: Run) -> None:
    run.look(20, 100, 90)
    run.look(39, 300, 0)
    run.look(60, 50, 100)
    run.look(1, 10, 10)
    assert run.minutes() == [Minute(0, 300, 31), Minute(1, 50, 100), Minute(2, 10, 10)]


def test_a_job_of_seconds_has_a_row(run: Run) -> None:
    run.look(1, 100, 50)
    assert run.minutes() == [Minute(0, 100, 50)]
    run.look(4, 100, 0)
    assert run.minutes() == [Minute(0, 100, 50)]
    run.look(1, 100, 0)
    assert run.minutes() == [Minute(0, 100, 8)], "rewritten each five seconds"


def test_the_time_of_several_gpus_is_that_of_all_of_them(node: Node) -> None:
    gpu_jobs.place(node.settings.run_dir, GpuJob(9, UID, (0, 1), 10**18))
    run = Run(node, 9)
    assert (run.head.gpu_count, run.head.mem_mib) == (0, 0)
    run.job = run.job._replace(gpu_uuid="GPU-1,GPU-2", mem_bytes=2000 * MIB)
    run.look(6, 1500, 75, gpus=2)
    found = history_file.read(run.directory)
    assert found == (run.head._replace(gpu_count=2, mem_mib=2000), (Minute(0, 1500, 75),))


def test_the_next_agent_goes_on_in_the_minute_of_several_gpus(node: Node) -> None:
    gpu_jobs.place(node.settings.run_dir, GpuJob(9, UID, (0, 1), 10**18))
    run = Run(node, 9)
    run.job = run.job._replace(gpu_uuid="GPU-1,GPU-2", mem_bytes=2000 * MIB)
    run.look(40, 500, 60, gpus=2)
    run.histories = Histories(node.settings.run_dir)
    run.look(19, 100, 60, gpus=2)
    (minute,) = run.minutes()
    assert 55 <= minute.percent <= 65


def test_a_killed_agent_loses_seconds_and_the_next_one_goes_on_in_the_minute(run: Run) -> None:
    run.look(40, 500, 60)
    run.histories = Histories(run.node.settings.run_dir)
    run.look(19, 100, 60)
    (minute,) = run.minutes()
    assert minute.mem_mib == 500
    assert 55 <= minute.percent <= 65
    run.look(120, 100, 20)
    assert [one.minute for one in run.minutes()] == [0, 1, 2]
    assert run.minutes()[1].percent == pytest.approx(20, abs=1)


def test_an_agent_that_was_away_leaves_a_gap_and_no_time_of_before(run: Run) -> None:
    run.look(30, 500, 60)
    run.now_ns += 10 * MINUTE_NS
    run.histories = Histories(run.node.settings.run_dir)
    run.look(6, 100, 10)
    assert run.minutes()[1:] == [Minute(10, 100, 10)]


def test_a_clock_before_the_start_writes_nothing(run: Run) -> None:
    run.now_ns -= 5 * SECOND
    run.look(4, 100, 10)
    assert run.minutes() == []
    run.look(3, 100, 10)
    assert [one.minute for one in run.minutes()] == [0]


def test_the_file_keeps_24_hours_and_its_size(run: Run) -> None:
    run.look(1, 1, 1)
    for _ in range(ROWS + 5):
        run.now_ns += MINUTE_NS - SECOND
        run.look(1, 7, 3)
    assert len(run.minutes()) == ROWS
    assert run.minutes()[-1].minute == ROWS + 5
    assert Path(f"{run.directory}/{c.FILE_HISTORY}").stat().st_size == FILE_SIZE


def test_a_run_that_has_ended_is_forgotten_and_the_next_has_a_file_of_its_own(run: Run) -> None:
    run.look(6, 100, 50)
    run.histories.update([], run.now_ns)
    assert run.histories._lines == {}
    assert run.node.epilog(7) == 0
    run.look(10, 100, 50)
    assert run.node.names() == [], "nothing is made where the directory was"
    assert run.node.prolog(7, mem_mib=1024) == 0
    run.look(10, 900, 50)
    assert run.minutes() == [], "and what is left of the first run is not written into the second"


def test_a_directory_that_reconcile_makes_anew_is_written_on(run: Run) -> None:
    run.look(6, 100, 10)
    grant = run.node.grants()[7]
    job_dirs.remove(run.node.settings.run_dir, run.directory)
    run.look(6, 100, 10)
    backend_of(grant.mode).prepare(run.node.settings, (grant,), ())
    run.look(12, 200, 10)
    assert [one.mem_mib for one in run.minutes()] == [200]


@pytest.mark.parametrize(
    "how", ["a link", "a pipe", "a directory", "a user's", "writable", "cut off", "nothing", "empty"]
)
def test_a_file_that_is_not_as_the_prolog_made_it_is_left_alone(run: Run, how: str) -> None:
    path = Path(run.directory) / c.FILE_HISTORY
    content = path.read_bytes()
    if how in ("a link", "a pipe", "a directory", "nothing"):
        path.rename(path.with_name("moved"))
        if how == "a link":
            path.symlink_to("moved")
        elif how == "a pipe":
            os.mkfifo(path)
        elif how == "a directory":
            path.mkdir()
    elif how == "a user's":
        os.chown(path, UID, -1)
    elif how == "writable":
        os.removexattr(path, "system.posix_acl_access")
        path.chmod(0o662)
    else:
        path.write_bytes(b"" if how == "empty" else content[:40])
    run.look(12, 100, 10)
    found = path.with_name("moved") if path.with_name("moved").exists() else path
    assert found.read_bytes() == {"empty": b"", "cut off": content[:40]}.get(how, content)
    assert run.node.epilog(7) == 0
    assert run.node.record()["history"] == ""


def test_a_full_disk_costs_rows_and_nothing_else(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int, _data: bytes, _at: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run.look(6, 100, 10)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        run.look(80, 100, 10)
    run.look(20, 100, 10)
    assert [one.minute for one in run.minutes()] == [0, 1]


def test_an_agent_that_only_shows_what_there_is_writes_nothing(run: Run) -> None:
    run.histories.is_off = True
    run.look(20, 100, 10)
    assert run.minutes() == []


def test_more_jobs_than_files_may_stay_open_are_written_all(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    assert OPEN_MAX >= 80
    monkeypatch.setattr(agent_histories, "OPEN_MAX", 1)
    node.prolog(8)
    first, second = Run(node, 7), Run(node, 8)
    histories = Histories(node.settings.run_dir)
    for number in range(20):
        jobs = [run.job._replace(used_bytes=5 * MIB, watched_ns=number * SECOND) for run in (first, second)]
        histories.update(jobs, max(first.head.start_boot_ns, second.head.start_boot_ns) + number * SECOND)
    assert sum(line.file is not None for line in histories._lines.values()) == 1
    assert [len(run.minutes()) for run in (first, second)] == [1, 1]


def test_the_files_of_ended_runs_are_closed(node: Node) -> None:
    run = Run(node)
    run.look(6, 1, 1)

    def links() -> list[str]:
        fds = Path("/proc/self/fd")
        return [str(one.readlink()) for one in fds.iterdir() if one.is_symlink()]

    assert sum(link.startswith(run.directory) for link in links()) == 1
    run.histories.update([], run.now_ns)
    assert sum(link.startswith(run.directory) for link in links()) == 0


def read_as(uid: int, path: str, group: int | None = None) -> str:
    command = ["setpriv", f"--reuid={uid}", f"--regid={group or uid}", "--clear-groups", "head", "-c4", path]
    done = subprocess.run(command, capture_output=True, check=False)
    return done.stdout.decode() or done.stderr.decode()


def test_the_jobs_user_and_the_agents_group_read_it_and_nobody_else() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        node = Node.make(Path(folder))
        node.prolog(7)
        gpu_jobs.place(node.settings.run_dir, GpuJob(9, UID, (0,), 10**18))
        for job in (7, 9):
            run = Run(node, job)
            path = f"{run.directory}/{c.FILE_HISTORY}"
            assert read_as(UID, path) == "HAMI"
            assert "Permission denied" in read_as(1234, path)
            run.histories.group = 1234
            run.look(6, 100, 10)
            assert read_as(1235, path, 1234) == "HAMI"
            assert "Permission denied" in read_as(1234, path, 1235)
            assert read_as(UID, path) == "HAMI"
            status = Path(path).stat()
            assert (status.st_uid, status.st_mode & 0o777) == (0, 0o640)
            as_user = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "sh", "-c"]
            script = f"chmod 666 {path} || echo x >>{path} || rm -f {path} || setfacl -b {path} || echo kept"
            done = subprocess.run([*as_user, script], capture_output=True, text=True, check=False)
            assert done.stdout == "kept\n"
        unmount_below(Path(folder))


def test_where_there_are_no_acls_root_alone_reads_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_arguments: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(os, "setxattr", unsupported)
    assert node.prolog(8) == 0
    assert (node.jobs / "8" / c.FILE_HISTORY).stat().st_mode & 0o777 == 0o640
    run = Run(node, 8)
    run.look(6, 100, 10)
    assert len(run.minutes()) == 1


def test_a_history_that_root_did_not_write_is_none(node: Node, tmp_path: Path) -> None:
    path = tmp_path / c.FILE_HISTORY
    path.write_bytes(pack_head(Head(7, UID, 1, 1, 1, 1)))
    assert history_file.read(str(tmp_path)) is not None
    os.chown(path, UID, -1)
    assert history_file.read(str(tmp_path)) is None
    assert history_file.read_text(str(tmp_path), 1) == ""


def test_the_epilog_puts_it_into_the_record_of_its_own_run_only(run: Run) -> None:
    run.look(70, 100, 50)
    assert history_file.read_text(run.directory, run.head.start_unix_ns + 1) == ""
    job: JobState = run.job
    assert run.node.epilog(7) == 0
    record = run.node.record()
    assert record["start_unix_ns"] == job.created_unix_ns
    assert record["history"] == "0:100,50x2"


def test_a_full_run_directory_costs_the_time_line_and_not_the_job(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_path: str, *_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(history_file, "_make", full)
    assert node.prolog(8) == 0
    assert not (node.jobs / "8" / c.FILE_HISTORY).exists()
    assert node.epilog(8) == 0
    assert node.record("8.json")["history"] == ""
