# SPDX-License-Identifier: Apache-2.0
"""What the prolog does when slices that the ledger knows leave no room for a job that slurmctld put here. Imported only
then.

slurmctld can take a job off a node without an epilog there: of a job with --no-kill, a node that was down and came
back. Its slice stays in the ledger until `hami-hpc reconcile`, so the prolog reconciles first.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from hami_hpc.core.reconcile_plan import Kind
from hami_hpc.errors import NodeError
from hami_hpc.node import drain
from hami_hpc.node.config import Settings
from hami_hpc.slurm import commands, placeholders
from hami_hpc.stages import common
from hami_hpc.stages.reconcile import reconcile

ANSWER_S = 10.0  # a prolog waits for it


def of_gone_jobs(settings: Settings, environment: Mapping[str, str]) -> bool:
    """Reconciles where a job has a slice here that slurmctld does not have on this node any more, and reports what that
    did. Returns whether a slice is free now. Raises NodeError when the ledger or the run directory cannot be read."""
    node = environment.get("SLURMD_NODENAME", "")
    if not node:
        return False  # slurmd did not start this process
    held = {grant.job_id for grant in common.held_grants(settings)}
    try:
        gone = held - _running_jobs(node, environment)
    except NodeError as error:
        common.report("prolog", f"which jobs run here is not known: {error}")
        return False
    if not gone:
        return False
    freed = False
    for result in reconcile(settings, lambda: _running_jobs(node, environment), dry_run=False):
        if result.action.kind is not Kind.PROBLEM:
            common.report("prolog", result.action.text + (f": {result.error}" if result.error else ""))
            freed = freed or (result.action.kind is Kind.END and not result.error)
    return freed


def _running_jobs(node: str, environment: Mapping[str, str]) -> frozenset[int]:
    """Returns the ids of the jobs that hold resources on this node. Raises NodeError when slurmctld does not say so."""
    scontrol = drain.find_scontrol()
    if scontrol is None:
        raise NodeError("scontrol was not found")
    env = placeholders.environment(environment)
    command = (f"{scontrol.rpartition('/')[0]}/squeue", *commands.holding_options(node), "--format=%A")
    try:
        done = subprocess.run(command, env=env, capture_output=True, timeout=ANSWER_S, check=True, cwd="/")
        return frozenset(int(word) for word in done.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise NodeError(f"squeue --nodelist={node}: {error}") from error
