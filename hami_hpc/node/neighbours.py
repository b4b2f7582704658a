# SPDX-License-Identifier: Apache-2.0
"""Tells each job who else is on its GPU, and how large its slice is now: changes fields of the limits records that
exist, in place.

Interposers read them at work. Readers see `sequence` odd while a record is changed. Each call computes the fields of
all jobs of the node from the ledger, so the next prolog, epilog or reconcile makes good what a killed one left. The
ledger's lock keeps two of them apart.
"""

from __future__ import annotations

import os
import stat

from hami_hpc.contract import constants as c
from hami_hpc.core.contexts import suppress
from hami_hpc.core.grant import Grant
from hami_hpc.core.in_step import make_begins
from hami_hpc.core.records import limits_file, size_fields
from hami_hpc.core.turns import is_latency, make_turns
from hami_hpc.node.job_dirs import jobs_dir
from hami_hpc.node.ledger import Ledger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeVar

    T = TypeVar("T")
    Slice = tuple[int, str]  # a job and the GPU of its slice

# A job without a record for longer than this had its prolog killed; before, its prolog may still be at work.
RECORD_DUE_NS = 60 * 10**9
SIZE_FIELDS = ("mem_limit_bytes", "cores_percent", "asked_mem_bytes", "asked_cores_percent", "most_mem_bytes")
OPEN_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_RECORD = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class SkippedRecordError(Exception):
    """A record that is left alone. The message says why."""


def update(
    run_dir: str,
    ledger: Ledger,
    now_unix_ns: int,
    one_server: bool = False,
    oversold: bool = False,
    beyond: Mapping[Slice, bool] | None = None,
) -> tuple[str, ...]:
    """Writes each slice's turn and size, and how many latency-critical jobs are beside and above it, into its limits
    record.

    `one_server` is as in make_turns. `oversold`: jobs whose memory is off the GPU count as gone, and are told when they
    come back. `beyond`: which slices are treated as those of a job that is not latency-critical, and which no longer;
    of all others that stays as their records have it. Returns a line for each record that was left alone, because root
    did not write it or it is not there. Raises NodeError when the ledger cannot be read or locked, and OSError when the
    run directory cannot be opened.
    """
    with ledger.held_still() as grants:
        if not grants:
            return ()
        if oversold:
            from hami_hpc.core.swap import OFF  # most nodes need neither
            from hami_hpc.node.swapped import order_of

            away = tuple(one for one in grants if order_of(run_dir, one.job_id) in OFF)
            grants = tuple(one for one in grants if one not in away)
        else:
            away = ()
        jobs = os.open(jobs_dir(run_dir), OPEN_DIR)
        try:
            skipped = [line for one in away for line in _update_one(jobs, one, now_unix_ns, size_fields(one))]
            return (*skipped, *_update_all(jobs, grants, now_unix_ns, one_server, beyond or {}))
        finally:
            os.close(jobs)


def _update_all(
    jobs: int, grants: Iterable[Grant], now_unix_ns: int, one_server: bool, changes: Mapping[Slice, bool]
) -> list[str]:
    grants = tuple(grants)
    begins = make_begins(grants)
    by_gpu: dict[str, list[Grant]] = {}
    for grant in grants:
        by_gpu.setdefault(grant.gpu_uuid, []).append(grant)
    skipped: list[str] = []
    for live in by_gpu.values():
        beyond = _beyond(jobs, live, changes)
        turns = make_turns(live, one_server, begins, beyond)
        for grant in live:
            skipped += _update_one(jobs, grant, now_unix_ns, size_fields(grant) | turns[grant.job_id]._asdict())
    return skipped


def _beyond(jobs: int, live: Iterable[Grant], changes: Mapping[Slice, bool]) -> frozenset[int]:
    """Returns which latency-critical jobs of a GPU are treated as any other, if others are there."""
    urgent = [grant for grant in live if is_latency(grant)]
    return frozenset(one.job_id for one in urgent if changes.get((one.job_id, one.gpu_uuid), _is_beyond(jobs, one)))


def _is_beyond(jobs: int, grant: Grant) -> bool:
    with suppress(OSError, SkippedRecordError):
        read = _with_record(jobs, grant, lambda _directory, _record, data: _number(data, "latency_beyond"))
        return read == 1
    return False


