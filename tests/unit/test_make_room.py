# SPDX-License-Identifier: Apache-2.0
"""A prolog whose GPU is full of slices of jobs that slurmctld does not have on this node any more."""

from __future__ import annotations

from pathlib import Path

import pytest
from mig_testbed import MigNode
from node_testbed import GPU_MIB, Node

from hami_hpc.contract import constants as c
from hami_hpc.core.inventory import Device
from hami_hpc.errors import NodeError
from hami_hpc.node import drain, nvml
from hami_hpc.stages import reconcile


class Queue:
    """A squeue that answers with the job ids that a test sets, and notes its questions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        folder.chmod(0o755)
        self.scontrol = str(folder / "scontrol")
        self.answers('cat "${0%/*}/answer"')

    def answers(self, body: str) -> None:
        path = self._folder / "squeue"
        path.write_text(f'#!/bin/sh\necho "$*" >>"${{0%/*}}/asked"\n{body}\n')
        path.chmod(0o755)

    def has(self, *jobs: int) -> None:
        (self._folder / "answer").write_text("".join(f"{job}\n" for job in jobs))

    def questions(self) -> list[str]:
        asked = self._folder / "asked"
        return asked.read_text().splitlines() if asked.exists() else []


def no_driver() -> tuple[Device, ...]:
    raise NodeError("the driver does not answer")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node on which jobs 5 and 6 have half of a GPU each. Its driver does not answer."""
    monkeypatch.setattr(nvml, "read_devices", no_driver)
    made = Node.make(tmp_path / "node")
    assert [made.prolog(job, mem_mib=GPU_MIB // 2) for job in (5, 6)] == [0, 0]
    return made


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    made = Queue(tmp_path / "slurm")
    monkeypatch.setattr(drain, "find_scontrol", lambda: made.scontrol)
    return made


def start(node: Node, mem_mib: int = GPU_MIB // 2) -> int:
    return node.prolog(7, mem_mib=mem_mib, SLURMD_NODENAME="n1")


def test_the_slice_of_a_job_that_left_without_an_epilog_makes_room(
    node: Node, queue: Queue, capfd: pytest.CaptureFixture[str]
) -> None:
    queue.has(6, 7)
    assert start(node) == 0
    node.assert_job_is_ready(7)
    assert sorted(node.grants()) == [6, 7]
    assert node.names() == ["6", "7"]
    assert node.spooled() == ["5.json"], "its usage is not lost"
    question, again = queue.questions()
    assert question == again, "the second time after the ledger was read"
    assert question.startswith("--all --local --noheader --nodelist=n1 --states=RUNNING,")
    said = capfd.readouterr().err
    assert "job 5: is no longer on this node; its 71578 MiB of GPU 0 are free again" in said
    assert "PROBLEM" not in said
    assert "NVML does not answer" not in said, "what a prolog cannot mend it does not report"


def test_a_slice_that_cannot_be_ended_is_reported_with_the_reason_and_the_job_does_not_start(
    node: Node, queue: Queue, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(*_arguments: object) -> None:
        raise NodeError("the disk is full")

    monkeypatch.setattr(reconcile, "_do", fails)
    queue.has(6, 7)
    assert start(node) == 1
    assert sorted(node.grants()) == [5, 6]
    assert "71578 MiB of GPU 0 are free again: the disk is full\n" in capfd.readouterr().err


def test_slices_of_jobs_that_run_here_stay_and_the_node_is_drained(
    node: Node, queue: Queue, capfd: pytest.CaptureFixture[str]
) -> None:
    queue.has(5, 6, 7)
    assert start(node) == 1
    assert sorted(node.grants()) == [5, 6]
    assert "143156 of 143156 MiB are held (job 5: 71578 MiB, job 6: 71578 MiB)" in capfd.readouterr().err


@pytest.mark.parametrize("body", ["exit 1", "echo slurm_load_jobs error", 'rm "$0"; exec "$0"', "kill -9 $$"])
def test_nothing_is_ended_when_slurmctld_does_not_say_which_jobs_run(
    node: Node, queue: Queue, body: str, capfd: pytest.CaptureFixture[str]
) -> None:
    queue.answers(body)
    assert start(node) == 1
    assert sorted(node.grants()) == [5, 6]
    assert node.spooled() == []
    assert "If those jobs have ended, run: hami-hpc reconcile" in capfd.readouterr().err


def test_a_prolog_that_was_not_started_by_slurmd_ends_nothing(node: Node, queue: Queue) -> None:
    queue.has()
    assert node.prolog(7, mem_mib=GPU_MIB // 2) == 1
    assert sorted(node.grants()) == [5, 6]
    assert queue.questions() == []


def test_room_that_is_too_small_is_still_a_fault_of_the_node(
    node: Node, queue: Queue, capfd: pytest.CaptureFixture[str]
) -> None:
    queue.has(6, 7)
    assert start(node, GPU_MIB) == 1
    assert sorted(node.grants()) == [6]
    assert "71578 of 143156 MiB are held (job 6: 71578 MiB)" in capfd.readouterr().err


def test_slurmctld_is_not_asked_where_there_is_room_or_nobodys_leaving_would_help(node: Node, queue: Queue) -> None:
    assert node.prolog(8, gpu="1", SLURMD_NODENAME="n1") == 0
    assert start(node, GPU_MIB + 1) == 1
    assert queue.questions() == []


def test_an_instance_of_a_job_that_left_without_an_epilog_makes_room(
    tmp_path: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = MigNode.make(tmp_path, monkeypatch)
    monkeypatch.setattr(drain, "find_scontrol", lambda: queue.scontrol)
    for job in range(1, 8):
        assert bed.prolog(job) == 0
    queue.has(*range(2, 9))
    assert bed.prolog(8, SLURMD_NODENAME="n1") == 0
    assert sorted(bed.node.grants()) == list(range(2, 9))
    assert not (bed.node.jobs / "8" / c.FILE_REFUSED).exists()
    assert len(bed.instances()) == 7
