# SPDX-License-Identifier: Apache-2.0
"""Where the device memory of a job's programs shall be, and where they say that it is (docs/adr/077)."""

from __future__ import annotations

import fcntl
import os
import stat
import struct

from hami_hpc.contract import constants as c
from hami_hpc.core import swap as rules
from hami_hpc.core.grant import Grant
from hami_hpc.core.records import USAGE_FILE_SIZE, usage_file
from hami_hpc.node import job_dirs

F_OFD_GETLK = 36
FLOCK = struct.Struct("hh4xqqi4x")  # struct flock


def order_of(run_dir: str, job_id: int) -> int:
    """Returns where the job's record says that its memory shall be: c.SWAP_NEVER also where there is none."""
    path = f"{job_dirs.job_dir(run_dir, job_id)}/{c.FILE_JOB_LIMITS}"
    record = job_dirs.read_bounded(path, c.LIMITS_SIZE, 0)
    offset, width, _kind = c.LIMITS_FIELDS["swap"]
    return int.from_bytes(record[offset : offset + width], "little") if record is not None else c.SWAP_NEVER


def processes(run_dir: str, grant: Grant) -> list[rules.Process]:
    """Returns the job's live processes: those that hold the lock of their slot. The file is its user's."""
    path = f"{job_dirs.job_dir(run_dir, grant.job_id)}/{usage_file(grant.slice_index)}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return []
        found = rules.processes(os.pread(fd, USAGE_FILE_SIZE, 0))
        return [process for process in found if _is_locked(fd, c.SLOT_LOCK_BASE + process.slot)]
    except OSError:
        return []
    finally:
        os.close(fd)


def _is_locked(fd: int, byte: int) -> bool:
    answer = fcntl.fcntl(fd, F_OFD_GETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    return bool(FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
