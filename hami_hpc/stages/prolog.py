# SPDX-License-Identifier: Apache-2.0
"""Prolog: enters a grant for each slice of the job in the ledger and creates the job's run directory.

It is idempotent and can be killed at any line: the ledger's rows are written first, so no allocation is forgotten, and
the directory appears by one rename. A fault of the node fails the prolog, and slurmd drains the node. A fault of the
job must not drain it, and Slurm has no exit status for that: the job gets a run directory without limits but with the
file `refused`, the SPANK plugin refuses its steps with that message, and the node stays up. A job that holds the
whole node gets a run directory with the file `whole` instead: its steps are not limited, and it has no grant. On a node
with an agent the start of a job with whole GPUs is noted for its usage record (docs/adr/048).
"""

from __future__ import annotations

import os
import sys

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import (
    Grant,
    JobUnits,
    make_grant,
    parse_id,
    parse_units,
    policy_of_job,
    same_slices,
    wants_vgpu,
    whole_gpus,
)
from hami_hpc.core.in_step import kind_of
from hami_hpc.core.inventory import Gpu, gpu_of_job, make_inventory
from hami_hpc.core.mixed import check_model
from hami_hpc.errors import JobError, NodeError
from hami_hpc.isolation.table import (
    POLICY_OF_MODE,
    WITH_SEVERAL_SLICES,
    backend_of,
    check_modes,
    mode_of_job,
    names_mode,
)
from hami_hpc.node import drained_gpus, events, job_dirs, mig_static, mode_outages, stage_times
from hami_hpc.node.config import Settings
from hami_hpc.node.ledger import Ledger
from hami_hpc.stages import common
from hami_hpc.stages.fence import check_spank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

AGENT_SILENT_S = 60
NO_ROOM = ("E_HELD", "E_MIG_NO_ROOM", "E_MPS_NO_CHUNKS")


def prolog(settings: Settings, environment: Mapping[str, str]) -> None:
    """Grants the job of `environment` its slice. Raises NodeError for a fault of the node; a JobError becomes the
    message with which the job's steps are refused."""
    gpus = whole_gpus(environment, settings.cores_of_gpu())
    if gpus:
        job_id = parse_id(environment, "SLURM_JOB_ID")
        environment = {**environment, "SLURM_JOB_GPUS": gpus}
        whole_node(settings, environment, job_id, f"job {job_id} holds the whole node with GPU {gpus}: no limits")
        return
    try:
        units = parse_units(environment)
        if units is None:
            return
        check_spank(environment)
        warn_of_silent_agent(settings)
        grant_or_make_room(settings, units, environment)
        note_sluid(settings, units.job_id, environment)
        stage_times.note_prolog(job_dirs.job_dir(settings.run_dir, units.job_id))
    except JobError as error:
        job_id = parse_id(environment, "SLURM_JOB_ID")
        job_dirs.prepare(settings.run_dir)
        job_dirs.place_refusal(settings.run_dir, job_id, str(error))
        note_sluid(settings, job_id, environment)
        is_requeued = False
        if error.code == "E_OUT_OF_SERVICE":
            from hami_hpc.stages import out_of_service

            is_requeued = out_of_service.send_back(settings, environment, job_id)
        elif error.code == "E_MIG_NO_ROOM":
            from hami_hpc.stages import no_room

            is_requeued = no_room.send_back(settings, environment, job_id, str(error))
        elif error.code in ("E_UNEQUAL", "E_MPS_NO_CHUNKS"):
            from hami_hpc.stages import send_back

            is_requeued = send_back.requeue(environment, job_id, str(error))
        elif error.code in ("E_BACKEND", "E_MODE_OUT"):
            from hami_hpc.stages import mode_service

            is_requeued = mode_service.refused(settings, environment, job_id, error)
        common.report("prolog", f"{error}. {'It was requeued' if is_requeued else 'Its steps will be refused'}")
        action = "requeued" if is_requeued else "steps refused"
        events.write(settings.state_dir, "prolog", "refused", job_id=job_id, action=action, text=str(error))


