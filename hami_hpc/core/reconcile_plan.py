# SPDX-License-Identifier: Apache-2.0
"""Plans the actions that make ledger, run directory, Slurm and driver agree. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from hami_hpc.core.gpu_jobs import GpuJob
from hami_hpc.core.grant import Grant, by_job, total

LEFTOVER_AGE_S = 60  # a prolog needs milliseconds between making `.new-*` and renaming it


class Kind(Enum):
    """What an action does."""

    DROP_VOID = "drop-void"  # drops a ledger row of another boot
    END = "end"  # ends a grant whose job is no longer on this node: spools usage, removes directory and row
    SPOOL = "spool"  # spools usage that was set aside because the spool was full
    RECORD = "record"  # writes the usage record of an ended job with whole GPUs, and removes its directory
    RESTORE_DIRECTORY = "restore-directory"
    RESTORE_ROW = "restore-row"
    REMOVE_DIRECTORY = "remove-directory"
    REMOVE_FILE = "remove-file"
    REMOVE_INSTANCE = "remove-instance"  # destroys a MIG instance of ours that no job has
    DAEMON = "daemon"  # starts, replaces or stops an MPS daemon
    RESUME = "resume"  # lets the memory of a job come back that Slurm has resumed
    SUSPEND = "suspend"  # orders the memory of a job away whose programs got no signal when Slurm suspended it
    MODE = "mode"  # puts a mode that was out back into the node's features
    RETURN_NODE = "return-node"  # returns a node to service that was drained because its run directory was full
    DELIVER = "deliver"  # moves usage records from the run directory to the spool
    PROBLEM = "problem"  # reports what an administrator must decide; changes nothing


OF_ANOTHER_VERSION = (
    "its records are of another version of hami_hpc. What runs has its limits; no new step or program of it gets a "
    "GPU. Wait until it ends, or cancel it and submit it again"
)


@dataclass(frozen=True, slots=True)
class Action:
    """One step of the plan. `text` is the line printed for it, `name` the name of the directory in `jobs/`, `grants`
    (the job's slices) or `gpu_job` the run that it is of."""

    kind: Kind
    text: str
    job_id: int | None = None
    grants: tuple[Grant, ...] = ()
    name: str | None = None
    gpu_job: GpuJob | None = None


@dataclass(frozen=True, slots=True)
class Directory:
    """One entry of `jobs/`. `job_id` is set if the name is a job id; `grants` are read from the limits records of the
    job's slices, and `gpu_job` from the note of a job with whole GPUs. `is_foreign`: another version of hami_hpc wrote
    the records."""

    name: str
    job_id: int | None
    grants: tuple[Grant, ...]
    is_ended: bool
    age_s: float
    is_bad: bool = False
    gpu_job: GpuJob | None = None
    is_foreign: bool = False


@dataclass(frozen=True, slots=True)
class NodeState:
    """The node's state from four sources: ledger, run directory, Slurm, NVML.

    `rows` are the ledger's grants, `void` those of an earlier boot. `running` is None when Slurm does not answer;
    `capacity_mib`, by GPU UUID, is None when NVML does not.
    """

    rows: tuple[Grant, ...]
    void: tuple[Grant, ...]
    directories: tuple[Directory, ...]
    running: frozenset[int] | None
    capacity_mib: Mapping[str, int] | None
    slurm_problem: str = ""  # why `running` is None
    driver_problem: str = ""  # why `capacity_mib` is None


def make_plan(state: NodeState) -> tuple[Action, ...]:
    """Returns the actions that make the sources in `state` agree, none if they do. Applying them twice is harmless."""
    return (
        *(_void(grants) for grants in by_job(state.void).values()),
        *_directories(state),  # before rows: spools usage that was set aside before its row is ended
        *_rows(state),
        *_problems(state),
    )


def _void(grants: tuple[Grant, ...]) -> Action:
    job_id = grants[0].job_id
    text = f"job {job_id}: its grant of {total(grants).mem_mib} MiB is of an earlier boot and is dropped"
    return Action(Kind.DROP_VOID, text, job_id, grants)


def _rows(state: NodeState) -> Iterable[Action]:
    if state.running is None:
        return
    foreign = {entry.job_id for entry in state.directories if entry.is_foreign}
    on_disk = {entry.job_id: entry.grants for entry in state.directories if entry.job_id is not None}
    for job_id, grants in by_job(state.rows).items():
        if job_id not in state.running:
            free = ", ".join(f"{grant.mem_mib} MiB of GPU {grant.gpu_minor}" for grant in grants)
            text = f"job {job_id}: is no longer on this node; its {free} are free again"
            yield Action(Kind.END, text, job_id, grants, str(job_id))
            continue
        if job_id in foreign:
            yield Action(Kind.PROBLEM, f"job {job_id}: {OF_ANOTHER_VERSION}", job_id)
            continue
        written = on_disk.get(job_id, ())
        if not written or written[0].created_unix_ns != grants[0].created_unix_ns:
            text = f"job {job_id}: its run directory was lost and is restored"
            yield Action(Kind.RESTORE_DIRECTORY, text, job_id, grants)
        elif len(grants) < grants[0].slice_count:
            yield _lost_slices(grants)
        elif len(written) < len(grants):
            text = (
                f"job {job_id}: the limits records of {len(grants) - len(written)} slice(s) were lost and are restored"
            )
            yield Action(Kind.RESTORE_DIRECTORY, text, job_id, grants)


def _lost_slices(grants: tuple[Grant, ...]) -> Action:
    """Returns the problem of a job whose rows were made again from a directory that lacks records of slices."""
    job_id, known = grants[0].job_id, ", ".join(str(grant.gpu_minor) for grant in grants)
    text = (
        f"job {job_id}: only {len(grants)} of its {grants[0].slice_count} slices are known, on GPU {known}; the limits "
        f"records of the others were lost together with the ledger. Requeue or cancel the job: other jobs may be "
        "granted the same memory"
    )
    return Action(Kind.PROBLEM, text, job_id)


def _directories(state: NodeState) -> Iterable[Action]:
    known = {grant.job_id for grant in state.rows}
    for entry in state.directories:
        if entry.is_bad:
            text = (
                f"{entry.name} in the run directory's jobs could not be handled and was set aside. Report it, then "
                "unmount its shared (umount -l) and remove it (rm -r)"
            )
            yield Action(Kind.PROBLEM, text, name=entry.name)
        elif entry.is_ended:
            if entry.gpu_job is not None:
                text = f"job {entry.gpu_job.job_id}: its usage, set aside when the spool was full, is spooled"
                yield Action(Kind.RECORD, text, entry.gpu_job.job_id, name=entry.name, gpu_job=entry.gpu_job)
            elif not entry.grants:
                text = f"{entry.name}: is removed; it has no limits record, so its usage cannot be assigned to a job"
                yield Action(Kind.REMOVE_DIRECTORY, text, name=entry.name)
            else:
                job_id = entry.grants[0].job_id
                text = f"job {job_id}: its usage, set aside when the spool was full, is spooled"
                yield Action(Kind.SPOOL, text, job_id, entry.grants, entry.name)
        elif entry.job_id is None:
            if entry.age_s >= LEFTOVER_AGE_S:
                text = f"{entry.name}: is removed; an interrupted prolog or epilog left it"
                yield Action(Kind.REMOVE_DIRECTORY, text, name=entry.name)
        elif entry.job_id not in known and state.running is not None:
            yield from _unknown(entry, entry.job_id, entry.job_id in state.running)


def _unknown(entry: Directory, job_id: int, is_running: bool) -> Iterable[Action]:
    """Yields the actions for a job's directory without a ledger row."""
    if is_running:
        if entry.grants:
            text = f"job {job_id}: runs here but is not in the ledger; it is restored from its run directory"
            yield Action(Kind.RESTORE_ROW, text, job_id, entry.grants)
    elif entry.grants:
        text = f"job {job_id}: is no longer on this node; its usage is spooled and its run directory removed"
        yield Action(Kind.SPOOL, text, job_id, entry.grants, entry.name)
    elif entry.gpu_job is not None:
        text = f"job {job_id}: is no longer on this node; its usage is spooled and its run directory removed"
        yield Action(Kind.RECORD, text, job_id, name=entry.name, gpu_job=entry.gpu_job)
    else:
        text = f"job {job_id}: its run directory is removed; it ended without a grant"
        yield Action(Kind.REMOVE_DIRECTORY, text, job_id, name=entry.name)


def _because(problem: str) -> str:
    return f" ({problem})" if problem else ""


def _problems(state: NodeState) -> Iterable[Action]:
    if state.running is None:
        text = (
            "Slurm did not list the jobs of this node, so no grant was ended. Run hami-hpc reconcile again when it does"
            f"{_because(state.slurm_problem)}"
        )
        yield Action(Kind.PROBLEM, text)
    if state.capacity_mib is None:
        text = "NVML does not answer, so grants were not compared with the GPUs. Run nvidia-smi"
        yield Action(Kind.PROBLEM, text + _because(state.driver_problem))
        return
    live = [grant for grant in state.rows if state.running is None or grant.job_id in state.running]
    for grant in live:
        if grant.gpu_uuid not in state.capacity_mib:
            yield Action(
                Kind.PROBLEM,
                f"job {grant.job_id}: its GPU {grant.gpu_minor} ({grant.gpu_uuid}) is gone. "
                "Drain this node, and check dmesg (Xid) and nvidia-smi",
                grant.job_id,
            )
    for uuid, capacity_mib in state.capacity_mib.items():
        tenants = [grant for grant in live if grant.gpu_uuid == uuid]
        total_mib = sum(grant.mem_mib for grant in tenants)
        if total_mib > capacity_mib:
            jobs = ", ".join(str(grant.job_id) for grant in tenants)
            yield Action(
                Kind.PROBLEM,
                f"GPU {uuid}: jobs {jobs} hold {total_mib} MiB of {capacity_mib}. "
                "Drain this node and cancel one of them",
            )
