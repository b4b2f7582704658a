# SPDX-License-Identifier: Apache-2.0
"""Prolog: enters a grant for the job's allocation in the ledger and creates the job's run directory.

It is idempotent and can be killed at any line: the ledger row is written first, so no allocation is forgotten, and the
directory appears by one rename. A fault of the node fails the prolog, and slurmd drains the node. A fault of the job
must not drain it, and Slurm has no exit status for that: the job gets a run directory without limits but with the file
`refused`, the SPANK plugin refuses its steps with that message, and the node stays up. A job that holds the whole node
gets a run directory with the file `whole` instead: its steps are not limited, and it has no grant. On a node with an
agent the start of a job with whole GPUs is noted for its usage record (docs/adr/048).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from hami_hpc.core.grant import (
    Grant,
    JobUnits,
    make_grant,
    parse_id,
    parse_units,
    policy_of_job,
    wants_vgpu,
    whole_gpus,
)
from hami_hpc.core.inventory import Gpu, gpu_of_job, make_inventory
from hami_hpc.core.mixed import check_model
from hami_hpc.errors import JobError, NodeError
from hami_hpc.isolation.table import POLICY_OF_MODE, backend_of, check_modes, mode_of_job, names_mode
from hami_hpc.node import drained_gpus, events, job_dirs, mig_static, mode_outages, stage_times
from hami_hpc.node.config import Settings
from hami_hpc.node.ledger import Ledger
from hami_hpc.stages import common
from hami_hpc.stages.fence import check_spank

AGENT_SILENT_S = 60


def prolog(settings: Settings, environment: Mapping[str, str]) -> None:
    """Grants the job of `environment` its slice. Raises NodeError for a fault of the node; a JobError becomes the
    message with which the job's steps are refused."""
    gpus = whole_gpus(environment)
    if gpus:
        job_id = parse_id(environment, "SLURM_JOB_ID")
        whole_node(settings, environment, job_id, f"job {job_id} holds the whole node with GPU {gpus}: no limits")
        return
    try:
        units = parse_units(environment)
        if units is None:
            return
        check_spank(environment)
        warn_of_silent_agent(settings)
        grant_job(settings, units, environment.get("SLURM_JOB_CONSTRAINTS", ""))
        stage_times.note_prolog(job_dirs.job_dir(settings.run_dir, units.job_id))
    except JobError as error:
        job_id = parse_id(environment, "SLURM_JOB_ID")
        job_dirs.prepare(settings.run_dir)
        job_dirs.place_refusal(settings.run_dir, job_id, str(error))
        is_requeued = False
        if error.code == "E_OUT_OF_SERVICE":
            from hami_hpc.stages import out_of_service

            is_requeued = out_of_service.send_back(settings, environment, job_id)
        elif error.code == "E_MIG_NO_ROOM":
            from hami_hpc.stages import no_room

            is_requeued = no_room.send_back(settings, environment, job_id, str(error))
        elif error.code in ("E_BACKEND", "E_MODE_OUT"):
            from hami_hpc.stages import mode_service

            is_requeued = mode_service.refused(settings, environment, job_id, error)
        common.report("prolog", f"{error}. {'It was requeued' if is_requeued else 'Its steps will be refused'}")
        action = "requeued" if is_requeued else "steps refused"
        events.write(settings.state_dir, "prolog", "refused", job_id=job_id, action=action, text=str(error))


def whole_node(settings: Settings, environment: Mapping[str, str], job_id: int, text: str) -> None:
    """Makes the directory of a job that holds the whole node. Raises NodeError when it has no file `whole` then."""
    from hami_hpc.node import gpu_jobs as directories

    job_dirs.prepare(settings.run_dir)
    if not note_gpus(settings, environment, text):
        directories.place_whole(settings.run_dir, job_id, text)


def note_gpus(settings: Settings, environment: Mapping[str, str], whole: str = "") -> bool:
    """Notes the start of a job with whole GPUs, for its usage record. Returns whether that is done. Never fails: the
    job needs nothing of it to run."""
    if settings.agent is None:
        return False
    from hami_hpc.stages import gpu_jobs

    try:
        return gpu_jobs.note(settings, environment, whole)
    except Exception as error:
        job = environment.get("SLURM_JOB_ID", "?")
        common.report("prolog", f"job {job} with whole GPUs will have no usage record: {common.error_text(error)}")
        return False


