# SPDX-License-Identifier: Apache-2.0
"""Jobs that Slurm suspends and resumes faster than slurmd can: it takes the orders that wait in any order, and a step
that is stopped, or runs, gets no signal of one more of the same kind. The watch and the agent ask slurmctld."""

from __future__ import annotations

import time

from harness import jobs
from harness.layout import Layout
from test_resize_live import end, running
from test_suspend_live import USING, go, order
from test_swap_live import BE, allocated, moving

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
