# SPDX-License-Identifier: Apache-2.0
"""The SLUIDs of a node's jobs. Since 26.05 Slurm names a job's cgroup of version 2 by it, unless CgroupJobIdPaths is
set; by it a session of pam_slurm_adopt finds its job (docs/adr/101), and the agent that of a process."""

from __future__ import annotations

from hami_hpc.contract import constants as c
from hami_hpc.errors import NodeError
from hami_hpc.node import job_dirs

MOST_BYTES = 64


def note(run_dir: str, job_id: int, sluid: str) -> None:
    """Notes the job's SLUID in its directory. Raises NodeError where it cannot."""
    directory = job_dirs.job_dir(run_dir, job_id)
    if not job_dirs.give_file(directory, c.FILE_SLUID, sluid.encode() + b"\n"):
        raise NodeError(f"{directory}/{c.FILE_SLUID} cannot be written: without it sessions by ssh are not limited")


def jobs_by_sluid(run_dir: str) -> dict[str, int]:
    """Returns the jobs that root noted a SLUID of."""
    found = {}
    for name in job_dirs.entries(run_dir):
        text = job_dirs.read_bounded(f"{job_dirs.jobs_dir(run_dir)}/{name}/{c.FILE_SLUID}", MOST_BYTES, 0)
        sluid = (text or b"").decode("ascii", "replace").strip()
        if sluid.isalnum() and name.isdigit():
            found[sluid] = int(name)
    return found
