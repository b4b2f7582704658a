# SPDX-License-Identifier: Apache-2.0
"""Epilog: writes the job's usage to the spool, then removes its ledger rows, then its run directory.

In this order a kill at any line loses nothing, and a second run finishes the rest. The epilog kills no process: slurmd
ends the job's processes before it starts the epilog.

A full or broken disk does not fail the epilog. A failure would drain the node, but the next prolog detects the same
fault, or the fault affects the bill only. The epilog writes to syslog, and leaves the unfinished work for later:

    the spool cannot be written          the record waits in <run_dir>/spool/, for the next epilog or reconcile
    <run_dir>/spool cannot be written    the directory is set aside as `.ended-*`, for reconcile
    the ledger cannot be opened          the same; the next prolog deletes the row of that directory
    the run directory is read-only       everything stays as it is for reconcile; no prolog can grant anything either
    an unexpected exception              the directory is set aside as `.bad-*`, for an administrator
"""

from __future__ import annotations

import os
import sys

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant, parse_id, total, wants_vgpu
from hami_hpc.core.records import MISSING_USAGE, NOT_OBSERVED, OBSERVED_USAGE, Observed, usage_record
from hami_hpc.errors import NodeError
from hami_hpc.isolation.table import backend_of
from hami_hpc.node import (
    boot,
    drained_gpus,
    ended_dirs,
    events,
    history_file,
    job_dirs,
    mode_outages,
    stage_times,
    usage_spool,
)
from hami_hpc.node.config import Settings
from hami_hpc.node.ledger import Ledger
from hami_hpc.stages import common

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Of a usage record, what the event `grant_end` has.
EVENT_FIELDS = (
    *("job_id", "uid", "gpu_uuid", "start_unix_ns", "end_unix_ns", "usage", "peak_bytes", "gpu_busy_ns", "oom_count"),
    "gpu_fault",
)


def epilog(settings: Settings, job_id: int, had_vgpu: bool) -> None:
    """Ends the job on this node. No error when no prolog ran before."""
    usage_spool.deliver(settings.run_dir, settings.state_dir)
    directory = job_dirs.job_dir(settings.run_dir, job_id)
    if os.path.lexists(f"{directory}/{c.FILE_GPUS}"):
        end_gpu_job(settings, job_id, directory)
    if not had_vgpu and not os.path.lexists(directory):
        return
    began_unix_ns, record = stage_times.began_unix_ns(), ""
    try:
        ledger = common.open_ledger(settings)
        try:
            own = ledger.grants_of(job_id)
            grants, end_unix_ns = own or job_dirs.read_grants(directory), common.now_unix_ns()
            if own:  # of this boot
                end_unix_ns = history_file.end_unix_ns(directory, own[0].created_unix_ns, end_unix_ns)
            if not grants:  # the job was refused, or no prolog ran
                job_dirs.remove(settings.run_dir, directory)
            else:
                record = end_grants(settings, ledger, grants, end_unix_ns, epilog_began_unix_ns=began_unix_ns)
            finish_set_aside(settings, ledger)
        finally:
            common.tell_neighbours("epilog", settings, ledger)
            ledger.close()
    except Exception as error:
        common.report("epilog", f"job {job_id}: {common.error_text(error)}")
        leave_for_reconcile(settings, directory)
    else:
        usage_spool.note_done(record)


def end_gpu_job(settings: Settings, job_id: int, directory: str) -> None:
    """Ends a job with whole GPUs. Never fails: such a job needs nothing of hami_hpc to run."""
    from hami_hpc.stages import gpu_jobs

    try:
        try:
            gpu_jobs.end(settings, directory, common.now_unix_ns())
        except NodeError as error:
            common.report("epilog", f"job {job_id}: {error}. hami-hpc reconcile will finish this")
        except Exception as error:  # a bug in hami_hpc: only this job's directory waits for an administrator
            bad_name = ended_dirs.set_bad(settings.run_dir, str(job_id))
            common.report("epilog", f"job {job_id}: {common.error_text(error)}; its run directory is now {bad_name}")
    except NodeError as error:
        common.report("epilog", f"job {job_id}: {error}")


def end_grants(
    settings: Settings,
    ledger: Ledger,
    grants: tuple[Grant, ...],
    end_unix_ns: int,
    source: str = "epilog",
    epilog_began_unix_ns: int = 0,
) -> str:
    """Spools the usage of one job's slices, and removes their rows and the directory. Returns the new record's path, or
    "".

    Raises NodeError when a part of this has to wait; the memory is freed also then, if the ledger can be written. The
    rows are removed before the directory, because a directory without rows does not block other jobs.
    """
    grant = grants[0]
    ended_dir = ended_dirs.ended_dir(settings.run_dir, grant)
    problem, record = None, ""
    try:
        if os.path.lexists(ended_dir):  # an earlier epilog could not spool it
            spool_usage(settings, grants, ended_dir, ended_dirs.ended_unix_ns(ended_dir), source)
        else:
            directory = job_dirs.job_dir(settings.run_dir, grant.job_id)
            record = spool_usage(settings, grants, directory, end_unix_ns, source, epilog_began_unix_ns)
    except NodeError as error:
        ended_dirs.set_aside(settings.run_dir, grant)
        problem = error
    except Exception as error:  # a bug in hami_hpc: only this job's directory waits for an administrator
        bad_name = ended_dirs.set_bad(settings.run_dir, str(grant.job_id))
        problem = NodeError(f"{common.error_text(error)}; its run directory is now {bad_name}")
    ledger.remove(grant)
    if problem is not None:
        raise problem
    job_dirs.remove(settings.run_dir, ended_dir)
    ended_dirs.remove_grant(settings.run_dir, grant)
    return record


