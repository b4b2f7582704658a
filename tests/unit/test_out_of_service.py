# SPDX-License-Identifier: Apache-2.0
"""GPUs out of service: the file, what Slurm's jobs hold, which placeholders are submitted, prolog and epilog."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from node_testbed import UUIDS, Node, job_environment

from hami_hpc.contract import constants as c
from hami_hpc.core.inventory import indices
from hami_hpc.core.out_of_service import (
    DrainedGpu,
    Holding,
    free_shards,
    from_json,
    holdings,
    sizes_to_request,
    to_json,
)
from hami_hpc.errors import NodeError
from hami_hpc.node import drained_gpus
from hami_hpc.slurm import placeholders
from hami_hpc.stages import occupy, out_of_service
from hami_hpc.stages.epilog import main as epilog_main

OUT = DrainedGpu(UUIDS[0], 0, 0, 'Xid 63: "row remapping"', 1_790_000_000)
# `scontrol -o show job -d` of Slurm 22.05.8; what is not read is cut.
SLICE = (
    "JobId=7 JobName=train UserId=games(5) JobState=RUNNING Reason=None TimeLimit=01:00:00 "
    "JOB_GRES=shard:279 Nodes=node1 CPU_IDs=254 Mem=0 GRES=shard:279(IDX:1),vgpu:std(CNT:1),vgpu_mem(CNT:71424) X=1"
)
PLACEHOLDER = (
    "JobId=9 JobName=hami-hpc-drain UserId=root(0) JobState=RUNNING Reason=None TimeLimit=UNLIMITED "
    "Nodes=node1 CPU_IDs=255 Mem=0 GRES=shard:559(IDX:0) X=1"
)
WHOLE = (
    "JobId=8 JobName=mpi UserId=games(5) JobState=RUNNING Reason=None TimeLimit=01:00:00 Nodes=node[1-2] CPU_IDs=0 "
    "Mem=0 GRES=gpu:h200:2(IDX:0-1) Nodes=node3 CPU_IDs=0 Mem=0 GRES=gpu:h200:1(IDX:1) X=1"
)
HERE = {"node1": True, "node[1-2]": True, "node3": False}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node")


def test_what_a_job_holds_is_read_from_scontrol() -> None:
    assert holdings(7, "RUNNING", False, SLICE, HERE) == (Holding(7, 1, 279, False, False),)
    assert holdings(9, "RUNNING", True, PLACEHOLDER, HERE) == (Holding(9, 0, 559, True, True),)
    later = SLICE.replace("shard:279(IDX:1)", "shard:279(0/559,279/559)")  # as 24.11 and 26.05 print it, by source
    assert holdings(7, "RUNNING", False, later, HERE) == (Holding(7, 1, 279, False, False),)
    two = SLICE.replace("shard:279(IDX:1)", "shard:300(21/559,279/559)")
    assert [(h.slurm_index, h.shards) for h in holdings(7, "RUNNING", False, two, HERE)] == [(0, 21), (1, 279)]
    whole = holdings(8, "RUNNING", False, WHOLE, HERE)
    assert whole == (Holding(8, 0, 0, False, False), Holding(8, 1, 0, False, False))
    assert indices("0,2-4") == (0, 2, 3, 4)


@pytest.mark.parametrize("state", ["PENDING", "COMPLETING", "COMPLETED", "NODE_FAIL"])
def test_a_job_that_ends_or_waits_holds_nothing(state: str) -> None:
    assert holdings(7, state, False, SLICE, HERE) == ()


def test_a_job_whose_name_looks_like_a_placeholder_is_none_and_names_no_other_job() -> None:
    text = SLICE.replace("JobName=train", f"JobName=x\n{PLACEHOLDER}")
    found = holdings(7, "RUNNING", False, text, HERE)
    assert {(holding.job_id, holding.is_placeholder) for holding in found} == {(7, False)}
    for hostile in ("shard:1(IDX:0-99999999999)", "shard:1(IDX:-)", "shard:1(/)", "gpu:1(IDX:,,)"):
        assert holdings(7, "RUNNING", False, PLACEHOLDER.replace("shard:559(IDX:0)", hostile), HERE) == ()


def test_a_job_that_holds_a_whole_gpu_leaves_nothing_of_it() -> None:
    held = (Holding(7, 1, 59, False, False), Holding(8, 0, 0, False, False), Holding(9, 5, 1, False, False))
    assert free_shards({0: 559, 1: 559, 2: 559}, held) == {0: 0, 1: 500, 2: 559}
    assert free_shards({1: 50}, held) == {1: 0}


@pytest.mark.parametrize(
    ("free", "drained", "sizes"),
    [
        ({0: 559, 1: 559}, {1}, (559, 559)),
        ({0: 559, 1: 100}, {1}, (559, 100)),
        ({0: 99, 1: 100}, {1}, (100,)),
        ({0: 559, 1: 0}, {1}, ()),
        ({0: 559, 1: 0}, (), ()),
        ({0: 300, 1: 50, 2: 400, 3: 20}, {1, 3}, (400, 300, 50, 20)),
        ({0: 300, 1: 50}, {7}, ()),
    ],
)
def test_the_sizes_fill_the_gpu_whichever_gpu_slurm_picks_first(
    free: Mapping[int, int], drained: Sequence[int], sizes: tuple[int, ...]
) -> None:
    assert sizes_to_request(free, frozenset(drained)) == sizes
    for first in (min, max):  # of the GPUs that have room, by number
        left = dict(free)
        for size in sizes:
            left[first(index for index, count in left.items() if count >= size)] -= size
        assert [left[index] for index in drained if left.get(index)] == []


def test_the_file_says_what_was_written_and_is_gone_with_the_last_gpu(node: Node) -> None:
    state = node.settings.state_dir
    assert drained_gpus.read(state) == ()
    drained_gpus.write(state, (OUT,))
    assert drained_gpus.read(state) == (OUT,)
    path = Path(drained_gpus.path_of(state))
    assert list(Path(state).iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o644
    drained_gpus.write(state, ())
    assert list(Path(state).iterdir()) == []


DAMAGED = [
    "",
    "{",
    "[]",
    "7",
    '{"version": 2, "gpus": []}',
    '{"version": 1, "gpus": [{"uuid": "x"}]}',
    to_json((OUT,)).replace('"minor": 0', '"minor": "0"'),
    to_json((OUT,))[:-20],
    "[" * 100_000,
]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"version": 2, "gpus": []}', "version 2"),
        ("{}", "KeyError: 'version'"),
        ("[]", "TypeError: list indices must be integers"),
        (to_json((OUT,)).replace('"minor": 0', '"minor": "0"'), "an entry has a value of a wrong type: DrainedGpu("),
        (to_json((OUT,)).replace('"minor": 0', '"minor": true'), "an entry has a value of a wrong type: DrainedGpu("),
        (to_json((OUT,)).replace(f'"{UUIDS[0]}"', "7"), "an entry has a value of a wrong type: DrainedGpu("),
    ],
)
def test_what_is_wrong_with_a_file_is_said(text: str, why: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(why)):
        from_json(text)


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_is_an_error_that_says_so_and_blocks_no_prolog(node: Node, text: str) -> None:
    path = Path(drained_gpus.path_of(node.settings.state_dir))
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    with pytest.raises(NodeError, match=r"is damaged .* Delete "):
        drained_gpus.read(str(path.parent))
    status, said = node.run("prolog", job_environment(7))
    assert status == 0
    assert said.startswith(f"hami_hpc: prolog: {path} is damaged")
    node.assert_job_is_ready(7)
    status, said = node.run("epilog", job_environment(7))
    assert (status, said.startswith(f"hami_hpc: epilog: {path} is damaged")) == (0, True)
    node.assert_nothing_is_held()


def test_a_file_of_somebody_else_is_not_believed(node: Node) -> None:
    state = Path(node.settings.state_dir)
    drained_gpus.write(str(state), (OUT,))
    (state / drained_gpus.NAME).chmod(0o666)
    with pytest.raises(NodeError, match="root alone can write"):
        drained_gpus.read(str(state))
    (state / drained_gpus.NAME).rename(state / "elsewhere")
    (state / drained_gpus.NAME).symlink_to(state / "elsewhere")
    with pytest.raises(NodeError):
        drained_gpus.read(str(state))
    with pytest.raises(ValueError, match="version"):
        from_json('{"version": 9, "gpus": []}')


def test_a_job_on_that_gpu_is_refused_and_one_on_another_or_granted_before_is_not(node: Node) -> None:
    assert node.prolog(5) == 0
    drained_gpus.write(node.settings.state_dir, (OUT,))
    assert node.prolog(5) == 0  # again, for the same run of the job
    node.assert_job_is_ready(5)
    assert node.prolog(6, gpu="1") == 0
    node.assert_job_is_ready(6)
    status, said = node.run("prolog", job_environment(7))
    assert status == 0
    assert f"job 7 was given GPU 0 ({UUIDS[0]}), which is out of service: {OUT.reason}" in said
    assert OUT.reason in (node.jobs / "7" / "refused").read_text()
    assert sorted(node.grants()) == [5, 6]


def test_an_epilog_starts_the_filling_for_a_job_of_that_gpu_only(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(occupy, "start_detached", lambda *arguments: started.append(arguments))
    for job, gpu, expected in ((7, "0", 1), (8, "1", 1), (9, "0,1", 2)):
        drained_gpus.write(node.settings.state_dir, ())
        environment = job_environment(job, gpu=gpu)
        drained_gpus.write(node.settings.state_dir, (OUT,))
        assert epilog_main(node.arguments, environment) == 0
        assert len(started) == expected
        if gpu != "1":
            assert started[-1] == (node.settings, environment, out_of_service.REGISTERED_WAIT_S)
    no_gpu = {"SLURM_JOB_ID": "10", "SLURM_JOB_UID": "5"}
    assert epilog_main(node.arguments, no_gpu) == 0
    assert len(started) == 2


def test_an_epilog_looks_for_the_number_that_a_gpu_out_of_service_has_now(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr(occupy, "start_detached", lambda *arguments: started.append(arguments))
    assert node.prolog(5) == 0  # the ledger has the node's GPUs
    drained_gpus.write(node.settings.state_dir, (OUT._replace(minor=2, slurm_index=2),))
    out_of_service.after_job(node.settings, {"SLURM_JOB_GPUS": "2"})
    assert started == []
    out_of_service.after_job(node.settings, {"SLURM_JOB_GPUS": "0"})
    assert len(started) == 1


def test_where_types_are_places_each_job_with_a_gpu_may_have_held_that_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 23.02 on SLURM_JOB_GPUS lacks GPUs there (docs/adr/055)."""
    started: list[object] = []
    monkeypatch.setattr(occupy, "start_detached", lambda *arguments: started.append(arguments))
    drained_gpus.write(node.settings.state_dir, (OUT,))
    several = node.settings._replace(slices_max=2)
    out_of_service.after_job(several, {"SLURM_JOB_GPUS": "1"})
    assert len(started) == 1
    out_of_service.after_job(several, {})
    out_of_service.after_job(node.settings, {"SLURM_JOB_GPUS": "1"})
    assert len(started) == 1


