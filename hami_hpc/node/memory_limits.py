# SPDX-License-Identifier: Apache-2.0
"""The driver's own limits of GPU memory by cgroup (nvmlDeviceSetMemoryLimits_v1, driver r615 and later): docs/adr/058.

They hold for all processes of a cgroup, whatever these load or call. No hardware has seen this module's use of them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from itertools import product
from types import ModuleType
from typing import Any, NamedTuple

ROOT = "/sys/fs/cgroup"
SCOPES = ("{node}_slurmstepd.scope", "slurmstepd.scope")  # the first where slurmd was built for several on a host
SET, GET = "nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"
JOB = "job_"
WITHOUT = frozenset({"mig"})  # modes of isolation whose GPUs NVML takes no limits for
UNLIMITED = (1 << 64) - 1


class Limits(NamedTuple):
    """What the driver has for a cgroup on one GPU, in bytes. `hard` is UNLIMITED without a limit."""

    soft: int
    hard: int
    used: int


def are_known(nvml: ModuleType) -> bool:
    """Returns whether nvidia-ml-py has the functions. The driver may lack them all the same."""
    return hasattr(nvml, SET) and hasattr(nvml, GET)


def cgroup_of_job(node: str, job_id: int, root: str, sluids: Mapping[str, int]) -> str | None:
    """Returns the directory of a job's cgroup (version 2) on this node; None where there is none. `sluids` has the job
    by its SLUID where Slurm 26.05 gives it one (node/sluids.py).

    slurmstepd makes it before the job's first process. No user can make one there: the folders above are root's.
    """
    names = [f"{JOB}{job_id}", *(sluid for sluid, job in sluids.items() if job == job_id)]
    for scope, name in product(SCOPES, names):
        path = f"{root}/system.slice/{scope.format(node=node)}/{name}"
        try:
            status = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISDIR(status.st_mode) and status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022:
            return path
    return None


def cgroups_of_jobs(node: str, root: str, sluids: Mapping[str, int]) -> dict[int, int]:
    """Returns the inode of what has the name of each job's cgroup on this node, by job id, without a look at it:
    `cgroup_of_job` says whether it is one."""
    found: dict[int, int] = {}
    for scope in reversed(SCOPES):
        with suppress(OSError), os.scandir(f"{root}/system.slice/{scope.format(node=node)}") as entries:
            for entry in entries:
                number = entry.name[len(JOB) :]
                if entry.name.startswith(JOB) and number.isascii() and number.isdigit():
                    found[int(number)] = entry.inode()
                elif entry.name in sluids:
                    found[sluids[entry.name]] = entry.inode()
    return found


def set_hard(nvml: ModuleType, handle: Any, cgroup: str, hard_bytes: int) -> None:
    """Limits a cgroup's processes on one GPU. Reserves nothing (a soft limit of 0). Raises NVMLError."""
    limits = nvml.c_nvmlSetMemoryLimits_v1_t()
    limits.nameSpace, limits.softLimit, limits.hardLimit = cgroup.encode(), 0, hard_bytes
    nvml.nvmlDeviceSetMemoryLimits_v1(handle, limits)


def read(nvml: ModuleType, handle: Any, cgroup: str) -> Limits:
    """Returns what the driver has for a cgroup, or for the nearest one above it. Raises NVMLError."""
    limits = nvml.c_nvmlGetMemoryLimits_v1_t()
    limits.nameSpace = cgroup.encode()
    nvml.nvmlDeviceGetMemoryLimits_v1(handle, limits)
    return Limits(int(limits.softLimit), int(limits.hardLimit), int(limits.currentUsed))
