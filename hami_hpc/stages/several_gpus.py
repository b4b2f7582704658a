# SPDX-License-Identifier: Apache-2.0
"""Asks slurmctld which GPUs a job with several slices has on this node. Imported only for such jobs.

Slurm tells the prolog of such a job one of its GPUs (docs/adr/055). A job whose slices are not equal, or of which
slurmctld does not say where they are, does not run: it goes back to the queue, and the node stays in service.
"""

from __future__ import annotations

from hami_hpc.core.grant import JobUnits
from hami_hpc.errors import JobError, NodeError
from hami_hpc.node import drain
from hami_hpc.slurm import job_shards, placeholders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

AGAIN = "A batch job is requeued if it may be; submit any other again"


class UnequalError(JobError):
    """The job's slices are not equal, or it is not known whether they are."""

    code = "E_UNEQUAL"


def indices(units: JobUnits, environment: Mapping[str, str]) -> tuple[int, ...]:
    """Returns Slurm's indices of the job's GPUs on this node, ascending. Raises UnequalError."""
    job_id, count = units.job_id, units.slice_count
    shards = _shards(job_id, environment)
    if len(shards) == count and len(set(shards.values())) == 1:
        return tuple(sorted(shards))
    parts = ", ".join(f"GPU {index}: {number}" for index, number in sorted(shards.items())) or "none"
    raise UnequalError(
        f"job {job_id} has {count} slices, and by slurmctld these shards on this node: {parts}. It needs as many of "
        f"each of {count} GPUs. {AGAIN}. Administrator: slurm.conf must not have MULTIPLE_SHARING_GRES_PJ"
    )


def _shards(job_id: int, environment: Mapping[str, str]) -> dict[int, int]:
    """Returns the job's shards of each GPU, as slurmctld shows them."""
    scontrol, node = drain.find_scontrol(), environment.get("SLURMD_NODENAME", "")
    if scontrol is None or not node:
        what = "scontrol was not found" if scontrol is None else "SLURMD_NODENAME is not set"
        raise UnequalError(f"job {job_id}: {what}, so it is not known which GPUs its slices are on. {AGAIN}")
    try:
        return job_shards.read(scontrol, placeholders.environment(environment), job_id, node)
    except NodeError as error:
        problem = f"slurmctld does not say which GPUs its slices are on: {error}"
        raise UnequalError(f"job {job_id}: {problem}. {AGAIN}") from error
