# SPDX-License-Identifier: Apache-2.0
"""Ends what is left of jobs that slurmctld took off this node without an epilog, and finishes what epilogs left on a
full disk.

slurmctld does so with a job that goes on without a node that was down (--no-kill). Its slice would keep its memory from
the next jobs there, and count as a tenant of the GPU. Usage records that wait would be lost by a reboot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hami_hpc.agent.repeated import Repeated
from hami_hpc.core.reconcile_plan import Kind
from hami_hpc.node import job_dirs, usage_spool
from hami_hpc.node.config import Settings
from hami_hpc.slurm import commands
from hami_hpc.stages.reconcile import reconcile

PERIOD_S = 300.0
ListedPids = Callable[[], Mapping[int, int] | None]


def make(settings: Settings, node: str, listed_pids: ListedPids, report: Callable[[str], None]) -> Repeated:
    """Returns the work of ending them. `listed_pids` is as SlurmPort's."""
    idle: frozenset[int] = frozenset()

    def look() -> str:
        """Reconciles when a job with a directory has no step here, and had none the last time: a job may wait for its
        first step, or run on its other nodes. Also when usage waits for a disk with room."""
        nonlocal idle
        before, idle = idle, _without_step(settings, listed_pids)
        is_due = before & idle or _usage_waits(settings)
        return _reconcile(settings, node, report) if is_due else ""

    return Repeated("jobs that left this node", PERIOD_S, look, report)


def _without_step(settings: Settings, listed_pids: ListedPids) -> frozenset[int]:
    """Returns the jobs with a directory here and no process of a step; none where that is not known."""
    names = job_dirs.entries(settings.run_dir)
    jobs = frozenset(int(name) for name in names if name.isascii() and name.isdigit())
    pids = listed_pids() if jobs else None
    return frozenset() if pids is None else jobs - frozenset(pids.values())


def _usage_waits(settings: Settings) -> bool:
    """Returns whether an epilog could not write a record to the spool, or set a directory aside."""
    names = job_dirs.entries(settings.run_dir)
    return bool(usage_spool.waiting(settings.run_dir)) or any(name.startswith(job_dirs.ENDED) for name in names)


def _reconcile(settings: Settings, node: str, report: Callable[[str], None]) -> str:
    """Returns what could not be done."""
    problems = []
    for result in reconcile(settings, lambda: commands.running_jobs(node), dry_run=False):
        if result.error or result.action.kind is Kind.PROBLEM:
            problems.append(result.action.text + (f": {result.error}" if result.error else ""))
        else:
            report(result.action.text)
    return "; ".join(problems)
