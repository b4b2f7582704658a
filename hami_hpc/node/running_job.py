# SPDX-License-Identifier: Apache-2.0
"""Reads what a running vGPU job uses now, on the node where it runs."""

from __future__ import annotations

import os

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.core.reconcile_plan import OF_ANOTHER_VERSION
from hami_hpc.core.records import Usage, limits_file
from hami_hpc.errors import HamiError
from hami_hpc.node import history_file, job_dirs, usage_files


def read_running(run_dir: str, job_id: int, now_unix_ns: int) -> list[tuple[Grant, Usage]]:
    """Returns the grant and the usage so far of each slice of the job. Raises HamiError when the job has no grant on
    this node, or belongs to another user."""
    directory = job_dirs.job_dir(run_dir, job_id)
    grants = job_dirs.read_grants(directory, owner=0)
    if not grants and job_dirs.is_foreign(directory, owner=0):
        raise HamiError(f"job {job_id}: {OF_ANOTHER_VERSION}")
    if not grants:
        raise HamiError(
            f"job {job_id} holds no vGPU on this node; to ask the job's node, run: "
            f"srun --jobid={job_id} --overlap --gres=none hami-hpc usage {job_id}"
        )
    now_unix_ns = history_file.end_unix_ns(directory, grants[0].created_unix_ns, now_unix_ns)
    slices = [(grant, usage_files.read_usage(directory, grant, now_unix_ns)) for grant in grants]
    if all(usage.state == "missing" for _, usage in slices):
        raise HamiError(f"only the user of job {job_id} (uid {grants[0].uid}) and root can read its usage")
    return slices


def read_all_running(run_dir: str, uid: int, now_unix_ns: int) -> list[tuple[Grant, Usage]]:
    """Returns grant and usage of each slice of a user's jobs on this node, by job id; of all users for root."""
    try:
        names = os.listdir(job_dirs.jobs_dir(run_dir))
    except OSError:  # no job has run here since the node's start
        return []
    found = []
    for job_id in sorted(int(name) for name in names if name.isascii() and name.isdigit()):
        directory = job_dirs.job_dir(run_dir, job_id)
        found += [
            (grant, usage_files.read_usage(directory, grant, now_unix_ns))
            for grant in job_dirs.read_grants(directory, owner=0)
            if uid in (0, grant.uid)
        ]
    return found


def is_beyond(run_dir: str, grant: Grant) -> bool:
    """Returns whether a latency-critical job is treated as any other, as it wants more than its cores."""
    path = f"{job_dirs.job_dir(run_dir, grant.job_id)}/{limits_file(grant.slice_index)}"
    record = job_dirs.read_bounded(path, c.LIMITS_SIZE, 0)
    offset, width, _kind = c.LIMITS_FIELDS["latency_beyond"]
    return record is not None and int.from_bytes(record[offset : offset + width], "little") == 1
