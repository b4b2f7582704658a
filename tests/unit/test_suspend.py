# SPDX-License-Identifier: Apache-2.0
"""What root does for jobs that Slurm suspends and resumes: the order in their record, also when slurmd died."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from node_testbed import ROOT, UUIDS, Node

from hami_hpc.agent import resumed_jobs
from hami_hpc.cli import main as command
from hami_hpc.contract import constants as c
from hami_hpc.core import swap as rules
from hami_hpc.core.inventory import Device
from hami_hpc.core.reconcile_plan import Kind
from hami_hpc.errors import JobError, NodeError
from hami_hpc.node import nvml, swapped
from hami_hpc.slurm import commands
from hami_hpc.stages import suspend, swap
from hami_hpc.stages.reconcile import reconcile

JOB, OTHER, STAYS = 7, 8, 9
GONE = "; those that come wait"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node with two jobs whose class may be moved, and one whose class may not. No process of theirs runs."""
    made = Node.make(tmp_path / "node")
    devices = tuple(Device(index, uuid, "NVIDIA H200", 143156) for index, uuid in enumerate(UUIDS))
    monkeypatch.setattr(nvml, "read_devices", lambda: devices)
    assert made.prolog(STAYS) == 0
    text = made.config.read_text()
    made.config.write_text(f"{text}\n[classes.be]\nswap = true\n")
    for job in (JOB, OTHER):
        assert made.prolog(job, HAMI_HPC_CLASS="be", HAMI_HPC_MEM_MIB="1024", HAMI_HPC_CORES="5") == 0
    return made