def note_sluid(settings: Settings, job_id: int, environment: Mapping[str, str]) -> None:
    """Notes the job's SLUID where Slurm gives one, as 26.05 does."""
    sluid = environment.get("SLURM_JOB_SLUID")
    if sluid:
        from hami_hpc.node import sluids

        sluids.note(settings.run_dir, job_id, sluid)


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
    """Does for a job with GPUs and without vgpu what there is to do: it starts, unless its GPUs are others'. Never
    fails, and never drains the node."""
    try:
        settings = common.load(arguments)
    except NodeError:  # the prolog of a vgpu job and the doctor say so; this one does not need them
        return
    job_id = environment.get("SLURM_JOB_ID", "")
    was_refused = os.path.lexists(f"{job_dirs.jobs_dir(settings.run_dir)}/{job_id}/{c.FILE_REFUSED}")
    if was_refused or _has_slices(settings) or os.path.exists(drained_gpus.path_of(settings.state_dir)):
        from hami_hpc.stages import whole_gpus

        if whole_gpus.turn_away(settings, environment, find_gpus):
            return
    note_gpus(settings, environment)


def _has_slices(settings: Settings) -> bool:
    """Returns whether any job has a slice here. Never fails."""
    jobs = job_dirs.jobs_dir(settings.run_dir)
    try:
        return any(os.path.lexists(f"{jobs}/{name}/{c.FILE_JOB_LIMITS}") for name in job_dirs.entries(settings.run_dir))
    except NodeError:
        return False


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


def grant_or_make_room(settings: Settings, units: JobUnits, environment: Mapping[str, str]) -> None:
    """Grants the job its slices as grant_job does, and raises as it does. Where others' leave no room, those of jobs
    that slurmctld does not have on this node any more are ended first."""
    try:
        grant_job(settings, units, environment)
    except (NodeError, JobError) as error:
        if error.code not in NO_ROOM:
            raise
        from hami_hpc.stages import make_room  # asks slurmctld

        if not make_room.of_gone_jobs(settings, environment):
            raise
        grant_job(settings, units, environment)


def grant_job(settings: Settings, units: JobUnits, environment: Mapping[str, str]) -> tuple[Grant, ...]:
    """Enters the job's grants and creates its directory. Keeps both when they exist already."""
    constraints = environment.get("SLURM_JOB_CONSTRAINTS", "")
    check_modes(settings.modes, settings.path)
    mode = mode_of_job(settings.modes, constraints)
    backend = backend_of(mode)
    indices = indices_of(units, mode, environment)
    ledger = common.open_ledger(settings)
    try:
        for ended in job_dirs.ended_grants(settings.run_dir):  # epilogs could not delete these rows
            ledger.remove(ended)
        gpus = find_gpus(ledger, settings, units.job_id, indices)
        _check_service(settings, ledger, units.job_id, gpus, mode, constraints)
        wanted = _wanted(settings, units, gpus, mode, constraints)
        _end_other_run(settings, ledger, wanted)
        for grant in wanted:
            check_model(grant, ledger.inventory(), constraints, settings.memory_scaling)
        is_new = not ledger.grants_of(units.job_id)
        grants = ledger.add(wanted, lambda new, live: backend.admit(new, live, settings.memory_scaling))
        try:
            backend.prepare(settings, grants, ledger.grants())
        except JobError:
            ledger.remove(grants[0])  # nothing is left of it, and its memory is free
            raise
        except Exception as error:
            if not (is_new and settings.mode_failures and names_mode(mode, constraints)):
                raise  # Slurm cannot keep a job that names no mode off this node: it is drained
            from hami_hpc.stages import mode_service

            raise mode_service.failure(settings, ledger, grants, error) from error
        common.tell_neighbours("prolog", settings, ledger)
        for grant in grants:
            _write_event(settings, grant)
        return grants
    finally:
        ledger.close()


