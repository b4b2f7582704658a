# SPDX-License-Identifier: Apache-2.0
"""The agent against hostile users and unlucky administrators: whom it must not blame, and what must not stop it."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from pathlib import Path

import pytest

from hami_hpc.agent.processes import ASK, Processes
from hami_hpc.agent.slurm_port import SlurmPort, parse_listpids, run_command


def test_a_process_of_which_slurm_does_not_say_the_job_is_not_of_no_job() -> None:
    """Else a missing scontrol, or a step that does not answer, makes each process of a job one of no job."""
    answers: list[dict[int, int] | None] = [None] * (3 * ASK)
    with subprocess.Popen(["sleep", "100"]) as process:
        processes = Processes(lambda: answers.pop(0))
        try:
            jobs = [processes.look([process.pid])[process.pid][1].job_id for _ in range(3 * ASK)]
            assert set(jobs) == {-1}
            answers.append({process.pid: 7})
            assert processes.look([process.pid])[process.pid][1].job_id == 7
        finally:
            process.kill()


@pytest.mark.parametrize("text", ["", "scontrol: error: nothing\n", "12 7\n13 8\n", "\0\xff"])
def test_rubbish_is_no_list_of_processes(text: str) -> None:
    assert parse_listpids(text) is None


def test_the_list_of_a_node_without_steps_is_empty_and_that_of_a_step_that_does_not_answer_unknown(
    tmp_path: Path,
) -> None:
    program = tmp_path / "scontrol"
    head = "#!/bin/sh\nprintf 'PID JOBID STEPID LOCALID GLOBALID\\n'; "
    for said, expected in (("No job steps exist on this node.", {}), ("Unable to connect to StepId=7.0", None)):
        program.write_text(f"{head}echo '{said}' >&2; exit 1\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        assert parse_listpids(run_command((str(program), "listpids"), 5) or "") == expected


ARRAY = (
    "JobId=2 ArrayJobId=2 ArrayTaskId=3 JobName=a JobState=RUNNING GRES=gpu:h200:1(IDX:0) \n"
    "JobId=3 ArrayJobId=2 ArrayTaskId=1 JobName=a JobState=RUNNING GRES=gpu:h200:1(IDX:1) \n"
)


class Commands:
    """Slurm's commands: what `scontrol show job` says, and what was run."""

    def __init__(self, shown: str | None) -> None:
        self.shown = shown
        self.run: list[tuple[str, ...]] = []

    def __call__(self, command: tuple[str, ...], _timeout_s: float) -> str | None:
        self.run.append(command)
        return self.shown if "show" in command else ""


@pytest.mark.parametrize(
    ("shown", "job_id", "name"), [(ARRAY, 2, "2_3"), (ARRAY, 3, "2_1"), (None, 2, "2"), ("", 7, "7")]
)
def test_the_end_of_one_task_of_an_array_leaves_the_others_alone(shown: str | None, job_id: int, name: str) -> None:
    """`scancel 2` ends all tasks of array 2, one of which has the job id 2."""
    commands = Commands(shown)
    port = SlurmPort("node1", lambda _text: None, commands)
    port.fail(job_id, "text")
    port.finish()
    assert commands.run[1:] == [
        ("scontrol", "update", f"JobId={name}", "AdminComment=hami_hpc: text"),
        ("scancel", name),
    ]


@pytest.mark.parametrize("shown", ["", "slurm_load_jobs error: none\n", "JobId=70 GRES=gpu:h200:1(IDX:1)", "\0"])
def test_an_answer_that_is_not_about_the_job_says_nothing_of_its_gpus(shown: str) -> None:
    port = SlurmPort("node1", lambda _text: None, Commands(shown))
    for _ in range(2):
        assert port.held_by(7) is None
        port.finish()


def test_the_gpus_of_a_task_are_not_those_of_the_other_tasks() -> None:
    port = SlurmPort("node1", lambda _text: None, Commands(ARRAY))
    assert port.held_by(2) is None
    port.finish()
    assert port.held_by(2) == frozenset({0})


def fake_process(root: Path, pid: int) -> Path:
    """Makes what is read of a process, in a directory that stands for /proc. Returns its directory."""
    directory = root / str(pid)
    directory.mkdir()
    (directory / "stat").write_text(f"{pid} (a b) R " + " ".join(["1"] * 48))
    (directory / "status").write_text("Name:\ta\nUid:\t1000\t1000\t1000\t1000\n")
    (directory / "cgroup").write_text("0::/system.slice/slurmstepd.scope/job_7/step_0\n")
    (directory / "maps").write_text("1000-2000 r-xp 0 0:1 5 /bin/a\n")
    return directory


def test_a_process_whose_memory_map_cannot_be_read_delays_nobody(tmp_path: Path) -> None:
    """It may hang in a driver with its memory map locked, or on a file system of the user's own."""
    stuck = fake_process(tmp_path, 10) / "maps"
    stuck.unlink()
    os.mkfifo(stuck)
    fake_process(tmp_path, 11)
    processes = Processes(lambda: {}, str(tmp_path))
    start = time.monotonic()
    for _ in range(8):
        seen = {pid: known.has_interposer for pid, (_, known) in processes.look([10, 11]).items()}
    assert time.monotonic() - start < 5
    assert seen == {10: None, 11: False}
    with stuck.open("w") as file:  # it goes on
        file.write("1000-2000 r-xp 0 0:1 5 /bin/a\n")
    for _ in range(3):
        seen = {pid: known.has_interposer for pid, (_, known) in processes.look([10, 11]).items()}
        stuck.unlink(missing_ok=True)
        stuck.write_text("1000-2000 r-xp 0 0:1 5 /bin/a\n")
    assert seen == {10: False, 11: False}
