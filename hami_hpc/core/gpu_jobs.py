# SPDX-License-Identifier: Apache-2.0
"""Jobs that hold whole GPUs: what the prolog notes of one, in the file `gpus` of its directory. Pure."""

from __future__ import annotations

from hami_hpc.core.grant import UINT32_MAX, parse_id
from hami_hpc.core.inventory import indices
from hami_hpc.core.values import NamedTuple

TYPE_CHECKING = False  # prolog and epilog import this, and not typing: docs/adr/021
if TYPE_CHECKING:
    from collections.abc import Mapping

MODE = "gpu"  # of their usage records: contract.toml, [spool]
GPUS_AT_MOST = 64  # of one node; a longer list is not Slurm's
INT64_MAX = (1 << 63) - 1


class GpuJob(NamedTuple):
    """One run of a job on this node. `gpus` are Slurm's indices of the devices that it was given; whether it holds them
    whole, Slurm alone says. `created_unix_ns` is when the prolog ran: it tells two runs of one job id apart."""

    job_id: int
    uid: int
    gpus: tuple[int, ...]
    created_unix_ns: int

    def is_same(self, other: GpuJob) -> bool:
        """Returns whether both are of one job with the same GPUs. Ignores when each began."""
        return self[:3] == other[:3]


def of_environment(environment: Mapping[str, str], now_unix_ns: int) -> GpuJob | None:
    """Returns the job of a prolog's environment; None for a job without a GPU. Raises NodeError for what slurmd does
    not write."""
    listed = environment.get("SLURM_JOB_GPUS", "")
    try:
        gpus = tuple(sorted(set(indices(listed[:1024]))))
    except ValueError:
        return None
    if not 1 <= len(gpus) <= GPUS_AT_MOST:
        return None
    return GpuJob(parse_id(environment, "SLURM_JOB_ID"), parse_id(environment, "SLURM_JOB_UID"), gpus, now_unix_ns)


def to_line(job: GpuJob) -> str:
    """Returns the content of the file."""
    return f"job={job.job_id} uid={job.uid} gpus={','.join(map(str, job.gpus))} start_unix_ns={job.created_unix_ns}\n"


def from_line(text: str) -> GpuJob | None:
    """Returns the job in a file's content; None for any other text."""
    fields = dict(word.split("=", 1) for word in text.split() if "=" in word)
    try:
        gpus = tuple(sorted(set(indices(fields["gpus"]))))
        job = GpuJob(int(fields["job"]), int(fields["uid"]), gpus, int(fields["start_unix_ns"]))
    except (KeyError, ValueError):
        return None
    is_sound = 0 <= job.job_id <= UINT32_MAX and 0 <= job.uid <= UINT32_MAX and 0 <= job.created_unix_ns <= INT64_MAX
    return job if is_sound and 1 <= len(gpus) <= GPUS_AT_MOST and to_line(job) == text else None