class FakeNode(placeholders.Node):
    """Slurm with two GPUs: starts what waits at the second look, on the GPU that `pick` chooses."""

    inside = ""

    def __init__(self, *held: Holding) -> None:
        super().__init__("node1", {})
        self.held, self.looks, self.next_id = list(held), 0, 100
        self.queue: dict[int, int] = {}

    def holdings(self) -> tuple[Holding, ...]:
        self.looks += 1
        if self.looks > 1:
            for job, size in sorted(self.queue.items(), key=lambda item: -item[1]):
                free = {gpu: 559 - sum(h.shards for h in self.held if h.slurm_index == gpu) for gpu in (0, 1)}
                gpu = next((gpu for gpu, count in free.items() if count >= size), None)
                if gpu is not None:
                    self.held.append(Holding(job, gpu, size, True, False))
                    del self.queue[job]
        return tuple(self.held)

    def pending(self, name: str = c.GRES_SHARD) -> dict[int, int]:
        return dict(self.queue)

    def partition(self) -> str:
        return "gpu"

    def reservation(self) -> str:
        return self.inside

    def submit(self, sizes: Sequence[int], partition: str, name: str = c.GRES_SHARD) -> None:
        assert partition == "gpu"
        for size in sizes:
            self.next_id += 1
            self.queue[self.next_id] = size

    def keep(self, job_id: int) -> None:
        self.held = [h._replace(is_unlimited=True) if h.job_id == job_id else h for h in self.held]

    def cancel(self, job_ids: Sequence[int]) -> None:
        self.held = [h for h in self.held if h.job_id not in job_ids]
        self.queue = {job: size for job, size in self.queue.items() if job not in job_ids}


