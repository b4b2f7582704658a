# SPDX-License-Identifier: Apache-2.0
"""Finds jobs that run for slurmctld and not here: those that ended with an earlier boot of this node, and vGPU jobs
without a slice.

slurmctld asks what has become of a node's jobs when the node registers, and takes none for lost within 20 s of its own
start (BatchStartTimeout and MessageTimeout). Where controller and node start together, as after a power cut, that
first registration comes too early, and the next one comes within half an hour (20 pings, each SlurmdTimeout / 3).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from hami_hpc.contract import constants as c
from hami_hpc.core.finding import Finding, Level
from hami_hpc.doctor.facts import Check, Facts
from hami_hpc.node import boot, job_dirs
from hami_hpc.slurm import commands, step_pids

TIMEOUT_S = 10.0
STATES = ("RUNNING", "SUSPENDED")
PROLOG_S = 300  # a prolog that asks a slurmctld which does not answer takes so long
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


def check_jobs_without_slices(facts: Facts) -> Iterator[Finding]:
    """Warns of vGPU jobs that began in this boot, and whose prolog neither granted a slice nor refused one."""
    since_s, until_s = boot.booted_unix_ns() // 10**9, int(time.time()) - PROLOG_S
    rows = [line.split() for line in commands.holding_rows(facts.node, "%A %T %S %b").splitlines()]
    without = []
    for job, state, start, gres in (row for row in rows if len(row) == 4):
        is_due = state in STATES and start.isdigit() and since_s <= int(start) < until_s
        if (
            is_due
            and asks_for_a_slice(gres)
            and not os.path.lexists(job_dirs.job_dir(facts.settings.run_dir, int(job)))
        ):
            without.append(int(job))
    if without:
        jobs = ", ".join(map(str, sorted(without)))
        detail = f"for Slurm job {jobs} run here with a vGPU and have no slice: their steps are refused"
        advice = f"put them back into the queue, or cancel them, for example: scontrol requeue {min(without)}"
        yield Finding("jobs without a slice", Level.WARN, detail, advice)


def asks_for_a_slice(gres: str) -> bool:
    """Returns whether a job asked for a slice, from squeue's %b: gres:shard:279,gres:vgpu:std:1."""
    kinds = {word.replace("/", ":").removeprefix("gres:").split(":")[0] for word in gres.split(",")}
    return c.GRES_CLASS in kinds


CHECKS: tuple[tuple[str, Check], ...] = (
    ("jobs of an earlier boot", check_lost_jobs),
    ("jobs without a slice", check_jobs_without_slices),
)