def finish_set_aside(settings: Settings, ledger: Ledger) -> None:
    """Ends the grants that earlier epilogs set aside. Raises the first NodeError, after the others, when that is still
    not possible of one."""
    problem = None
    for name in job_dirs.entries(settings.run_dir):
        path = f"{job_dirs.jobs_dir(settings.run_dir)}/{name}"
        if not name.startswith(job_dirs.ENDED):
            continue
        try:
            if grants := job_dirs.read_grants(path):
                end_directory(settings, ledger, grants, path)
            elif os.path.lexists(f"{path}/{c.FILE_GPUS}"):
                from hami_hpc.stages import gpu_jobs

                gpu_jobs.end_set_aside(settings, path)
        except NodeError as error:
            problem = problem or error
    if problem is not None:
        raise problem


def end_directory(
    settings: Settings, ledger: Ledger, grants: tuple[Grant, ...], path: str, source: str = "epilog"
) -> None:
    """Spools the usage of a directory for which the ledger has no rows, then removes its rows, if any, and itself.

    No error when another process has done so. Raises NodeError when that is not possible.
    """
    try:
        end_unix_ns = ended_dirs.ended_unix_ns(path)
    except FileNotFoundError:
        return
    # A limits record does not contain the GPU's model; the inventory does.
    models = {gpu.uuid: gpu.model for gpu in ledger.inventory()}
    named = tuple(grant._replace(model=models.get(grant.gpu_uuid, "")) for grant in grants)
    spool_usage(settings, named, path, end_unix_ns, source)
    ledger.remove(grants[0])
    present = job_dirs.read_grant(path)
    if present is not None and present.created_unix_ns == grants[0].created_unix_ns:  # else of the job's next run
        job_dirs.remove(settings.run_dir, path)


def spool_usage(
    settings: Settings,
    grants: tuple[Grant, ...],
    directory: str,
    end_unix_ns: int,
    source: str = "epilog",
    epilog_began_unix_ns: int = 0,
) -> str:
    """Releases the job's slices and spools the usage read from `directory`, unless this run of the job has a record
    already. Writes the event `grant_end`, too.

    Returns the path of the record in the spool, or "". When the spool cannot be written, the record waits in the run
    directory. Raises NodeError when that fails too.
    """
    grant = total(grants)
    job_id, start_unix_ns = grant.job_id, grant.created_unix_ns
    usage = backend_of(grant.mode).release(settings, directory, grants, end_unix_ns)
    if usage_spool.is_spooled(settings.state_dir, settings.run_dir, job_id, start_unix_ns):
        return ""
    seen = observed(settings, grant)
    if usage == OBSERVED_USAGE and not seen.observed_ns:
        usage = MISSING_USAGE  # its zeros are not what the job used: no agent looked while it ran
    record = usage_record(
        grant,
        usage,
        end_unix_ns,
        seen,
        stage_times.read_times(directory)._replace(epilog_began_unix_ns=epilog_began_unix_ns),
        gpu_count=len(grants),
        history=history_file.read_text(directory, start_unix_ns),
        cluster=common.cluster_name(os.environ),
    )
    # Before the record: after a crash in between it is written again, and never left out.
    kept = {name: record[name] for name in EVENT_FIELDS}
    minors = ", ".join(str(one.gpu_minor) for one in grants)
    events.write(settings.state_dir, source, "grant_end", text=f"job {job_id} has ended on GPU {minors}", **kept)
    return common.store_record(settings, record)


def observed(settings: Settings, grant: Grant) -> Observed:
    """Returns what the agent saw of the job; nothing where no agent runs."""
    if settings.agent is None:
        return NOT_OBSERVED
    from hami_hpc.node import agent_file

    return agent_file.read_observed(settings.run_dir, boot.boot_id(), grant.job_id, grant.created_unix_ns)


def leave_for_reconcile(settings: Settings, directory: str) -> None:
    """Saves the usage if that is possible, and sets the directory aside. Reconcile does later what fails here."""
    grants = job_dirs.read_grants(directory)
    if not grants:
        return
    try:
        try:
            spool_usage(settings, grants, directory, common.now_unix_ns())
        finally:
            ended_dirs.set_aside(settings.run_dir, grants[0])
    except Exception as error:
        common.report(
            "epilog", f"job {grants[0].job_id}: {common.error_text(error)}. hami-hpc reconcile will finish this"
        )


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Runs the epilog and returns the exit status for slurmd."""

    def body() -> None:
        job_id = parse_id(environment, "SLURM_JOB_ID")
        settings = common.load(arguments)
        epilog(settings, job_id, wants_vgpu(environment))
        if os.path.exists(drained_gpus.path_of(settings.state_dir)):
            from hami_hpc.stages import out_of_service

            out_of_service.after_job(settings, environment)
        if os.path.exists(mode_outages.path_of(settings.state_dir)):
            from hami_hpc.stages import mode_service

            mode_service.after_job(settings, environment)

    return common.run("epilog", arguments, environment, body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
