# SPDX-License-Identifier: Apache-2.0
"""Judges what the agent saw: which process or job takes what it was not granted. Pure: no clock, file or process.

`judge` names what is wrong in one look. One look proves nothing: memory is read job by job while processes come and go.
So `Incidents` confirms a suspicion only when it holds in consecutive looks over the grace of its kind, and reports it
once until it has been gone for CLEAR_NS.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from hami_hpc.contract import constants as c
from hami_hpc.core.delays import NO_DELAYS, Delays
from hami_hpc.core.grant import Grant

SECOND = 1_000_000_000
CLEAR_NS = 10 * SECOND
AGAIN_NS = 5 * SECOND  # an action is repeated as long as its reason holds
LONGEST_GAP_NS = 12 * SECOND  # between consecutive looks; the agent may have been stopped. The period is 10 s at most
LOOKS = 2  # consecutive looks that confirm a suspicion
# A program that takes and gives memory all the time is seen with much of it and counted with little now and then.
LOOKS_UNCOUNTED = 5
# Processes that each end before they are confirmed: how much longer a job or user must show such ones, at a third of
# the looks or more.
CHAIN_NS = 5 * SECOND // 4
CHAIN_LOOKS = 4
MIB = 1 << 20


class Kind(StrEnum):
    """What can be wrong. The names are those of the settings, [agent.actions]."""

    MEMORY_OVER = "memory_over"
    UNCOUNTED = "uncounted"
    NO_INTERPOSER = "no_interposer"
    TIME_OVER = "time_over"
    PROCESSES_OVER = "processes_over"
    WRONG_GPU = "wrong_gpu"
    NO_GRANT = "no_grant"
    NO_JOB = "no_job"


class Action(StrEnum):
    """What is done about it, from nothing to the last resort. Each includes `log`; from `kill` on also `warn`."""

    IGNORE = "ignore"
    LOG = "log"
    WARN = "warn"
    KILL = "kill"
    FAIL = "fail"
    DRAIN = "drain"


# Modes in which the hardware limits a job's memory and time, and no interposer counts.
WITHOUT_INTERPOSER = frozenset({"mig"})

# How long each must hold. The first four are facts about memory maps and bytes; a step's processes, and what Slurm says
# of a job, may lag behind. NVML may show one that ends beside the one that took its place.
GRACE_NS: Mapping[Kind, int] = {
    Kind.MEMORY_OVER: SECOND // 4,
    Kind.UNCOUNTED: 3 * SECOND // 4,
    Kind.NO_INTERPOSER: SECOND // 4,
    Kind.WRONG_GPU: SECOND // 4,
    Kind.TIME_OVER: 0,  # its windows are the grace
    Kind.PROCESSES_OVER: SECOND,
    Kind.NO_GRANT: 3 * SECOND,
    Kind.NO_JOB: 3 * SECOND,
}


SliceKey = tuple[int, str]  # job id and GPU


class Process(NamedTuple):
    """A process on one GPU. `started` tells two processes of one pid apart; `job_id` is 0 for none, -1 if unknown."""

    pid: int
    started: int
    uid: int
    job_id: int
    gpu_uuid: str
    used_bytes: int
    busy_ns: int  # of the GPU's time since the last look
    has_interposer: bool | None  # None: not known


class Slice(NamedTuple):
    """A grant, and what its job counted itself: None where its record cannot be read or is damaged. `order`: where its
    memory shall be by root's record, one of c.SWAP_*. `beyond`: it wants more than its cores by that, and is treated as
    no latency-critical one."""

    grant: Grant
    accounted_bytes: int | None
    oom_count: int
    device_oom_count: int
    delays: Delays = NO_DELAYS
    order: int = c.SWAP_NEVER
    beyond: bool = False


class WholeGpus(NamedTuple):
    """The whole GPUs of one run of a job on this node, in the order of Slurm's indices. Bytes of all of them."""

    job_id: int
    uid: int
    created_unix_ns: int
    gpu_uuids: tuple[str, ...]
    gpu_minor: int  # of the first
    model: str
    mem_bytes: int


