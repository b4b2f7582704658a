# SPDX-License-Identifier: Apache-2.0
"""MPI programs in slices: ranks that share one, and a slice for each rank, by PMIx (Open MPI) and by PMI2."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator

import pytest
from harness import agent, jobs, node, services
from harness import cluster as private_cluster
from harness.config import GPU_MODEL
from harness.layout import CHECKOUT, Layout, Machine

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
ROOT = CHECKOUT / f".cluster-test-mpi-{WORKER}"
USER = "games"
SOURCE = CHECKOUT / "tests/cluster/programs/ranks.c"
LIBRARIES = {"pmix": ("-l:libmpi.so.40",), "pmi2": ("-DUSE_PMI2", "-lpmi2")}
CONTEXT_MIB = 512  # of the simulation
TAKEN = 1000
# Of the server of PMIx: below /tmp it has one name for all clusters of a machine.
OWN_TMP = "export SLURM_PMIX_TMPDIR=$HOME"
PAIR = "--gres=vgpu:2:mem=8G,cores=50"
LINE = re.compile(r"rank (\d) of (\d) sum (\d+) (GPU-\S+) has (\d+) free (\d+)")


@pytest.fixture(scope="module")
def _cluster() -> Iterator[Layout]:
    private_cluster.remove(ROOT)
    try:
        layout = private_cluster.up(ROOT, (Machine(GPU_MODEL, 2), Machine(GPU_MODEL, 2)))
        for name, libraries in LIBRARIES.items():
            build(layout, f"ranks-{name}", libraries)
        yield layout
    finally:
        if not os.environ.get("HAMI_HPC_KEEP_CLUSTER"):
            private_cluster.remove(ROOT)


@pytest.fixture
def gpus(_cluster: Layout) -> Iterator[Layout]:
    """A cluster of two nodes with two GPUs each. Afterwards they are clean, and no agent found anything."""
    starts = {name: agent.log_size(_cluster, name) for name in services.agents(_cluster)}
    yield _cluster
    jobs.admin(_cluster, "scancel", f"--user={USER}")
    for name in _cluster.gpu_nodes:
        node.wait_until_clean(_cluster.at(name))
        assert not node.drain_reason(_cluster.at(name)), jobs.evidence(_cluster)
    for name, start in starts.items():
        assert agent.events_since(_cluster, start, name) == []


def build(layout: Layout, name: str, libraries: tuple[str, ...]) -> None:
    (headers,) = (CHECKOUT / ".venv/lib").glob("python3*/site-packages/nvidia/cu13/include")
    driver = str(CHECKOUT / "build/native/sim/libcuda.so.1")
    command = ("gcc", "-std=gnu11", "-O2", "-Wall", "-Werror", "-isystem", str(headers), str(SOURCE), driver)
    subprocess.run((*command, *libraries, "-o", str(layout.bin / name)), check=True)


def uuids(layout: Layout, name: str) -> list[str]:
    return [gpu.uuid for gpu in node.gpus(layout.at(name))]


def ranks(layout: Layout, mpi: str, *options: str, job: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Runs the program as a step of a job; returns what its ranks said, by rank: their number, all ranks, the sum, GPU,
    and MiB of memory that it has and that are free."""
    step = f"srun --mpi={mpi} {' '.join(options)} ranks-{mpi} {TAKEN}"
    number = jobs.submit(layout, USER, *job, script=f"{OWN_TMP}\n{step}")
    jobs.wait_for_state(layout, number, "COMPLETED", "FAILED")
    text = jobs.output(layout, USER, number)
    assert jobs.state(layout, number) == "COMPLETED", text
    assert len(LINE.findall(text)) == len(text.splitlines()), text
    return sorted(LINE.findall(text))


@pytest.mark.parametrize("mpi", LIBRARIES)
def test_ranks_in_one_slice_share_its_memory(gpus: Layout, mpi: str) -> None:
    said = ranks(gpus, mpi, job=("-N1", "-n2", "--gres=vgpu:mem=8G,cores=50"))
    assert [one[:3] for one in said] == [("0", "2", "3"), ("1", "2", "3")]
    assert {one[3] for one in said} == {said[0][3]}
    free = 8192 - 2 * (TAKEN + CONTEXT_MIB)
    assert [(int(one[4]), int(one[5])) for one in said] == [(8192, free)] * 2


@pytest.mark.parametrize("mpi", LIBRARIES)
def test_each_rank_has_a_slice_of_its_own(gpus: Layout, mpi: str) -> None:
    said = ranks(gpus, mpi, "--vgpu-bind=single", job=("-N1", "-n2", PAIR))
    assert [one[:3] for one in said] == [("0", "2", "3"), ("1", "2", "3")]
    assert [one[3] for one in said] == uuids(gpus, "node1")
    free = 8192 - TAKEN - CONTEXT_MIB
    assert [(int(one[4]), int(one[5])) for one in said] == [(8192, free)] * 2


def test_ranks_of_two_nodes_have_a_slice_each(gpus: Layout) -> None:
    """Not by PMIx: the directory of its server has one name on all nodes, which here are on one machine."""
    said = ranks(gpus, "pmi2", "--vgpu-bind=single", job=("-N2", "-n4", "--ntasks-per-node=2", PAIR))
    assert [one[:3] for one in said] == [(str(rank), "4", "10") for rank in range(4)]
    assert [one[3] for one in said] == uuids(gpus, "node1") + uuids(gpus, "node2")
    free = 8192 - TAKEN - CONTEXT_MIB
    assert {(int(one[4]), int(one[5])) for one in said} == {(8192, free)}


def test_four_ranks_share_two_slices_two_by_two(gpus: Layout) -> None:
    said = ranks(gpus, "pmix", "--vgpu-bind=single", job=("-N1", "-n4", PAIR))
    assert [one[:3] for one in said] == [(str(rank), "4", "10") for rank in range(4)]
    assert [one[3] for one in said] == uuids(gpus, "node1") * 2
    free = 8192 - 2 * (TAKEN + CONTEXT_MIB)
    assert {(int(one[4]), int(one[5])) for one in said} == {(8192, free)}


def test_ranks_that_want_more_than_their_slice_fail_and_the_job_ends(gpus: Layout) -> None:
    script = f"{OWN_TMP}\nsrun --mpi=pmix ranks-pmix {8192 // 2}; echo ended $?"
    job = jobs.submit(gpus, USER, "-N1", "-n2", "--gres=vgpu:mem=8G,cores=50", script=script)
    jobs.wait_for_state(gpus, job, "COMPLETED", "FAILED", timeout_s=90)
    text = jobs.output(gpus, USER, job)
    assert "ranks: cuMemAlloc failed" in text or "ranks: a context failed" in text, text
    assert not text.endswith("ended 0\n"), text
