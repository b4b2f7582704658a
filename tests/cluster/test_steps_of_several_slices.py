# SPDX-License-Identifier: Apache-2.0
"""Steps of some of a job's four slices that run at once: each finds GPUs that no other has (docs/adr/055)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest
from harness import cluster as private_cluster
from harness import jobs, node
from harness.config import GPU_MODEL
from harness.layout import CHECKOUT, Layout, Machine

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
ROOT = CHECKOUT / f".cluster-test-steps-{WORKER}"
USER = "games"
WAITED = "srun: Step created for "  # what srun says once it has waited
FOUR = "--gres=vgpu:4:mem=8G,cores=50"


@pytest.fixture(scope="module")
def _four() -> Iterator[Layout]:
    private_cluster.remove(ROOT)
    try:
        yield private_cluster.up(ROOT, (Machine(GPU_MODEL, 4),))
    finally:
        if not os.environ.get("HAMI_HPC_KEEP_CLUSTER"):
            private_cluster.remove(ROOT)


@pytest.fixture
def four(_four: Layout) -> Iterator[Layout]:
    """A cluster whose node has four GPUs, each of a type of its own."""
    yield _four
    jobs.admin(_four, "scancel", f"--user={USER}")
    node.wait_until_clean(_four)
    assert not node.drain_reason(_four), jobs.evidence(_four)


def step(count: int, seconds: float, name: str) -> str:
    """A step that prints its name and GPUs, and for how many slices it has memory, and ends after so long."""
    show = f"echo {name} $CUDA_VISIBLE_DEVICES $HAMI_HPC_VGPU $HAMI_HPC_MEM_MIB; sleep {seconds}"
    return f"srun -n1 --exact --gres=vgpu:{count} sh -c '{show}'"


def output(layout: Layout, script: str) -> list[str]:
    job = jobs.submit(layout, USER, FOUR, "--ntasks=4", script=script)
    jobs.wait_for_state(layout, job, "COMPLETED", "FAILED", timeout_s=120)
    return jobs.whole_output(layout, USER, job).splitlines()


def gpus(lines: list[str], name: str) -> list[str]:
    return [line.split()[1] for line in lines if line.startswith(f"{name} ")]


def test_two_steps_of_two_slices_at_once_want_different_gpus(four: Layout) -> None:
    """But where the machine is so busy that the first shell has not become srun when the second one looks for it."""
    both = f"{step(2, 2, 'one')} & {step(2, 2, 'two')} & wait\n"
    lines = output(four, both * 4)
    assert len([line for line in lines if WAITED in line]) <= 1, lines
    held = Counter(line for line in lines if not line.startswith("srun: "))
    assert min(held["one 2,3 2 16384"], held["two 0,1 2 16384"]) >= 3, lines


def test_a_step_takes_what_the_running_ones_leave(four: Layout) -> None:
    first = f"({step(2, 6, 'first')}) & sleep 2; {step(2, 0, 'second')}; {step(2, 0, 'third')}; wait"
    lines = output(four, first)
    assert [gpus(lines, name) for name in ("first", "second", "third")] == [["2,3"], ["0,1"], ["0,1"]], lines


def test_steps_of_one_slice_and_of_several_run_side_by_side(four: Layout) -> None:
    script = f"{step(1, 4, 'one')} & {step(1, 4, 'other')} & {step(2, 4, 'pair')} & wait; {step(3, 0, 'three')}"
    lines = output(four, script)
    assert not [line for line in lines if line.startswith("srun:")], lines
    assert gpus(lines, "pair") == ["2,3"]
    assert sorted(gpus(lines, "one") + gpus(lines, "other")) == ["0", "1"]
    assert gpus(lines, "three") == ["1,2,3"]


def test_a_third_pair_waits_until_its_gpus_are_free(four: Layout) -> None:
    pairs = " & ".join(step(2, 2, name) for name in ("one", "two", "three"))
    lines = output(four, f"{pairs} & wait")
    held = [line for line in lines if not line.startswith("srun:")]
    assert (len(held), {line.split()[1] for line in held}) == (3, {"0,1", "2,3"}), lines
    assert WAITED in " ".join(lines)
