# SPDX-License-Identifier: Apache-2.0
"""Orders and signals that cross: a user who sends SIGCONT himself, and jobs that Slurm suspends and resumes faster than
slurmd can. It takes the orders that wait in any order, and a step that is stopped, or runs, gets no signal of one more
of the same kind. The watch and the agent ask slurmctld."""

from __future__ import annotations

import time

import pytest
from harness import jobs
from harness.layout import Layout
from test_resize_live import USER, end, running
from test_suspend_live import MIB, USING, go, is_again, is_at_most, order, state_of
from test_swap_live import BE, allocated, moving, used_mib

from hami_hpc.contract import constants as c
from hami_hpc.node import swapped

__all__ = ["moving"]

STILL_S = 12.0  # longer than until the watch has asked


def says(layout: Layout, job: int, wanted: int) -> None:
    """Waits until the job's record says that, and goes on to."""

    def is_so() -> bool:
        begun = time.monotonic()
        while swapped.order_of(str(layout.run_dir), job) == wanted:
            if time.monotonic() - begun > STILL_S:
                return True
            time.sleep(0.1)
        return False

    jobs.wait(layout, is_so, f"the record to say {wanted}")


def test_after_any_sequence_of_orders_the_record_says_what_slurm_says(moving: Layout) -> None:
    """The last suspension finds the step stopped by one of those before, and a resume of those before may follow."""
    job = running(moving, USING, *BE)
    allocated(moving, job)
    for _ in range(5):
        order(moving, "suspend", job)
        order(moving, "resume", job)
    time.sleep(8)  # slurmd needs two seconds for each suspension, and is at one of the last
    order(moving, "suspend", job)
    jobs.wait_for_state(moving, job, "SUSPENDED")
    says(moving, job, c.SWAP_SUSPENDED)
    order(moving, "resume", job)
    says(moving, job, c.SWAP_IN)
    go(moving)
    end(moving, job)


@pytest.mark.parametrize("way", ["kill -s CONT $srun", "scancel --signal=CONT $SLURM_JOB_ID"])
def test_sigcont_of_the_jobs_user_before_slurm_stops_it_brings_no_memory_back(way: str, moving: Layout) -> None:
    """The script answers SIGTSTP by sending SIGCONT to its own step."""
    script = f"""rm -f go
srun -n1 --overlap slice --use {MIB} --until go & srun=$!
trap 'sleep 0.3; {way} 2>&1; echo sent' TSTP
until wait; do :; done"""
    job = running(moving, script, *BE)
    allocated(moving, job)
    held = used_mib(moving)
    order(moving, "suspend", job)
    jobs.wait(moving, lambda: set(state_of(job, moving)) == {"T"}, "all programs to be stopped")
    is_at_most(moving, held - MIB)
    time.sleep(11)
    assert used_mib(moving) <= held - MIB
    order(moving, "resume", job)
    is_again(moving, held)
    jobs.wait(moving, lambda: "sent" in jobs.output(moving, USER, job), "the signal to be sent")
    go(moving)
    end(moving, job)
