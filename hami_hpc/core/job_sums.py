# SPDX-License-Identifier: Apache-2.0
"""Adds up what each job used of its GPUs, look by look, from outside its processes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hami_hpc.core.agent_state import JobState
from hami_hpc.core.gpu_jobs import MODE
from hami_hpc.core.grant import Grant
from hami_hpc.core.watch import MIB, Kind, Look, Slice, SliceKey, WholeGpus, by_slice, slice_key

# A sample of the GPU's time covers about a second. After a longer pause (the agent was stopped) it says nothing about
# the rest of the pause.
LONGEST_STEP_NS = 2_000_000_000

COUNT_MAX = 1 << 40  # a user writes the counts that this one is computed from

Run = tuple[int, int]  # job id and created_unix_ns


class Counters(NamedTuple):
    """What a GPU counts itself; each only grows. 0 for what it does not count."""

    energy_mj: int = 0
    pcie_bytes: int = 0
    nvlink_bytes: int = 0


class Part(NamedTuple):
    """What one job used of one GPU in one step."""

    used_bytes: int
    busy_ns: int
    spent: Counters


@dataclass
class JobSums:
    """The sums of each running job. Give it the jobs of the last state file when the agent starts again."""

    _states: dict[Run, JobState] = field(default_factory=dict)
    _gpu_states: dict[Run, JobState] = field(default_factory=dict)
    _counters: dict[str, Counters] = field(default_factory=dict)

    @classmethod
    def resumed(cls, jobs: Iterable[JobState], gpu_jobs: Iterable[JobState] = ()) -> JobSums:
        return cls(_by_run(jobs), _by_run(gpu_jobs))

    def last(self) -> tuple[tuple[JobState, ...], tuple[JobState, ...]]:
        """Returns the states of the last update, for a look that sees nothing."""
        return tuple(self._states.values()), tuple(self._gpu_states.values())

    def mark(self, gpu_uuid: str, xid: int) -> None:
        """Notes in the runs on a GPU, as they were at the last update, that they met its fault; the first one stays."""
        for states in (self._states, self._gpu_states):
            for run, state in states.items():
                if _is_on(state, gpu_uuid) and not state.gpu_fault:
                    states[run] = state._replace(gpu_fault=xid)

    def on(self, gpu_uuid: str) -> list[JobState]:
        """Returns the last states of the jobs on a GPU."""
        return [state for states in self.last() for state in states if _is_on(state, gpu_uuid)]

    def update(
        self,
        look: Look,
        step_ns: int,
        counters: Mapping[str, Counters],
        findings: frozenset[tuple[Kind, int]],
        disturbed: Mapping[int, int],
    ) -> tuple[tuple[JobState, ...], tuple[JobState, ...]]:
        """Returns the states of every slice, and of every job with whole GPUs. `step_ns` is the time since the last
        look, at most LONGEST_STEP_NS, `counters` those of each GPU, `disturbed` the refused allocations since then that
        were somebody else's fault, by job."""
        counts: dict[int, int] = {}
        for process in look.processes:
            counts[process.job_id] = counts.get(process.job_id, 0) + 1
        parts = self._parts(look, counters)
        kinds: dict[int, list[str]] = {}
        for kind, job_id in findings:
            kinds.setdefault(job_id, []).append(kind.value)
        states: dict[Run, JobState] = {}
        for one in look.slices:
            grant = one.grant
            run = (grant.job_id, grant.created_unix_ns)
            states[run] = _next(
                self._states.get(run) or _nothing(grant),
                one,
                parts.get(slice_key(grant), NO_PART),
                counts.get(grant.job_id, 0),
                step_ns,
                tuple(sorted(kinds.get(grant.job_id, ()))),
                disturbed.get(grant.job_id, 0),
            )
        self._states = states
        self._gpu_states = {run: state for run, state in self._gpu_states.items() if run in look.ended} | {
            (job.job_id, job.created_unix_ns): _next_of_gpus(
                self._gpu_states.get((job.job_id, job.created_unix_ns)) or _no_use(job),
                [parts.get((job.job_id, uuid), NO_PART) for uuid in job.gpu_uuids],
                counts.get(job.job_id, 0),
                step_ns,
                tuple(sorted(kinds.get(job.job_id, ()))),
            )
            for job in look.gpu_jobs
        }
        return self.last()

    def _parts(self, look: Look, counters: Mapping[str, Counters]) -> dict[SliceKey, Part]:
        """Returns what each job used of each GPU on which it has processes."""
        own = by_slice(look)
        busy_ns = {key: sum([process.busy_ns for process in processes]) for key, processes in own.items()}
        totals: dict[str, int] = {}
        tenants: dict[str, int] = {}
        for (_job_id, uuid), busy in busy_ns.items():
            totals[uuid] = totals.get(uuid, 0) + busy
            tenants[uuid] = tenants.get(uuid, 0) + 1
        spent = {uuid: _spent(self._counters.get(uuid, now), now) for uuid, now in counters.items()}
        self._counters.update(counters)
        return {
            key: Part(
                sum([process.used_bytes for process in processes]),
                busy_ns[key],
                _share(spent.get(key[1], Counters()), busy_ns[key], totals[key[1]], tenants[key[1]]),
            )
            for key, processes in own.items()
        }


