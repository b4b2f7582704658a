# SPDX-License-Identifier: Apache-2.0
"""A requeued job that starts again at once: slurmd 22.05 takes it for its own last run and runs no prolog (ADR 018)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from harness import jobs, node
from harness.layout import Layout

USER = "games"
REQUEST = "--gres=vgpu:mem=1G,cores=5"


@contextmanager
def busy_node(layout: Layout) -> Iterator[None]:
    """Steps of another job start on the node all the time; slurmd then clears no ended jobs out of its memory."""
    holder = jobs.submit(layout, USER, script="sleep 120")
    jobs.wait_for_state(layout, holder, "RUNNING")
    ended = threading.Event()

    def start_steps() -> None:
        while not ended.is_set():
            jobs.run_as(layout, USER, ("srun", f"--jobid={holder}", "--overlap", "-n1", "true"))

    thread = threading.Thread(target=start_steps)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        jobs.admin(layout, "scancel", str(holder))


def restart(layout: Layout, job: int, restarts: int) -> None:
    """Lets a pending job start now, whatever Slurm has planned; waits until it has."""
    jobs.admin(layout, "scontrol", "update", f"jobid={job}", "starttime=now")

    def has_run() -> bool:
        facts = jobs.job_facts(layout, job)
        seen = int(facts["Restarts"])
        return seen > restarts or (seen == restarts and facts["JobState"] != "PENDING")  # it may be back by now

    jobs.wait(layout, has_run, f"job {job} to start again", 30, job)


def requeued_at_once(layout: Layout) -> int | None:
    """Requeues a job that starts again at once; returns it when it is put back. None: slurmd, on a loaded machine, had
    cleared its memory before, and the job has run."""
    job = jobs.submit(
        layout, USER, REQUEST, script='echo run $SLURM_RESTART_COUNT; [ -n "$SLURM_RESTART_COUNT" ] || sleep 60'
    )
    jobs.wait(layout, lambda: "run" in jobs.output(layout, USER, job), "the first run", 30, job)
    with busy_node(layout):
        jobs.admin(layout, "scontrol", "requeue", str(job))
        jobs.wait(layout, lambda: jobs.state(layout, job) == "PENDING", "the job to be requeued", 30, job)
        time.sleep(1.5)  # slurmctld itself ends a job that starts in the very second in which it was requeued
        restart(layout, job, 1)
        is_over = ("PENDING", "COMPLETED")
        jobs.wait(layout, lambda: jobs.state(layout, job) in is_over, "the job to be put back, or to run", 30, job)
    return job if jobs.state(layout, job) == "PENDING" else None


@pytest.mark.slurm_before("23.02")  # later ones run the prolog of every run
def test_a_requeued_job_that_slurmd_takes_for_its_last_run_is_put_back_and_runs(cluster: Layout) -> None:
    job = next((job for job in (requeued_at_once(cluster) for _ in range(6)) if job is not None), None)
    assert job is not None, "slurmd forgot the job's last run six times"
    text = jobs.output(cluster, USER, job)
    assert "It is requeued and starts again after two minutes" in text
    assert "run 1" not in text
    assert not node.drain_reason(cluster)
    assert not node.grants(cluster)
    time.sleep(3)  # the node is quiet, so slurmd clears its memory when it hears of the job again
    restart(cluster, job, 2)
    jobs.wait_for_state(cluster, job, "COMPLETED")
    assert jobs.output(cluster, USER, job).startswith("run 2\n")
