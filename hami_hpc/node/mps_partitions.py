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
from hami_hpc.core.values import NamedTuple
from hami_hpc.node import mps_daemon
from hami_hpc.node.mps_daemon import Member, MpsError, Place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

ANSWER_S = 10.0  # the first command for partitions initialises CUDA in the daemon
COUNT_DIGITS, ID_MAX = 4, 128
ID_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=_-")
NOTE_MAX = 4096


class NoChunksError(MpsError):
    """The chunks that are free do not suffice for the job, which can wait for others to end."""

    code = "E_MPS_NO_CHUNKS"


class Listing(NamedTuple):
    """What `lspart` says of the daemon's GPU: its name there, chunks, and the chunks of each partition by its id."""

    gpu: str
    free: int
    used: int
    partitions: dict[str, int]

    @property
    def total(self) -> int:
        return self.free + self.used


def chunks_of(cores_percent: int, total: int, others: Iterable[tuple[int, int]]) -> int:
    """Returns how many of a GPU's chunks a job with these cores gets, beside jobs with (cores, chunks).

    Whole chunks, rounded down; one more where the sum of what jobs have beyond their cores stays below one chunk with
    it. So whoever comes or goes, as long as all cores are at most 100 and each job's are worth a chunk, what is free
    suffices for the rounded-down chunks of the cores that no job has. One chunk at least.
    """
    whole, rest = divmod(cores_percent * total, 100)
    beyond = sum(max(0, chunks * 100 - cores * total) for cores, chunks in others)
    if rest and beyond + 100 - rest < 100:
        whole += 1
    return max(1, whole)


def parse(answer: str) -> Listing | None:
    """Returns what an answer with the table of `lspart` says; None where there is no such table.

    A row begins with the GPU's UUID or the beginning of it. Documented are empty cells as '-', seen in use were rows
    without them: both are read, and whatever stands around the table is not.
    """
    rows: list[list[str]] = []
    for word in answer.split():
        if word.startswith("GPU-"):
            rows.append([word])
        elif rows and word != "-":
            rows[-1].append(word)
    found: Listing | None = None
    for gpu, *cells in rows:
        counts = [int(cell) for cell in cells if _is_count(cell)]
        if "/" in gpu or not cells or not counts:
            continue
        if _is_count(cells[0]) and found is None and len(counts) > 1:
            found = Listing(gpu, counts[0], counts[1], {})
        elif found is not None and _is_id(cells[0]):
            found.partitions[cells[0]] = counts[0]
    return found


def _is_count(cell: str) -> bool:
    return cell.isdecimal() and len(cell) <= COUNT_DIGITS


def _is_id(cell: str) -> bool:
    return not _is_count(cell) and len(cell) <= ID_MAX and ID_LETTERS.issuperset(cell)


def listing(program: str, place: Place) -> Listing | None:
    """Returns the daemon's partitions; None where it has none to give. Raises MpsError when it does not answer."""
    return parse(mps_daemon.ask(program, place, "lspart", ANSWER_S))


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
    seen = _listed(place, mps_daemon.ask(program, place, "lspart", ANSWER_S))
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
    answer = mps_daemon.ask(program, place, f"sm_partition add {gpu_uuid} {chunks}\nlspart", ANSWER_S)
    seen = _listed(place, answer)
    new = seen.partitions.keys() - before.partitions.keys()
    if len(new) == 1 and seen.partitions[next(iter(new))] == chunks:
        return seen, next(iter(new)), ""
    for one in new:  # not what was asked for
        seen = _remove(program, place, seen, one)
    return seen, "", f"'sm_partition add' of {chunks} chunks made none: {answer[:NOTE_MAX].partition(' GPU ')[0]}"


def _remove(program: str, place: Place, seen: Listing, one: str) -> Listing:
    return _listed(place, mps_daemon.ask(program, place, f"sm_partition rm {seen.gpu} {one}\nlspart", ANSWER_S))


def _listed(place: Place, answer: str) -> Listing:
    seen = parse(answer)
    if seen is None:
        raise MpsError(f"the MPS daemon of {place.pipe} does not list its SM partitions: {answer[:NOTE_MAX]}")
    return seen


def why_not(program: str, run_dir: str) -> str:
    """Returns why this control program gives no partitions on this node, as it was found in this boot; "" if it was not
    found so, or the program is another one since."""
    with suppress(OSError), open(_path(run_dir), encoding="utf-8", errors="replace") as file:
        identity, _, reason = file.read(NOTE_MAX).partition("\n")
        if identity == _identity(program):
            return reason.strip() or "the reason is lost"
    return ""


def note_why_not(program: str, run_dir: str, reason: str) -> None:
    """Notes that daemons are started without partitions from now on. Raises OSError."""
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
