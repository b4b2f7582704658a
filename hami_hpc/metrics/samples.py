# SPDX-License-Identifier: Apache-2.0
"""Turns an AgentState into the samples of each metric. Pure."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple

from hami_hpc.core.agent_state import FAILED, LOST, OK, AgentState, GpuState, JobState
from hami_hpc.core.delays import BOUNDS_NS
from hami_hpc.core.standing import ROOM, STAYS
from hami_hpc.metrics import definitions as d
from hami_hpc.metrics.definitions import Metric

Labels = tuple[str, ...]


class Histogram(NamedTuple):
    """Observations up to each bound (in seconds; the last is infinite), and the sum of all in seconds."""

    buckets: tuple[tuple[float, float], ...]
    total: float


# Of each metric: the value for each set of labels.
Samples = dict[Metric, dict[Labels, float]]
Histograms = dict[Metric, dict[Labels, Histogram]]
NS, MICRO, MILLI = 1e9, 1e6, 1e3
OWNERS = ("job", "none", "unknown")


class Status(StrEnum):
    """What the state file says of the agent."""

    LOOKING = "looking"
    STALE = "stale"
    ABSENT = "absent"
    UNREADABLE = "unreadable"


class ByStages(NamedTuple):
    """What the node's prologs wrote down: jobs sent back for want of a MIG instance, and modes out of service."""

    no_room: int = 0
    modes_out: tuple[str, ...] = ()


def agent_samples(status: Status, state: AgentState | None, age_s: float, by_stages: ByStages | None = None) -> Samples:
    """Returns the samples of the agent, and with Status.LOOKING those of GPUs and jobs. `state` is None unless read.
    `by_stages` is what the prologs wrote down.

    Raises ValueError, TypeError or OverflowError for a state whose fields are not of the declared types.
    """
    out: Samples = {metric: {} for metric in d.METRICS if metric.kind != d.HISTOGRAM}
    if by_stages is not None:
        out[d.MIG_NO_ROOM] = {(): float(by_stages.no_room)} if by_stages.no_room else {}
        out[d.MODE_OUT] = {(mode,): 1.0 for mode in by_stages.modes_out}
    out[d.AGENT_UP][()] = float(status is Status.LOOKING)
    out[d.AGENT_STATUS] = {(name.value,): float(name is status) for name in Status}
    if state is None:
        return out
    out[d.AGENT_LAST_LOOK][()] = state.time_unix_ns / NS
    out[d.AGENT_AGE][()] = age_s
    out[d.AGENT_PERIOD][()] = state.period_ns / NS
    out[d.AGENT_LOOKS][()] = float(state.looks)
    if state.started_unix_ns:
        out[d.AGENT_START][()] = state.started_unix_ns / NS
    out[d.AGENT_EVENTS] = {(kind,): float(count) for kind, count in state.event_counts}
    if status is not Status.LOOKING:
        return out  # what the GPUs and jobs did long ago is not what they do
    for event in state.events:
        key = (event.kind,)
        out[d.AGENT_EVENT][key] = max(out[d.AGENT_EVENT].get(key, 0.0), event.time_unix_ns / NS)
    jobs = newest_runs(state.jobs)
    for gpu in state.gpus:
        _add_gpu(out, gpu, [job for job in jobs if job.gpu_uuid == gpu.uuid])
        stands = [one.state for one in state.standings if one.gpu_uuid == gpu.uuid]
        out[d.GPU_ROOMLESS][_gpu_labels(gpu)] = float(stands.count(ROOM))
        out[d.GPU_STAYING][_gpu_labels(gpu)] = float(stands.count(STAYS))
    _add_others(out, state)
    for job in jobs:
        _add_job(out, job)
    return out


def newest_runs(jobs: tuple[JobState, ...]) -> list[JobState]:
    """Returns one state per job and GPU: that of the newest run, as labels do not distinguish runs of one job id."""
    newest: dict[tuple[int, str], JobState] = {}
    for job in sorted(jobs, key=lambda job: job.created_unix_ns):
        newest[job.job_id, job.gpu_uuid] = job
    return list(newest.values())


def _gpu_labels(gpu: GpuState) -> Labels:
    return (gpu.uuid, str(gpu.minor), gpu.model)


def _add_gpu(out: Samples, gpu: GpuState, jobs: list[JobState]) -> None:
    labels = _gpu_labels(gpu)
    for state in (OK, LOST, FAILED):
        out[d.GPU_STATE][*labels, state] = 0.0
    out[d.GPU_STATE][*labels, gpu.state] = 1.0
    out[d.GPU_MEMORY_GRANTED][labels] = float(sum(job.mem_bytes for job in jobs))
    out[d.GPU_SHARE_GRANTED][labels] = sum(job.cores_percent for job in jobs) / 100
    out[d.GPU_JOBS][labels] = float(len(jobs))
    out[d.GPU_PRESSURE][labels] = float(gpu.pressure)
    out[d.GPU_WAITING][labels] = float(gpu.waiting)
    out[d.GPU_SOLD][labels] = gpu.sold_percent / 100
    for code, count in gpu.fault_counts:
        out[d.GPU_FAULTS][*labels, code] = float(count)
    if gpu.state != OK:
        return
    out[d.GPU_MEMORY_TOTAL][labels] = float(gpu.total_bytes)
    out[d.GPU_MEMORY_USED][labels] = float(gpu.used_bytes)
    out[d.GPU_BUSY][labels] = gpu.busy_percent / 100
    for metric, value in (
        (d.GPU_POWER, gpu.power_mw / MILLI),
        (d.GPU_ENERGY, gpu.energy_mj / MILLI),
        (d.GPU_TEMPERATURE, float(gpu.temperature_c)),
    ):
        if value:  # 0: NVML has no number
            out[metric][labels] = value