def indices_of(units: JobUnits, mode: str, environment: Mapping[str, str]) -> tuple[int, ...]:
    """Returns Slurm's indices of the GPUs of the job's slices. Raises JobError for slices that are not to run."""
    if units.slice_count == 1:
        return (units.gpu_index,)
    if mode not in WITH_SEVERAL_SLICES:
        raise JobError(
            f"job {units.job_id} has {units.slice_count} slices with mode={mode}, which gives one slice of a node to a "
            f"job; several are possible with {', '.join(sorted(WITH_SEVERAL_SLICES))}. Submit it again with mode=share"
        )
    from hami_hpc.stages import several_gpus  # asks slurmctld

    return several_gpus.indices(units, environment)


def _check_service(
    settings: Settings, ledger: Ledger, job_id: int, gpus: Sequence[Gpu], mode: str, constraints: str
) -> None:
    """Raises JobError when a GPU, or the mode, is out of service. Of a job that has its grants already only a static
    MIG layout is checked."""
    if os.path.exists(drained_gpus.path_of(settings.state_dir)) and not ledger.grants_of(job_id):
        from hami_hpc.stages import out_of_service

        for gpu in gpus:
            out_of_service.check(settings, gpu, job_id)
    if os.path.exists(mig_static.path_of(settings.state_dir)):
        for gpu in gpus:
            mig_static.check(settings, gpu, job_id)
    if os.path.exists(mode_outages.path_of(settings.state_dir)) and not ledger.grants_of(job_id):
        from hami_hpc.stages import mode_service

        mode_service.check(settings, mode, job_id, constraints)


def _wanted(settings: Settings, units: JobUnits, gpus: Sequence[Gpu], mode: str, constraints: str) -> tuple[Grant, ...]:
    """Returns the grants of the job's units, one on each GPU."""
    own_class = settings.class_of_job(units)
    now_unix_ns = common.now_unix_ns()
    policy = policy_of_job(units.job_id, units.service_class, own_class.policy, own_class.policies, constraints)
    kept = POLICY_OF_MODE.get(mode, policy)
    return tuple(
        make_grant(
            units,
            gpu,
            kept,
            mode,
            now_unix_ns,
            latency=own_class.latency,
            floor=own_class.floor,
            priority=own_class.priority,
            slice_us=own_class.slice_us,
            slice_index=slice_index,
            in_step=kind_of(units.slice_count, units.node_count, mode, kept),
            max_processes=own_class.max_processes,
        )
        for slice_index, gpu in enumerate(gpus)
    )


def _end_other_run(settings: Settings, ledger: Ledger, wanted: tuple[Grant, ...]) -> None:
    """Ends a run of this job whose epilog never ran, if it has other slices: its MIG instance, or its place with an MPS
    daemon, may be of another GPU or mode, where nothing else would release it. Never fails."""
    old = ledger.grants_of(wanted[0].job_id)
    if not old or same_slices(old, wanted):
        return
    from hami_hpc.stages.epilog import end_grants

    try:
        end_grants(settings, ledger, old, common.now_unix_ns())
    except Exception as error:
        common.report("prolog", f"last run of job {old[0].job_id}: {common.error_text(error)}. Run hami-hpc reconcile")


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


def find_gpus(ledger: Ledger, settings: Settings, job_id: int, indices: Sequence[int]) -> tuple[Gpu, ...]:
    """Returns the GPUs with these indices from the ledger's inventory, read from NVML once a boot and when one is
    unknown."""
    known = {gpu.slurm_index: gpu for gpu in ledger.inventory()}
    if all(index in known for index in indices):
        return tuple(known[index] for index in indices)
    from hami_hpc.node import nvml  # once a boot

    gpus = make_inventory(nvml.read_devices(), settings.gpu_models)
    ledger.set_inventory(gpus)
    return tuple(gpu_of_job(gpus, index, job_id) for index in indices)


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Runs the prolog and returns the exit status for slurmd."""
    if not wants_vgpu(environment):
        if environment.get("SLURM_JOB_GPUS"):
            note_gpu_job(arguments, environment)
        return 0
    return common.run("prolog", arguments, environment, lambda: prolog(common.load(arguments), environment))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
