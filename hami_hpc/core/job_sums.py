# SPDX-License-Identifier: Apache-2.0
"""Adds up what each job used of its GPUs, look by look, from outside its processes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hami_hpc.core import swap
from hami_hpc.core.agent_state import JobState
from hami_hpc.core.gpu_jobs import MODE
from hami_hpc.core.grant import Grant
from hami_hpc.core.watch import MIB, Kind, Look, Slice, SliceKey, WholeGpus, by_slice, slice_key

# A sample of the GPU's time covers about a second. After a longer pause (the agent was stopped) it says nothing about
# the rest of the pause.
LONGEST_STEP_NS = 2_000_000_000

COUNT_MAX = 1 << 40  # a user writes the counts that this one is computed from

Run = tuple[int, int]  # job id and created_unix_ns
SliceRun = tuple[int, int, str]  # the same and the slice's GPU; of a job with whole GPUs all of them


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
    """The sums of each slice of a running job, and of each job with whole GPUs. Give it the jobs of the last state file
    when the agent starts again."""

    _states: dict[SliceRun, JobState] = field(default_factory=dict)
    _gpu_states: dict[SliceRun, JobState] = field(default_factory=dict)
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
        findings: frozenset[tuple[Kind, int, str]],
        disturbed: Mapping[SliceKey, int],
    ) -> tuple[tuple[JobState, ...], tuple[JobState, ...]]:
        """Returns the states of every slice, and of every job with whole GPUs. `step_ns` is the time since the last
        look, at most LONGEST_STEP_NS, `counters` those of each GPU, `findings` what is open, by kind, job and GPU, and
        `disturbed` the refused allocations since then that were somebody else's fault, by slice."""
        parts, counts = self._parts(look, counters), _counts(look)
        own_gpus: dict[int, set[str]] = {}
        for one in look.slices:
            own_gpus.setdefault(one.grant.job_id, set()).add(one.grant.gpu_uuid)
        states: dict[SliceRun, JobState] = {}
        for one in look.slices:
            grant = one.grant
            job_id, uuid = key = slice_key(grant)
            others = own_gpus[job_id] - {uuid}
            run = (job_id, grant.created_unix_ns, uuid)
            part, on_gpus = parts.get(key, NO_PART), counts.get(job_id, NOWHERE)
            states[run] = _next(
                self._states.get(run) or _nothing(grant),
                one,
                part,
                sum([n for gpu, n in on_gpus.items() if gpu not in others]),
                step_ns,
                _kinds(findings, job_id, others),
                disturbed.get(key, 0),
                uuid in counters and _is_off(one, part, on_gpus),
            )
        self._states = states
        now = {(job.job_id, job.created_unix_ns, ",".join(job.gpu_uuids)): job for job in look.gpu_jobs}
        self._gpu_states = {run: state for run, state in self._gpu_states.items() if run[:2] in look.ended} | {
            run: _next_of_gpus(
                self._gpu_states.get(run) or _no_use(job),
                [parts.get((job.job_id, uuid), NO_PART) for uuid in job.gpu_uuids],
                sum(counts.get(job.job_id, {}).values()),
                step_ns,
                _kinds(findings, job.job_id, ()),
            )
            for run, job in now.items()
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


def _by_run(jobs: Iterable[JobState]) -> dict[SliceRun, JobState]:
    return {(job.job_id, job.created_unix_ns, job.gpu_uuid): job for job in jobs}


def _counts(look: Look) -> dict[int, dict[str, int]]:
    """Returns how many processes each job has on each GPU."""
    counts: dict[int, dict[str, int]] = {}
    for process in look.processes:
        of_job = counts.setdefault(process.job_id, {})
        of_job[process.gpu_uuid] = of_job.get(process.gpu_uuid, 0) + 1
    return counts


def _is_off(one: Slice, part: Part, counts: Mapping[str, int]) -> bool:
    """Returns whether a slice's memory is off its GPU, which answers. Programs that work there are not off it, however
    little memory each of them holds; nor is a job of many programs that holds more than half of its memory there."""
    most = max(swap.LEFT_MIB, one.grant.mem_mib // 2) * MIB
    is_most_gone = not part.busy_ns and part.used_bytes <= most
    return is_most_gone and swap.is_off(one.order, part.used_bytes, counts.get(one.grant.gpu_uuid, 0))


def _kinds(findings: Collection[tuple[Kind, int, str]], job_id: int, others: Collection[str]) -> tuple[str, ...]:
    """Returns what is found of a job now, but what is found on the GPUs of its other slices."""
    if not findings:
        return ()
    return tuple(sorted({kind.value for kind, of, gpu in findings if of == job_id and gpu not in others}))


def merged(jobs: Iterable[JobState]) -> list[JobState]:
    """Returns one state for each run: the slices of a job as one, with sums, and the GPUs separated by commas."""
    runs: dict[Run, list[JobState]] = {}
    for job in jobs:
        runs.setdefault((job.job_id, job.created_unix_ns), []).append(job)
    return [slices[0] if len(slices) == 1 else _merged(slices) for slices in runs.values()]


_SUMS = (
    *("mem_bytes", "cores_percent", "processes", "used_bytes", "peak_bytes", "busy_ns", "energy_mj", "disturbed_count"),
    *("accounted_bytes", "oom_count", "device_oom_count", "pcie_bytes", "nvlink_bytes", "off_gpu_ns"),
)


def _merged(slices: list[JobState]) -> JobState:
    return slices[0]._replace(
        gpu_uuid=",".join(one.gpu_uuid for one in slices),
        watched_ns=max(one.watched_ns for one in slices),
        busy_percent=round(sum(one.busy_percent for one in slices) / len(slices), 1),
        findings=tuple(sorted({kind for one in slices for kind in one.findings})),
        gpu_fault=next((one.gpu_fault for one in slices if one.gpu_fault), 0),
        place="host" if all(one.place == "host" for one in slices) else "gpu",
        beyond_cores=max(one.beyond_cores for one in slices),
        **{name: sum(getattr(one, name) for one in slices) for name in _SUMS},
    )


NO_PART = Part(0, 0, Counters())
NOWHERE: Mapping[str, int] = {}


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
    is_off: bool,
) -> JobState:
    busy = min(part.busy_ns, step_ns)
    return JobState(  # by place, which is quicker
        old.job_id,
        old.uid,
        old.created_unix_ns,
        old.service_class,
        old.policy,
        old.mode,
        old.gpu_uuid,
        old.gpu_minor,
        one.grant.mem_mib * MIB,
        one.grant.cores_percent,
        processes,
        part.used_bytes,
        max(part.used_bytes, old.peak_bytes),
        round(busy / step_ns * 100, 1) if step_ns else 0.0,
        busy + old.busy_ns,
        part.spent.energy_mj + old.energy_mj,
        step_ns + old.watched_ns,
        findings,
        min(disturbed + old.disturbed_count, COUNT_MAX),
        min(one.accounted_bytes or 0, one.grant.mem_mib * MIB),
        one.oom_count,
        one.device_oom_count,
        one.grant.latency,
        one.grant.slo_us,
        *one.delays,
        old.gpu_fault,
        part.spent.pcie_bytes + old.pcie_bytes,
        part.spent.nvlink_bytes + old.nvlink_bytes,
        old.model,
        (step_ns if is_off else 0) + old.off_gpu_ns,
        "host" if is_off else "gpu",
        int(one.beyond),
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
