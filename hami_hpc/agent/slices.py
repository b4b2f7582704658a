# SPDX-License-Identifier: Apache-2.0
"""The slices of this node, read from the run directory without any lock, so that the agent never delays a prolog."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from hami_hpc.agent.kept_file import KEPT_MAX, KeptFile
from hami_hpc.contract import constants as c
from hami_hpc.core.delays import parse_delays
from hami_hpc.core.gpu_jobs import GpuJob
from hami_hpc.core.grant import Grant
from hami_hpc.core.records import limits_file, parse_usage_head, usage_file
from hami_hpc.core.watch import Slice
from hami_hpc.errors import NodeError
from hami_hpc.node import gpu_jobs, job_dirs

# (inode, ctime in ns) of a job's directory, which a requeued job's prolog makes again, maybe with the same inode, and
# whose ctime a resize changes after the records
Key = tuple[int, int]
T = TypeVar("T")
# Two changes within a tick of the kernel's clock have the same ctime: what was read so soon is read again.
SETTLED_NS = 50_000_000
_ORDER_AT, _ORDER_SIZE, _ = c.LIMITS_FIELDS["swap"]
_BEYOND_AT, _BEYOND_SIZE, _ = c.LIMITS_FIELDS["latency_beyond"]


@dataclass
class _Job:
    """A job's directory: the grants of its slices, or the note of a job with whole GPUs, and the files of them that are
    kept open, by name. `settled`: nothing can have changed since without another key, but the orders of slices that are
    `movable`, and what latency-critical ones want, which root writes into their limits records in place."""

    key: Key
    settled: bool
    grants: tuple[Grant, ...]
    gpu_job: GpuJob | None = None
    movable: frozenset[int] = frozenset()
    kept: dict[str, KeptFile] = field(default_factory=dict)
    slices: dict[int, tuple[bytes, Slice]] = field(default_factory=dict)  # by number: what they were parsed from


def _read(key: Key, directory: str) -> _Job:
    settled = abs(time.time_ns() - key[1]) > SETTLED_NS
    grants = job_dirs.read_grants(directory)
    movable = frozenset(one.slice_index for one in grants if _is_movable(f"{directory}/{limits_file(one.slice_index)}"))
    return _Job(key, settled, grants, None if grants else gpu_jobs.read(directory), movable)


def _is_movable(path: str) -> bool:
    """Returns whether root may order a slice's memory off the GPU. A record with c.SWAP_NEVER keeps that."""
    try:
        return order(KeptFile(path)) != c.SWAP_NEVER
    except OSError:  # it has ended meanwhile
        return False


def order(file: KeptFile) -> int:
    """Returns where an open limits record says that its slice's memory shall be. Raises OSError."""
    return int.from_bytes(file.read(_ORDER_SIZE, _ORDER_AT), "little")


def is_beyond(file: KeptFile) -> bool:
    """Returns whether an open limits record says that its job is treated as no latency-critical one, as it wants more
    than its cores. Raises OSError."""
    return int.from_bytes(file.read(_BEYOND_SIZE, _BEYOND_AT), "little") == 1


def _head(file: KeptFile) -> bytes:
    return file.read(c.USAGE_SIZE)


def _parsed(grant: Grant, head: bytes, where: int, beyond: bool) -> Slice:
    counts = parse_usage_head(head)
    if counts is None:
        return Slice(grant, None, 0, 0, order=where, beyond=beyond)
    return Slice(grant, counts.used_bytes, counts.oom_count, counts.device_oom_count, parse_delays(head), where, beyond)


