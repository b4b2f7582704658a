# SPDX-License-Identifier: Apache-2.0
"""What prolog and epilog do on a node with a GPU out of service. Imported only where the file of such GPUs exists."""

from __future__ import annotations

from hami_hpc.contract import constants as c
from hami_hpc.core.inventory import Gpu, indices
from hami_hpc.core.out_of_service import DrainedGpu, as_numbered
from hami_hpc.errors import HamiError, JobError
from hami_hpc.node import drained_gpus
from hami_hpc.node.config import Settings
from hami_hpc.stages import common

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

REGISTERED_WAIT_S = 5.0  # that an epilog waits until slurmctld knows the placeholder jobs


class OutOfServiceError(JobError):
    """The job was given a GPU that is out of service."""

    code = "E_OUT_OF_SERVICE"


def check(settings: Settings, gpu: Gpu, job_id: int) -> None:
    """Raises OutOfServiceError when the GPU is out of service. A file that cannot be read blocks no job."""
    for drained in _read(settings, "prolog"):
        if drained.uuid == gpu.uuid:
            raise OutOfServiceError(
                f"job {job_id} was given GPU {gpu.minor} ({gpu.uuid}), which is out of service: {drained.reason}. "
                "A batch job is requeued if it may be; submit any other again"
            )


def send_back(settings: Settings, environment: Mapping[str, str], job_id: int) -> bool:
    """Requeues a refused job, which Slurm starts again after about two minutes, and fills the GPU. Returns whether it
    was requeued."""
    from hami_hpc.node.drain import find_scontrol
    from hami_hpc.slurm import placeholders
    from hami_hpc.stages import occupy
    from hami_hpc.stages.send_back import name_of

    scontrol, done = find_scontrol(), False
    name = "" if scontrol is None else name_of(environment, job_id, scontrol)
    if scontrol is not None and name:
        done = placeholders.requeue(name, scontrol, placeholders.environment(environment))
    occupy.start_detached(settings, environment, 0.0)
    return done


def after_job(settings: Settings, environment: Mapping[str, str]) -> None:
    """Fills what a job has freed of a GPU out of service, before the epilog ends and slurmctld uses the node again."""
    out = _read(settings, "epilog")
    if not out:
        return
    drained: set[int] = {gpu.slurm_index for gpu in as_numbered(out, _gpus(settings))}
    try:
        held = set(indices(environment.get("SLURM_JOB_GPUS", "")))
        # Where GPUs have types that are places it may lack some of the job's (docs/adr/055).
        held |= drained if settings.slices_max > 1 else set()
    except ValueError:  # not set: the job held no GPU
        return
    if environment.get(c.ENV_VGPU, "1") != "1":  # of several slices SLURM_JOB_GPUS has one GPU
        held |= drained
    if drained & held:
        from hami_hpc.stages import occupy

        occupy.start_detached(settings, environment, REGISTERED_WAIT_S)


def _gpus(settings: Settings) -> tuple[Gpu, ...]:
    """Returns the GPUs as the ledger has them; none where it cannot be read."""
    try:
        ledger = common.read_ledger(settings)
    except HamiError:
        return ()
    try:
        return tuple(ledger.inventory())
    except HamiError:
        return ()
    finally:
        ledger.close()


def _read(settings: Settings, stage: str) -> tuple[DrainedGpu, ...]:
    try:
        return drained_gpus.read(settings.state_dir)
    except HamiError as error:
        common.report(stage, str(error))
        return ()
