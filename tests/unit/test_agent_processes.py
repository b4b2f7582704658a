# SPDX-License-Identifier: Apache-2.0
"""hami_hpc/agent/processes.py: whose a process is, whatever its user writes anywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from node_testbed import ROOT, UID

from hami_hpc.agent.processes import ASK, LIBRARY, Processes, job_of

V1 = "11:devices:/slurm/uid_1000/job_7/step_0\n1:name=systemd:/system.slice/slurmd.service\n"


@pytest.mark.parametrize(
    ("text", "job_id"),
    [
        (V1, 7),
        ("4:freezer:/slurm_node1/uid_1000/job_12/step_batch\n", 12),
        ("4:freezer:/docker/4f5e/slurm/uid_1000/job_12/step_batch/task_0\n", 12),
        ("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n", 7),
        ("0::/system.slice/node1_slurmstepd.scope/job_7/step_extern/user/task_special\n", 7),
        ("0::/kubepods/pod1/system.slice/slurmstepd.scope/job_7/step_0\n", 7),
        # a job within a job's cgroup, made by the user: the outer one counts
        ("0::/system.slice/slurmstepd.scope/job_7/step_0/user/slurmstepd.scope/job_9/x\n", 7),
        ("5:cpu:/slurm/uid_1000/job_7/step_0/slurm/uid_1/job_9/\n", 7),
        ("0::/system.slice/slurmstepd.scope/job_7/step_0/user/user.slice/x\n", 7),
        # by the SLUID, since 26.05: 5 is that of s0123456789ABC
        ("0::/system.slice/slurmstepd.scope/s0123456789ABC/step_0/user/task_0\n", 5),
        ("0::/slurmstepd.scope/s0123456789ABC/step_0/user/slurmstepd.scope/job_9/x\n", 5),
        ("0::/slurmstepd.scope/sZZZZZZZZZZZZZ/step_0/user/slurmstepd.scope/job_9/x\n", 0),
        ("0::/slurmstepd.scope/s0123456789ABCD/step_0\n", 0),
        ("0::/user.slice/slurmstepd.scope/s0123456789ABC/step_0\n", 0),
        # cgroups that users may make
        ("0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_9/x\n", 0),
        ("0::/user.slice/user-1000.slice/user@1000.service/system.slice/slurmstepd.scope/job_9\n", 0),
        ("5:cpu:/user.slice/slurm/uid_1000/job_9\n", 0),
        # nothing of Slurm's
        ("0::/init.scope\n", 0),
        ("0::/system.slice/slurmstepd.scope/system\n", 0),
        ("0::/system.slice/slurmstepd.scope/job_7x/step_0\n", 0),
        ("0::/system.slice/myslurmstepd.scope/job_7/\n", 0),
        ("0::/system.slice/slurmstepd.scope/job_99999999999/\n", 0),
        ("", 0),
        ("\0\xff:::::\n", 0),
    ],
)
def test_the_job_of_a_cgroup(text: str, job_id: int) -> None:
    assert job_of(text, lambda: {"s0123456789ABC": 5}) == job_id


class Asked:
    """Slurm's list of processes, and how often it was asked for."""

    def __init__(self, listed: Mapping[int, int]) -> None:
        self.listed = listed
        self.times = 0

    def __call__(self) -> Mapping[int, int]:
        self.times += 1
        return self.listed


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A program that is killed at the end. It may still be being loaded: python("") is not."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def python(code: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program that has run `code` and waits for a line."""
    ready = "\nprint(1, flush=True)\ninput()"
    first, _, then = code.partition("THEN")
    with running(sys.executable, "-c", f"import ctypes, mmap, os\n{first}{ready}\n{then}") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        yield process


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[str]]:
    with python("") as process:
        yield process


def test_a_process_without_a_cgroup_of_slurms_is_the_job_that_slurm_says(sleeper: subprocess.Popen[str]) -> None:
    asked = Asked({sleeper.pid: 12})
    processes = Processes(asked)
    for _ in range(20):
        ((_, known),) = processes.look([sleeper.pid]).values()
        assert (known.uid, known.job_id, known.has_interposer) == (os.getuid(), 12, False)
    assert asked.times == 1


def test_slurm_is_asked_again_about_a_stranger_that_has_the_interposer(library: Path) -> None:
    asked = Asked({})
    processes = Processes(asked)
    with python(load(library)) as process:
        ((_, known),) = processes.look([process.pid]).values()
        assert (known.job_id, known.has_interposer) == (0, True)
        asked.listed = {process.pid: 12}
        ((_, known),) = processes.look([process.pid]).values()
        assert (known.job_id, known.has_interposer) == (12, True)


def test_a_jobs_process_without_the_interposer_is_read_again(library: Path) -> None:
    with python(f"THEN{load(library)}\nprint(2, flush=True)\ninput()") as process:
        processes = Processes(Asked({process.pid: 12}))
        assert has_interposer(process, processes) is False
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "2\n"
        assert has_interposer(process, processes) is True


def test_slurm_is_asked_about_a_stranger_a_few_times_only(sleeper: subprocess.Popen[str]) -> None:
    asked = Asked({})
    processes = Processes(asked)
    for _ in range(20):
        assert processes.look([sleeper.pid])[sleeper.pid][1].job_id == 0
    assert asked.times == ASK