def _update_one(jobs: int, grant: Grant, now_unix_ns: int, values: Mapping[str, int]) -> list[str]:
    """Changes one record. Returns a line when it was left alone."""
    name = limits_file(grant.slice_index)
    try:
        _change_record(jobs, grant, values)
    except FileNotFoundError:
        if now_unix_ns - grant.created_unix_ns > RECORD_DUE_NS:
            return [f"job {grant.job_id} has a grant and no {name}: run hami-hpc reconcile"]
    except (OSError, SkippedRecordError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return [f"{name} of job {grant.job_id} was left as it is: {reason}"]
    return []


def write_sizes(run_dir: str, grants: Iterable[Grant]) -> None:
    """Writes the sizes of one job's slices alone, for a caller that has the ledger's transaction. Raises
    SkippedRecordError as update's lines say it, and OSError."""
    jobs = os.open(jobs_dir(run_dir), OPEN_DIR)
    try:
        for grant in grants:
            _change_record(jobs, grant, size_fields(grant))
    finally:
        os.close(jobs)


def write_swap(run_dir: str, grant: Grant, swap: int) -> None:
    """Writes where the device memory of a job's programs shall be, for a caller that has the ledger's lock. Raises
    SkippedRecordError and OSError."""
    jobs = os.open(jobs_dir(run_dir), OPEN_DIR)
    try:
        _change_record(jobs, grant, {"swap": swap})
    finally:
        os.close(jobs)


def _change_record(jobs: int, grant: Grant, values: Mapping[str, int]) -> None:
    _with_record(jobs, grant, lambda directory, record, data: _change(directory, record, data, values))


def _with_record(jobs: int, grant: Grant, use: Callable[[int, int, bytes], T]) -> T:
    """Returns what `use` returns of the open directory of a job, the open record of its slice, and the record's bytes.
    Raises SkippedRecordError and OSError."""
    directory = os.open(str(grant.job_id), OPEN_DIR, dir_fd=jobs)
    try:
        record = os.open(limits_file(grant.slice_index), OPEN_RECORD, dir_fd=directory)
        try:
            return use(directory, record, _checked(record, grant))
        finally:
            os.close(record)
    finally:
        os.close(directory)


def _checked(record: int, grant: Grant) -> bytes:
    """Returns the record's bytes. Raises SkippedRecordError when it is not root's record of this slice."""
    status = os.fstat(record)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise SkippedRecordError("it is not a file that only root can write")
    if status.st_size != c.LIMITS_SIZE:
        raise SkippedRecordError(f"it has {status.st_size} bytes, not {c.LIMITS_SIZE}")
    data = os.pread(record, c.LIMITS_SIZE, 0)
    head = [_number(data, name) for name in ("magic", "abi_version", "record_size", "job_id", "step_id", "slice_index")]
    of_slice = [c.LIMITS_MAGIC, c.ABI_VERSION, c.LIMITS_SIZE, grant.job_id, c.JOB_STEP_ID, grant.slice_index]
    if len(data) != c.LIMITS_SIZE or head != of_slice:
        raise SkippedRecordError("it is not this job's record, or one of another version of hami_hpc")
    return data


def _change(directory: int, record: int, data: bytes, values: Mapping[str, int]) -> None:
    """Writes the fields that differ, with `sequence` odd meanwhile. An odd one is that of a process that was killed.

    Where a size changes the job's directory gets a new time, by which the agent reads the record again: before, for a
    process that is killed in between, and after, for one that is slow.
    """
    changed = [(name, value) for name, value in values.items() if _number(data, name) != value]
    sequence = _number(data, "sequence")
    if not changed and sequence % 2 == 0:
        return
    odd = sequence | 1
    is_resized = bool(sequence % 2) or any(name in SIZE_FIELDS for name, _value in changed)
    _write(record, "sequence", odd)
    _touch(directory, is_resized)
    for name, value in changed:
        _write(record, name, value)
    _touch(directory, is_resized)
    _write(record, "sequence", (odd + 1) & 0xFFFFFFFFFFFFFFFF)


def _touch(directory: int, is_resized: bool) -> None:
    if is_resized:
        with suppress(OSError):  # the records matter more
            os.utime(directory)


def _number(data: bytes, name: str) -> int:
    offset, width, _kind = c.LIMITS_FIELDS[name]
    return int.from_bytes(data[offset : offset + width], "little")


def _write(record: int, name: str, value: int) -> None:
    offset, width, _kind = c.LIMITS_FIELDS[name]
    if os.pwrite(record, value.to_bytes(width, "little"), offset) != width:
        raise SkippedRecordError(f"{name} could not be written")
