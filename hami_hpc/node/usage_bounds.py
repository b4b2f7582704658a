# SPDX-License-Identifier: Apache-2.0
"""Whether the usage files of jobs are bounded, as job_dirs.py makes them. For the doctor."""

from __future__ import annotations

import os

from hami_hpc.contract import constants as c
from hami_hpc.node import mounts
from hami_hpc.node.job_dirs import SHARED, entries, jobs_dir


def unbounded_usage(run_dir: str) -> str | None:
    """Returns why a user can fill the run directory with a usage file; None when nobody can. Changes nothing.

    Checks the directories of the node's present jobs, and whether this process can mount.
    """
    jobs = jobs_dir(run_dir)
    if (obstacle := mounts.obstacle()) is not None:
        return f"no tmpfs can be mounted here: {obstacle}"
    names = [
        name for name in entries(run_dir) if name.isdigit() and os.path.lexists(f"{jobs}/{name}/{c.FILE_JOB_LIMITS}")
    ]
    unbounded = [name for name in names if not mounts.is_mount_point(f"{jobs}/{name}/{SHARED}")]
    if unbounded:
        return f"the usage file of job {', '.join(unbounded[:8])} has no tmpfs of its own; see syslog"
    if os.path.isdir(jobs) and mounts.is_mount_point(jobs) and mounts.propagates(jobs):
        return (
            f"mounts below {jobs} also appear elsewhere, where a user can stop them. Run: mount --make-private {jobs}"
        )
    return None