def run(node: Node, direction: str, job: int, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Runs what task/hami_hpc runs, and returns its status and what it prints."""
    status = suspend.main((direction, "--job", str(job), "--config", str(node.config)))
    return status, capsys.readouterr().out


def events(node: Node) -> str:
    path = Path(node.settings.state_dir) / "events.jsonl"
    return path.read_text() if path.exists() else ""


def test_slurmd_says_out_and_in(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(node, "out", JOB, capsys) == (0, f"job {JOB} has no process on the GPU{GONE}\n")
    assert swapped.order_of(node.settings.run_dir, JOB) == c.SWAP_SUSPENDED
    assert swapped.order_of(node.settings.run_dir, OTHER) == c.SWAP_IN
    assert f"job {JOB} has no process" in events(node)
    assert run(node, "in", JOB, capsys) == (0, f"job {JOB} goes on: its memory comes back to the GPU\n")
    assert swapped.order_of(node.settings.run_dir, JOB) == c.SWAP_IN
    assert run(node, "in", JOB, capsys) == (0, ""), "nothing to do"


def test_other_jobs_are_left_alone_and_named(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = run(node, "out", STAYS, capsys)
    assert status == 0
    assert text.startswith(
        f"job {STAYS} is suspended, and its device memory stays on the GPU: job {STAYS} cannot be moved"
    )
    assert swapped.order_of(node.settings.run_dir, STAYS) == c.SWAP_NEVER
    assert run(node, "in", STAYS, capsys) == (0, "")
    assert [run(node, word, 4711, capsys) for word in ("out", "in")] == [(0, "")] * 2, "no job of ours"


def test_what_an_administrator_moved_out_stays_there(node: Node) -> None:
    assert swap.swap(node.settings, JOB, out=True, wait_s=1).endswith(GONE)
    assert suspend.suspend(node.settings, JOB)
    assert suspend.resume(node.settings, JOB) == ""
    assert swapped.order_of(node.settings.run_dir, JOB) == c.SWAP_OUT


@pytest.mark.parametrize("before", [c.SWAP_IN, c.SWAP_OUT])
def test_an_administrator_who_presses_ctrl_c_leaves_the_job_as_it_was(
    node: Node, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    def interrupted(*_words: object, **_more: object) -> list[rules.Process]:
        assert swapped.order_of(node.settings.run_dir, JOB) == c.SWAP_OUT
        raise KeyboardInterrupt

    if before == c.SWAP_OUT:
        swap.swap(node.settings, JOB, out=True, wait_s=1)
    monkeypatch.setattr(swap, "wait", interrupted)
    with pytest.raises(JobError, match=f"interrupted: the memory of job {JOB} goes back to where it was"):
        swap.swap(node.settings, JOB, out=True, wait_s=1)
    assert swapped.order_of(node.settings.run_dir, JOB) == before


def test_a_class_says_what_stays_page_locked_for_moves_and_no_user_can(node: Node) -> None:
    node.config.write_text(f"{node.config.read_text()}swap_pinned_mib = 24576\n")
    assert node.prolog(10, HAMI_HPC_CLASS="be", HAMI_HPC_SWAP_PINNED_MIB="1000000") == 0
    for job, pinned_bytes in ((JOB, 0), (10, 24576 << 20)):
        record = Path(f"{node.settings.run_dir}/jobs/{job}/{c.FILE_JOB_LIMITS}").read_bytes()
        offset, width, _kind = c.LIMITS_FIELDS["swap_pinned_bytes"]
        assert int.from_bytes(record[offset : offset + width], "little") == pinned_bytes


def test_an_administrator_who_brings_a_suspended_job_in_is_told(node: Node) -> None:
    suspend.suspend(node.settings, JOB)
    said = swap.swap(node.settings, JOB, out=False, wait_s=1)
    assert said == f"job {JOB} is suspended: its memory comes back when Slurm resumes it"
    assert swapped.order_of(node.settings.run_dir, JOB) == c.SWAP_IN


@pytest.mark.parametrize(
    "words", [(), ("out",), ("out", "--job"), ("up", "--job", "7"), ("out", "--job", "x"), ("out", "--uid", "7")]
)
def test_a_plugin_of_another_version_is_told(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert suspend.main(words) == 1
    assert "install one version of both" in capsys.readouterr().out


def test_what_is_wrong_with_the_node_is_said_in_one_line(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.config.write_text("[vgpu]\nmode = 3\n")
    status, text = run(node, "out", JOB, capsys)
    assert status == 1
    assert text.startswith("hami_hpc: suspend: job 7: ")
    assert text.count("\n") == 1


def test_a_bug_is_said_in_one_line_that_names_the_job_and_the_place(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_arguments: object) -> str:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(suspend, "resume", fails)
    status, text = run(node, "in", JOB, capsys)
    assert status == 1
    assert text.startswith(f"hami_hpc: suspend: job {JOB}: unexpected ZeroDivisionError: division by zero ({__file__}:")
    assert text.count("\n") == 1


def test_a_record_that_is_no_record_is_nobodys(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    path = node.jobs / str(JOB) / c.FILE_JOB_LIMITS
    whole = path.read_bytes()
    os.truncate(path, 40)
    status, text = run(node, "out", JOB, capsys)
    assert (status, text.count("\n")) == (0, 0), "nothing of ours is there"
    path.write_bytes(whole)
    assert swapped.order_of(node.settings.run_dir, JOB) == c.SWAP_IN


def suspends(monkeypatch: pytest.MonkeyPatch, *jobs: int) -> None:
    """slurmctld says that these jobs are suspended."""
    monkeypatch.setattr(commands, "suspended_jobs", lambda name: frozenset(jobs) if name == "n1" else frozenset())


def test_a_resume_that_nobody_heard_of_is_made_up_for(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for job in (JOB, OTHER):
        suspend.suspend(node.settings, job)
    suspends(monkeypatch, OTHER)
    jobs = lambda: frozenset({JOB, OTHER, STAYS})  # noqa: E731
    dry = reconcile(node.settings, jobs, dry_run=True, node=lambda: "n1")
    assert [(one.action.kind, one.action.job_id) for one in dry] == [(Kind.RESUME, JOB)]
    assert swapped.order_of(node.settings.run_dir, JOB) == c.SWAP_SUSPENDED
    done = reconcile(node.settings, jobs, dry_run=False, node=lambda: "n1")
    assert [(one.action.kind, one.action.job_id) for one in done] == [(Kind.RESUME, JOB)]
    assert [swapped.order_of(node.settings.run_dir, job) for job in (JOB, OTHER)] == [c.SWAP_IN, c.SWAP_SUSPENDED]
    assert reconcile(node.settings, jobs, dry_run=False, node=lambda: "n1") == ()


def test_the_agent_makes_up_for_it_too(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    agent = resumed_jobs.make(node.settings, "n1", lines.append)
    suspends(monkeypatch)
    agent.once()
    suspend.suspend(node.settings, JOB)
    agent.once()
    assert lines == [f"job {JOB} goes on: its memory comes back to the GPU"]
    assert swapped.order_of(node.settings.run_dir, JOB) == c.SWAP_IN


def test_slurmctld_is_asked_only_about_such_jobs(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_name: str) -> frozenset[int]:
        raise NodeError("slurmctld does not answer")

    monkeypatch.setattr(commands, "suspended_jobs", fail)
    jobs = lambda: frozenset({JOB, OTHER, STAYS})  # noqa: E731
    assert reconcile(node.settings, jobs, dry_run=False, node=lambda: "n1") == ()
    suspend.suspend(node.settings, JOB)
    (problem,) = reconcile(node.settings, jobs, dry_run=False, node=lambda: "n1")
    assert problem.action.kind is Kind.PROBLEM
    assert problem.action.text == "memory of jobs that were suspended: slurmctld does not answer"
    assert swapped.order_of(node.settings.run_dir, JOB) == c.SWAP_SUSPENDED


def test_squeue_is_asked_about_all_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "squeue"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@" >"$0.asked"\nprintf "12\\n7\\n"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert commands.suspended_jobs("n1") == {7, 12}
    asked = (tmp_path / "squeue.asked").read_text().split()
    assert {"--nodelist=n1", "--all", "--states=SUSPENDED", "--format=%A"} <= set(asked)


def test_a_job_that_ended_meanwhile_is_no_error(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*_words: object) -> tuple[int, int]:
        raise JobError(f"job {JOB} has ended")

    monkeypatch.setattr(swap, "order", ended)
    assert suspend.suspend(node.settings, JOB).endswith(f"stays on the GPU: job {JOB} has ended")
    assert suspend.resume(node.settings, JOB) == ""


def test_the_program_is_a_stage(node: Node) -> None:
    import subprocess

    words = [str(ROOT / "prolog/suspend"), "out", "--job", str(JOB), "--config", str(node.config)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"})
    assert (done.returncode, done.stdout, done.stderr) == (0, f"job {JOB} has no process on the GPU{GONE}\n", "")
    assert CliRunner().invoke(command, ["swap", "in", "0"]).exit_code == 2


# ---------------------------------------------------------------------------------------------------- waiting


def test_waiting_ends_when_the_job_goes_on(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said of a suspension that is over."""
    monkeypatch.setattr(swapped, "processes", lambda *_: [rules.Process(0, 2**22 + 1, "gpu", 0)])
    monkeypatch.setattr(rules, "seconds_for", lambda _mib: 60.0)
    resume = threading.Timer(0.2, suspend.resume, (node.settings, JOB))
    resume.start()
    assert suspend.suspend(node.settings, JOB) == ""
    resume.join()


def test_what_left_the_gpu_is_said_with_what_brings_it_back(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(swapped, "processes", lambda *_: [rules.Process(0, 41, "host", 3 << 20, held_bytes=5 << 20)])
    moved = "3 MiB of 1 process moved off the GPU, 2 MiB stay on the GPU; they wait until"
    assert run(node, "out", JOB, capsys) == (0, f"job {JOB}: {moved} Slurm resumes it\n")
    swap.swap(node.settings, OTHER, out=True, wait_s=1)
    assert run(node, "out", OTHER, capsys) == (0, f"job {OTHER}: {moved} hami-hpc swap in {OTHER}\n")


def test_out_soon_returns_when_the_job_is_told(node: Node) -> None:
    """The process that waits is another, which ends by itself."""
    words = (
        sys.executable,
        "-c",
        "import sys; from hami_hpc.stages import suspend; sys.exit(suspend.main(sys.argv[1:]))",
    )
    arguments = ("out-soon", "--job", str(JOB), "--config", str(node.config))
    done = subprocess.run([*words, *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert swapped.order_of(node.settings.run_dir, JOB) == c.SWAP_SUSPENDED
    assert f"job {JOB} has no process" in events(node)


def test_one_process_waits_however_often_a_job_is_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step has a watch, and a user can send SIGTSTP as often as they like."""
    forks: list[int] = []

    def fork() -> int:
        forks.append(1)
        return 4711

    monkeypatch.setattr(os, "fork", fork)
    for _ in range(3):
        assert suspend.suspend_soon(node.settings, JOB) == ""
    assert forks == [1]
    assert suspend.suspend_soon(node.settings, STAYS) == suspend.suspend_soon(node.settings, 4711) == ""
    assert forks == [1]


class Told:
    """What slurmctld answers about a job, one answer after the other, and how often it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: bool | Callable[[], bool]) -> None:
        self.answers, self.asked = list(answers), 0
        monkeypatch.setattr(commands, "is_suspended", self)
        monkeypatch.setattr(os, "fork", lambda: 0)  # the test is the process that waits

    def __call__(self, job_id: int) -> bool:
        assert job_id == JOB
        self.asked += 1
        answer = self.answers.pop(0)
        return answer if isinstance(answer, bool) else answer()


def order(node: Node) -> int:
    return swapped.order_of(node.settings.run_dir, JOB)


def test_a_job_that_slurm_suspends_stays_away(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch, True)
    assert suspend.suspend_soon(node.settings, JOB) == ""
    assert (order(node), told.asked) == (c.SWAP_SUSPENDED, 1)
    assert f"job {JOB} has no process" in events(node)


def test_a_user_who_sends_the_signal_suspends_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """scancel --signal=TSTP: the job would have time off the GPU on its bill while Slurm lets it run. Afterwards
    slurmctld is asked before anything is ordered, and nothing is written any more."""
    told = Told(monkeypatch, *[False] * 12)
    suspend.suspend_soon(node.settings, JOB)
    assert (order(node), told.asked) == (c.SWAP_IN, 2)
    before = events(node)
    for _ in range(10):
        suspend.suspend_soon(node.settings, JOB)
        suspend.resume(node.settings, JOB)
    assert (order(node), told.asked, events(node)) == (c.SWAP_IN, 12, before)
    told.answers = [True, True]
    suspend.suspend_soon(node.settings, JOB)
    assert order(node) == c.SWAP_SUSPENDED, "Slurm's own is obeyed"


def test_slurms_signal_counts_that_comes_while_a_users_is_taken_back(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slurm_suspends() -> bool:
        assert suspend.suspend_soon(node.settings, JOB) == "", "it finds the order given"
        return False

    told = Told(monkeypatch, slurm_suspends, True)
    suspend.suspend_soon(node.settings, JOB)
    assert (order(node), told.asked) == (c.SWAP_SUSPENDED, 2)


def test_a_doubt_ends_and_what_is_no_note_of_one_is_none(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    note = node.jobs / str(JOB) / "signalled"
    told = Told(monkeypatch, False, False)
    suspend.suspend_soon(node.settings, JOB)
    assert note.stat().st_mode & 0o777 == 0o600
    for text in (str(int(note.read_text()) - suspend.DOUBT_NS), "", "soon", str(2**63)):
        note.write_text(text)
        told.answers, told.asked = [True], 0
        suspend.suspend_soon(node.settings, JOB)
        assert (order(node), told.asked) == (c.SWAP_SUSPENDED, 1)
        suspend.resume(node.settings, JOB)


def test_a_slurmctld_that_does_not_answer_takes_nothing_back(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent() -> bool:
        raise NodeError("slurmctld does not answer")

    Told(monkeypatch, silent)
    suspend.suspend_soon(node.settings, JOB)
    assert order(node) == c.SWAP_SUSPENDED


def test_what_both_plugins_tell_is_said_once(node: Node) -> None:
    assert suspend.suspend(node.settings, JOB)
    assert suspend.suspend(node.settings, JOB) == ""
    assert events(node).count(f"job {JOB} has no process") == 1