class Look(NamedTuple):
    """What was seen at one time. `held` maps a job without a slice to its GPUs by Slurm, None where Slurm was not heard
    yet; `whole` has the jobs that hold the whole node; `gpu_jobs` the jobs whose whole GPUs are known; `ended` the
    runs, by job id and start, whose usage record could not be written yet."""

    boot_ns: int
    processes: tuple[Process, ...]
    slices: tuple[Slice, ...]
    whole: frozenset[int]
    held: Mapping[int, frozenset[str] | None]
    gpu_jobs: tuple[WholeGpus, ...] = ()
    ended: frozenset[tuple[int, int]] = frozenset()
    may_hold: Mapping[SliceKey, int] = {}  # bytes, of slices whose memory is on the host
    unseen: Mapping[str, int] = {}  # bytes in use on a GPU that NVML shows of no process
    silent: frozenset[str] = frozenset()  # GPUs that did not answer, of which nothing was seen
    own: Mapping[SliceKey, tuple[Process, ...]] | None = None  # the processes by job and GPU; None: not sorted yet


class Limits(NamedTuple):
    """The site's tolerances."""

    memory_slack_bytes: int
    exempt_uids: frozenset[int]


class Suspicion(NamedTuple):
    """What is wrong in one look. `pid` is 0 when it concerns all of a job's processes on the GPU, and negative, of the
    user's id, for those of a user without a job."""

    kind: Kind
    job_id: int
    pid: int
    gpu_uuid: str
    processes: tuple[Process, ...]
    text: str

    @property
    def subject(self) -> tuple[Kind, int, int, str]:
        return (self.kind, self.job_id, self.pid, self.gpu_uuid)


def judge(look: Look, limits: Limits) -> Iterator[Suspicion]:
    """Yields what one look shows, time excepted (core/time_watch.py)."""
    of_job: dict[int, list[Grant]] = {}
    for one in look.slices:
        of_job.setdefault(one.grant.job_id, []).append(one.grant)
    keys = {slice_key(one.grant) for one in look.slices}
    for process in look.processes:
        job_id, gpu = process.job_id, process.gpu_uuid
        if process.has_interposer is not False and (job_id, gpu) in keys:
            continue  # as it should be, which nearly all are
        grants = of_job.get(job_id, [])
        if job_id in look.whole or job_id < 0:
            continue
        if job_id == 0:
            if process.uid not in limits.exempt_uids:
                text = f"process {process.pid} of uid {process.uid} belongs to no job and uses GPU {gpu}"
                yield Suspicion(Kind.NO_JOB, 0, process.pid, gpu, (process,), text)
        elif not grants:
            gpus = look.held.get(job_id)
            if gpus is not None and gpu not in gpus:
                text = f"process {process.pid} of job {job_id} uses GPU {gpu}, which the job does not hold"
                yield Suspicion(Kind.NO_GRANT, job_id, process.pid, gpu, (process,), text)
        elif all(grant.gpu_uuid != gpu for grant in grants):
            if len(grants) < grants[0].slice_count:
                continue  # a record was lost, so that the GPU may be that slice's; reconcile puts it back
            where = "its slice is on" if len(grants) == 1 else "its slices are on"
            own_gpus = ", ".join(grant.gpu_uuid for grant in grants)
            text = f"process {process.pid} of job {job_id} uses GPU {gpu}; {where} {own_gpus}"
            yield Suspicion(Kind.WRONG_GPU, job_id, process.pid, gpu, (process,), text)
        elif process.has_interposer is False and grants[0].mode not in WITHOUT_INTERPOSER:
            text = f"process {process.pid} of job {job_id} runs without the interposer, so nothing limits it"
            yield Suspicion(Kind.NO_INTERPOSER, job_id, process.pid, gpu, (process,), text)
    own = by_slice(look)
    for one in look.slices:
        key = slice_key(one.grant)
        processes = own.get(key)
        if processes is not None:
            used = sum([process.used_bytes for process in processes])
            yield from _memory(one, processes, used, limits)
            yield from _came_back(one.grant, processes, used, look.may_hold.get(key), limits)
            yield from _too_many(one.grant, processes)


