# SPDX-License-Identifier: Apache-2.0
"""The file `history` of a job's directory: made by the prolog, written in place by the agent, read by the epilog.

Root owns and writes it. The job's user reads it by an access control list (acl.py).
"""

from __future__ import annotations

import os
import stat
import time

from hami_hpc.contract import constants as c
from hami_hpc.core.contexts import suppress
from hami_hpc.core.history import FILE_SIZE, Head, Minute, pack_head, parse_file, parse_head, to_text
from hami_hpc.node import acl

SET_BACK_NS = 1_000_000_000  # less is no more than the two clocks differ by anyway


def make(directory: str, job_id: int, uid: int, start_unix_ns: int, mem_mib: int = 0, gpu_count: int = 0) -> None:
    """Makes the file in a directory that is being built. It takes memory as minutes are written. Never fails: without
    it the job has no time line."""
    with suppress(OSError):
        _make(f"{directory}/{c.FILE_HISTORY}", job_id, uid, start_unix_ns, mem_mib, gpu_count)


def _make(path: str, job_id: int, uid: int, start_unix_ns: int, mem_mib: int, gpu_count: int) -> None:
    elapsed_ns = max(0, time.time_ns() - start_unix_ns)
    start_boot_ns = max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - elapsed_ns)
    head = pack_head(Head(job_id, uid, gpu_count, start_unix_ns, start_boot_ns, mem_mib))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o640)
    try:
        os.fchmod(fd, 0o640)
        os.write(fd, head)
        os.ftruncate(fd, FILE_SIZE)
        with suppress(OSError):  # a file system without ACLs: the user cannot read it, and nothing else changes
            acl.let_read(fd, uid)
    finally:
        os.close(fd)


def read(directory: str) -> tuple[Head, tuple[Minute, ...]] | None:
    """Returns what the file of a job's directory has; None where root has written none. Raises PermissionError when
    this user may not read it."""
    try:
        fd = os.open(f"{directory}/{c.FILE_HISTORY}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        raise
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != 0:
            return None
        data = os.pread(fd, FILE_SIZE, 0)
    except OSError:
        return None
    finally:
        os.close(fd)
    head = parse_head(data)
    return None if head is None else (head, parse_file(data))


def end_unix_ns(directory: str, start_unix_ns: int, now_unix_ns: int) -> int:
    """Returns when a run of this boot ends that ends now, ns since 1970: now, or later where the clock was set back
    since it began. So it has the length that it had. Never fails: it is now without the file, and for others than its
    user and root."""
    try:
        fd = os.open(f"{directory}/{c.FILE_HISTORY}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status, data = os.fstat(fd), os.pread(fd, c.HISTORY_SIZE, 0)
        finally:
            os.close(fd)
    except OSError:
        return now_unix_ns
    head = parse_head(data)
    if head is None or status.st_uid not in (0, os.geteuid()) or head.start_unix_ns != start_unix_ns:
        return now_unix_ns
    by_boot = start_unix_ns + time.clock_gettime_ns(time.CLOCK_BOOTTIME) - head.start_boot_ns
    return by_boot if by_boot - now_unix_ns > SET_BACK_NS else now_unix_ns


def read_text(directory: str, start_unix_ns: int) -> str:
    """Returns the field `history` for the record of the run that began then; "" where there is none. Never fails."""
    try:
        found = read(directory)
    except OSError:
        return ""
    if found is None or found[0].start_unix_ns != start_unix_ns:
        return ""
    return to_text(found[1])
