# SPDX-License-Identifier: Apache-2.0
"""Gives the cgroup of each slice's job its memory limit on the slice's GPU in the driver, where the driver has such
limits (docs/adr/058).

Once for each slice of a run, at the first look that finds its cgroup, and again when the slice was resized. A job is
limited by its interposer before and without; where NVML lacks the functions, nothing is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from hami_hpc.core.watch import Slice
from hami_hpc.node import memory_limits

SliceRun = tuple[int, int, str]  # job id, created_unix_ns and GPU
AGAIN_LOOKS = 60  # after the driver refused a limit


@dataclass
class DriverLimits:
    """`slack_bytes` is what NVML may show more than a grant; `gpu` returns NVML and a GPU's handle by UUID; `root` is
    where cgroups are mounted; `sluids` says which jobs have a SLUID. Each problem is reported once."""

    node: str
    slack_bytes: int
    gpu: Callable[[str], tuple[ModuleType, Any] | None]
    report: Callable[[str], None]
    root: str = memory_limits.ROOT
    sluids: Callable[[], Mapping[str, int]] = dict
    is_absent: bool = False
    _done: dict[SliceRun, tuple[int, int]] = field(default_factory=dict)  # inode of its job's cgroup, and MiB
    _later: dict[SliceRun, int] = field(default_factory=dict)  # looks until a refused one is tried again
    _told: set[str] = field(default_factory=set)

    def apply(self, slices: Iterable[Slice]) -> None:
        """Sets what is not set yet. Never fails."""
        grants = {(one.grant.job_id, one.grant.created_unix_ns, one.grant.gpu_uuid): one.grant for one in slices}
        self._done = {run: done for run, done in self._done.items() if run in grants}
        self._later = {run: looks - 1 for run, looks in self._later.items() if run in grants and looks > 1}
        # A requeued job has another cgroup of the same name, which its inode tells.
        if self.is_absent or not grants:
            return
        sluids = self.sluids()
        inodes = memory_limits.cgroups_of_jobs(self.node, self.root, sluids)
        for run, grant in grants.items():
            if self.is_absent:
                return
            inode = inodes.get(grant.job_id)
            if inode is None or self._done.get(run) == (inode, grant.mem_mib):
                continue
            if grant.mode in memory_limits.WITHOUT or run in self._later:
                continue
            path = memory_limits.cgroup_of_job(self.node, grant.job_id, self.root, sluids)
            if path is None:
                continue
            problem = self._set(grant.gpu_uuid, path, (grant.mem_mib << 20) + self.slack_bytes)
            if problem is None:
                self._done[run] = (inode, grant.mem_mib)
                continue
            self._later[run] = AGAIN_LOOKS
            if problem and problem not in self._told:
                self._told.add(problem)
                self.report(f"the driver set no memory limit for {path}: {problem}. Jobs are limited without it")

    def _set(self, uuid: str, path: str, hard_bytes: int) -> str | None:
        """Returns None when the limit stands, else why not; "" for what needs no word."""
        opened = self.gpu(uuid)
        if opened is None:
            return ""
        nvml, handle = opened
        if not memory_limits.are_known(nvml):
            self.is_absent = True
            return ""
        try:
            memory_limits.set_hard(nvml, handle, path, hard_bytes)
            kept = memory_limits.read(nvml, handle, path).hard
        except nvml.NVMLError as error:
            self.is_absent = error.value == nvml.NVML_ERROR_FUNCTION_NOT_FOUND
            return "" if self.is_absent else str(error)
        return None if kept == hard_bytes else f"NVML shows {kept} bytes after {hard_bytes} were set"
