# SPDX-License-Identifier: Apache-2.0
"""Which requests give equal slices on several GPUs of a node, on the Slurm at hand (docs/adr/055-several-gpus.md).

Shards here are Slurm's own, 100 for each GPU. How it is run: live_week.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import bare_slurm
import pytest
from harness import accounts, config, jobs
from harness import cluster as private_cluster
from harness.layout import CHECKOUT, Layout

ROOT = CHECKOUT / "build" / "versions-several"
HERE = f"--nodelist={config.NODE}"
PAIR = ("--gres=shard:a:60,shard:b:60", HERE)
since_23_11 = pytest.mark.skipif(config.slurm_release() < (23, 11), reason="no MULTIPLE_SHARING_GRES_PJ before 23.11")
EACH_ALONE = ("--ntasks=2", "--nodes=1", "--gres-flags=one-task-per-sharing", HERE)


@pytest.fixture(scope="module")
def _typed() -> Iterator[Layout]:
    with bare_slurm.running(ROOT, ("a", "a", "b", "b"), nodes=2) as layout:
        yield layout


@pytest.fixture
def typed(_typed: Layout) -> Iterator[Layout]:
    """Two nodes of four GPUs, of which two have the type a and two the type b."""
    yield _typed
    cancel_all(_typed)


@pytest.fixture(scope="module")
def _spreading() -> Iterator[Layout]:
    with bare_slurm.running(ROOT, ("", ""), ",MULTIPLE_SHARING_GRES_PJ") as layout:
        yield layout


@pytest.fixture
def spreading(_spreading: Layout) -> Iterator[Layout]:
    """A node of two GPUs on a Slurm that may give a job shards of several."""
    yield _spreading
    cancel_all(_spreading)


def cancel_all(layout: Layout) -> None:
    for user in ("root", *accounts.USERS):
        jobs.admin(layout, "scancel", f"--user={user}")
    jobs.wait(layout, lambda: not jobs.admin(layout, "squeue", "-h"), "all jobs to be gone", 60)


def submit(layout: Layout, *options: str, script: str = "sleep 300") -> int:
    return jobs.submit(layout, "games", "--time=30", *options, script=script)


def started(layout: Layout, *options: str) -> int:
    job = submit(layout, *options)
    jobs.wait_for_state(layout, job, "RUNNING")
    return job


def waits(layout: Layout, *options: str) -> bool:
    """Submits a job; returns once Slurm has tried to start it and could not. Raises ClusterError if it starts."""
    job = submit(layout, *options)
    reasons = ("Resources", "Priority")  # Priority: behind one that waits as well

    def is_tried() -> bool:
        facts = jobs.job_facts(layout, job)
        return facts["Reason"] in reasons or facts["StartTime"] != "Unknown"  # 23.11 keeps the reason of before

    jobs.wait(layout, is_tried, "Slurm to try the job", 30, job)
    return jobs.state(layout, job) == "PENDING"


def shards(layout: Layout, job: int) -> list[dict[int, int]]:
    """Returns, for each line about nodes of a running job, its shards by GPU: `shard:a:60(IDX:0)` on 22.05, later
    `shard:a:60(60/100,0/100)`. A GPU without any is left out."""
    nodes = []
    for gres in re.findall(r"\bGRES=(\S+)", jobs.admin(layout, "scontrol", "show", "job", "-d", str(job))):
        held: dict[int, int] = {}
        for count, where in re.findall(r"shard(?::\w+)?:(\d+)\((?:IDX:)?([\d/,-]*)\)", gres):
            parts = where.split(",")
            if "/" in where:
                held |= {index: int(part.split("/")[0]) for index, part in enumerate(parts) if part[:2] != "0/"}
            elif where:
                held[int(where)] = int(count)  # ValueError for several GPUs: 22.05 does not say how many on each
        nodes.append(held)
    return nodes


def gpus_of_prolog(layout: Layout, job: int) -> str:
    """Returns SLURM_JOB_GPUS as the prolog on the first node got it."""
    (line,) = re.findall(r"^SLURM_JOB_GPUS=(.*)$", (layout.root / f"prolog.{job}").read_text(), re.MULTILINE)
    return str(line)


def test_one_slice_of_each_type_lies_on_two_gpus_and_both_are_equal(typed: Layout) -> None:
    first, second = started(typed, *PAIR), started(typed, *PAIR)
    assert shards(typed, first) == [{0: 60, 2: 60}]
    assert shards(typed, second) == [{1: 60, 3: 60}]
    assert waits(typed, *PAIR)  # each GPU has 40 left


def test_a_restart_of_the_controller_changes_no_slice(typed: Layout) -> None:
    running = [started(typed, *PAIR), started(typed, *PAIR)]
    waiting = submit(typed, *PAIR)
    private_cluster.restart(typed, "slurmctld")
    assert [shards(typed, job) for job in running] == [[{0: 60, 2: 60}], [{1: 60, 3: 60}]]
    assert waits(typed, *PAIR)
    jobs.admin(typed, "scancel", str(running[0]))
    jobs.wait_for_state(typed, waiting, "RUNNING")
    assert shards(typed, waiting) == [{0: 60, 2: 60}]


def test_a_prolog_is_told_the_gpu_of_the_last_type_alone(typed: Layout) -> None:
    job = submit(typed, *PAIR, script="echo $SLURM_JOB_GPUS")
    jobs.wait_for_state(typed, job, "COMPLETED")
    assert gpus_of_prolog(typed, job) == "2"
    assert jobs.output(typed, "games", job) == "0,2\n"


@pytest.mark.parametrize("request_", ["shard:30", "shard:30,shard:30"])
def test_without_types_a_job_has_one_gpu_however_it_asks(typed: Layout, request_: str) -> None:
    job = started(typed, f"--gres={request_}", "--ntasks-per-node=2", HERE)
    assert [list(held.values()) for held in shards(typed, job)] == [[30]]
    assert waits(typed, "--gres=shard:120", HERE)


def test_each_node_of_a_job_has_a_slice_of_each_type(typed: Layout) -> None:
    job = started(typed, "--gres=shard:a:30,shard:b:30", "--nodes=2")
    assert {tuple(held.items()) for held in shards(typed, job)} == {((0, 30), (2, 30))}
    assert jobs.job_facts(typed, job)["TRES"].endswith("gres/shard=120")


def test_a_slice_with_a_type_is_not_spread_over_the_gpus_of_that_type(typed: Layout) -> None:
    for _ in range(2):
        started(typed, "--gres=shard:a:60", HERE)
    assert waits(typed, "--gres=shard:a:70,shard:b:10", HERE)  # 40 + 40 of type a are free


def test_slices_without_a_type_and_whole_gpus_run_beside_them(typed: Layout) -> None:
    started(typed, *PAIR)
    started(typed, "--gres=gpu:1", HERE)
    (held,) = shards(typed, started(typed, "--gres=shard:70", HERE))
    assert list(held.values()) == [70]
    assert waits(typed, "--gres=shard:70", HERE)  # 40 + 40 + 30 are free


def test_a_step_has_the_types_that_it_asks_for(typed: Layout) -> None:
    show = "sh -c 'echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES'"
    script = f"srun -n2 {show} | sort\nsrun -n1 --gres=shard:a:10 {show}\nsrun -n1 --gres=shard:b:10 {show}"
    job = submit(typed, *PAIR, "--ntasks=2", script=script)
    jobs.wait_for_state(typed, job, "COMPLETED")
    # Each task of a step sees all of the step's GPUs; a step of one type sees one GPU. It may wait for the one before.
    seen = [line for line in jobs.output(typed, "games", job).splitlines() if not line.startswith("srun: ")]
    assert seen == ["0 0,2", "1 0,2", "0 0", "0 2"]


@since_23_11
def test_one_task_per_sharing_gives_each_task_as_much_on_a_gpu_of_its_own(spreading: Layout) -> None:
    job = started(spreading, "--tres-per-task=gres/shard:30", *EACH_ALONE)
    assert shards(spreading, job) == [{0: 30, 1: 30}]
    assert gpus_of_prolog(spreading, job) == "0,1"
    started(spreading, "--gres=shard:60", HERE)
    assert waits(spreading, "--tres-per-task=gres/shard:30", *EACH_ALONE)  # 10 and 70 are free


@since_23_11
def test_but_then_a_single_slice_is_spread_as_well(spreading: Layout) -> None:
    started(spreading, "--tres-per-task=gres/shard:50", *EACH_ALONE)
    assert shards(spreading, started(spreading, "--gres=shard:80", HERE)) == [{0: 50, 1: 30}]
    cancel_all(spreading)
    assert shards(spreading, started(spreading, "--gres=shard:120", HERE)) == [{0: 100, 1: 20}]


@since_23_11
def test_and_without_it_two_slices_lie_on_one_gpu(spreading: Layout) -> None:
    assert shards(spreading, started(spreading, "--gres=shard:60", HERE)) == [{0: 60}]
    assert shards(spreading, started(spreading, "--tres-per-task=gres/shard:20", "--ntasks=2", HERE)) == [{0: 40}]
