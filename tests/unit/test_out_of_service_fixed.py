# SPDX-License-Identifier: Apache-2.0
"""Where memory is oversold, what GPUs out of service have of the shards of jobs that are never moved (docs/adr/085)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from node_testbed import UUIDS, Node
from test_out_of_service import HERE, OUT, PLACEHOLDER, SLICE
from turns_testbed import OVERSOLD

from hami_hpc.contract import constants as c
from hami_hpc.core.out_of_service import NO_GPU, Holding, fixed_to_hold, fixed_too_many, holdings
from hami_hpc.errors import NodeError
from hami_hpc.node import drained_gpus
from hami_hpc.slurm import placeholders
from hami_hpc.stages import common, occupy

GPUS = {0: 500, 1: 500, 2: 400}


def held_by_job(job_id: int, gpu: int, fixed: int) -> Holding:
    return Holding(job_id, gpu, fixed, False, False, fixed)


def ours(job_id: int, fixed: int) -> Holding:
    return Holding(job_id, NO_GPU, 0, True, True, fixed)


def test_what_a_job_holds_of_them_is_read_from_scontrol() -> None:
    fixed = SLICE.replace("vgpu_mem(CNT:71424)", "vgpu_mem(CNT:71424),vgpu_fixed(CNT:279)")
    assert holdings(7, "RUNNING", False, fixed, HERE) == (Holding(7, 1, 279, False, False, 279),)
    later = fixed.replace("vgpu_fixed(CNT:279)", "vgpu_fixed:279")
    assert holdings(7, "RUNNING", False, later, HERE) == (Holding(7, 1, 279, False, False, 279),)
    alone = PLACEHOLDER.replace("shard:559(IDX:0)", "vgpu_fixed(CNT:503)")
    assert holdings(9, "RUNNING", True, alone, HERE) == (Holding(9, NO_GPU, 0, True, True, 503),)


@pytest.mark.parametrize(
    ("held", "drained", "sizes"),
    [
        ((), {0}, (500,)),
        ((), {0, 2}, (500, 400)),
        ((ours(9, 500),), {0}, ()),
        ((ours(9, 500),), {0, 1}, (500,)),
        # what jobs on it hold is theirs until they end
        ((held_by_job(7, 0, 200),), {0}, (300,)),
        ((held_by_job(7, 0, 200), ours(9, 300)), {0}, ()),
        ((ours(9, 300),), {0}, (200,)),
        ((held_by_job(7, 1, 200),), {0}, (500,)),
        # no more than is free: such a job would wait, and no other start
        ((held_by_job(6, 1, 500), held_by_job(7, 1, 500), held_by_job(8, 1, 300)), {0}, (100,)),
        ((held_by_job(6, 1, 500), held_by_job(7, 1, 500), held_by_job(8, 1, 400)), {0, 2}, ()),
        ((held_by_job(6, 0, 900),), {0}, ()),
        ((), {5}, ()),
        ((), set(), ()),
    ],
)
def test_what_is_free_of_them_is_held(held: tuple[Holding, ...], drained: set[int], sizes: tuple[int, ...]) -> None:
    assert fixed_to_hold(GPUS, held, drained) == sizes
    assert fixed_to_hold({}, held, drained) == ()


def test_what_is_held_beyond_that_is_freed() -> None:
    both = (ours(8, 500), ours(9, 400))
    assert fixed_too_many(GPUS, both, {0, 2}) == frozenset()
    assert fixed_too_many(GPUS, both, {0}) == {9}
    assert fixed_too_many(GPUS, both, {2}) == {8}
    assert fixed_too_many(GPUS, both, set()) == {8, 9}
    assert fixed_too_many(GPUS, (*both, held_by_job(7, 0, 400)), {0}) == {8}
    assert fixed_too_many(GPUS, (*both, held_by_job(7, 0, 300)), {0}) == {8}, "200 of 400 are held in excess"
    assert fixed_too_many({}, both, {0}) == {8, 9}, "memory is not oversold any more"


class FakeNode(placeholders.Node):
    """Slurm with two GPUs of 1,677 shards, of which 1,006 do not move. Starts what waits at the second look."""

    def __init__(self, *held: Holding) -> None:
        super().__init__("node1", {})
        self.held, self.looks = list(held), 0
        self.queue: dict[int, int] = {}
        self.asked: list[int] = []
        self.refusal = ""

    def holdings(self) -> tuple[Holding, ...]:
        self.looks += 1
        if self.looks > 1:
            self.held += [ours(job, size) for job, size in self.queue.items()]
            self.queue.clear()
        return tuple(self.held)

    def pending(self, name: str = c.GRES_SHARD) -> dict[int, int]:
        return dict(self.queue) if name == c.GRES_FIXED else {}

    def partition(self) -> str:
        return "gpu"

    def submit(self, sizes: Sequence[int], partition: str, name: str = c.GRES_SHARD) -> None:
        assert (partition, name) == ("gpu", c.GRES_FIXED)
        if self.refusal:
            raise NodeError(self.refusal)
        self.asked += sizes
        self.queue |= {100 + len(self.asked) + i: size for i, size in enumerate(sizes)}

    def keep(self, job_id: int) -> None:
        raise AssertionError(f"job {job_id} has no limit")

    def cancel(self, job_ids: Sequence[int]) -> None:
        self.held = [h for h in self.held if h.job_id not in job_ids]
        self.queue = {job: size for job, size in self.queue.items() if job not in job_ids}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node with oversold memory, whose first GPU is out of service and held, but for what does not move."""
    made = Node.make(tmp_path / "node")
    made.config.write_text(made.config.read_text().replace("version = 1\n", OVERSOLD) + "[classes.be]\nswap = true\n")
    drained_gpus.write(made.settings.state_dir, (OUT,))
    monkeypatch.setattr(occupy, "SETTLE_S", 0.01)
    return made


HELD = Holding(8, 0, 1677, True, True)


def test_they_are_held_with_the_gpu_and_freed_with_it(node: Node) -> None:
    slurm = FakeNode(HELD)
    occupy.occupy(node.settings, slurm, 5.0)
    assert (slurm.asked, [(h.slurm_index, h.fixed) for h in slurm.held]) == ([503], [(0, 0), (NO_GPU, 503)])
    occupy.occupy(node.settings, slurm, 5.0)
    assert slurm.asked == [503]
    drained_gpus.write(node.settings.state_dir, (OUT._replace(uuid=UUIDS[1], minor=1, slurm_index=1),))
    slurm.held[0] = HELD._replace(slurm_index=1)
    occupy.occupy(node.settings, slurm, 5.0)
    assert (slurm.asked, len(slurm.held)) == ([503], 2)
    drained_gpus.write(node.settings.state_dir, ())
    occupy.occupy(node.settings, slurm, 5.0)
    assert slurm.held == []


def test_a_slurm_that_has_none_of_them_keeps_the_gpu_held(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[str] = []
    monkeypatch.setattr(common, "report", lambda _stage, text: reports.append(text))
    slurm = FakeNode(HELD)
    slurm.refusal = "Invalid generic resource"
    occupy.occupy(node.settings, slurm, 5.0)
    assert slurm.held == [HELD]
    assert reports == ["Invalid generic resource. Jobs that are never moved may wait for room on the other GPUs"]


def test_one_that_does_not_start_is_cancelled_and_delays_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(occupy, "FIXED_S", 0.2)
    slurm = FakeNode(HELD)
    slurm.looks = -1000
    occupy.occupy(node.settings, slurm, 60.0)
    assert (slurm.asked, slurm.queue, slurm.held) == ([503], {}, [HELD])
