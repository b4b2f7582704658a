# SPDX-License-Identifier: Apache-2.0
"""Puts a job that the prolog refused back into the queue, with the reason as its AdminComment. Imported only then."""

from __future__ import annotations

import subprocess

from hami_hpc.core.contexts import suppress
from hami_hpc.errors import NodeError
from hami_hpc.node import drain
from hami_hpc.slurm import job_shards, placeholders
from hami_hpc.stages import common

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def requeue(environment: Mapping[str, str], job_id: int, reason: str) -> bool:
    """Requeues the job, which Slurm starts again after about two minutes. Returns whether it was requeued: Slurm does
    so with batch jobs. The node stays in service."""
    scontrol = drain.find_scontrol()
    name = "" if scontrol is None else name_of(environment, job_id, scontrol)
    if scontrol is None or not name:
        return False
    env = placeholders.environment(environment)
    command = (scontrol, "update", f"JobId={name}", f"AdminComment=hami_hpc: {drain.plain(reason)}")
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(command, env=env, capture_output=True, timeout=placeholders.REQUEUE_TIMEOUT_S, check=False)
    return placeholders.requeue(name, scontrol, env)


def name_of(environment: Mapping[str, str], job_id: int, scontrol: str) -> str:
    """Returns what names exactly this job to scontrol; "", after a report, where nobody says it: its id may name
    running tasks of its array."""
    try:
        return job_shards.exact_name(scontrol, placeholders.environment(environment), job_id)
    except NodeError as error:
        common.report("prolog", f"job {job_id} is not requeued: {error}")
        return ""
