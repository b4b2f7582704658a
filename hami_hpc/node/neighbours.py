# SPDX-License-Identifier: Apache-2.0
"""Tells each job who else is on its GPU: changes fields of the limits records that exist, in place.

Interposers read them at work. Readers see `sequence` odd while a record is changed. Each call computes the fields of
all jobs of the node from the ledger, so the next prolog, epilog or reconcile makes good what a killed one left. The
ledger's lock keeps two of them apart.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.core.turns import Turn, make_turns
from hami_hpc.node.job_dirs import jobs_dir
from hami_hpc.node.ledger import Ledger

# A job without a record for longer than this had its prolog killed; before, its prolog may still be at work.
RECORD_DUE_NS = 60 * 10**9
OPEN_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_RECORD = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class SkippedRecordError(Exception):
    """A record that is left alone. The message says why."""


def update(run_dir: str, ledger: Ledger, now_unix_ns: int, one_server: bool = False) -> tuple[str, ...]:
    """Writes each job's turn, and how many latency-critical jobs are beside and above it, into its limits record.

    `one_server` is as in make_turns. Returns a line for each record that was left alone, because root did not write it
    or it is not there. Raises NodeError when the ledger cannot be read or locked, and OSError when the run directory
    cannot be opened.
    """
    with ledger.held_still() as grants:
        if not grants:
            return ()
        jobs = os.open(jobs_dir(run_dir), OPEN_DIR)
        try:
            return tuple(_update_all(jobs, grants, now_unix_ns, one_server))
        finally:
            os.close(jobs)


def _update_all(jobs: int, grants: Iterable[Grant], now_unix_ns: int, one_server: bool) -> list[str]:
    by_gpu: dict[str, list[Grant]] = {}
    for grant in grants:
        by_gpu.setdefault(grant.gpu_uuid, []).append(grant)
    skipped = []
    for live in by_gpu.values():
        turns = make_turns(live, one_server)
        for grant in live:
            try:
                _update_record(jobs, grant.job_id, turns[grant.job_id])
            except FileNotFoundError:
                if now_unix_ns - grant.created_unix_ns > RECORD_DUE_NS:
                    skipped.append(f"job {grant.job_id} has a grant and no {c.FILE_JOB_LIMITS}: run hami-hpc reconcile")
            except (OSError, SkippedRecordError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                skipped.append(f"{c.FILE_JOB_LIMITS} of job {grant.job_id} was left as it is: {reason}")
    return skipped


def _update_record(jobs: int, job_id: int, turn: Turn) -> None:
    """Changes one record. Raises SkippedRecordError for one that root did not write for this job, and OSError."""
    directory = os.open(str(job_id), OPEN_DIR, dir_fd=jobs)
    try:
        record = os.open(c.FILE_JOB_LIMITS, OPEN_RECORD, dir_fd=directory)
    finally:
        os.close(directory)
    try:
        _change(record, _checked(record, job_id), turn)
    finally:
        os.close(record)


def _checked(record: int, job_id: int) -> bytes:
    """Returns the record's bytes. Raises SkippedRecordError when it is not root's record of this job."""
    status = os.fstat(record)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise SkippedRecordError("it is not a file that only root can write")
    if status.st_size != c.LIMITS_SIZE:
        raise SkippedRecordError(f"it has {status.st_size} bytes, not {c.LIMITS_SIZE}")
    data = os.pread(record, c.LIMITS_SIZE, 0)
    head = [_number(data, name) for name in ("magic", "abi_version", "record_size", "job_id", "step_id")]
    if len(data) != c.LIMITS_SIZE or head != [c.LIMITS_MAGIC, c.ABI_VERSION, c.LIMITS_SIZE, job_id, c.JOB_STEP_ID]:
        raise SkippedRecordError("it is not this job's record, or one of another version of hami_hpc")
    return data


def _change(record: int, data: bytes, turn: Turn) -> None:
    """Writes the fields that differ, with `sequence` odd meanwhile. An odd one is that of a process that was killed."""
    changed = [(name, value) for name, value in turn._asdict().items() if _number(data, name) != value]
    sequence = _number(data, "sequence")
    if not changed and sequence % 2 == 0:
        return
    odd = sequence | 1
    _write(record, "sequence", odd)
    for name, value in changed:
        _write(record, name, value)
    _write(record, "sequence", (odd + 1) & 0xFFFFFFFFFFFFFFFF)


def _number(data: bytes, name: str) -> int:
    offset, width, _kind = c.LIMITS_FIELDS[name]
    return int.from_bytes(data[offset : offset + width], "little")


def _write(record: int, name: str, value: int) -> None:
    offset, width, _kind = c.LIMITS_FIELDS[name]
    if os.pwrite(record, value.to_bytes(width, "little"), offset) != width:
        raise SkippedRecordError(f"{name} could not be written")
