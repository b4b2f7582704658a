# SPDX-License-Identifier: Apache-2.0
"""Directories of ended jobs in `jobs/`: set aside until their usage can be spooled, or for an administrator."""

from __future__ import annotations

import os
import time

from hami_hpc.core.contexts import suppress
from hami_hpc.core.grant import Grant
from hami_hpc.node.job_dirs import BAD, ENDED, explained, job_dir, jobs_dir, read_grant, remove

TYPE_CHECKING = False  # the epilog imports this, and not typing: docs/adr/021
if TYPE_CHECKING:
    from hami_hpc.core.gpu_jobs import GpuJob


def ended_dir(run_dir: str, grant: Grant | GpuJob) -> str:
    """Returns the path where an ended job's directory waits for reconcile when its usage could not be spooled."""
    return f"{jobs_dir(run_dir)}/{ENDED}{grant.job_id}-{grant.created_unix_ns}"


def set_aside(run_dir: str, grant: Grant | GpuJob) -> None:
    """Renames an ended job's directory to the name under which reconcile looks for its usage."""
    what = f"setting aside the run directory of job {grant.job_id}"
    with explained(what), suppress(FileNotFoundError):  # it does not exist, or was set aside before
        os.rename(job_dir(run_dir, grant.job_id), ended_dir(run_dir, grant))


def set_bad(run_dir: str, name: str) -> str:
    """Renames an entry of `jobs/` that cannot be handled, so that it is not tried again. Returns its new name."""
    bad = f"{BAD}{name.lstrip('.')}-{time.time_ns()}"
    with explained(f"setting aside {name}"), suppress(FileNotFoundError):
        os.rename(f"{jobs_dir(run_dir)}/{name}", f"{jobs_dir(run_dir)}/{bad}")
    return bad


def ended_unix_ns(directory: str) -> int:
    """Returns when a directory was set aside: the rename was the last change of its inode's ctime."""
    return os.stat(directory).st_ctime_ns


def remove_grant(run_dir: str, grant: Grant) -> None:
    """Removes the directory of a grant's job. Keeps that of a newer run of the same job id."""
    directory = job_dir(run_dir, grant.job_id)
    present = read_grant(directory)
    if present is None or present.created_unix_ns == grant.created_unix_ns:
        remove(run_dir, directory)