def is_uncounted(one: Slice, processes: tuple[Process, ...], limits: Limits) -> bool:
    """Returns whether a slice's processes hold more than they counted themselves, where they count."""
    if one.grant.mode in WITHOUT_INTERPOSER:
        return False
    used = sum([process.used_bytes for process in processes])
    return one.accounted_bytes is not None and used > one.accounted_bytes + limits.memory_slack_bytes


def _memory(one: Slice, processes: tuple[Process, ...], used: int, limits: Limits) -> Iterator[Suspicion]:
    grant = one.grant
    if grant.mode in WITHOUT_INTERPOSER:
        return
    limit = grant.mem_mib * MIB
    if used > limit + limits.memory_slack_bytes:
        text = f"job {grant.job_id} holds {used // MIB} MiB of GPU {grant.gpu_uuid}; granted are {grant.mem_mib} MiB"
        yield Suspicion(Kind.MEMORY_OVER, grant.job_id, 0, grant.gpu_uuid, processes, text)
    if one.accounted_bytes is None or used <= one.accounted_bytes + limits.memory_slack_bytes:
        return
    if not any(process.has_interposer is False for process in processes):  # NO_INTERPOSER says the same, and who
        text = (
            f"job {grant.job_id} holds {used // MIB} MiB of GPU {grant.gpu_uuid}, of which its interposer counted "
            f"{one.accounted_bytes // MIB} MiB"
        )
        yield Suspicion(Kind.UNCOUNTED, grant.job_id, 0, grant.gpu_uuid, processes, text)


def _came_back(
    grant: Grant, processes: tuple[Process, ...], used: int, may_hold: int | None, limits: Limits
) -> Iterator[Suspicion]:
    """Yields a slice that holds more than it did when its memory had left, though its turn has not come."""
    if may_hold is not None and used > may_hold + limits.memory_slack_bytes:
        text = (
            f"job {grant.job_id} holds {used // MIB} MiB of GPU {grant.gpu_uuid}; until its turn comes it may hold "
            f"{may_hold // MIB} MiB, as its memory is on the host"
        )
        yield Suspicion(Kind.MEMORY_OVER, grant.job_id, 0, grant.gpu_uuid, processes, text)


def _too_many(grant: Grant, processes: tuple[Process, ...]) -> Iterator[Suspicion]:
    """Yields the processes of a slice that began after as many others as may use it."""
    most = grant.max_processes
    if not most or len(processes) <= most or grant.mode in WITHOUT_INTERPOSER:
        return
    users = sorted((one for one in processes if one.used_bytes), key=lambda one: (one.started, one.pid))
    if len(users) > most:
        text = (
            f"job {grant.job_id} has {len(users)} processes on GPU {grant.gpu_uuid}; class {grant.service_class} "
            f"allows {most} (max_processes)"
        )
        yield Suspicion(Kind.PROCESSES_OVER, grant.job_id, 0, grant.gpu_uuid, tuple(users[most:]), text)


def slice_key(grant: Grant) -> SliceKey:
    return (grant.job_id, grant.gpu_uuid)


def by_slice(look: Look) -> Mapping[SliceKey, tuple[Process, ...]]:
    """Returns the processes of each job on each GPU; none where a job has none."""
    return by_job_and_gpu(look.processes) if look.own is None else look.own


def by_job_and_gpu(processes: Iterable[Process]) -> dict[SliceKey, tuple[Process, ...]]:
    found: dict[SliceKey, list[Process]] = {}
    for process in processes:
        found.setdefault((process.job_id, process.gpu_uuid), []).append(process)
    return {key: tuple(own) for key, own in found.items()}


class Incident(NamedTuple):
    """A suspicion that holds for its grace. `is_new`: it was not reported before."""

    suspicion: Suspicion
    is_new: bool


@dataclass
class _Case:
    first_ns: int
    last_ns: int
    looks: int = 1
    acted_ns: int | None = None
    acted_on: frozenset[tuple[int, int]] = frozenset()  # pid and start
    is_chain: bool = False
    missed: int = 0  # looks without it, of a chain


