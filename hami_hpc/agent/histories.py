# SPDX-License-Identifier: Apache-2.0
"""Writes each job's time line into the file `history` of its directory, minute by minute (core/history.py).

The file is the only store, so a killed agent loses what it saw since the last write, some seconds. A row is written by
one call within one page, whole or not at all; a row that cannot be written now is tried again seconds later.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from hami_hpc.contract import constants as c
from hami_hpc.core.agent_state import JobState
from hami_hpc.core.history import (
    MINUTE_NS,
    Head,
    Minute,
    minute_of,
    pack_head,
    pack_minute,
    parse_head,
    parse_minute,
    place_of,
)
from hami_hpc.core.job_sums import LONGEST_STEP_NS, Run, merged
from hami_hpc.node import job_dirs

WRITE_NS = 5_000_000_000  # how often the row of the present minute is written
OPEN_MAX = 256  # files that stay open; the others are opened for each write
MIB = 1 << 20
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class _File:
    """A job's file, opened for writing if root alone can write it and it is of this run. Raises OSError, ValueError."""

    def __init__(self, directory: str, job: JobState, group: int) -> None:
        self.fd = os.open(f"{directory}/{c.FILE_HISTORY}", _FLAGS)
        status = os.fstat(self.fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise ValueError("not a regular file that root alone can write")
        head = parse_head(os.pread(self.fd, c.HISTORY_SIZE, 0))
        if head is None or (head.job_id, head.start_unix_ns) != (job.job_id, job.created_unix_ns):
            raise ValueError("of another run")
        if not head.gpu_count:  # the prolog did not know
            head = head._replace(gpu_count=_gpu_count(job), mem_mib=job.mem_bytes // MIB)
            os.pwrite(self.fd, pack_head(head), 0)
        if group not in (-1, status.st_gid):
            os.fchown(self.fd, -1, group)
        self.head: Head = head

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


def _gpu_count(job: JobState) -> int:
    return job.gpu_uuid.count(",") + 1


@dataclass
class _Line:
    """The present minute of one run: how much of it was watched, what was used in it, and when it was written last."""

    head: Head
    file: _File | None
    seen_busy_ns: int  # of the run, up to the last look
    seen_watched_ns: int
    minute: int = -1
    watched_ns: int = 0
    busy_ns: int = 0
    used_bytes: int = 0
    written_ns: int = 0

    def begin(self, minute: int) -> None:
        self.minute, self.watched_ns, self.busy_ns, self.used_bytes = minute, 0, 0, 0

    def add(self, job: JobState) -> None:
        self.watched_ns += job.watched_ns - self.seen_watched_ns
        self.busy_ns += job.busy_ns - self.seen_busy_ns
        self.used_bytes = max(self.used_bytes, job.used_bytes)
        self.seen_watched_ns, self.seen_busy_ns = job.watched_ns, job.busy_ns

    def resume(self, row: bytes, boot_ns: int) -> None:
        """Goes on with the minute that an agent before this one wrote."""
        old = parse_minute(row, self.minute) if len(row) == c.HISTORY_MINUTE_SIZE else None
        if old is not None:
            self.watched_ns = boot_ns - self.head.start_boot_ns - self.minute * MINUTE_NS
            self.busy_ns = self.watched_ns * self.head.gpu_count * old.percent // 100
            self.used_bytes = old.mem_mib * MIB

    def row(self) -> bytes:
        whole_ns = self.watched_ns * self.head.gpu_count
        percent = round(self.busy_ns / whole_ns * 100) if whole_ns > 0 else 0
        return pack_minute(Minute(self.minute, self.used_bytes // MIB, max(0, percent)))


@dataclass
class Histories:
    """The time lines of the jobs on this node. `group` is the Unix group that may read them besides; -1: none. Writes
    nothing while `is_off`."""

    run_dir: str
    group: int = -1
    is_off: bool = False
    _lines: dict[Run, _Line] = field(default_factory=dict)
    _absent: dict[Run, int] = field(default_factory=dict)  # runs without a file: when it was looked for last

    def update(self, jobs: Iterable[JobState], boot_ns: int) -> None:
        """Takes one look's states. Never fails."""
        lines: dict[Run, _Line] = {}
        absent: dict[Run, int] = {}
        for job in [] if self.is_off else merged(jobs):
            run = (job.job_id, job.created_unix_ns)
            line = self._lines.get(run)
            if line is None:
                looked_ns = self._absent.get(run)
                if looked_ns is None or boot_ns - looked_ns >= WRITE_NS:
                    looked_ns, line = boot_ns, self._opened(job, boot_ns)
                if line is None:
                    absent[run] = looked_ns
                    continue
                if len(lines) >= OPEN_MAX:
                    line.file = None
            lines[run] = line
            minute = minute_of(line.head, boot_ns)
            if minute > line.minute:
                if line.watched_ns:
                    self._write(line, job, boot_ns)
                line.begin(minute)
                line.written_ns = 0
            line.add(job)
            if boot_ns - line.written_ns >= WRITE_NS:
                self._write(line, job, boot_ns)
        self._lines, self._absent = lines, absent

    def _opened(self, job: JobState, boot_ns: int) -> _Line | None:
        try:
            file = _File(job_dirs.job_dir(self.run_dir, job.job_id), job, self.group)
            # What an earlier agent saw of the run is in the file; a run that has just begun is counted from its begin.
            is_new = job.watched_ns <= LONGEST_STEP_NS
            line = _Line(file.head, file, *((0, 0) if is_new else (job.busy_ns, job.watched_ns)))
            line.begin(max(-1, minute_of(file.head, boot_ns)))
            if line.minute >= 0:
                line.resume(os.pread(file.fd, c.HISTORY_MINUTE_SIZE, place_of(line.minute)), boot_ns)
        except (OSError, ValueError):
            return None
        return line

    def _write(self, line: _Line, job: JobState, boot_ns: int) -> None:
        """Writes the row of the line's minute. One that cannot be written is left for the next time."""
        line.written_ns = boot_ns
        if line.minute < 0:
            return
        with suppress(OSError, ValueError):
            if line.file is not None and os.fstat(line.file.fd).st_nlink == 0:  # reconcile made the directory anew
                line.file = _File(job_dirs.job_dir(self.run_dir, job.job_id), job, self.group)
            file = line.file or _File(job_dirs.job_dir(self.run_dir, job.job_id), job, self.group)
            os.pwrite(file.fd, line.row(), place_of(line.minute))
