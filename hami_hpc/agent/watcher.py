# SPDX-License-Identifier: Apache-2.0
"""One look after the other: reads the GPUs, processes and slices, judges them, acts, and returns the new state."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hami_hpc.agent.driver_limits import DriverLimits
from hami_hpc.agent.faults import Faults
from hami_hpc.agent.gpus import GpuLook, Gpus
from hami_hpc.agent.histories import Histories
from hami_hpc.agent.known_gpus import KnownGpus
from hami_hpc.agent.processes import Processes
from hami_hpc.agent.slices import Slices
from hami_hpc.agent.slurm_port import SlurmPort
from hami_hpc.agent.turns_taken import Place, TurnsTaken
from hami_hpc.agent.unseen import Unseen
from hami_hpc.core.agent_state import OK, AgentState, Event, GpuState, OtherProcess
from hami_hpc.core.gpu_jobs import GpuJob
from hami_hpc.core.job_sums import LONGEST_STEP_NS, Counters, JobSums
from hami_hpc.core.time_watch import TimeWatch
from hami_hpc.core.watch import (
    CLEAR_NS,
    SECOND,
    Action,
    Incident,
    Incidents,
    Kind,
    Look,
    Process,
    Slice,
    SliceKey,
    Suspicion,
    Throttle,
    by_job_and_gpu,
    by_slice,
    is_uncounted,
    judge,
    slice_key,
    too_little_left,
)
from hami_hpc.errors import NodeError
from hami_hpc.node import mps_daemon, mps_processes
from hami_hpc.node.agent_file import now_boot_ns
from hami_hpc.node.agent_settings import AgentSettings

EVENTS_MAX = 100
TELL_NS = 500_000_000  # for how long a kill waits until the job's output has the reason
FINDINGS_MAX = 20  # of one kind and job within a minute
RECOUNTS = 10
RECOUNT_S = 0.001
KILLING = (Action.KILL, Action.FAIL, Action.DRAIN)
# Findings that take memory or time from the GPU's other jobs.
TAKES_FROM_OTHERS = (Kind.MEMORY_OVER, Kind.WRONG_GPU, Kind.NO_GRANT, Kind.NO_JOB)


class Sentence(NamedTuple):
    """An incident whose processes are killed once its job was told, or when that takes too long."""

    incident: Incident
    told: threading.Event | None
    until_ns: int


@dataclass
class Watcher:
    """The agent between two looks. `emit` is called with each event; the clocks are replaced in tests."""

    settings: AgentSettings
    boot_id: str
    gpus: Gpus
    processes: Processes
    slices: Slices
    slurm: SlurmPort
    emit: Callable[[Event], None]
    boot_ns: Callable[[], int] = now_boot_ns
    unix_ns: Callable[[], int] = time.time_ns
    by_index: Callable[[Mapping[int, str]], Mapping[int, str]] = dict  # GPUs by Slurm's numbers, from those by rank
    sums: JobSums = field(default_factory=JobSums)
    faults: Faults | None = None
    driver_limits: DriverLimits | None = None
    turns: TurnsTaken | None = None  # where memory is oversold
    known_gpus: KnownGpus = field(default_factory=KnownGpus)
    unseen: Unseen = field(default_factory=Unseen)
    histories: Histories = field(init=False)
    _mps: str = field(init=False)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=EVENTS_MAX))
    _incidents: Incidents = field(default_factory=Incidents)
    _time: TimeWatch = field(default_factory=TimeWatch)
    _last: tuple[int, Look] | None = None
    _gpu_states: dict[str, str] = field(default_factory=dict)
    _sentences: list[Sentence] = field(default_factory=list)
    _warnings: Throttle = field(default_factory=lambda: Throttle(1, CLEAR_NS))
    _findings: Throttle = field(default_factory=lambda: Throttle(FINDINGS_MAX, 60 * SECOND))
    _lacking: set[str] = field(default_factory=set)
    _problem: str = ""
    _looks: int = 0
    _started_unix_ns: int = 0
    _counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((kind.value for kind in Kind), 0))

    def __post_init__(self) -> None:
        self.histories = Histories(self.slices.run_dir, self.settings.group)
        self._mps = f"{self.slices.run_dir}/{mps_daemon.FOLDER}"

    def look(self) -> AgentState:
        """Looks once and acts. A fault of the node (NVML, the run directory) is an event; that look has no GPUs, and
        each job's sums stay."""
        boot_ns = self.boot_ns()
        self._started_unix_ns = self._started_unix_ns or self.unix_ns()
        step_ns = boot_ns - self._last[0] if self._last else self.settings.period_ms * 1_000_000
        step_ns = min(step_ns, LONGEST_STEP_NS)
        try:
            gpu_looks = self.gpus.look()
            slices, whole = self.slices.look()
        except NodeError as error:
            self._fault(str(error))
            gpu_looks, slices, whole = (), (), frozenset[int]()
        else:
            self._fault("")
            if self.driver_limits is not None:
                self.driver_limits.apply(slices)
        processes = self._identify(gpu_looks, step_ns)
        noted = () if self._problem else self.slices.gpu_jobs()
        held = self._held(processes, slices, whole, noted, gpu_looks)
        may_hold = {} if self.turns is None else self.turns.may_hold
        answers = {one.gpu.uuid for one in gpu_looks if one.state == OK}
        silent = frozenset(one.grant.gpu_uuid for one in slices) - answers
        unseen = self.unseen.look(gpu_looks, boot_ns, self.event)
        own = by_job_and_gpu(processes)
        look = Look(boot_ns, processes, slices, whole, held, may_hold=may_hold, unseen=unseen, silent=silent, own=own)
        look = self._recounted(look)
        suspicions = [*judge(look, self.settings.limits), *self._time.judge(look)]
        wanted = [one for one in suspicions if self.settings.actions[one.kind] is not Action.IGNORE]
        for incident in self._incidents.update(boot_ns, wanted):
            self._act(incident)
        self._execute(boot_ns)
        disturbed = self._disturbed(look, gpu_looks, wanted)
        if not self._problem:  # else what was seen before stays
            slurm = self.slurm
            more = (slurm.whole_here,) if slurm.has_places else ()
            known = self.known_gpus.update(noted, whole, gpu_looks, slurm.whole_of, *more)
            look = look._replace(gpu_jobs=known, ended=self.slices.ended)
            jobs, gpu_jobs = self.sums.update(look, step_ns, _counters(gpu_looks), self._incidents.open(), disturbed)
            self.histories.update((*jobs, *gpu_jobs), boot_ns)
        self._watch_gpus(gpu_looks)
        if self.faults is not None:
            self._watch_faults(self.faults, boot_ns, gpu_looks)
        jobs, gpu_jobs = self.sums.last()
        self._last = (boot_ns, look)
        self._looks += 1
        slice_jobs = {one.grant.job_id for one in slices}
        return AgentState(
            boot_id=self.boot_id,
            pid=os.getpid(),
            time_unix_ns=self.unix_ns(),
            boot_time_ns=boot_ns,
            period_ns=self.settings.period_ms * 1_000_000,
            looks=self._looks,
            gpus=tuple(_gpu_state(one, self.faults, self.turns) for one in gpu_looks),
            jobs=jobs,
            gpu_jobs=gpu_jobs,
            others=tuple(_other(one, step_ns) for one in processes if one.job_id not in slice_jobs),
            events=tuple(self.events),
            started_unix_ns=self._started_unix_ns,
            event_counts=tuple(self._counts.items()),
            standings=() if self.turns is None else self.turns.standings,
        )

    def is_waiting(self) -> bool:
        """Returns whether the next look should come soon: to confirm a suspicion, or to act."""
        is_moving = self.turns is not None and self.turns.is_moving
        return is_moving or bool(self._sentences) or self._incidents.is_waiting()

    def last_look(self) -> Look | None:
        """Returns what the last look saw, for other threads; None before the first, and where it saw nothing."""
        return None if self._last is None or self._problem else self._last[1]

    def event(
        self,
        kind: str,
        text: str,
        job_id: int = 0,
        gpu_uuid: str = "",
        action: str = "",
        xid: int = 0,
        times: int = 0,
        fault: str = "",
    ) -> None:
        """Keeps an event, and passes it on."""
        event = Event(self.unix_ns(), kind, job_id, gpu_uuid, action, text, xid, times, fault)
        self.events.append(event)
        self._counts[kind] = self._counts.get(kind, 0) + 1
        self.emit(event)

    def _identify(self, gpu_looks: Iterable[GpuLook], step_ns: int) -> tuple[Process, ...]:
        on_gpu = [(one.gpu.uuid, process) for one in gpu_looks for process in one.processes]
        known = self.processes.look(process.pid for _, process in on_gpu)
        found = []
        for uuid, process in on_gpu:
            if process.pid in known:
                started, who = known[process.pid]
                busy_ns = min(process.busy_ns, step_ns)
                # The server of a daemon of mode=mps is of no job; what its clients hold is shown as theirs.
                is_server = who.job_id == 0 and mps_processes.is_jobs_server(process.pid, self._mps)
                job_id = -1 if is_server else who.job_id
                used = process.used_bytes
                found.append(Process(process.pid, started, who.uid, job_id, uuid, used, busy_ns, who.has_interposer))
        return tuple(found)

    def _held(
        self,
        processes: Iterable[Process],
        slices: Iterable[Slice],
        whole: frozenset[int],
        noted: Iterable[GpuJob],
        gpu_looks: Iterable[GpuLook],
    ) -> Mapping[int, frozenset[str] | None]:
        """Returns the GPUs, by Slurm, of the jobs without a slice that have processes here: by the prolog's note, which
        has them from the credential, else by slurmctld."""
        with_slice = {one.grant.job_id for one in slices}
        by_note = {one.job_id: frozenset(one.gpus) for one in noted}
        jobs = frozenset(one.job_id for one in processes if one.job_id > 0) - with_slice - whole
        self.slurm.forget_but(jobs | by_note.keys())
        if not jobs:
            return {}
        uuids = self.by_index({one.gpu.slurm_index: one.gpu.uuid for one in gpu_looks})
        held: dict[int, frozenset[str] | None] = {}
        for job_id in jobs:
            indices = by_note.get(job_id)
            if not indices or self.slurm.has_places:
                by_slurm = self.slurm.held_by(job_id)
                indices = None if by_slurm is None else by_slurm | (indices or frozenset())
            held[job_id] = None if indices is None else frozenset(uuids[i] for i in indices if i in uuids)
        return held

    def _recounted(self, look: Look) -> Look:
        """Returns the look with the most that each suspicious slice counts within some milliseconds. Programs take and
        give memory between the moment of NVML's number and that of their own."""
        own, limits = by_slice(look), self.settings.limits
        if not any(is_uncounted(one, own.get(slice_key(one.grant), ()), limits) for one in look.slices):
            return look
        counts = {slice_key(one.grant): one for one in look.slices}
        for _ in range(RECOUNTS):
            suspects = [one for one in counts.values() if is_uncounted(one, own.get(slice_key(one.grant), ()), limits)]
            if not suspects:
                break
            time.sleep(RECOUNT_S)
            for one in suspects:
                again = self.slices.slice_of(one.grant)
                if (again.accounted_bytes or 0) > (one.accounted_bytes or 0):
                    counts[slice_key(one.grant)] = one._replace(accounted_bytes=again.accounted_bytes)
        return look._replace(slices=tuple(counts.values()))

    def _act(self, incident: Incident) -> None:
        """Does what the settings say. Who is to be killed is told first, so that their output has the reason."""
        one = incident.suspicion
        action = self.settings.actions[one.kind]
        told = None
        name, now_ns = (one.kind, one.job_id), self.boot_ns()
        if incident.is_new and one.job_id and action is not Action.LOG and self._warnings.admits(name, now_ns):
            told = self.slurm.warn(one.job_id, self._advice(one, action))
        if action in KILLING:
            self._sentences.append(Sentence(incident, told, now_ns + TELL_NS))
        elif incident.is_new:
            self._finding(one, action.value)

    def _execute(self, boot_ns: int) -> None:
        due = [one for one in self._sentences if one.told is None or one.told.is_set() or boot_ns >= one.until_ns]
        self._sentences = [one for one in self._sentences if one not in due]
        for (one, is_new), _, _ in due:
            action = self.settings.actions[one.kind]
            killed = [p.pid for p in one.processes if p.uid != 0 and self.processes.kill(p.pid, p.started)]
            done = [f"killed {', '.join(map(str, killed))}" if killed else "nothing left to kill"]
            if one.job_id and action in (Action.FAIL, Action.DRAIN):  # again, as slurmctld may have been down
                self.slurm.fail(one.job_id, one.text)
                done.append("job ended")
            if is_new and action is Action.DRAIN:
                self.slurm.drain(f"hami_hpc agent: {one.text}")
                self.event("node_drain", f"hami_hpc agent: {one.text}", one.job_id)
                done.append("node drained")
            self._finding(one, ", ".join(done))

    def _finding(self, one: Suspicion, action: str) -> None:
        """Keeps what was found; of one job's or user's findings of a kind, so many within a minute."""
        owner = one.job_id or -1 - one.processes[0].uid
        if self._findings.admits((one.kind, owner), self.boot_ns()):
            self.event(one.kind.value, one.text, one.job_id, one.gpu_uuid, action)

    @staticmethod
    def _advice(one: Suspicion, action: Action) -> str:
        end = {
            Action.WARN: "This is recorded.",
            Action.KILL: "These processes are killed.",
            Action.FAIL: "The job is ended.",
            Action.DRAIN: "The job is ended.",
        }[action]
        return f"hami_hpc: {one.text}. {end}"

    def _disturbed(
        self, look: Look, gpu_looks: Iterable[GpuLook], suspicions: Iterable[Suspicion]
    ) -> dict[SliceKey, int]:
        """Returns, by slice, the allocations that its GPU refused since the last look because another took too much."""
        takers = [one for one in suspicions if one.kind in TAKES_FROM_OTHERS]
        if not takers:
            return {}
        before = {slice_key(one.grant): one for one in self._last[1].slices} if self._last else {}
        free = {one.gpu.uuid: one.total_bytes - one.used_bytes for one in gpu_looks if one.state == OK}
        counts = {}
        for one in look.slices:
            grant = one.grant
            old = before.get(slice_key(grant))
            refused = one.device_oom_count - old.device_oom_count if old and old.grant == grant else 0
            # A user's own jobs disturb nobody: the site may not bill who was disturbed.
            others = [t for t in takers if t.gpu_uuid == grant.gpu_uuid and t.processes[0].uid != grant.uid]
            if refused > 0 and others and too_little_left(one, look, free.get(grant.gpu_uuid, 0)):
                counts[slice_key(grant)] = refused
                who = f"job {others[0].job_id}" if others[0].job_id else "a process of no job"
                text = (
                    f"job {grant.job_id} found no memory on GPU {grant.gpu_uuid} within its grant, because {who} holds "
                    "more than its own"
                )
                if self._warnings.admits(("disturbed", grant.job_id), look.boot_ns):
                    self.slurm.warn(grant.job_id, f"hami_hpc: {text}")
                self.event("disturbed", text, grant.job_id, grant.gpu_uuid, "warn")
        return counts

    def _watch_gpus(self, gpu_looks: Iterable[GpuLook]) -> None:
        for one in gpu_looks:
            if self._gpu_states.get(one.gpu.uuid, OK) != one.state:
                text = f"GPU {one.gpu.minor} ({one.gpu.uuid}): " + (one.detail or "answers again")
                self.event("gpu_lost" if one.state != OK else "gpu_back", text, 0, one.gpu.uuid)
            self._gpu_states[one.gpu.uuid] = one.state

    def _watch_faults(self, faults: Faults, boot_ns: int, gpu_looks: Iterable[GpuLook]) -> None:
        faults.add(self.gpus.fault_events.take())
        faults.look(boot_ns, gpu_looks, self.sums)
        for lacking in self.gpus.lacking():
            if lacking not in self._lacking:
                self._lacking.add(lacking)
                self.event("faults_unwatched", f"{lacking}; the agent goes on without")

    def _fault(self, text: str) -> None:
        if text != self._problem:
            self._problem = text
            self.event("blind" if text else "sees_again", text or "GPUs and slices can be read again")