def test_who_has_ended_is_left_out(sleeper: subprocess.Popen[str]) -> None:
    processes = Processes(Asked({}))
    started, _ = processes.look([sleeper.pid])[sleeper.pid]
    assert processes.is_same(sleeper.pid, started)
    assert not processes.is_same(sleeper.pid, started + 1)
    os.kill(sleeper.pid, 9)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # a zombie
    assert processes.look([sleeper.pid]) == {}
    assert not processes.is_same(sleeper.pid, started)
    sleeper.wait()
    assert processes.look([sleeper.pid, 2**22 + 1]) == {}


FIRST_THREAD_ENDS = "import threading; threading.Thread(target=input).start(); ctypes.CDLL(None).syscall(60, 0)"


@contextmanager
def without_first_thread(before: str = "") -> Iterator[subprocess.Popen[str]]:
    """A program whose first thread ends while another one runs: /proc shows it as a zombie."""
    with python(f"{before}THEN{FIRST_THREAD_ENDS}") as process:
        yield process


def end_first_thread(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    while ") Z" not in Path(f"/proc/{process.pid}/stat").read_text():
        time.sleep(0.01)


def test_a_process_whose_first_thread_has_ended_is_there_as_long_as_another_one_runs(library: Path) -> None:
    with without_first_thread(load(library)) as process:
        processes = Processes(Asked({process.pid: 12}))
        before = processes.look([process.pid])
        assert before[process.pid][1][1:] == (12, True)
        end_first_thread(process)
        assert processes.look([process.pid]) == before
        assert processes.is_same(process.pid, before[process.pid][0])
        ((_, known),) = Processes(Asked({process.pid: 12})).look([process.pid]).values()
        assert known == (os.getuid(), 12, None), "whose file it is cannot be seen any more"
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert processes.look([process.pid]) == {}


def test_one_without_the_interposer_cannot_hide_that_by_ending_its_first_thread() -> None:
    with without_first_thread() as process:
        end_first_thread(process)
        ((_, known),) = Processes(Asked({process.pid: 12})).look([process.pid]).values()
        assert known == (os.getuid(), 12, False)


def has_interposer(process: subprocess.Popen[str], processes: Processes | None = None) -> bool | None:
    return (processes or Processes(Asked({}))).look([process.pid])[process.pid][1].has_interposer


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return Path(shutil.copy(ROOT / "build/native/sim/libcuda.so.1", tmp_path / LIBRARY))


def load(library: Path) -> str:
    return f"ctypes.CDLL({str(library)!r})"


def test_the_interposer_counts_if_root_owns_the_file_that_is_mapped(library: Path) -> None:
    with python(load(library)) as process:
        assert has_interposer(process) is True
        library.unlink()  # an installation replaces it while the job runs
        assert has_interposer(process) is True


@pytest.mark.parametrize("how", ["of the user", "that others can write", "of another name", "data, not code"])
def test_a_file_that_only_looks_like_it_does_not_count(library: Path, how: str) -> None:
    code = load(library)
    if how == "of the user":
        os.chown(library, UID, UID)
    elif how == "that others can write":
        library.chmod(0o777)
    elif how == "of another name":
        code = load(library.rename(library.with_name(f"{LIBRARY}.1")))
    else:
        code = f"m = mmap.mmap(os.open({str(library)!r}, os.O_RDONLY), 4096, prot=mmap.PROT_READ)"
    with python(code) as process:
        assert has_interposer(process) is False


def test_a_program_that_is_executed_later_is_looked_at_again(library: Path) -> None:
    """The pid and the start stay the same then."""
    processes = Processes(Asked({}))
    with python(f"{load(library)}THENos.execv('/bin/cat', ['cat'])") as process:
        assert process.stdin is not None
        processes.listed_pids = Asked({process.pid: 7})
        assert has_interposer(process, processes) is True
        assert has_interposer(process, processes) is True
        process.stdin.write("\n")
        process.stdin.flush()
        while Path(f"/proc/{process.pid}/comm").read_text() != "cat\n":
            time.sleep(0.01)
        assert has_interposer(process, processes) is False


def test_a_user_cannot_pass_for_root_by_being_undumpable() -> None:
    """The owner of most of /proc/PID is root then."""
    with python(f"os.setresuid({UID}, {UID}, {UID}); ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)") as process:
        assert Path(f"/proc/{process.pid}/maps").stat().st_uid == 0
        assert Processes(Asked({})).look([process.pid])[process.pid][1].uid == UID


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_more_processes_than_files_stay_open(sleeper: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hami_hpc.agent.processes.KEPT_MAX", 1)
    processes = Processes(Asked({}))
    with python("") as other:
        pids = [sleeper.pid, other.pid]
        open_before = open_files()
        for _ in range(3):
            assert list(processes.look(pids)) == sorted(pids)
        assert open_files() == open_before + 1
        assert processes.look([]) == {}
        assert open_files() == open_before


def test_a_kept_file_is_not_that_of_the_next_process_with_the_pid(tmp_path: Path) -> None:
    """Reading the old one fails then, as it does of /proc when a process has ended."""
    processes = Processes(Asked({}))
    with python("") as first, python("") as second:
        started, _ = processes.look([first.pid])[first.pid]
        first.kill()
        first.wait()
        (tmp_path / str(first.pid)).symlink_to(f"/proc/{second.pid}")  # what /proc shows of the pid from now on
        processes.root = str(tmp_path)
        later, known = processes.look([first.pid])[first.pid]
        assert later >= started
        assert known.uid == os.getuid()
        second.kill()
        second.wait()
        assert processes.look([first.pid]) == {}
        assert not processes.is_same(first.pid, later)
