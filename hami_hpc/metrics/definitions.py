# SPDX-License-Identifier: Apache-2.0
"""Every metric: name, type, labels and HELP text. docs/metrics.md has the same table (tests/unit/test_metrics_docs.py).

No label is called `job` or `instance`: Prometheus sets these two itself, and would rename ours.
"""

from __future__ import annotations

from dataclasses import dataclass

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"
GPU = ("gpu", "minor", "model")
JOB = ("job_id", "uid", "class", "gpu", "minor")


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric family. `name` is as scraped, with `_total` for a counter; of a histogram, without `_bucket`."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


AGENT_UP = Metric(
    "hami_hpc_agent_up",
    GAUGE,
    (),
    "1: the agent looked at most 10 periods ago, and what follows is what it saw. 0: it did not, and only metrics of "
    "the agent follow.",
)
AGENT_STATUS = Metric(
    "hami_hpc_agent_status",
    GAUGE,
    ("status",),
    "1 for the one that holds. looking: up. stale: the last look is older than 10 periods. absent: there is no valid "
    "state file of this boot. unreadable: this user may not read it.",
)
AGENT_LAST_LOOK = Metric(
    "hami_hpc_agent_last_look_timestamp_seconds",
    GAUGE,
    (),
    "When the agent last looked, in seconds since 1970 by this node's clock.",
)
AGENT_AGE = Metric(
    "hami_hpc_agent_last_look_age_seconds",
    GAUGE,
    (),
    "How long ago the agent last looked, in seconds, by a clock that nobody sets.",
)
AGENT_PERIOD = Metric(
    "hami_hpc_agent_period_seconds", GAUGE, (), "Time between two looks of the agent as configured, in seconds."
)
AGENT_LOOKS = Metric("hami_hpc_agent_looks_total", COUNTER, (), "Looks since the agent started.")
AGENT_START = Metric(
    "hami_hpc_agent_start_timestamp_seconds", GAUGE, (), "When the agent started, in seconds since 1970."
)
AGENT_EVENT = Metric(
    "hami_hpc_agent_last_event_timestamp_seconds",
    GAUGE,
    ("kind",),
    "When the latest event of this kind was, in seconds since 1970. The agent keeps its latest events only, so a kind "
    "disappears later.",
)
AGENT_EVENTS = Metric(
    "hami_hpc_agent_events_total",
    COUNTER,
    ("kind",),
    "Events of this kind since the agent started. A finding's kind is there from the start, with 0; one finding is one "
    "event for as long as it holds.",
)

