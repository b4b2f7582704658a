# SPDX-License-Identifier: Apache-2.0
"""Finds jobs that ended with an earlier boot of this node and run for slurmctld all the same.

slurmctld asks what has become of a node's jobs when the node registers, and takes none for lost within 20 s of its own
start (BatchStartTimeout and MessageTimeout). Where controller and node start together, as after a power cut, that
first registration comes too early, and the next one comes within half an hour (20 pings, each SlurmdTimeout / 3).
"""

from __future__ import annotations

from collections.abc import Iterator

from hami_hpc.core.finding import Finding, Level
from hami_hpc.doctor.facts import Check, Facts
from hami_hpc.node import boot
from hami_hpc.slurm import commands, step_pids

TIMEOUT_S = 10.0
STATES = ("RUNNING", "SUSPENDED")
ADVICE = "systemctl restart slurmd: the node registers again, and slurmctld ends those jobs or puts them back"


def check_lost_jobs(facts: Facts) -> Iterator[Finding]:
    """Warns of jobs that began before this boot and have no process here, though Slurm shows them running."""
    booted_s = boot.booted_unix_ns() // 10**9
    rows = [line.split() for line in commands.holding_rows(facts.node, "%A %T %S").splitlines()]
    before = {int(job) for job, state, start in rows if state in STATES and start.isdigit() and int(start) < booted_s}
    if not before:
        return
    pids = step_pids.listed_pids(facts.node, step_pids.run_past_dead_steps, TIMEOUT_S)
    lost = sorted(before - frozenset(pids.values())) if pids is not None else []
    if lost:
        jobs = ", ".join(map(str, lost))
        detail = f"for Slurm job {jobs} still run here, which ended when this node was last shut down"
        yield Finding("jobs of an earlier boot", Level.WARN, detail, ADVICE)


CHECKS: tuple[tuple[str, Check], ...] = (("jobs of an earlier boot", check_lost_jobs),)
