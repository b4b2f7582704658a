# SPDX-License-Identifier: Apache-2.0
"""The rows of `hami-hpc ps` and `hami-hpc top`: the jobs and processes on a node's GPUs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from hami_hpc.core import standing
from hami_hpc.core.agent_state import AgentState, GpuState, Standing
from hami_hpc.core.grant import Grant
from hami_hpc.core.records import Usage

FAULT_SHOWN_NS = 86_400_000_000_000
BEYOND_CORES = "wants more than its cores"
STALE_PERIODS = 5  # a state older than this many periods of the agent is said to be old


@dataclass(frozen=True, slots=True)
class Row:
    """A job's slice, or a process without one (then `pid` is set, and nothing was granted).

    `busy_percent` is of the GPU's time: of the agent's last period, or since the job began where no agent was asked.
    """

    gpu: int  # minor number; -1 where the GPU is not known
    job_id: int  # 0: of no job
    pid: int  # 0: the row is of a job
    processes: int
    uid: int
    user: str
    service_class: str
    cores_percent: int
    busy_percent: float
    granted_bytes: int
    used_bytes: int
    peak_bytes: int
    findings: tuple[str, ...]
    standing: Standing | None = None  # where memory is oversold

    @property
    def process_text(self) -> str:
        return f"pid {self.pid}" if self.pid else str(self.processes) if self.processes >= 0 else "-"

    @property
    def job_text(self) -> str:
        return str(self.job_id) if self.job_id else "-"


def of_state(state: AgentState, user_name: Callable[[int], str]) -> list[Row]:
    """Returns the rows of everything that the agent saw, by GPU; processes without a slice after the jobs."""
    minors = {gpu.uuid: gpu.minor for gpu in state.gpus}
    standings = {(one.job_id, one.created_unix_ns, one.gpu_uuid): one for one in state.standings}
    rows = [
        Row(
            gpu=job.gpu_minor,
            job_id=job.job_id,
            pid=0,
            processes=job.processes,
            uid=job.uid,
            user=user_name(job.uid),
            service_class=job.service_class,
            cores_percent=job.cores_percent,
            busy_percent=job.busy_percent,
            granted_bytes=job.mem_bytes,
            used_bytes=job.used_bytes,
            peak_bytes=job.peak_bytes,
            findings=(*job.findings, *_wants_more(bool(job.beyond_cores))),
            standing=standings.get((job.job_id, job.created_unix_ns, job.gpu_uuid)),
        )
        for job in state.jobs
    ]
    rows += [
        Row(
            gpu=minors.get(process.gpu_uuid, -1),
            job_id=process.job_id,
            pid=process.pid,
            processes=1,
            uid=process.uid,
            user=user_name(process.uid),
            service_class="-",
            cores_percent=0,
            busy_percent=process.busy_percent,
            granted_bytes=0,
            used_bytes=process.used_bytes,
            peak_bytes=process.used_bytes,
            findings=(),
        )
        for process in state.others
    ]
    return sorted(rows, key=lambda row: (row.gpu, row.pid > 0, row.job_id, row.pid))


def of_usage(
    running: Iterable[tuple[Grant, Usage]],
    now_unix_ns: int,
    user_name: Callable[[int], str],
    standings: Mapping[int, Standing] | None = None,
    beyond: Collection[int] = (),
) -> list[Row]:
    """Returns the rows of jobs from the run directory: what they count themselves. `standings`: by job id, where memory
    is oversold. `beyond`: the latency-critical jobs that are treated as any other."""
    rows = []
    for grant, usage in running:
        elapsed_ns = max(1, now_unix_ns - grant.created_unix_ns)
        rows.append(
            Row(
                gpu=grant.gpu_minor,
                job_id=grant.job_id,
                pid=0,
                processes=-1,
                uid=grant.uid,
                user=user_name(grant.uid),
                service_class=grant.service_class,
                cores_percent=grant.cores_percent,
                busy_percent=100 * usage.gpu_busy_ns / elapsed_ns,
                granted_bytes=grant.mem_mib << 20,
                used_bytes=usage.used_bytes,
                peak_bytes=usage.peak_bytes,
                findings=(
                    *(() if usage.state == "ok" else (f"usage record is {usage.state}",)),
                    *_wants_more(grant.job_id in beyond),
                ),
                standing=(standings or {}).get(grant.job_id),
            )
        )
    return sorted(rows, key=lambda row: (row.gpu, row.job_id))


def _wants_more(is_beyond: bool) -> tuple[str, ...]:
    return (BEYOND_CORES,) if is_beyond else ()


def gpu_line(rows: Iterable[Row], gpu: GpuState) -> str:
    """Returns how the jobs of an oversold GPU stand, in one line; "" where none does."""
    counts = standing.counts(row.standing for row in rows if row.standing and row.standing.gpu_uuid == gpu.uuid)
    used = f"{100 * gpu.used_bytes // max(1, gpu.total_bytes)} % of its memory in use"
    return f"GPU {gpu.minor}: {counts}; {used}, pressure {gpu.pressure}/3" if counts else ""


def granted_bytes(state: AgentState, gpu: GpuState) -> int:
    """Returns how much of a GPU's memory slices hold."""
    return sum(job.mem_bytes for job in state.jobs if job.gpu_uuid == gpu.uuid)


def recent_faults(state: AgentState) -> list[tuple[GpuState, int]]:
    """Returns the GPUs with an error in the last day, with its time in s since 1970."""
    return [
        (gpu, gpu.last_fault_unix_ns // 10**9)
        for gpu in state.gpus
        if gpu.last_fault and state.time_unix_ns - gpu.last_fault_unix_ns < FAULT_SHOWN_NS
    ]


def is_stale(state: AgentState, seconds_old: float) -> bool:
    """Returns whether the agent has missed several looks: it is stopped or stuck."""
    return seconds_old > max(STALE_PERIODS * state.period_ns / 1e9, 3)
