# SPDX-License-Identifier: Apache-2.0
"""When the stages of a job's start were: notes of root in the job's directory, which `hami-hpc trace` shows.

Nothing depends on them. What cannot be written or read is not known, and no stage fails for it.
"""

from __future__ import annotations

import os
import time

from hami_hpc.contract import constants as c
from hami_hpc.core.contexts import suppress
from hami_hpc.core.delays import INT64_MAX
from hami_hpc.core.records import StageTimes
from hami_hpc.node.job_dirs import read_bounded

LINE_AT_MOST = 64
LONGEST_STAGE_NS = 600 * 1_000_000_000  # a process that is older is not this stage's own


def began_unix_ns() -> int:
    """Returns when this process began, as the kernel counts it (10 ms); now, where /proc does not say it."""
    now = time.time_ns()
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read(4096).rpartition(b")")[2].split()[19])
        age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return now
    return now - age_ns if 0 <= age_ns <= LONGEST_STAGE_NS else now


def note_prolog(directory: str) -> None:
    """Notes that the prolog, which is this process, is done now; keeps what an earlier run of it noted."""
    path = f"{directory}/{c.FILE_TIMES}"
    if _numbers(path, 2):
        return
    with suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.fchmod(fd, 0o644)
            os.write(fd, b"%d %d\n" % (began_unix_ns(), time.time_ns()))
        finally:
            os.close(fd)


def read_times(directory: str) -> StageTimes:
    """Returns what root noted in a job's directory. Never fails."""
    prolog = _numbers(f"{directory}/{c.FILE_TIMES}", 2) or (0, 0)
    step = _numbers(f"{directory}/{c.FILE_FIRST_STEP}", 1) or (0,)
    return StageTimes(*prolog, *step)


def _numbers(path: str, count: int) -> tuple[int, ...]:
    """Returns the numbers of root's file with one whole line of them; () for any other file."""
    data = read_bounded(path, LINE_AT_MOST, want_uid=0) or b""
    words = data.split()
    if len(words) != count or not data.endswith(b"\n") or not all(word.isdigit() for word in words):
        return ()
    numbers = tuple(int(word) for word in words)
    return numbers if max(numbers) <= INT64_MAX else ()
