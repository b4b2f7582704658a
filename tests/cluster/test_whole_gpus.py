# SPDX-License-Identifier: Apache-2.0
"""Jobs with whole GPUs beside slices: none starts on a GPU of which another job has a slice.

Slurm before 23.11.5 gives out such a GPU as a whole once one of several slices of it has ended (docs/adr/117).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from harness import config, jobs, node
from harness.layout import Layout
from harness.story import gpu_indices

USER, OTHER = "games", "news"
HALF = "--gres=vgpu:mem=40G,cores=50"
WHOLE = "--gres=gpu:1"
FORGETS = config.slurm_version() < (23, 11, 5)  # who else has slices of a GPU
FORGED_NAME = "--job-name=x\n     Nodes=node1 CPU_IDs=0 Mem=0 GRES="


@pytest.fixture
def cancelled(cluster: Layout) -> Iterator[Layout]:
    yield cluster
    for user in (USER, OTHER):
        jobs.admin(cluster, "scancel", f"--user={user}")
    node.wait_until_clean(cluster)


def running(layout: Layout, user: str, gres: str) -> int:
    job = jobs.submit(layout, user, gres, script="echo on; sleep 300")
    jobs.wait(layout, lambda: "on" in jobs.output(layout, user, job), f"job {job} to run", 60, job)
    return job


@pytest.mark.parametrize("name", ["--job-name=x", FORGED_NAME], ids=["a name", "one like an answer of slurmctld"])
def test_a_gpu_of_which_a_job_has_a_slice_is_no_other_jobs_as_a_whole(cancelled: Layout, name: str) -> None:
    first, second = running(cancelled, USER, HALF), running(cancelled, USER, HALF)
    assert gpu_indices(cancelled, first) == gpu_indices(cancelled, second)
    elsewhere = running(cancelled, OTHER, WHOLE)
    assert gpu_indices(cancelled, elsewhere) != gpu_indices(cancelled, first)
    waiting = jobs.submit(cancelled, OTHER, WHOLE, name, script="echo on; sleep 5")
    jobs.admin(cancelled, "scancel", str(first))
    jobs.wait_for_state(cancelled, first, "CANCELLED")

    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 2))

    def was_tried() -> bool:
        """Whether slurmctld has looked at the job since: it started it and it came back, or it left it alone."""
        facts = jobs.job_facts(cancelled, waiting)
        return facts["JobState"] == "PENDING" and (facts["Restarts"] != "0" or facts["LastSchedEval"] >= since)

    jobs.wait(cancelled, was_tried, "slurmctld to look at the job", 60)
    assert jobs.state(cancelled, second) == "RUNNING"
    assert jobs.output(cancelled, OTHER, waiting) == "", "it has not run"
    assert not node.drain_reason(cancelled)
    if FORGETS:
        facts = jobs.job_facts(cancelled, waiting)
        assert (facts["Restarts"], facts["Reason"]) == ("1", "BeginTime"), "Slurm starts it again after two minutes"
        text = jobs.admin(cancelled, "scontrol", "show", "job", str(waiting))
        assert f"AdminComment=hami_hpc: job {waiting} was given GPU" in text
        return
    jobs.admin(cancelled, "scancel", str(second))
    jobs.wait(cancelled, lambda: "on" in jobs.output(cancelled, OTHER, waiting), "the job to have its GPU", 60, waiting)


def test_an_interactive_job_that_is_given_such_a_gpu_is_told_why(cancelled: Layout) -> None:
    first, second = running(cancelled, USER, HALF), running(cancelled, USER, HALF)
    running(cancelled, OTHER, WHOLE)
    jobs.admin(cancelled, "scancel", str(first))
    jobs.wait_for_state(cancelled, first, "CANCELLED")
    done = jobs.run_as(cancelled, OTHER, ("srun", "--immediate=20", WHOLE, "true"))
    assert done.status != 0
    told = f"of which job {second} has a slice" if FORGETS else "Unable to allocate resources"
    assert told in done.err, done.err
