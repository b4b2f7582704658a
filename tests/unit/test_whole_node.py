# SPDX-License-Identifier: Apache-2.0
"""A job that holds the whole node: Slurm gives it all vgpu units too, and it gets no grant but a mark."""

from __future__ import annotations

from pathlib import Path

import pytest
from node_testbed import GPU_MIB, Node, job_environment

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import whole_gpus
from hami_hpc.stages.reconcile import reconcile

# As slurmd 22.05.8 gave them to the prolog of an --exclusive job on a node of two GPUs, gres_vgpu adding up its types.
WHOLE = {
    "SLURM_JOB_GPUS": "0,1",
    "CUDA_VISIBLE_DEVICES": "0,1",
    c.ENV_VGPU: "3354",
    c.ENV_CLASS: "be",
    c.ENV_MEM_MIB: str(2 * GPU_MIB),
    c.ENV_CORES: "200",
}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node")


def whole_job(job_id: int, **more: str) -> dict[str, str]:
    return job_environment(job_id) | WHOLE | more


def test_the_prolog_marks_the_job_and_grants_nothing(node: Node) -> None:
    assert node.run("prolog", whole_job(7)) == (0, "")
    folder = node.jobs / "7"
    assert [path.name for path in folder.iterdir()] == [c.FILE_WHOLE]
    assert (folder / c.FILE_WHOLE).read_text() == "job 7 holds the whole node with GPU 0,1: no limits\n"
    assert (folder / c.FILE_WHOLE).stat().st_mode & 0o777 == 0o644
    assert node.grants() == {}


def test_running_twice_changes_nothing(node: Node) -> None:
    node.run("prolog", whole_job(7))
    before = (node.jobs / "7").stat()
    assert node.run("prolog", whole_job(7)) == (0, "")
    assert (node.jobs / "7").stat().st_ino == before.st_ino
    assert node.names() == ["7"]


def test_the_epilog_removes_it_without_a_usage_record(node: Node) -> None:
    node.run("prolog", whole_job(7))
    assert node.run("epilog", whole_job(7)) == (0, "")
    node.assert_nothing_is_held()
    assert node.spooled() == []


def test_an_epilog_that_knows_only_the_job_id_removes_it(node: Node) -> None:
    node.run("prolog", whole_job(7))
    assert node.run("epilog", {"SLURM_JOB_ID": "7"}) == (0, "")
    assert node.names() == []


def test_a_mark_replaces_what_an_earlier_run_left_and_is_replaced_by_a_later_one(node: Node) -> None:
    node.prolog(7)
    node.run("prolog", whole_job(7))
    assert [path.name for path in (node.jobs / "7").iterdir()] == [c.FILE_WHOLE]
    node.epilog(7)
    node.run("prolog", whole_job(8))
    node.prolog(8)
    node.assert_job_is_ready(8)


def test_reconcile_leaves_a_running_jobs_mark_and_removes_an_ended_ones(node: Node) -> None:
    node.run("prolog", whole_job(7))
    reconcile(node.settings, lambda: frozenset({7}), dry_run=False)
    assert (node.jobs / "7" / c.FILE_WHOLE).exists()
    (result,) = [
        result for result in reconcile(node.settings, lambda: frozenset(), dry_run=False) if result.action.job_id == 7
    ]
    assert result.error is None
    assert node.names() == []


@pytest.mark.parametrize(
    "given",
    [
        {c.ENV_VGPU: "1"},
        {c.ENV_CORES: "100"},
        {c.ENV_CORES: "199"},
        {"SLURM_JOB_GPUS": ""},
        {"SLURM_JOB_GPUS": "0,1,2"},
        {c.ENV_VGPU: "2"},
        {c.ENV_VGPU: "16", c.ENV_CORES: "1600"},
        {c.ENV_VGPU: "-5"},
        {c.ENV_VGPU: ""},
        {c.ENV_CORES: "9" * 40},
    ],
    ids=str,
)
def test_units_that_are_not_all_of_a_nodes_mark_nothing(node: Node, given: dict[str, str]) -> None:
    assert whole_gpus(whole_job(7, **given)) == ""
    node.run("prolog", whole_job(7, **given))
    assert not (node.jobs / "7" / c.FILE_WHOLE).exists()


def test_a_node_of_one_gpu_is_told_from_its_whole_slice(node: Node) -> None:
    one_gpu = {"SLURM_JOB_GPUS": "0", c.ENV_CORES: "100", c.ENV_MEM_MIB: str(GPU_MIB)}
    assert whole_gpus(whole_job(7, **one_gpu)) == "0"
    assert whole_gpus(whole_job(7, **one_gpu, **{c.ENV_VGPU: "1"})) == ""