def note_gpu_job(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Does for a job with GPUs and without vgpu what there is to do. Never fails, and never drains the node."""
    try:
        settings = common.load(arguments)
    except NodeError:  # the prolog of a vgpu job and the doctor say so; this one does not need them
        return
    note_gpus(settings, environment)


def warn_of_silent_agent(settings: Settings) -> None:
    """Writes to syslog when [agent] is in the settings and the agent has not looked for a while. Never fails."""
    if settings.agent is None:
        return
    from hami_hpc.node import agent_file

    silent_s = agent_file.seconds_silent(settings.run_dir)
    if silent_s is None or silent_s > AGENT_SILENT_S:
        from hami_hpc.node import admin_log  # syslog's module takes a quarter of a millisecond

        since = "has not looked in this boot" if silent_s is None else f"has not looked for {silent_s:.0f} s"
        advice = "jobs are limited, but nobody finds who evades the limits. See systemctl status hami-hpc-agent"
        admin_log.to_syslog(admin_log.WARNING, f"prolog: the agent {since}: {advice}")


def grant_job(settings: Settings, units: JobUnits, constraints: str = "") -> Grant:
    """Enters the grant and creates its directory. Keeps both when they exist already."""
    check_modes(settings.modes, settings.path)
    mode = mode_of_job(settings.modes, constraints)
    backend = backend_of(mode)
    ledger = common.open_ledger(settings)
    try:
        for ended in job_dirs.ended_grants(settings.run_dir):  # epilogs could not delete these rows
            ledger.remove(ended)
        gpu = find_gpu(ledger, settings, units)
        if os.path.exists(drained_gpus.path_of(settings.state_dir)) and ledger.grant_of(units.job_id) is None:
            from hami_hpc.stages import out_of_service

            out_of_service.check(settings, gpu, units.job_id)
        if os.path.exists(mig_static.path_of(settings.state_dir)):
            mig_static.check(settings, gpu, units.job_id)
        if os.path.exists(mode_outages.path_of(settings.state_dir)) and ledger.grant_of(units.job_id) is None:
            from hami_hpc.stages import mode_service

            mode_service.check(settings, mode, units.job_id, constraints)
        own_class = settings.class_of_job(units)
        now_unix_ns = common.now_unix_ns()
        policy = policy_of_job(units.job_id, units.service_class, own_class.policy, own_class.policies, constraints)
        wanted = make_grant(
            units,
            gpu,
            POLICY_OF_MODE.get(mode, policy),
            mode,
            now_unix_ns,
            latency=own_class.latency,
            floor=own_class.floor,
            priority=own_class.priority,
            slice_us=own_class.slice_us,
        )
        _end_other_run(settings, ledger, wanted)
        check_model(wanted, ledger.inventory(), constraints, settings.memory_scaling)
        is_new = ledger.grant_of(units.job_id) is None
        grant = ledger.add(wanted, lambda new, live: backend.admit(new, live, settings.memory_scaling))
        try:
            backend.prepare(settings, grant)
        except JobError:
            ledger.remove(grant)  # nothing is left of it, and its memory is free
            raise
        except Exception as error:
            if not (is_new and settings.mode_failures and names_mode(mode, constraints)):
                raise  # Slurm cannot keep a job that names no mode off this node: it is drained
            from hami_hpc.stages import mode_service

            raise mode_service.failure(settings, ledger, grant, error) from error
        common.tell_neighbours("prolog", settings, ledger)
        _write_event(settings, grant)
        return grant
    finally:
        ledger.close()


def _end_other_run(settings: Settings, ledger: Ledger, wanted: Grant) -> None:
    """Ends a run of this job whose epilog never ran, if it has another slice: its MIG instance, or its place with an
    MPS daemon, may be of another GPU or mode, where nothing else would release it. Never fails."""
    old = ledger.grant_of(wanted.job_id)
    if old is None or old.same_slice(wanted):
        return
    from hami_hpc.stages.epilog import end_grant

    try:
        end_grant(settings, ledger, old, common.now_unix_ns())
    except Exception as error:
        common.report("prolog", f"last run of job {old.job_id}: {common.error_text(error)}. Run hami-hpc reconcile")


def _write_event(settings: Settings, grant: Grant) -> None:
    """Writes the event of a grant. A prolog that runs again after a crash writes it again."""
    events.write(
        settings.state_dir,
        "prolog",
        "grant",
        text=f"job {grant.job_id} has {grant.mem_mib} MiB and {grant.cores_percent} % of GPU {grant.gpu_minor}",
        job_id=grant.job_id,
        uid=grant.uid,
        gpu_uuid=grant.gpu_uuid,
        start_unix_ns=grant.created_unix_ns,
        mem_mib=grant.mem_mib,
        cores=grant.cores_percent,
        policy=grant.policy,
        **{"class": grant.service_class},
    )


def find_gpu(ledger: Ledger, settings: Settings, units: JobUnits) -> Gpu:
    """Returns the job's GPU from the ledger's inventory, read from NVML once a boot and when a GPU is unknown."""
    for gpu in ledger.inventory():
        if gpu.slurm_index == units.gpu_index:
            return gpu
    from hami_hpc.node import nvml  # once a boot

    gpus = make_inventory(nvml.read_devices(), settings.gpu_models)
    ledger.set_inventory(gpus)
    return gpu_of_job(gpus, units.gpu_index, units.job_id)


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Runs the prolog and returns the exit status for slurmd."""
    if not wants_vgpu(environment):
        if environment.get("SLURM_JOB_GPUS"):
            note_gpu_job(arguments, environment)
        return 0
    return common.run("prolog", arguments, environment, lambda: prolog(common.load(arguments), environment))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