@dataclass
class Slices:
    """Reads each job's grants when its directory changed, and at each look the heads of its usage files, and the orders
    of those that may be moved. The epilog unmounts the files lazily, so keeping them open delays nothing."""

    run_dir: str
    kept_max: int = KEPT_MAX  # jobs; with more of them no file is kept open
    # runs that were set aside, at the last look: job id and start
    ended: frozenset[tuple[int, int]] = frozenset()
    _jobs: dict[str, _Job] = field(default_factory=dict)
    _listed: list[tuple[str, Key]] = field(default_factory=list)  # of which _jobs and _grants are
    _grants: list[tuple[Grant, _Job]] = field(default_factory=list)  # in the order of the slices

    def look(self) -> tuple[tuple[Slice, ...], frozenset[int]]:
        """Returns the slices by job id and number, and the jobs that hold the whole node. Raises NodeError when the run
        directory cannot be listed."""
        self._refresh()
        slices = [self._slice(job, grant) for grant, job in self._grants]
        whole = [int(name) for name, job in self._jobs.items() if not job.grants and self._is_whole(name)]
        return tuple(slices), frozenset(whole)

    def grants(self) -> tuple[Grant, ...]:
        """Returns the grants of the slices, in the order of look(). Raises NodeError as it does."""
        self._refresh()
        return tuple(grant for grant, _job in self._grants)

    def head_of(self, grant: Grant) -> bytes:
        """Returns the head of the usage file of a slice that grants() returned. Raises OSError."""
        return self._read(self._jobs[str(grant.job_id)], grant, usage_file(grant.slice_index), _head)

    def is_beyond(self, grant: Grant) -> bool:
        """Returns what is_beyond() does of the record of such a slice. Raises OSError."""
        return self._read(self._jobs[str(grant.job_id)], grant, limits_file(grant.slice_index), is_beyond)

    def order_of(self, grant: Grant) -> int:
        """Returns where the record of such a slice says that its memory shall be: c.SWAP_NEVER where there is none."""
        job = self._jobs[str(grant.job_id)]
        if grant.slice_index in job.movable:
            with suppress(OSError):
                return self._read(job, grant, limits_file(grant.slice_index), order)
        return c.SWAP_NEVER

    def _refresh(self) -> None:
        entries = self._entries()
        if entries != self._listed or not all(job.settled for job in self._jobs.values()):
            self._list(entries)

    def _list(self, entries: list[tuple[str, Key]]) -> None:
        """Reads the jobs that are new or have changed."""
        jobs: dict[str, _Job] = {}
        self.ended = frozenset(
            run
            for name, _key in entries
            if name.startswith(job_dirs.ENDED) and (run := gpu_jobs.ended_run(name)) is not None
        )
        for name, key in entries:
            if name.isdigit():
                directory = f"{job_dirs.jobs_dir(self.run_dir)}/{name}"
                old = self._jobs.get(name)
                jobs[name] = old if old is not None and old.settled and old.key == key else _read(key, directory)
        grants = [(grant, job) for job in jobs.values() for grant in job.grants]
        grants.sort(key=lambda one: (one[0].job_id, one[0].slice_index))
        self._jobs, self._grants, self._listed = jobs, grants, entries

    def gpu_jobs(self) -> tuple[GpuJob, ...]:
        """Returns the runs of the last look that the prolog noted as jobs with GPUs, by job id."""
        return tuple(sorted(job.gpu_job for job in self._jobs.values() if job.gpu_job is not None))

    def _entries(self) -> list[tuple[str, Key]]:
        """Returns the names in `jobs/`, each with its key. Raises NodeError."""
        path = job_dirs.jobs_dir(self.run_dir)
        found = []
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise NodeError(f"{path} cannot be listed: {error.strerror}") from error
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # its epilog removed it
                        found.append((entry.name, (entry.inode(), entry.stat(follow_symlinks=False).st_ctime_ns)))
        except OSError as error:
            raise NodeError(f"{path} cannot be listed: {error.strerror}") from error
        finally:
            os.close(folder)
        return found

    def _is_whole(self, name: str) -> bool:
        return os.path.lexists(f"{job_dirs.jobs_dir(self.run_dir)}/{name}/{c.FILE_WHOLE}")

    def slice_of(self, grant: Grant) -> Slice:
        """Returns a slice of the last look with what its job counts at this moment."""
        job = self._jobs.get(str(grant.job_id))
        return Slice(grant, None, 0, 0) if job is None else self._slice(job, grant)

    def _slice(self, job: _Job, grant: Grant) -> Slice:
        number, where, beyond = grant.slice_index, c.SWAP_NEVER, False
        if number in job.movable:
            with suppress(OSError):
                where = self._read(job, grant, limits_file(number), order)
        if grant.latency:
            with suppress(OSError):
                beyond = self._read(job, grant, limits_file(number), is_beyond)
        try:
            head = self._read(job, grant, usage_file(number), _head)
        except OSError:
            head = b""
        old_head, old = job.slices.get(number, (None, None))
        if old is not None and old_head == head and (old.order, old.beyond) == (where, beyond) and old.grant is grant:
            return old
        new = _parsed(grant, head, where, beyond)
        job.slices[number] = head, new
        return new

    def _read(self, job: _Job, grant: Grant, name: str, read: Callable[[KeptFile], T]) -> T:
        """Returns what `read` reads of a job's file, which stays open then. Raises OSError."""
        file = job.kept.get(name)
        if file is not None:
            with suppress(OSError):
                return read(file)
            del job.kept[name]
        file = KeptFile(f"{job_dirs.job_dir(self.run_dir, grant.job_id)}/{name}")
        content = read(file)
        if len(self._jobs) <= self.kept_max:
            job.kept[name] = file
        return content