@dataclass
class Incidents:
    """The suspicions of the last looks."""

    _cases: dict[tuple[Kind, int, int, str], _Case] = field(default_factory=dict)

    def update(self, boot_ns: int, suspicions: Iterable[Suspicion]) -> list[Incident]:
        """Takes one look's suspicions. Returns those to act on: confirmed now, or still there after AGAIN_NS."""
        due = []
        seen = set()
        single = tuple(suspicions)
        chains = tuple(self._chains(single))
        for suspicion in (*single, *chains):
            is_chain = suspicion in chains
            grace_ns = GRACE_NS[suspicion.kind] + (CHAIN_NS if is_chain else 0)
            looks = CHAIN_LOOKS if is_chain else LOOKS_UNCOUNTED if suspicion.kind is Kind.UNCOUNTED else LOOKS
            subject = suspicion.subject
            seen.add(subject)
            case = self._cases.get(subject)
            if case is None or (case.acted_ns is None and boot_ns - case.last_ns > LONGEST_GAP_NS):
                case = self._cases[subject] = _Case(boot_ns, boot_ns, is_chain=is_chain)
            else:
                case.looks, case.last_ns = case.looks + 1, boot_ns
            if case.looks < looks or boot_ns - case.first_ns < grace_ns:
                continue
            processes = frozenset((process.pid, process.started) for process in suspicion.processes)
            if case.acted_ns is None or boot_ns - case.acted_ns >= AGAIN_NS or not processes <= case.acted_on:
                due.append(Incident(suspicion, case.acted_ns is None))
                case.acted_ns, case.acted_on = boot_ns, processes
        for subject, case in list(self._cases.items()):
            if subject in seen:
                continue
            case.missed += 1
            is_over = not case.is_chain or case.missed > 2 * case.looks
            if boot_ns - case.last_ns >= CLEAR_NS or (case.acted_ns is None and is_over):
                del self._cases[subject]
            elif case.is_chain:
                continue
            else:
                case.looks = 0  # it must be confirmed again
        return due

    def _chains(self, suspicions: Iterable[Suspicion]) -> Iterator[Suspicion]:
        """Yields, as one, the suspicions about the processes of each job or user on a GPU of which none is confirmed:
        processes that follow one another end before they are."""
        chains: dict[tuple[Kind, int, int, str], list[Suspicion]] = {}
        for one in suspicions:
            if one.pid > 0:
                owner = 0 if one.job_id else -1 - one.processes[0].uid
                chains.setdefault((one.kind, one.job_id, owner, one.gpu_uuid), []).append(one)
        for (kind, job_id, owner, gpu_uuid), members in chains.items():
            cases = (self._cases.get(one.subject) for one in members)
            if all(case is None or case.acted_ns is None for case in cases):
                processes = tuple(process for one in members for process in one.processes)
                text = f"{members[0].text}; processes like this one follow one another"
                yield Suspicion(kind, job_id, owner, gpu_uuid, processes, text)

    def open(self) -> frozenset[tuple[Kind, int, str]]:
        """Returns kind, job and GPU of what was confirmed and is not cleared."""
        cases = self._cases.items()
        return frozenset((kind, job, gpu) for (kind, job, _, gpu), case in cases if case.acted_ns is not None)

    def is_waiting(self) -> bool:
        """Returns whether a suspicion waits for its second look: the agent looks sooner then."""
        return any(case.acted_ns is None for case in self._cases.values())


def too_little_left(one: Slice, look: Look, free_bytes: int) -> bool:
    """Returns whether the GPU has less memory free than the slice may still take: somebody holds what is not theirs."""
    used = sum(process.used_bytes for process in by_slice(look).get(slice_key(one.grant), ()))
    return free_bytes < one.grant.mem_mib * MIB - used


@dataclass
class Throttle:
    """Admits each name a number of times within a time, so that nobody fills logs and queues that are for all."""

    most: int
    time_ns: int
    _admitted: dict[Hashable, tuple[int, int]] = field(default_factory=dict)  # since when, how many

    def admits(self, name: Hashable, boot_ns: int) -> bool:
        """Returns whether this time is still one of those."""
        self._admitted = {key: one for key, one in self._admitted.items() if boot_ns - one[0] < self.time_ns}
        since, count = self._admitted.get(name, (boot_ns, 0))
        self._admitted[name] = (since, count + 1)
        return count < self.most
