# SPDX-License-Identifier: Apache-2.0
"""Lets the memory of jobs come back that Slurm has resumed while slurmd, killed at that moment, did not say so; and
orders what a suspension of which the job's step got no signal should have moved."""

from __future__ import annotations

from collections.abc import Callable

from hami_hpc.agent.repeated import Repeated
from hami_hpc.node.config import Settings
from hami_hpc.slurm import commands
from hami_hpc.stages import suspend

PERIOD_S = 60.0


def make(settings: Settings, node: str, report: Callable[[str], None]) -> Repeated:
    """Returns the work. It asks slurmctld only while the memory of a suspended job is on the host, or a job has got
    SIGTSTP without being suspended."""

    def ask() -> frozenset[int]:
        return commands.suspended_jobs(node)

    def look() -> str:
        for job_id in suspend.forgotten(settings, ask):
            if line := suspend.resume(settings, job_id):
                report(line)
        for job_id in suspend.unheard(settings, ask):
            if line := suspend.order_unheard(settings, job_id):
                report(line)
        return ""

    return Repeated("memory of resumed jobs", PERIOD_S, look, report)
