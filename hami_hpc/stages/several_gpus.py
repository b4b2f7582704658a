# SPDX-License-Identifier: Apache-2.0
"""Asks slurmctld which GPUs a job with several slices has on this node. Imported only for such jobs.

Slurm tells the prolog of such a job one of its GPUs (docs/adr/055). A job whose slices are not equal, or of which
slurmctld does not say where they are, does not run: it goes back to the queue, and the node stays in service. Where no
slurmctld answers, the prolog waits for as long as a second one may take to take over: nobody could requeue the job.
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
SILENT_S = 200.0  # SlurmctldTimeout is 120 s by default, and Slurm's own commands wait half as long again
SPARE_S = 30.0  # of the time that Slurm gives a prolog, for what follows
LIMITS = ("PrologEpilogTimeout", "PrologTimeout")  # the second one in later releases


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
        env = placeholders.environment(environment)
        return job_shards.read(scontrol, env, job_id, node, lambda: _silent_s(env))
    except NodeError as error:
        problem = f"slurmctld does not say which GPUs its slices are on: {error}"
        raise UnequalError(f"job {job_id}: {problem}. {AGAIN}") from error


def _silent_s(environment: Mapping[str, str]) -> float:
    """Returns for how long to ask while no slurmctld answers: SILENT_S, or less where Slurm would end this prolog and
    drain the node. 0 where slurm.conf cannot be read."""
    from hami_hpc.slurm.files import ConfFile, find_slurm_conf  # needed only where slurmctld is silent

    try:
        lines = ConfFile(find_slurm_conf(environment)).lines
    except NodeError:
        return 0.0
    limits = [line.get(key) for line in lines for key in LIMITS]
    return min([SILENT_S, *(int(limit) - SPARE_S for limit in limits if limit.isdigit() and int(limit))])
