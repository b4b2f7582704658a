# SPDX-License-Identifier: Apache-2.0
"""What has to be done so that ledger, run directory, Slurm and driver tell the same story. Pure: it returns a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from hami_hpc.core.grant import Grant

LEFTOVER_AGE_S = 60  # a prolog needs milliseconds between making `.new-*` and renaming it


class Kind(Enum):
    """What an action does."""

    DROP_VOID = "drop-void"  # a ledger row of another boot
    END = "end"  # a grant whose job Slurm no longer has here: spool, directory, row
    SPOOL = "spool"  # usage set aside because the spool was full
    RESTORE_DIRECTORY = "restore-directory"
    RESTORE_ROW = "restore-row"
    REMOVE_DIRECTORY = "remove-directory"
    REMOVE_FILE = "remove-file"
    DELIVER = "deliver"  # usage records that waited in the run directory
    PROBLEM = "problem"  # for a person: nothing here is safe to do by itself


@dataclass(frozen=True, slots=True)
class Action:
    """One step of the plan, with the sentence that is printed for it. `name` is the directory's in `jobs/`."""

    kind: Kind
    text: str
    job_id: int | None = None
    grant: Grant | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Directory:
    """One entry of `jobs/`. `job_id` for those under a job's id; `grant` what its limits record tells."""

    name: str
    job_id: int | None
    grant: Grant | None
    is_ended: bool
    age_s: float
    is_bad: bool = False


@dataclass(frozen=True, slots=True)
class NodeState:
    """What the four witnesses say. `running` is None when Slurm does not answer; `capacity_mib`, by GPU UUID, is None
    when NVML does not."""

    rows: tuple[Grant, ...]
    void: tuple[Grant, ...]
    directories: tuple[Directory, ...]
    running: frozenset[int] | None
    capacity_mib: Mapping[str, int] | None
    slurm_problem: str = ""  # why `running` is None
    driver_problem: str = ""  # why `capacity_mib` is None


def make_plan(state: NodeState) -> tuple[Action, ...]:
    """The actions that square `state`; none when nothing is wrong. Applying them twice is harmless."""
    return (
        *(_void(grant) for grant in state.void),
        *_directories(state),  # before rows: usage that was set aside is spooled before its row is ended without it
        *_rows(state),
        *_problems(state),
    )


def _void(grant: Grant) -> Action:
    text = f"job {grant.job_id}: its grant of {grant.mem_mib} MiB is of an earlier boot; dropped"
    return Action(Kind.DROP_VOID, text, grant.job_id, grant)


def _rows(state: NodeState) -> Iterable[Action]:
    held = {entry.job_id: entry.grant for entry in state.directories if entry.job_id is not None}
    for grant in state.rows:
        job_id = grant.job_id
        if state.running is None:
            continue
        if job_id not in state.running:
            text = f"job {job_id}: has left this node; its {grant.mem_mib} MiB of GPU {grant.gpu_minor} are free again"
            yield Action(Kind.END, text, job_id, grant, str(job_id))
        elif (found := held.get(job_id)) is None or found.created_unix_ns != grant.created_unix_ns:
            yield Action(Kind.RESTORE_DIRECTORY, f"job {job_id}: its run directory was lost; made again", job_id, grant)


def _directories(state: NodeState) -> Iterable[Action]:
    known = {grant.job_id for grant in state.rows}
    for entry in state.directories:
        if entry.is_bad:
            text = (
                f"{entry.name} in the run directory's jobs could not be handled and was set aside: please report it, "
                "then unmount its shared (umount -l) and remove it (rm -r)"
            )
            yield Action(Kind.PROBLEM, text, name=entry.name)
        elif entry.is_ended:
            if entry.grant is None:
                text = f"{entry.name}: holds no limits record, so its usage belongs to nobody; removed"
                yield Action(Kind.REMOVE_DIRECTORY, text, name=entry.name)
            else:
                text = f"job {entry.grant.job_id}: its usage, set aside when the spool was full, is spooled"
                yield Action(Kind.SPOOL, text, entry.grant.job_id, entry.grant, entry.name)
        elif entry.job_id is None:
            if entry.age_s >= LEFTOVER_AGE_S:
                text = f"{entry.name}: left over from an interrupted prolog or epilog; removed"
                yield Action(Kind.REMOVE_DIRECTORY, text, name=entry.name)
        elif entry.job_id not in known and state.running is not None:
            yield from _unknown(entry, entry.job_id, entry.job_id in state.running)


def _unknown(entry: Directory, job_id: int, is_running: bool) -> Iterable[Action]:
    """A job's directory without a ledger row."""
    if is_running:
        if entry.grant is not None:
            text = f"job {job_id}: runs here but was not in the ledger; entered from its run directory"
            yield Action(Kind.RESTORE_ROW, text, job_id, entry.grant)
    elif entry.grant is not None:
        text = f"job {job_id}: has left this node; its run directory is spooled and removed"
        yield Action(Kind.SPOOL, text, job_id, entry.grant, entry.name)
    else:
        yield Action(Kind.REMOVE_DIRECTORY, f"job {job_id}: ended without a grant; removed", job_id, name=entry.name)


def _because(problem: str) -> str:
    return f" ({problem})" if problem else ""


def _problems(state: NodeState) -> Iterable[Action]:
    if state.running is None:
        text = (
            "Slurm does not say which jobs run here, so no grant was ended. Run hami-hpc reconcile again when it does"
            f"{_because(state.slurm_problem)}"
        )
        yield Action(Kind.PROBLEM, text)
    if state.capacity_mib is None:
        text = "NVML does not answer, so grants were not compared with the GPUs. See nvidia-smi"
        yield Action(Kind.PROBLEM, text + _because(state.driver_problem))
        return
    live = [grant for grant in state.rows if state.running is None or grant.job_id in state.running]
    for grant in live:
        if grant.gpu_uuid not in state.capacity_mib:
            yield Action(
                Kind.PROBLEM,
                f"job {grant.job_id}: its GPU {grant.gpu_minor} ({grant.gpu_uuid}) is not there any more. "
                "Drain this node, and look at dmesg (Xid) and nvidia-smi",
                grant.job_id,
            )
    for uuid, capacity_mib in state.capacity_mib.items():
        held = [grant for grant in live if grant.gpu_uuid == uuid]
        total_mib = sum(grant.mem_mib for grant in held)
        if total_mib > capacity_mib:
            jobs = ", ".join(str(grant.job_id) for grant in held)
            yield Action(
                Kind.PROBLEM,
                f"GPU {uuid}: jobs {jobs} hold {total_mib} MiB of {capacity_mib}. "
                "Drain this node and cancel one of them",
            )
