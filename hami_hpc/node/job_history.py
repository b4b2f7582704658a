# SPDX-License-Identifier: Apache-2.0
"""Finds a job's time line on this node: in the directory of a running job, else in the record of its last run here."""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from hami_hpc.core.history import Minute, from_text
from hami_hpc.errors import HamiError
from hami_hpc.node import history_file, job_dirs, usage_spool

RECORD_MAX = 65536


class JobHistory(NamedTuple):
    """The time line of one run. `end_unix_ns` is 0 while it runs; `gpu_count` and `mem_mib` 0 while not known.
    `off_gpu_ns` is the time in which its memory was off the GPU, of all slices together; None: not known."""

    job_id: int
    start_unix_ns: int
    end_unix_ns: int
    gpu_count: int
    mem_mib: int
    minutes: tuple[Minute, ...]
    off_gpu_ns: int | None = None


def find(run_dir: str, state_dir: str, job_id: int) -> JobHistory:
    """Returns the time line of a job that runs here, else of its last run that ended here. Raises HamiError when there
    is none, or when this user may not read it."""
    directory = job_dirs.job_dir(run_dir, job_id)
    try:
        running = history_file.read(directory)
    except PermissionError:
        raise HamiError(f"only the user of job {job_id}, root and the group of [agent] can read its history") from None
    if running is not None:
        head, minutes = running
        return JobHistory(job_id, head.start_unix_ns, 0, head.gpu_count, head.mem_mib, minutes)
    if os.path.lexists(directory):
        raise HamiError(
            f"no history of job {job_id} is kept: it was refused, or it started without an agent ([agent] of the "
            "settings), or before this version"
        )
    ended = _ended(run_dir, state_dir, job_id)
    if ended is None:
        raise HamiError(
            f"job {job_id} does not run on this node, and no usage record of it waits here for accounting; to ask the "
            f"node of a running job, run: srun --jobid={job_id} --overlap --gres=none hami-hpc usage {job_id} --history"
        )
    return ended


def _ended(run_dir: str, state_dir: str, job_id: int) -> JobHistory | None:
    """Returns the time line in the newest record of a job. Raises HamiError."""
    found: list[JobHistory] = []
    for folder in (f"{state_dir}/{usage_spool.DIRECTORY}", usage_spool.waiting_dir(run_dir)):
        try:
            names = os.listdir(folder)
        except OSError:  # there is none, or it is root's
            continue
        for name in names:
            if name == f"{job_id}.json" or (name.startswith(f"{job_id}-") and name.endswith(".json")):
                one = _read(f"{folder}/{name}", job_id)
                if one is not None:
                    found.append(one)
    return max(found, key=lambda one: one.start_unix_ns, default=None)


def _read(path: str, job_id: int) -> JobHistory | None:
    """Returns the time line in a record; None for a file that is gone, or is no record of the job."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(fd, encoding="utf-8", errors="replace") as file:
            record = json.loads(file.read(RECORD_MAX))
    except PermissionError:
        raise HamiError(
            f"{path}: only root can read it, and the job's user where the file system has access control lists"
        ) from None
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("job_id") != job_id:
        return None
    history = record.get("history", "")
    minutes = from_text(history) if isinstance(history, str) else None
    start, end, gpus, mem_mib = (
        record.get(name, 1) for name in ("start_unix_ns", "end_unix_ns", "gpu_count", "mem_mib")
    )
    if minutes is None or not all(type(number) is int for number in (start, end, gpus, mem_mib)):
        return None
    off_gpu_ns = record.get("off_gpu_ns")
    return JobHistory(job_id, start, end, gpus, mem_mib, minutes, off_gpu_ns if type(off_gpu_ns) is int else None)
