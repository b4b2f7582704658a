# SPDX-License-Identifier: Apache-2.0
"""Where the device memory of a job's programs shall be, and where they say that it is (docs/adr/077)."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from collections.abc import Iterator

from hami_hpc.contract import constants as c
from hami_hpc.core import swap as rules
from hami_hpc.core.grant import Grant
from hami_hpc.core.records import USAGE_FILE_SIZE, usage_file
from hami_hpc.node import job_dirs

F_OFD_GETLK = 36
BEGINNING_MAX = 64  # processes at a time that hold a lock and have no slot yet; more are a user's nonsense
FLOCK = struct.Struct("hh4xqqi4x")  # struct flock


def order_of(run_dir: str, job_id: int) -> int:
    """Returns where the job's record says that its memory shall be: c.SWAP_NEVER also where there is none."""
    path = f"{job_dirs.job_dir(run_dir, job_id)}/{c.FILE_JOB_LIMITS}"
    record = job_dirs.read_bounded(path, c.LIMITS_SIZE, 0)
    offset, width, _kind = c.LIMITS_FIELDS["swap"]
    return int.from_bytes(record[offset : offset + width], "little") if record is not None else c.SWAP_NEVER


def processes(run_dir: str, grant: Grant) -> list[rules.Process]:
    """Returns the job's live processes, by slot: those that hold the lock of theirs. The file is its user's.

    The locks are asked for first: a job has few, and its file has room for 2,048 processes.
    """
    path = f"{job_dirs.job_dir(run_dir, grant.job_id)}/{usage_file(grant.slice_index)}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size != USAGE_FILE_SIZE:
            return []
        found, free = [], 0
        for slot in _locked(fd):
            process = rules.process(slot, os.pread(fd, c.USAGE_SLOT_SIZE, rules.slot_at(slot)))
            if process is not None:
                found.append(process)
                continue
            free += 1
            if free == BEGINNING_MAX:
                break
        return sorted(found)
    except OSError:
        return []
    finally:
        os.close(fd)


def _locked(fd: int) -> Iterator[int]:
    """Yields the slots whose lock somebody holds. The kernel tells of one lock in a range, any of them."""
    ranges = [(0, c.USAGE_SLOT_COUNT)]
    while ranges:
        first, end = ranges.pop()
        asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, c.SLOT_LOCK_BASE + first, end - first, 0)
        kind, _whence, start, length, _pid = FLOCK.unpack(fcntl.fcntl(fd, F_OFD_GETLK, asked))
        if kind == fcntl.F_UNLCK:
            continue
        held = max(first, start - c.SLOT_LOCK_BASE)
        held_end = min(end, start - c.SLOT_LOCK_BASE + length) if length else end  # 0: up to the end of the file
        yield from range(held, held_end)
        ranges += [part for part in ((first, held), (held_end, end)) if part[0] < part[1]]
