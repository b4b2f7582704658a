# SPDX-License-Identifier: Apache-2.0
"""The agent ends what is left of jobs that slurmctld took off the node without an epilog."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from node_testbed import Node

from hami_hpc.agent import left_jobs
from hami_hpc.agent.repeated import Repeated
from hami_hpc.core.inventory import Device
from hami_hpc.errors import NodeError
from hami_hpc.node import job_dirs, nvml
from hami_hpc.slurm import commands


class Slurm:
    """What slurmstepd and slurmctld say: the steps' processes, and the jobs that hold something here."""

    def __init__(self) -> None:
        self.steps: Mapping[int, int] | None = {}
        self.running: frozenset[int] | NodeError = frozenset()
        self.asked = 0

    def running_jobs(self, node: str) -> frozenset[int]:
        assert node == "n1"
        self.asked += 1
        if isinstance(self.running, NodeError):
            raise self.running
        return self.running


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    made = Slurm()
    devices = (Device(0, "GPU-11111111-1111-1111-1111-111111111111", "NVIDIA H200", 143156),)
    monkeypatch.setattr(commands, "running_jobs", made.running_jobs)
    monkeypatch.setattr(nvml, "read_devices", lambda: devices)
    return made


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node.make(tmp_path / "node")
    assert [made.prolog(job) for job in (5, 6)] == [0, 0]
    return made


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def agent(node: Node, slurm: Slurm, lines: list[str]) -> Repeated:
    return left_jobs.make(node.settings, "n1", lambda: slurm.steps, lines.append)


def test_a_job_without_steps_that_slurmctld_does_not_have_here_is_ended(
    node: Node, slurm: Slurm, agent: Repeated, lines: list[str]
) -> None:
    slurm.steps, slurm.running = {4000: 6}, frozenset({6})
    agent.once()
    assert (slurm.asked, sorted(node.grants())) == (0, [5, 6]), "its first step may be about to begin"
    agent.once()
    assert sorted(node.grants()) == [6]
    assert node.names() == ["6"]
    assert node.spooled() == ["5.json"]
    assert lines == ["job 5: is no longer on this node; its 8192 MiB of GPU 0 are free again"]
    agent.once()
    agent.once()
    assert slurm.asked == 1, "slurmctld is not asked while each job has a step"


def test_a_job_that_waits_for_its_first_step_stays(node: Node, slurm: Slurm, agent: Repeated, lines: list[str]) -> None:
    slurm.running = frozenset({5, 6})
    for _ in range(3):
        agent.once()
    assert (slurm.asked, sorted(node.grants()), lines) == (2, [5, 6], [])


def test_nothing_is_ended_while_slurm_does_not_answer_and_that_is_said_once(
    node: Node, slurm: Slurm, agent: Repeated, lines: list[str]
) -> None:
    slurm.steps = None
    for _ in range(3):
        agent.once()
    assert (slurm.asked, lines) == (0, []), "slurmstepd does not say which steps run"
    slurm.steps, slurm.running = {}, NodeError("squeue failed")
    for _ in range(4):
        agent.once()
    assert sorted(node.grants()) == [5, 6]
    (line,) = lines
    assert line.startswith("jobs that left this node: Slurm did not list the jobs of this node, so no grant was ended.")
    assert line.endswith("(squeue failed) (tried again each 300 s)")
    slurm.running = frozenset()
    agent.once()
    assert node.grants() == {}


def test_a_run_directory_that_cannot_be_listed_is_said(
    agent: Repeated, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_run_dir: str) -> tuple[str, ...]:
        raise NodeError("jobs cannot be listed: Input/output error")

    monkeypatch.setattr(job_dirs, "entries", fail)
    agent.once()
    assert lines == ["jobs that left this node: jobs cannot be listed: Input/output error (tried again each 300 s)"]


def test_a_node_without_jobs_asks_nobody(tmp_path: Path, slurm: Slurm, lines: list[str]) -> None:
    def nobody() -> Mapping[int, int] | None:
        raise AssertionError("no job, no question")

    agent = left_jobs.make(Node.make(tmp_path / "other").settings, "n1", nobody, lines.append)
    agent.once()
    agent.once()
    assert (slurm.asked, lines) == (0, [])
