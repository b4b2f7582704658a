# SPDX-License-Identifier: Apache-2.0
"""What size a running job's slice can have, and what it is to have (docs/adr/076). Pure.

Slurm's units of a job never change while it runs. A slice holds the larger of the shards of its memory and of its time,
and everybody else's slices leave all of those alone. So both can grow up to what its shards are, and be less.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.core.request import Parsed, Request, parse
from hami_hpc.core.request_keys import MemMib, MemPercent
from hami_hpc.core.sizes import is_oversold
from hami_hpc.core.units import mem_units
from hami_hpc.errors import JobError, shorten

EXAMPLE = "mem=16G,cores=60"
DRY_RUN = "dry-run,"  # before the size, in the option of srun
MODE = "share"


@dataclass(frozen=True, slots=True)
class Size:
    """A size of each slice of a job; None: as it is now."""

    mem: MemMib | MemPercent | None
    cores: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """The GPU of a slice: shards and MiB of its largest slice, and the shards that the job holds of it."""

    shards: int
    held: int
    shard_mib: int
    mib: int


def parse_size(text: str) -> Size:
    """Returns the size in mem=16G,cores=60. Raises JobError for other keys, and RequestError as for a request."""
    parsed = parse(f"{c.REQUEST_NAME}:{text}")
    request = parsed.request if isinstance(parsed, Parsed) and not parsed.others else None
    if request is None or request != Request(mem=request.mem, cores=request.cores) or request == Request():
        raise JobError(f"'{shorten(text)}' is not a size: of a running job mem, cores or both can change, as {EXAMPLE}")
    return Size(request.mem, request.cores)


def size_text(size: Size) -> str:
    """Returns the text that parse_size reads as this size."""
    mem = size.mem
    words = [f"mem={mem.mib}M" if isinstance(mem, MemMib) else f"mem={mem.percent}%"] if mem is not None else []
    return ",".join([*words, *([f"cores={size.cores}"] if size.cores is not None else [])])


def check_mode(grant: Grant) -> None:
    """Raises JobError for a slice of another mode than can be resized."""
    if grant.mode != MODE:
        raise JobError(
            f"job {grant.job_id} has mode={grant.mode}, whose limits are fixed when it starts; a slice of mode={MODE} "
            "can be resized. Submit it again with the size that it needs"
        )


def resized(grant: Grant, size: Size, gpu: Gpu) -> Grant:
    """Returns the slice with another size. Raises JobError for one that its shards do not allow."""
    mem_mib = grant.mem_mib if size.mem is None else mem_units(size.mem, gpu.shard_mib, gpu.mib, gpu.shards)[0]
    cores = grant.cores_percent if size.cores is None else size.cores
    most_mib, most_cores = _most(grant, gpu)
    if mem_mib > most_mib or cores > most_cores:
        raise JobError(
            f"job {grant.job_id} holds {gpu.held} of the {gpu.shards} shards of GPU {grant.gpu_minor}, which are "
            f"mem={most_mib}M,cores={most_cores} at most; mem={mem_mib}M,cores={cores} is more. Slurm gives a running "
            "job no more shards: submit it again for a larger slice"
        )
    return grant.resized(mem_mib, cores)


def _most(grant: Grant, gpu: Gpu) -> tuple[int, int]:
    """Returns the MiB and percent that the job's shards are; never less than it asked for, as percent are rounded down
    to shards, and a GPU has up to a shard of memory beyond its whole ones."""
    asked = grant.asked()
    if gpu.held >= gpu.shards:
        return max(gpu.mib, asked.mem_mib), c.CORES_MAX
    return max(gpu.held * gpu.shard_mib, asked.mem_mib), max(c.CORES_MAX * gpu.held // gpu.shards, asked.cores_percent)


def check_growth(old: Sequence[Grant], new: Sequence[Grant], live: Iterable[Grant], memory_scaling: float) -> None:
    """Raises JobError when a slice is to have more memory, or cores, of a GPU that is oversold: those of all its jobs
    must be on the GPU itself then, because the job that grows is not asked to leave it first. `live` are all grants."""
    if not is_oversold(memory_scaling):
        return
    grants = tuple(live)
    for before, after in zip(old, new, strict=True):
        others = [one for one in grants if one.gpu_uuid == after.gpu_uuid and one.job_id != after.job_id]
        granted_mib = after.mem_mib + sum(one.mem_mib for one in others)
        cores = after.cores_percent + sum(one.cores_percent for one in others)
        if after.cores_percent > before.cores_percent and cores > c.CORES_MAX:
            raise JobError(
                f"GPU {after.gpu_minor} is oversold, and growing needs room on the GPU itself: with cores="
                f"{after.cores_percent} for job {after.job_id} its jobs would have {cores} % of it. Try again when "
                "others have ended, or submit the job again for a larger slice"
            )
        if after.mem_mib > before.mem_mib and granted_mib > after.gpu_total_mib:
            raise JobError(
                f"GPU {after.gpu_minor}'s memory is oversold, and growing needs room on the GPU itself: with mem="
                f"{after.mem_mib}M for job {after.job_id} its jobs would have {granted_mib} of {after.gpu_total_mib} "
                "MiB. Try again when others have ended, or submit the job again for a larger slice"
            )


def check_used(new: Grant, used_bytes: int) -> None:
    """Raises JobError when the job's processes hold more memory than the slice is to have."""
    if used_bytes > new.mem_mib << 20:
        raise JobError(
            f"processes of job {new.job_id} hold {-(-used_bytes >> 20)} MiB of GPU {new.gpu_minor}, which is more than "
            f"mem={new.mem_mib}M. Free it first (PyTorch: torch.cuda.empty_cache()), or ask for more"
        )
