# SPDX-License-Identifier: Apache-2.0
"""Reads what a running vGPU job uses now, on the node where it runs."""

from __future__ import annotations

import os
import stat

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.core.records import Usage, parse_limits
from hami_hpc.errors import HamiError
from hami_hpc.node import job_dirs


def read_running(run_dir: str, job_id: int, now_unix_ns: int) -> tuple[Grant, Usage]:
    """Returns the job's grant and its usage so far. Raises HamiError when the job has no grant on this node, or belongs
    to another user."""
    directory = job_dirs.job_dir(run_dir, job_id)
    grant = _read_grant(f"{directory}/{c.FILE_JOB_LIMITS}")
    if grant is None:
        raise HamiError(
            f"job {job_id} holds no vGPU on this node; to ask the job's node, run: "
            f"srun --jobid={job_id} --overlap --gres=none hami-hpc usage {job_id}"
        )
    usage = job_dirs.read_usage(directory, grant, now_unix_ns)
    if usage.state == "missing":
        raise HamiError(f"only the user of job {job_id} (uid {grant.uid}) and root can read its usage")
    return grant, usage


def read_all_running(run_dir: str, uid: int, now_unix_ns: int) -> list[tuple[Grant, Usage]]:
    """Returns grant and usage of each job of a user on this node, by job id; of all users for root."""
    try:
        names = os.listdir(job_dirs.jobs_dir(run_dir))
    except OSError:  # no job has run here since the node's start
        return []
    found = []
    for job_id in sorted(int(name) for name in names if name.isascii() and name.isdigit()):
        directory = job_dirs.job_dir(run_dir, job_id)
        grant = _read_grant(f"{directory}/{c.FILE_JOB_LIMITS}")
        if grant is not None and uid in (0, grant.uid):
            found.append((grant, job_dirs.read_usage(directory, grant, now_unix_ns)))
    return found


def _read_grant(path: str) -> Grant | None:
    """Returns the job's grant, if root owns the file, as the prolog made it. (A private test cluster runs as root.)"""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            if status.st_uid != 0 or not stat.S_ISREG(status.st_mode):
                return None
            return parse_limits(file.read(c.LIMITS_SIZE + 1))
    except OSError:
        return None