def _counters(gpu_looks: Iterable[GpuLook]) -> dict[str, Counters]:
    return {
        one.gpu.uuid: Counters(one.energy_mj, one.pcie_bytes, one.nvlink_bytes) for one in gpu_looks if one.state == OK
    }


def _gpu_state(one: GpuLook, faults: Faults | None, turns: TurnsTaken | None) -> GpuState:
    place = turns.places.get(one.gpu.uuid, Place()) if turns is not None else Place()
    title, time_ns, counts = faults.fields(one.gpu.uuid) if faults else ("", 0, ())
    return GpuState(
        uuid=one.gpu.uuid,
        minor=one.gpu.minor,
        model=one.gpu.model,
        state=one.state,
        detail=one.detail,
        total_bytes=one.total_bytes,
        used_bytes=one.used_bytes,
        busy_percent=one.busy_percent,
        power_mw=one.power_mw,
        energy_mj=one.energy_mj,
        temperature_c=one.temperature_c,
        last_fault=title,
        last_fault_unix_ns=time_ns,
        fault_counts=counts,
        pressure=place.level,
        waiting=place.waiting,
        sold_percent=turns.sold_percent(one.gpu.model) if turns is not None else 100,
    )


def _other(process: Process, step_ns: int) -> OtherProcess:
    busy = round(process.busy_ns / step_ns * 100, 1) if step_ns else 0.0
    return OtherProcess(process.pid, process.uid, process.job_id, process.gpu_uuid, process.used_bytes, busy)
