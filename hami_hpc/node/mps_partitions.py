# SPDX-License-Identifier: Apache-2.0
"""Static SM partitions of an MPS daemon, where the driver has them (590 and later): each of its jobs has
multiprocessors that no other job of the daemon runs on (docs/adr/087).

The daemon is started with -S. It divides its GPU in chunks of multiprocessors; a job has a partition of some of them,
whose name is in a file of the job in the pipe directory (node/mps.py). What the daemon lists is what counts: partitions
are found and named by `lspart` alone, and one that is in no job's file is removed.

    <run_dir>/mps-no-partitions    root, 0600: which control program gave none on this node, and why
"""

from __future__ import annotations

import os

from hami_hpc.core.contexts import suppress
from hami_hpc.core.mps_chunks import Listing, chunks_of, parse
from hami_hpc.node import mps_daemon
from hami_hpc.node.mps_daemon import Member, MpsError, Place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

NOTE_MAX = 4096
DEATHS_MOST = 3  # of daemons while a partition was made, in one boot: until then the next daemon tries again
DIED = "the daemon ended while a partition was made, times: "


class NoChunksError(MpsError):
    """The chunks that are free do not suffice for the job, which can wait for others to end."""

    code = "E_MPS_NO_CHUNKS"


def listing(program: str, place: Place) -> Listing | None:
    """Returns the daemon's partitions; None where it has none to give. Raises MpsError when it does not answer."""
    return parse(mps_daemon.ask(program, place, "lspart", mps_daemon.STATIC_ANSWER_S))


def id_of(job: Member) -> str:
    """Returns the id of the job's partition, as `lspart` has it: its name is GPU-UUID/ID."""
    return job.partition.partition("/")[2]


def settle(
    program: str, place: Place, gpu_uuid: str, jobs: Sequence[Member], new: str, note: Callable[[Member], None]
) -> dict[str, str]:
    """Makes a partition for each job that has none, that of `new` (Member.name) last, and notes it; removes those that
    are no job's. Returns why jobs are left without one, by Member.name.

    Raises NoChunksError when too few chunks are free for `new`, MpsError when the daemon does not list its partitions.
    The place is locked. Whoever is killed in here leaves a partition that is in no job's file at most.
    """
    seen = tidy(program, place, jobs)
    have = {job.name: seen.partitions[id_of(job)] for job in jobs if id_of(job) in seen.partitions}
    left: dict[str, str] = {}
    for job in sorted(jobs, key=lambda job: job.name == new):
        if job.name in have:
            continue
        others = [(other.cores_percent, have[other.name]) for other in jobs if other.name in have]
        chunks = job.chunks or chunks_of(job.cores_percent, seen.total, others)
        if chunks > seen.free and job.name == new:
            raise NoChunksError(
                f"job {job.job_id} needs {chunks} of the {seen.total} chunks of multiprocessors that MPS makes of GPU "
                f"{place.gpu_minor}, for cores={job.cores_percent}, and the jobs of the same daemon leave {seen.free}: "
                "each has one at least"
            )
        seen, made, why = _add(program, place, seen, gpu_uuid, chunks)
        if made:
            have[job.name] = chunks
            note(job._replace(partition=f"{gpu_uuid}/{made}", chunks=chunks))
        else:
            left[job.name] = why
    return left


def tidy(program: str, place: Place, jobs: Iterable[Member]) -> Listing:
    """Removes the partitions that are in no job's file, and returns what is there then. One that a client still uses
    stays until the next call. Raises MpsError."""
    seen = _listed(place, mps_daemon.ask(program, place, "lspart", mps_daemon.STATIC_ANSWER_S))
    strangers = seen.partitions.keys() - {id_of(job) for job in jobs}
    for one in sorted(strangers):
        seen = _remove(program, place, seen, one)
    return seen


def differ(program: str, place: Place, jobs: Iterable[Member]) -> bool:
    """Returns whether a daemon's partitions are others than its jobs'. Raises MpsError when it does not list them."""
    seen = listing(program, place)
    return seen is None or seen.partitions.keys() != {id_of(job) for job in jobs}


def _add(program: str, place: Place, before: Listing, gpu_uuid: str, chunks: int) -> tuple[Listing, str, str]:
    """Makes a partition. Returns what is there then, and its id, or "" and what the daemon said. Raises MpsError."""
    answer = mps_daemon.ask(program, place, f"sm_partition add {gpu_uuid} {chunks}\nlspart", mps_daemon.STATIC_ANSWER_S)
    seen = _listed(place, answer)
    new = seen.partitions.keys() - before.partitions.keys()
    made = min((one for one in new if seen.partitions[one] == chunks), default="")
    for one in sorted(new - {made}):  # not what was asked for, or a user's, if the driver lets users make some
        seen = _remove(program, place, seen, one)
    if made:
        return seen, made, ""
    return seen, "", f"'sm_partition add' of {chunks} chunks made none: {answer[:NOTE_MAX].partition(' GPU ')[0]}"


def _remove(program: str, place: Place, seen: Listing, one: str) -> Listing:
    return _listed(
        place, mps_daemon.ask(program, place, f"sm_partition rm {seen.gpu} {one}\nlspart", mps_daemon.STATIC_ANSWER_S)
    )


def _listed(place: Place, answer: str) -> Listing:
    seen = parse(answer)
    if seen is None:
        raise MpsError(f"the MPS daemon of {place.pipe} does not list its SM partitions: {answer[:NOTE_MAX]}")
    return seen


def why_not(program: str, run_dir: str) -> str:
    """Returns why this control program gives no partitions on this node, as it was found in this boot; "" if it was not
    found so, or the program is another one since, or its daemons ended over it fewer than DEATHS_MOST times."""
    reason = _noted(program, run_dir)
    return "" if 0 < _deaths(reason) < DEATHS_MOST else reason


def _noted(program: str, run_dir: str) -> str:
    with suppress(OSError), open(_path(run_dir), encoding="utf-8", errors="replace") as file:
        identity, _, reason = file.read(NOTE_MAX).partition("\n")
        if identity == _identity(program):
            return reason.strip() or "the reason is lost"
    return ""


def _deaths(reason: str) -> int:
    count = reason.partition(DIED)[2].partition(":")[0]
    return int(count) if reason.startswith(DIED) and count.isascii() and count.isdigit() else 0


def note_why_not(program: str, run_dir: str, reason: str, *, died: bool = False) -> None:
    """Notes that daemons are started without partitions from now on; where the daemon died over one (`died`), from the
    DEATHS_MOST-th time on. Raises OSError."""
    if died:
        reason = f"{DIED}{_deaths(_noted(program, run_dir)) + 1}: {reason}"
    new = f"{_path(run_dir)}.new"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, f"{_identity(program)}\n{reason}\n".encode(errors="replace")[:NOTE_MAX])
    finally:
        os.close(fd)
    os.rename(new, _path(run_dir))


def _path(run_dir: str) -> str:
    return f"{run_dir}/mps-no-partitions"


def _identity(program: str) -> str:
    """Returns what is another after an update of the driver's package, or of the settings."""
    real = os.path.realpath(program)
    status = os.stat(real)
    return f"{real} {status.st_ino} {status.st_size} {status.st_mtime_ns}"
