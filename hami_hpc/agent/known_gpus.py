# SPDX-License-Identifier: Apache-2.0
"""Which whole GPUs the jobs hold that the prolog noted: by its note, from the signed credential, and by Slurm.

The credential does not say whether a GPU is held whole or in shards; Slurm does, but for all nodes of a job, in a text
with parts that users write. What both say holds; a user can at most make shards look whole, and gets a usage record. It
is found once for each run, and stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hami_hpc.agent.gpus import GpuLook
from hami_hpc.core.agent_state import JobState
from hami_hpc.core.gpu_jobs import GpuJob
from hami_hpc.core.job_sums import Run
from hami_hpc.core.watch import MIB, WholeGpus


@dataclass
class KnownGpus:
    """The jobs with whole GPUs. Give it those of the last state file when the agent starts again."""

    _known: dict[Run, WholeGpus] = field(default_factory=dict)

    @classmethod
    def resumed(cls, jobs: Iterable[JobState]) -> KnownGpus:
        return cls({(job.job_id, job.created_unix_ns): _of_state(job) for job in jobs})

    def update(
        self,
        noted: Iterable[GpuJob],
        whole_nodes: frozenset[int],
        gpu_looks: tuple[GpuLook, ...],
        whole_of: Callable[[int], frozenset[int] | None],
        whole_here: Callable[[int], frozenset[int]] = lambda _job_id: frozenset(),
    ) -> tuple[WholeGpus, ...]:
        """Returns the noted jobs whose GPUs are known. `whole_nodes` are those that hold all of the node. `whole_of`
        asks Slurm, and so does `whole_here`, for GPUs that the note may lack. On a node with MIG none is: Slurm's
        indices are those of the parts there."""
        is_mig = any(one.is_mig for one in gpu_looks)
        gpus = {one.gpu.slurm_index: one for one in gpu_looks}
        known: dict[Run, WholeGpus] = {}
        for job in noted:
            run = (job.job_id, job.created_unix_ns)
            found = self._known.get(run)
            if found is None and gpus and not is_mig:
                held = frozenset(job.gpus) if job.job_id in whole_nodes else whole_of(job.job_id)
                more = whole_here(job.job_id)
                noted_gpus = [index for index in job.gpus if index in (held or ())]
                looks = [gpus[index] for index in sorted({*noted_gpus, *more}) if index in gpus]
                found = _whole_gpus(job, looks) if looks else None
            if found is not None:
                known[run] = found
        self._known = known
        return tuple(known.values())


def _whole_gpus(job: GpuJob, looks: list[GpuLook]) -> WholeGpus:
    return WholeGpus(
        job.job_id,
        job.uid,
        job.created_unix_ns,
        tuple(one.gpu.uuid for one in looks),
        looks[0].gpu.minor,
        looks[0].gpu.model,
        sum(one.gpu.total_mib for one in looks) * MIB,
    )


def _of_state(job: JobState) -> WholeGpus:
    uuids = tuple(job.gpu_uuid.split(","))
    return WholeGpus(job.job_id, job.uid, job.created_unix_ns, uuids, job.gpu_minor, job.model, job.mem_bytes)
