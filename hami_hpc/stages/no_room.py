# SPDX-License-Identifier: Apache-2.0
"""What the prolog does with a job for whose MIG instance its GPU has no place. Imported only then."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import suppress

from hami_hpc.node import mig_notes
from hami_hpc.node.config import Settings
from hami_hpc.node.drain import find_scontrol, plain
from hami_hpc.slurm import placeholders


def send_back(settings: Settings, environment: Mapping[str, str], job_id: int, reason: str) -> bool:
    """Requeues the job, which Slurm starts again after about two minutes, with the reason as its AdminComment. Returns
    whether it was requeued. The node stays in service."""
    mig_notes.count_no_room(settings.run_dir)
    scontrol = find_scontrol()
    if scontrol is None:
        return False
    env = placeholders.environment(environment)
    command = (scontrol, "update", f"JobId={job_id}", f"AdminComment=hami_hpc: {plain(reason)}")
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(command, env=env, capture_output=True, timeout=placeholders.REQUEUE_TIMEOUT_S, check=False)
    return placeholders.requeue(job_id, scontrol, env)