def _add_others(out: Samples, state: AgentState) -> None:
    known = {gpu.uuid: _gpu_labels(gpu) for gpu in state.gpus}
    for labels in known.values():
        for owner in OWNERS:
            out[d.GPU_OTHER_PROCESSES][*labels, owner] = 0.0
            out[d.GPU_OTHER_MEMORY][*labels, owner] = 0.0
    for process in state.others:
        labels = known.get(process.gpu_uuid, (process.gpu_uuid, "", ""))
        owner = "job" if process.job_id > 0 else "unknown" if process.job_id else "none"
        key = (*labels, owner)
        out[d.GPU_OTHER_PROCESSES][key] = out[d.GPU_OTHER_PROCESSES].get(key, 0.0) + 1
        out[d.GPU_OTHER_MEMORY][key] = out[d.GPU_OTHER_MEMORY].get(key, 0.0) + process.used_bytes


def _job_labels(job: JobState) -> Labels:
    return (str(job.job_id), str(job.uid), job.service_class, job.gpu_uuid, str(job.gpu_minor))


def _add_job(out: Samples, job: JobState) -> None:
    labels = _job_labels(job)
    out[d.JOB_INFO][*labels, job.policy, job.mode] = 1.0
    out[d.JOB_START][labels] = job.created_unix_ns / NS
    out[d.JOB_MEMORY_GRANTED][labels] = float(job.mem_bytes)
    out[d.JOB_MEMORY_USED][labels] = float(job.used_bytes)
    out[d.JOB_MEMORY_PEAK][labels] = float(job.peak_bytes)
    out[d.JOB_MEMORY_ACCOUNTED][labels] = float(job.accounted_bytes)
    out[d.JOB_SHARE_GRANTED][labels] = job.cores_percent / 100
    out[d.JOB_BUSY][labels] = job.busy_percent / 100
    out[d.JOB_BUSY_SECONDS][labels] = job.busy_ns / NS
    out[d.JOB_WATCHED][labels] = job.watched_ns / NS
    out[d.JOB_OFF_GPU][labels] = job.off_gpu_ns / NS
    out[d.JOB_ENERGY][labels] = job.energy_mj / MILLI
    out[d.JOB_PROCESSES][labels] = float(job.processes)
    out[d.JOB_REFUSED][*labels, "grant"] = float(job.oom_count)
    out[d.JOB_REFUSED][*labels, "gpu"] = float(job.device_oom_count)
    out[d.JOB_DISTURBED][labels] = float(job.disturbed_count)
    _add_delays(out, job, labels)
    for kind in job.findings:
        out[d.JOB_FINDING][*labels, kind] = 1.0


def _add_delays(out: Samples, job: JobState, labels: Labels) -> None:
    out[d.JOB_PAUSES][labels] = float(job.pause_count)
    out[d.JOB_PAUSED][labels] = job.paused_ns / NS
    if job.slo_us:
        out[d.JOB_SLO][labels] = job.slo_us / MICRO
    if job.latency:
        out[d.JOB_FLOOR_HITS][labels] = float(job.floor_hit_count)
        out[d.JOB_BEYOND_CORES][labels] = float(job.beyond_cores)
    if job.latency or job.latency_buckets:
        out[d.JOB_SLO_MISSES][labels] = float(job.slo_miss_count)


def agent_histograms(status: Status, state: AgentState | None) -> Histograms:
    """Returns the histograms of the jobs, with Status.LOOKING. Raises as agent_samples does."""
    if state is None or status is not Status.LOOKING:
        return {}
    jobs = [job for job in newest_runs(state.jobs) if job.latency or job.latency_buckets]
    return {d.JOB_REQUESTS: {_job_labels(job): histogram(job.latency_buckets, job.latency_sum_ns) for job in jobs}}


def histogram(rows: tuple[int, ...], sum_ns: int) -> Histogram:
    """Returns a usage record's histogram with every second of its bounds, those that are powers of two times the first.

    Raises ValueError for counts of another number of rows.
    """
    if rows and len(rows) != len(BOUNDS_NS) + 1:
        raise ValueError(f"{len(rows)} counts for {len(BOUNDS_NS) + 1} rows")
    buckets = [(BOUNDS_NS[row] / NS, float(sum(rows[: row + 1]))) for row in range(0, len(BOUNDS_NS), 2)]
    return Histogram((*buckets, (math.inf, float(sum(rows)))), sum_ns / NS)