def _is_on(state: JobState, gpu_uuid: str) -> bool:
    return gpu_uuid in state.gpu_uuid.split(",")


def _by_run(jobs: Iterable[JobState]) -> dict[Run, JobState]:
    return {(job.job_id, job.created_unix_ns): job for job in jobs}


NO_PART = Part(0, 0, Counters())


def _spent(last: Counters, now: Counters) -> Counters:
    return Counters(*[max(0, new - old) for old, new in zip(last, now, strict=True)])


def _share(spent: Counters, busy_ns: int, total_ns: int, tenants: int) -> Counters:
    """Returns a job's part of what a GPU counted: by its part of the busy time. Energy of an idle GPU is nobody's. What
    an idle GPU moved was moved by the only job that uses it, and is nobody's where there are several."""
    if total_ns:
        energy_mj, pcie_bytes, nvlink_bytes = spent
        return Counters(
            energy_mj * busy_ns // total_ns, pcie_bytes * busy_ns // total_ns, nvlink_bytes * busy_ns // total_ns
        )
    return spent._replace(energy_mj=0) if tenants == 1 else Counters()


def _next(
    old: JobState,
    one: Slice,
    part: Part,
    processes: int,
    step_ns: int,
    findings: tuple[str, ...],
    disturbed: int,
) -> JobState:
    busy = min(part.busy_ns, step_ns)
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
        part.used_bytes,
        max(part.used_bytes, old.peak_bytes),
        round(busy / step_ns * 100, 1) if step_ns else 0.0,
        busy + old.busy_ns,
        part.spent.energy_mj + old.energy_mj,
        step_ns + old.watched_ns,
        findings,
        min(disturbed + old.disturbed_count, COUNT_MAX),
        min(one.accounted_bytes or 0, old.mem_bytes),
        one.oom_count,
        one.device_oom_count,
        one.grant.latency,
        one.grant.slo_us,
        *one.delays,
        gpu_fault=old.gpu_fault,
        pcie_bytes=part.spent.pcie_bytes + old.pcie_bytes,
        nvlink_bytes=part.spent.nvlink_bytes + old.nvlink_bytes,
        model=old.model,
    )


def _next_of_gpus(
    old: JobState, parts: list[Part], processes: int, step_ns: int, findings: tuple[str, ...]
) -> JobState:
    used = sum([part.used_bytes for part in parts])
    busy = sum([min(part.busy_ns, step_ns) for part in parts])
    return old._replace(
        processes=processes,
        used_bytes=used,
        peak_bytes=max(used, old.peak_bytes),
        busy_percent=round(busy / (step_ns * len(parts)) * 100, 1) if step_ns else 0.0,
        busy_ns=busy + old.busy_ns,
        energy_mj=sum([part.spent.energy_mj for part in parts]) + old.energy_mj,
        watched_ns=step_ns + old.watched_ns,
        findings=findings,
        pcie_bytes=sum([part.spent.pcie_bytes for part in parts]) + old.pcie_bytes,
        nvlink_bytes=sum([part.spent.nvlink_bytes for part in parts]) + old.nvlink_bytes,
    )


_NO_USE = JobState(
    job_id=0,
    uid=0,
    created_unix_ns=0,
    service_class="",
    policy="none",
    mode="",
    gpu_uuid="",
    gpu_minor=0,
    mem_bytes=0,
    cores_percent=0,
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


def _nothing(grant: Grant) -> JobState:
    """Returns the state of a run that was not looked at yet."""
    return _NO_USE._replace(
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
    )


def _no_use(job: WholeGpus) -> JobState:
    """Returns the state of a job with whole GPUs that was not looked at yet."""
    return _NO_USE._replace(
        job_id=job.job_id,
        uid=job.uid,
        created_unix_ns=job.created_unix_ns,
        mode=MODE,
        gpu_uuid=",".join(job.gpu_uuids),
        gpu_minor=job.gpu_minor,
        mem_bytes=job.mem_bytes,
        cores_percent=100 * len(job.gpu_uuids),
        model=job.model,
    )