GPU_STATE = Metric(
    "hami_hpc_gpu_state",
    GAUGE,
    (*GPU, "state"),
    "1 for the one that holds. ok: NVML answers. lost: the GPU has fallen off the bus. error: NVML fails otherwise. "
    "Measured values of a GPU are exported only while it is ok.",
)
GPU_MEMORY_TOTAL = Metric(
    "hami_hpc_gpu_memory_total_bytes", GAUGE, GPU, "Memory that CUDA can use, in bytes, from NVML."
)
GPU_MEMORY_USED = Metric(
    "hami_hpc_gpu_memory_used_bytes", GAUGE, GPU, "Memory in use by all processes, in bytes, from NVML."
)
GPU_MEMORY_GRANTED = Metric(
    "hami_hpc_gpu_memory_granted_bytes", GAUGE, GPU, "Sum of the memory granted to this GPU's jobs, in bytes."
)
GPU_SHARE_GRANTED = Metric(
    "hami_hpc_gpu_share_granted_ratio", GAUGE, GPU, "Sum of the shares of time granted to this GPU's jobs; 1 is all."
)
GPU_JOBS = Metric("hami_hpc_gpu_jobs", GAUGE, GPU, "Jobs that hold a slice of this GPU.")
GPU_BUSY = Metric(
    "hami_hpc_gpu_busy_ratio",
    GAUGE,
    GPU,
    "Part of the agent's last period in which the GPU ran work of any process, 0 to 1, from NVML.",
)
GPU_POWER = Metric(
    "hami_hpc_gpu_power_watts", GAUGE, GPU, "Power draw in watts, from NVML. Absent where NVML has no number."
)
GPU_ENERGY = Metric(
    "hami_hpc_gpu_energy_joules_total",
    COUNTER,
    GPU,
    "Energy since the driver was loaded, in joules, from NVML. Absent where NVML has no number.",
)
GPU_TEMPERATURE = Metric(
    "hami_hpc_gpu_temperature_celsius",
    GAUGE,
    GPU,
    "Temperature in degrees Celsius, from NVML. Absent where NVML has no number.",
)
GPU_OTHER_PROCESSES = Metric(
    "hami_hpc_gpu_other_processes",
    GAUGE,
    (*GPU, "owner"),
    "Processes on this GPU that belong to no slice. owner is job: of a Slurm job without a slice (a whole GPU, for "
    "example); none: of no job; unknown: the agent could not tell.",
)
GPU_OTHER_MEMORY = Metric(
    "hami_hpc_gpu_other_memory_bytes",
    GAUGE,
    (*GPU, "owner"),
    "Memory of the processes that belong to no slice, in bytes, from NVML; owner as above.",
)
GPU_PRESSURE = Metric(
    "hami_hpc_gpu_memory_pressure_level",
    GAUGE,
    GPU,
    "Where memory is oversold: 0, or 1, 2 and 3 when 75, 85 and 95 % of the GPU's memory are in use. From 1 on jobs "
    "that do not use the GPU leave it, the sooner the higher it is.",
)
GPU_SOLD = Metric(
    "hami_hpc_gpu_sold_ratio",
    GAUGE,
    GPU,
    "What Slurm may give to jobs of the GPU's memory and time: 1 is all of it; more where memory is oversold.",
)
GPU_WAITING = Metric(
    "hami_hpc_gpu_waiting_jobs", GAUGE, GPU, "Where memory is oversold: jobs of which a program waits for its turn."
)
GPU_ROOMLESS = Metric(
    "hami_hpc_gpu_jobs_without_room",
    GAUGE,
    GPU,
    "Where memory is oversold: those of the waiting jobs for which even moving all that can be moved leaves too "
    "little, so that they wait until others end.",
)
GPU_STAYING = Metric(
    "hami_hpc_gpu_jobs_that_stay",
    GAUGE,
    GPU,
    "Where memory is oversold: jobs that could not leave the GPU when their turn was over; hami-hpc top says why.",
)
GPU_FAULTS = Metric(
    "hami_hpc_gpu_faults_total",
    COUNTER,
    (*GPU, "xid"),
    "Errors of this GPU since the agent started. xid is the Xid's code, or the name of a condition that NVML shows, "
    "such as gpu_lost or ecc_single (docs/agent.md). A code is absent until its first error.",
)

