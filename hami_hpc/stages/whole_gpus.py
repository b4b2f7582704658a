# SPDX-License-Identifier: Apache-2.0
"""What the prolog does with a job that was given whole GPUs which are not free: others have slices of them, or they are
out of service (docs/adr/117). Imported only where the node has slices or a GPU out of service, or an earlier run of the
job was refused.

Slurm before 23.11.5 forgets at the end of a slice that others are on its GPU, and gives that as a whole to the next job
that asks for one. Such a job is sent back to the queue: it would share the GPU with slices, without any limit.
"""

from __future__ import annotations

import os

from hami_hpc.contract import constants as c
from hami_hpc.core.gpu_jobs import GpuJob, of_environment
from hami_hpc.errors import NodeError
from hami_hpc.node import drain, drained_gpus, events, job_dirs
from hami_hpc.node.config import Settings
from hami_hpc.slurm import job_shards, placeholders
from hami_hpc.stages import common, make_room, send_back

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hami_hpc.core.inventory import Gpu
    from hami_hpc.node.ledger import Ledger

    FindGpus = Callable[[Ledger, Settings, int, Sequence[int]], tuple[Gpu, ...]]

AGAIN = "A batch job is requeued if it may be; submit any other again"


def turn_away(settings: Settings, environment: Mapping[str, str], find_gpus: FindGpus) -> bool:
    """Refuses the steps of a job that cannot have its whole GPUs, and requeues it. Returns whether it did. Never fails:
    a job of which nobody knows that its GPUs are others' starts. `find_gpus` is the prolog's."""
    try:
        job = of_environment(environment, common.now_unix_ns())
        if job is None:
            return False
        _forget_refusal(settings, job.job_id)  # of an earlier run, whose epilog was killed
        problem = _problem(settings, environment, job, find_gpus)
        if not problem:
            return False
        text = f"job {job.job_id} was given {problem}. {AGAIN}"
        try:
            job_dirs.place_refusal(settings.run_dir, job.job_id, text)
        except NodeError as error:  # the run directory is full, for example: a batch job goes back all the same
            common.report("prolog", f"job {job.job_id}: its steps cannot be refused: {error}")
        is_requeued = send_back.requeue(environment, job.job_id, text)
        common.report("prolog", f"{text}. {'It was requeued' if is_requeued else 'Its steps will be refused'}")
        action = "requeued" if is_requeued else "steps refused"
        events.write(settings.state_dir, "prolog", "refused", job_id=job.job_id, action=action, text=text)
        return True
    except Exception as error:
        job_id = environment.get("SLURM_JOB_ID", "?")
        common.report("prolog", f"whether the GPUs of job {job_id} are free is not known: {common.error_text(error)}")
        return False


def _forget_refusal(settings: Settings, job_id: int) -> None:
    directory = job_dirs.job_dir(settings.run_dir, job_id)
    if os.path.lexists(f"{directory}/{c.FILE_REFUSED}"):
        job_dirs.remove(settings.run_dir, directory)


def _problem(settings: Settings, environment: Mapping[str, str], job: GpuJob, find_gpus: FindGpus) -> str:
    """Returns what is wrong with the job's GPUs; "" for a job that may start."""
    found = _unusable(settings, job, find_gpus)
    if not found:
        return ""
    scontrol, node = drain.find_scontrol(), environment.get("SLURMD_NODENAME", "")
    if scontrol is None or not node:
        return ""
    env = placeholders.environment(environment)
    whole = job_shards.read_whole(scontrol, env, job.job_id, node)
    job = job._replace(gpus=tuple(index for index in job.gpus if index in whole))  # of others it has shards
    if _taken(settings, job, find_gpus):
        make_room.of_gone_jobs(settings, environment)
    return _unusable(settings, job, find_gpus)


def _unusable(settings: Settings, job: GpuJob, find_gpus: FindGpus) -> str:
    return _taken(settings, job, find_gpus) or _out_of_service(settings, job, find_gpus)


def _taken(settings: Settings, job: GpuJob, find_gpus: FindGpus) -> str:
    """Returns which of the job's GPUs has slices of other jobs."""
    ledger = common.open_ledger(settings)
    try:
        gpus = find_gpus(ledger, settings, job.job_id, job.gpus)
        live = [grant for grant in ledger.grants() if grant.job_id != job.job_id]
    finally:
        ledger.close()
    for gpu in gpus:
        others = sorted({grant.job_id for grant in live if grant.gpu_uuid == gpu.uuid})
        if others:
            named = f"job {others[0]} has a slice" if len(others) == 1 else f"{len(others)} jobs have slices"
            why = "Slurm before 23.11.5 forgets that when another slice ends"
            return f"GPU {gpu.minor} ({gpu.uuid}) as a whole, of which {named}: {why}"
    return ""


def _out_of_service(settings: Settings, job: GpuJob, find_gpus: FindGpus) -> str:
    """Returns which of the job's GPUs is out of service. By UUID: another GPU may have its number now."""
    drained = {one.uuid: one for one in drained_gpus.read(settings.state_dir)}
    if not drained:
        return ""
    ledger = common.open_ledger(settings)
    try:
        gpus = find_gpus(ledger, settings, job.job_id, job.gpus)
    finally:
        ledger.close()
    for gpu in gpus:
        if gpu.uuid in drained:
            return f"GPU {gpu.minor} ({gpu.uuid}), which is out of service: {drained[gpu.uuid].reason}"
    return ""
