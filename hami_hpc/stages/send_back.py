# SPDX-License-Identifier: Apache-2.0
"""Puts a job that the prolog refused back into the queue, with the reason as its AdminComment. Imported only then."""

from __future__ import annotations

import subprocess

from hami_hpc.core.contexts import suppress
from hami_hpc.node import drain
from hami_hpc.slurm import job_shards, placeholders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def requeue(environment: Mapping[str, str], job_id: int, reason: str) -> bool:
    """Requeues the job, which Slurm starts again after about two minutes. Returns whether it was requeued: Slurm does
    so with batch jobs. The node stays in service."""
    scontrol = drain.find_scontrol()
    if scontrol is None:
        return False
    env = placeholders.environment(environment)
    name = job_shards.exact_name(scontrol, env, job_id)
    command = (scontrol, "update", f"JobId={name}", f"AdminComment=hami_hpc: {drain.plain(reason)}")
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(command, env=env, capture_output=True, timeout=placeholders.REQUEUE_TIMEOUT_S, check=False)
    return placeholders.requeue(name, scontrol, env)
