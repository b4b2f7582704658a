# SPDX-License-Identifier: Apache-2.0
"""The slices of this node, read from the run directory without any lock, so that the agent never delays a prolog."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.core.records import parse_usage_head
from hami_hpc.core.watch import Slice
from hami_hpc.node import job_dirs

# (device, inode, ctime) of a job's directory, which a requeued job's prolog makes again, maybe with the same inode
Key = tuple[int, int, int]


@dataclass
class Slices:
    """Reads each job's grant once, and the head of its usage file at each look."""

    run_dir: str
    _grants: dict[str, tuple[Key, Grant | None]] = field(default_factory=dict)

    def look(self) -> tuple[tuple[Slice, ...], frozenset[int]]:
        """Returns the slices by job id, and the jobs that hold the whole node. Raises NodeError when the run directory
        cannot be listed."""
        grants: dict[str, tuple[Key, Grant | None]] = {}
        for name in job_dirs.entries(self.run_dir):
            if name.isdigit():
                directory = f"{job_dirs.jobs_dir(self.run_dir)}/{name}"
                try:
                    status = os.lstat(directory)
                except OSError:
                    continue  # its epilog removed it
                key = (status.st_dev, status.st_ino, status.st_ctime_ns)
                old = self._grants.get(name)
                grants[name] = old if old is not None and old[0] == key else (key, job_dirs.read_grant(directory))
        self._grants = grants
        slices = tuple(self.slice_of(grant) for _, grant in grants.values() if grant is not None)
        whole = (name for name, (_, grant) in grants.items() if grant is None and self._is_whole(name))
        return tuple(sorted(slices, key=lambda one: one.grant.job_id)), frozenset(map(int, whole))

    def _is_whole(self, name: str) -> bool:
        return os.path.lexists(f"{job_dirs.jobs_dir(self.run_dir)}/{name}/{c.FILE_WHOLE}")

    def slice_of(self, grant: Grant) -> Slice:
        """Returns a slice with what its job counts at this moment."""
        path = f"{job_dirs.job_dir(self.run_dir, grant.job_id)}/{c.FILE_USAGE}"
        data = job_dirs.read_bounded(path, c.USAGE_SIZE - 1, None)
        counts = None if data is None else parse_usage_head(data)
        if counts is None:
            return Slice(grant, None, 0, 0)
        return Slice(grant, counts.used_bytes, counts.oom_count, counts.device_oom_count)