JOB_INFO = Metric(
    "hami_hpc_job_info",
    GAUGE,
    (*JOB, "policy", "mode"),
    "Always 1. How the job's slice is isolated (mode), and how its share of time is held (policy).",
)
JOB_START = Metric(
    "hami_hpc_job_start_timestamp_seconds", GAUGE, JOB, "When the slice was granted, in seconds since 1970."
)
JOB_MEMORY_GRANTED = Metric("hami_hpc_job_memory_granted_bytes", GAUGE, JOB, "Memory granted to the job, in bytes.")
JOB_MEMORY_USED = Metric(
    "hami_hpc_job_memory_used_bytes", GAUGE, JOB, "Memory of the job's processes at the last look, in bytes, from NVML."
)
JOB_MEMORY_PEAK = Metric(
    "hami_hpc_job_memory_peak_bytes",
    GAUGE,
    JOB,
    "Largest memory of the job's processes at any look, in bytes, from NVML. Shorter peaks are not seen.",
)
JOB_MEMORY_ACCOUNTED = Metric(
    "hami_hpc_job_memory_accounted_bytes",
    GAUGE,
    JOB,
    "Memory in bytes as the job's own processes count it against the grant; the job's user can change this number.",
)
JOB_SHARE_GRANTED = Metric(
    "hami_hpc_job_share_granted_ratio", GAUGE, JOB, "Share of the GPU's time that the job asked for, 0 to 1."
)
JOB_BUSY = Metric(
    "hami_hpc_job_busy_ratio",
    GAUGE,
    JOB,
    "Part of the agent's last period in which the GPU ran the job's work, 0 to 1, from NVML.",
)
JOB_BUSY_SECONDS = Metric(
    "hami_hpc_job_busy_seconds_total",
    COUNTER,
    JOB,
    "Time in which the GPU ran the job's work since the agent's first look at it, in seconds, as NVML samples it.",
)
JOB_WATCHED = Metric(
    "hami_hpc_job_watched_seconds_total",
    COUNTER,
    JOB,
    "Time between the agent's first look at the job and its last, in seconds.",
)
JOB_OFF_GPU = Metric(
    "hami_hpc_job_off_gpu_seconds_total",
    COUNTER,
    JOB,
    "Of the time watched, that in which the job's memory was off the GPU by root's order, in seconds.",
)
JOB_ENERGY = Metric(
    "hami_hpc_job_energy_joules_total",
    COUNTER,
    JOB,
    "The GPU's energy by the job's part of the GPU's busy time, in joules. Energy of idle time is no job's.",
)
JOB_PROCESSES = Metric(
    "hami_hpc_job_processes", GAUGE, JOB, "The job's processes on any GPU at the last look, from NVML."
)
JOB_REFUSED = Metric(
    "hami_hpc_job_refused_allocations_total",
    COUNTER,
    (*JOB, "reason"),
    "Allocations refused, as the job's own processes count them (its user can change the number). reason is grant: "
    "the grant was used up; gpu: within the grant, but the GPU had no memory.",
)
JOB_DISTURBED = Metric(
    "hami_hpc_job_disturbed_allocations_total",
    COUNTER,
    JOB,
    "Allocations refused because the GPU had no memory, while another job held more than its grant.",
)
JOB_PAUSES = Metric(
    "hami_hpc_job_pauses_total",
    COUNTER,
    JOB,
    "Pauses of the job's processes that have ended, as they count them (its user can change the number).",
)
JOB_PAUSED = Metric(
    "hami_hpc_job_paused_seconds_total",
    COUNTER,
    JOB,
    "Time of these pauses, summed over the job's processes, in seconds.",
)
JOB_FLOOR_HITS = Metric(
    "hami_hpc_job_floor_hits_total",
    COUNTER,
    JOB,
    "Times that a latency-critical job had used all of the GPU's time that its class's floor leaves it.",
)
JOB_BEYOND_CORES = Metric(
    "hami_hpc_job_beyond_cores",
    GAUGE,
    JOB,
    "1 while a latency-critical job is treated as any other, as it wants more than its cores; else 0.",
)
JOB_SLO = Metric(
    "hami_hpc_job_slo_seconds",
    GAUGE,
    JOB,
    "What the job asked for with slo=: the longest time that a request should take, in seconds. Absent without.",
)
JOB_SLO_MISSES = Metric(
    "hami_hpc_job_slo_misses_total",
    COUNTER,
    JOB,
    "Requests that took longer than the deadline of their hint, or else than the job's slo.",
)
JOB_REQUESTS = Metric(
    "hami_hpc_job_request_seconds",
    HISTOGRAM,
    JOB,
    "How long requests took: of a latency-critical job as the interposer measures them, of any job that gives hints as "
    "it gives them (its user can change the numbers). Buckets from 64 us to 67 s, each twice the one before.",
)
JOB_FINDING = Metric(
    "hami_hpc_job_finding",
    GAUGE,
    (*JOB, "kind"),
    "1 for each kind of finding (hami_hpc/core/watch.py) that the agent has about the job now; absent otherwise.",
)

MIG_NO_ROOM = Metric(
    "hami_hpc_mig_no_room_total",
    COUNTER,
    (),
    "Jobs that this node's prolog sent back since its start, because a GPU's MIG instances left no place for theirs. "
    "Absent until the first.",
)

MODE_OUT = Metric(
    "hami_hpc_mode_out",
    GAUGE,
    ("mode",),
    "1 for each mode (share, mps, mig) that is out of this node's features, because it failed repeatedly. Absent "
    "otherwise.",
)

METRICS = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
