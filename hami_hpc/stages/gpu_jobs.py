# SPDX-License-Identifier: Apache-2.0
"""What prolog, epilog and reconcile do for the usage record of a job with whole GPUs: docs/adr/048.

The prolog notes when the run began. The epilog writes the record of what the agent saw, then removes the directory; a
kill at any line leaves the note, and whoever comes next (reconcile, or the prolog of the job's next run) finishes it. A
record is written once for each run, as its name and `start_unix_ns` are those of the note. Nothing here stops a job.
"""

from __future__ import annotations

import os

from hami_hpc.contract import constants as c
from hami_hpc.core.gpu_jobs import MODE, GpuJob, of_environment
from hami_hpc.core.grant import Grant
from hami_hpc.core.records import OBSERVED_USAGE, usage_record
from hami_hpc.errors import NodeError
from hami_hpc.node import agent_file, boot, ended_dirs, gpu_jobs, history_file, job_dirs, usage_spool
from hami_hpc.node.agent_file import SeenGpuJob
from hami_hpc.node.config import Settings
from hami_hpc.stages import common

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

NS = 1_000_000_000
TWICE_NS = 60 * NS  # a prolog that runs again for the same run does so before any of the job's programs


def note(settings: Settings, environment: Mapping[str, str], whole: str) -> bool:
    """Makes the directory of a job with GPUs that an agent is to watch. `whole` is the text for SPANK of a job that
    holds the node, or "". Returns whether the job has such a directory now. Raises NodeError."""
    job = of_environment(environment, common.now_unix_ns())
    if job is None:
        return False
    job_dirs.prepare(settings.run_dir)
    directory = job_dirs.job_dir(settings.run_dir, job.job_id)
    old = gpu_jobs.read(directory)
    if old is not None:
        if _is_same_run(settings, old, job) and os.path.lexists(f"{directory}/{c.FILE_WHOLE}") == bool(whole):
            return True
        try:
            end(settings, directory, job.created_unix_ns)  # the epilog of the job's run before was killed
        except NodeError as error:  # it is set aside
            common.report("prolog", f"job {job.job_id}: {error}. hami-hpc reconcile will finish this")
    gpu_jobs.place(settings.run_dir, job, whole)
    return True


def _is_same_run(settings: Settings, old: GpuJob, new: GpuJob) -> bool:
    """Returns whether this prolog is another one of the same run: a run before has no process any more."""
    if not old.is_same(new):
        return False
    seen = agent_file.read_gpu_job(settings.run_dir, boot.boot_id(), old.job_id, old.created_unix_ns)
    if seen is not None and seen.is_running:
        return True
    is_unused = seen is None or not (seen.observed.observed_busy_ns or seen.observed.observed_peak_bytes)
    return is_unused and 0 <= new.created_unix_ns - old.created_unix_ns < TWICE_NS


def end(settings: Settings, directory: str, end_unix_ns: int) -> None:
    """Writes the record of the run that a directory is of, if the agent saw it, and removes the directory.

    No error when another process does the same. Raises NodeError when the record can be written nowhere: the directory
    is then set aside, for reconcile.
    """
    job = gpu_jobs.read(directory)
    if job is None:
        return
    seen = agent_file.read_gpu_job(settings.run_dir, boot.boot_id(), job.job_id, job.created_unix_ns)
    if seen is not None:
        history = history_file.read_text(directory, job.created_unix_ns)
        record = usage_record(
            _as_grant(job, seen),
            OBSERVED_USAGE,
            end_unix_ns,
            seen.observed,
            gpu_count=len(seen.gpu_uuids),
            history=history,
            cluster=common.cluster_name(os.environ),
        )
        try:
            if not usage_spool.is_spooled(settings.state_dir, settings.run_dir, job.job_id, job.created_unix_ns):
                common.store_record(settings, record)
        except NodeError:
            if directory == job_dirs.job_dir(settings.run_dir, job.job_id):
                ended_dirs.set_aside(settings.run_dir, job)
            raise
    if gpu_jobs.read(directory) == job:  # else another process has ended the run, and the job's next one has begun
        job_dirs.remove(settings.run_dir, directory)


def end_set_aside(settings: Settings, directory: str) -> None:
    """As end, for a directory that was set aside when its run ended. No error when another process has finished it."""
    try:
        end_unix_ns = ended_dirs.ended_unix_ns(directory)
    except FileNotFoundError:
        return
    end(settings, directory, end_unix_ns)


def _as_grant(job: GpuJob, seen: SeenGpuJob) -> Grant:
    """Returns the job as a grant of all of its GPUs, which is what a usage record is made of."""
    return Grant(
        job_id=job.job_id,
        uid=job.uid,
        gpu_uuid=",".join(seen.gpu_uuids),
        gpu_minor=0,
        gpu_total_mib=seen.mem_mib,
        model=seen.model,
        mem_mib=seen.mem_mib,
        cores_percent=100 * len(seen.gpu_uuids),
        service_class="",
        policy="none",
        mode=MODE,
        created_unix_ns=job.created_unix_ns,
    )
