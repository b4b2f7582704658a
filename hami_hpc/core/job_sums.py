# SPDX-License-Identifier: Apache-2.0
"""Adds up what each slice used, look by look, from outside its processes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hami_hpc.core.agent_state import JobState
from hami_hpc.core.grant import Grant
from hami_hpc.core.watch import MIB, Kind, Look, Process, Slice, by_slice, slice_key

# A sample of the GPU's time covers about a second. After a longer pause (the agent was stopped) it says nothing about
# the rest of the pause.
LONGEST_STEP_NS = 2_000_000_000

COUNT_MAX = 1 << 40  # a user writes the counts that this one is computed from

Run = tuple[int, int]  # job id and created_unix_ns


@dataclass
class JobSums:
    """The sums of each running slice. Give it the jobs of the last state file when the agent starts again."""

    _states: dict[Run, JobState] = field(default_factory=dict)
    _energy_mj: dict[str, int] = field(default_factory=dict)

    @classmethod
    def resumed(cls, jobs: tuple[JobState, ...]) -> JobSums:
        return cls({(job.job_id, job.created_unix_ns): job for job in jobs})

    def last(self) -> tuple[JobState, ...]:
        """Returns the states of the last update, for a look that sees nothing."""
        return tuple(self._states.values())

    def mark(self, gpu_uuid: str, xid: int) -> None:
        """Notes in the runs on a GPU, as they were at the last update, that they met its fault; the first one stays."""
        for run, state in self._states.items():
            if state.gpu_uuid == gpu_uuid and not state.gpu_fault:
                self._states[run] = state._replace(gpu_fault=xid)

    def update(
        self,
        look: Look,
        step_ns: int,
        energy_mj: Mapping[str, int],
        findings: frozenset[tuple[Kind, int]],
        disturbed: Mapping[int, int],
    ) -> tuple[JobState, ...]:
        """Returns the state of every slice. `step_ns` is the time since the last look, at most LONGEST_STEP_NS,
        `energy_mj` each GPU's counter, `disturbed` the refused allocations since then that were somebody else's fault,
        by job."""
        busy_ns: dict[str, int] = {}
        counts: dict[int, int] = {}
        for process in look.processes:
            busy_ns[process.gpu_uuid] = busy_ns.get(process.gpu_uuid, 0) + process.busy_ns
            counts[process.job_id] = counts.get(process.job_id, 0) + 1
        own_processes = by_slice(look)
        kinds: dict[int, list[str]] = {}
        for kind, job_id in findings:
            kinds.setdefault(job_id, []).append(kind.value)
        spent_mj = {uuid: max(0, now - self._energy_mj.get(uuid, now)) for uuid, now in energy_mj.items()}
        self._energy_mj.update(energy_mj)
        states: dict[Run, JobState] = {}
        for one in look.slices:
            grant = one.grant
            run = (grant.job_id, grant.created_unix_ns)
            own = own_processes.get(slice_key(grant), ())
            busy = sum([process.busy_ns for process in own])
            total = busy_ns.get(grant.gpu_uuid, 0)
            states[run] = _next(
                self._states.get(run),
                one,
                own,
                counts.get(grant.job_id, 0),
                step_ns,
                spent_mj.get(grant.gpu_uuid, 0) * busy // total if total else 0,
                tuple(sorted(kinds.get(grant.job_id, ()))),
                disturbed.get(grant.job_id, 0),
            )
        self._states = states
        return tuple(states.values())


def _next(
    old: JobState | None,
    one: Slice,
    own: tuple[Process, ...],
    processes: int,
    step_ns: int,
    energy_mj: int,
    findings: tuple[str, ...],
    disturbed: int,
) -> JobState:
    old = old or _nothing(one.grant)
    used = sum([process.used_bytes for process in own])
    busy = min(sum([process.busy_ns for process in own]), step_ns)
    return JobState(
        old.job_id,
        old.uid,
        old.created_unix_ns,
        old.service_class,
        old.policy,
        old.mode,
        old.gpu_uuid,
        old.gpu_minor,
        old.mem_bytes,
        old.cores_percent,
        processes,
        used,
        max(used, old.peak_bytes),
        round(busy / step_ns * 100, 1) if step_ns else 0.0,
        busy + old.busy_ns,
        energy_mj + old.energy_mj,
        step_ns + old.watched_ns,
        findings,
        min(disturbed + old.disturbed_count, COUNT_MAX),
        min(one.accounted_bytes or 0, old.mem_bytes),
        one.oom_count,
        one.device_oom_count,
        one.grant.latency,
        one.grant.slo_us,
        *one.delays,
        old.gpu_fault,
    )


def _nothing(grant: Grant) -> JobState:
    """Returns the state of a run that was not looked at yet."""
    return JobState(
        job_id=grant.job_id,
        uid=grant.uid,
        created_unix_ns=grant.created_unix_ns,
        service_class=grant.service_class,
        policy=grant.policy,
        mode=grant.mode,
        gpu_uuid=grant.gpu_uuid,
        gpu_minor=grant.gpu_minor,
        mem_bytes=grant.mem_mib * MIB,
        cores_percent=grant.cores_percent,
        processes=0,
        used_bytes=0,
        peak_bytes=0,
        busy_percent=0.0,
        busy_ns=0,
        energy_mj=0,
        watched_ns=0,
        findings=(),
        disturbed_count=0,
        accounted_bytes=0,
        oom_count=0,
        device_oom_count=0,
    )