def test_what_is_free_is_held_and_nothing_of_the_other_gpu(node: Node) -> None:
    drained_gpus.write(node.settings.state_dir, (OUT._replace(uuid=UUIDS[1], minor=1, slurm_index=1),))
    slurm = FakeNode(Holding(7, 1, 159, False, False), Holding(8, 0, 32, False, False))
    run = occupy.occupy(node.settings, slurm, 5.0)
    assert run.free()[1] == 0
    assert [(h.slurm_index, h.shards, h.is_unlimited) for h in slurm.held if h.is_placeholder] == [(1, 400, True)]
    before = list(slurm.held)
    occupy.occupy(node.settings, slurm, 5.0)
    assert (slurm.held, slurm.queue) == (before, {})
    drained_gpus.write(node.settings.state_dir, ())
    occupy.occupy(node.settings, slurm, 5.0)
    assert [h.job_id for h in slurm.held] == [7, 8]


def test_what_slurm_does_not_start_is_cancelled_and_reported(node: Node) -> None:
    drained_gpus.write(node.settings.state_dir, (OUT,))
    slurm = FakeNode()
    slurm.looks = -1000
    run = occupy.occupy(node.settings, slurm, 0.5)
    assert run.free()[0] == 559
    assert slurm.queue == {}


def test_commands_get_nothing_of_a_job_or_of_a_persons_defaults() -> None:
    given = {"SLURM_CONF": "/c", "SLURM_JOB_ID": "7", "SALLOC_PARTITION": "x", "SPANK_X": "y", "PATH": "/a:/b"}
    assert placeholders.environment(given, "/opt/slurm/bin") == {
        "SLURM_CONF": "/c",
        "PATH": "/opt/slurm/bin:/a:/b",
        "LC_ALL": "C",
    }


@pytest.mark.parametrize(
    "whole",
    ["OverSubscribe=EXCLUSIVE", "OverSubscribe=NO Exclusive=NODE", "OverSubscribe=NO Exclusive=TOPO"],
    ids=["22.05", "26.05", "26.05 topology"],
)
def test_placeholders_go_to_the_highest_partition_that_shares_its_nodes(
    monkeypatch: pytest.MonkeyPatch, whole: str
) -> None:
    shown = {
        "node": "NodeName=n1 Partitions=whole,low,high,down",
        "whole": f"PartitionName=whole PriorityTier=9 {whole} State=UP",
        "low": "PartitionName=low PriorityTier=1 OverSubscribe=NO Exclusive=NO State=UP",
        "high": "PartitionName=high PriorityTier=2 OverSubscribe=NO Exclusive=USER State=UP",
        "down": "PartitionName=down PriorityTier=8 OverSubscribe=NO State=DOWN",
    }
    node_of_slurm = placeholders.Node("n1", {})
    monkeypatch.setattr(node_of_slurm, "_run", lambda *words: shown["node" if words[-1] == "n1" else words[-1]])
    assert node_of_slurm.partition() == "high"
