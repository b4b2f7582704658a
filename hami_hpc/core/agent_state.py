# SPDX-License-Identifier: Apache-2.0
"""What the agent saw of this node's GPUs: the content of its state file, <run_dir>/agent/state.json. Pure.

Only root writes the file. Everything in it was read from outside the jobs' processes (NVML, /proc, the ledger), except
what a JobState says the job counted itself.
"""

from __future__ import annotations

from hami_hpc.core.values import NamedTuple

TYPE_CHECKING = False  # the epilog imports this, and not typing: docs/adr/021
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

VERSION = 1
OK, LOST, FAILED = "ok", "lost", "error"  # of a GPU: NVML answers; it has fallen off the bus; NVML fails otherwise


class GpuState(NamedTuple):
    """One GPU at the last look. Energy since the driver was loaded; 0 where NVML does not have a number."""

    uuid: str
    minor: int
    model: str
    state: str
    detail: str  # NVML's message when state is not ok
    total_bytes: int  # usable by CUDA
    used_bytes: int
    busy_percent: float  # of the last period, all processes
    power_mw: int
    energy_mj: int
    temperature_c: int
    last_fault: str = ""  # title of the GPU's last error, in node/xids.tsv
    last_fault_unix_ns: int = 0
    fault_counts: tuple[tuple[str, int], ...] = ()  # by code, since the agent started
    pressure: int = 0  # where memory is oversold: how many of the limits of core/residents.py are reached, 0 to 3
    waiting: int = 0  # and how many jobs wait for their turn
    sold_percent: int = 100  # what Slurm may give of its memory and time to slices; more where memory is oversold


class JobState(NamedTuple):
    """One slice, of which a job can have several on the node, each on a GPU of its own. Or a job with whole GPUs: mode
    gpu, gpu_uuid all of them separated by commas, busy_percent of the time of all.

    The first fields are of its grant, the last but three are what the job counted itself (bounded)."""

    job_id: int
    uid: int
    created_unix_ns: int
    service_class: str
    policy: str
    mode: str
    gpu_uuid: str
    gpu_minor: int
    mem_bytes: int
    cores_percent: int
    processes: int  # on any GPU but those of the job's other slices, at the last look
    used_bytes: int  # NVML's sum over its processes
    peak_bytes: int
    busy_percent: float  # of the GPU's time, in the last period
    busy_ns: int  # since the first look, as NVML samples it
    energy_mj: int  # the GPU's energy by this job's part of the busy time; idle time is nobody's
    watched_ns: int  # time between its first look and its last
    findings: tuple[str, ...]  # kinds that hold now
    disturbed_count: int  # allocations refused for want of memory while another job held more than its grant
    accounted_bytes: int
    oom_count: int
    device_oom_count: int
    latency: int = 0  # 1: latency-critical
    slo_us: int = 0
    latency_buckets: tuple[int, ...] = ()  # what follows the job counted itself (core/delays.py)
    latency_sum_ns: int = 0
    slo_miss_count: int = 0
    pause_count: int = 0
    paused_ns: int = 0
    floor_hit_count: int = 0
    gpu_fault: int = 0  # Xid code of a fault of the GPU that the run met; 0: none
    pcie_bytes: int = 0  # that its GPUs moved, by its part of their busy time
    nvlink_bytes: int = 0
    model: str = ""  # of a job with whole GPUs
    off_gpu_ns: int = 0  # of watched_ns, time in which its memory was off the GPU by root's order
    place: str = "gpu"  # where its memory is: "host" while it is off the GPU by root's order
    beyond_cores: int = 0  # 1: latency-critical, and treated as any other job, as it wants more than its cores


class Standing(NamedTuple):
    """Where one slice stands on a GPU whose memory is oversold. Of others' jobs it has sums alone. Times are of
    CLOCK_BOOTTIME. `state`, one of core/standing.py:

    on: it may use the GPU. stays: so it may, as it could not leave; `why` says why. leaves: its turn is over, and its
    memory is not away yet. waits: for its turn, or until others have left. room: until others have ended, as even
    without those that can be moved there is too little. away: off the GPU, and none of its programs asks for it. out,
    suspended: moved out by an administrator, or for Slurm's suspension.

    `place` is that in the row of `waiting` jobs, 1 for the next, 0 for one that is not in it. `due_boot_ns`: when its
    turn comes at the latest if those before it leave when they should and nobody more urgent comes; 0: not known.
    `lacks_mib` and `lacks_cores` say what is missing in `room`. `on_gpu` counts the jobs on the GPU, `unmovable`
    those of them that are never moved or could not leave.
    """

    job_id: int
    created_unix_ns: int
    gpu_uuid: str
    state: str
    since_boot_ns: int
    place: int = 0
    waiting: int = 0
    due_boot_ns: int = 0
    on_gpu: int = 0
    unmovable: int = 0
    lacks_mib: int = 0
    lacks_cores: int = 0
    why: str = ""
    left_mib: int = -1  # what it held of the GPU at least since its memory had left; -1: it has not


class OtherProcess(NamedTuple):
    """A process on a GPU that belongs to no slice. `job_id` is 0 for a process of no job, -1 while Slurm
    has not said whose it is."""

    pid: int
    uid: int
    job_id: int
    gpu_uuid: str
    used_bytes: int
    busy_percent: float


class Event(NamedTuple):
    """What the agent found or did. `kind` is a finding's kind, or one of the agent's own (started, gpu_lost, ...)."""

    time_unix_ns: int
    kind: str
    job_id: int  # 0: of no job
    gpu_uuid: str
    action: str  # what was done; "" for nothing
    text: str
    xid: int = 0  # of gpu_fault: its code, or that of the Xid that means the same
    times: int = 0
    fault: str = ""  # of gpu_fault: whose


class AgentState(NamedTuple):
    """Everything at one look. `boot_time_ns` is CLOCK_BOOTTIME, which no change of the clock moves."""

    boot_id: str
    pid: int
    time_unix_ns: int
    boot_time_ns: int
    period_ns: int
    looks: int  # since the agent started
    gpus: tuple[GpuState, ...]
    jobs: tuple[JobState, ...]
    others: tuple[OtherProcess, ...]
    events: tuple[Event, ...]  # the latest, oldest first
    started_unix_ns: int = 0  # when the agent started; 0: not said
    event_counts: tuple[tuple[str, int], ...] = ()  # by kind, since the agent started
    gpu_jobs: tuple[JobState, ...] = ()  # the jobs with whole GPUs
    standings: tuple[Standing, ...] = ()  # of the slices, where memory is oversold


_LISTS = {
    "gpus": GpuState,
    "jobs": JobState,
    "others": OtherProcess,
    "events": Event,
    "gpu_jobs": JobState,
    "standings": Standing,
}


def to_json(state: AgentState) -> str:
    """Returns the file's text."""
    import json  # not at the top: the epilog imports this module

    table: dict[str, Any] = {"version": VERSION, **state._asdict()}
    texts = [f'"{name}":[{",".join(_rows(kind, table.pop(name), json.dumps))}]' for name, kind in _LISTS.items()]
    return ",".join([json.dumps(table, separators=(",", ":"))[:-1], *texts]) + "}"


def _rows(kind: Any, rows: Iterable[tuple[object, ...]], dumps: Callable[[object], str]) -> list[str]:
    """Returns each row as JSON. Most are of numbers, and the same texts: a third of the time of json.dumps."""
    types = kind.__annotations__.values()
    words = [f'"{name}":{"%d" if of == "int" else "%s"}' for name, of in zip(kind._fields, types, strict=True)]
    form = "{" + ",".join(words) + "}"
    others = [at for at, of in enumerate(types) if of not in ("int", "float")]
    texts: dict[object, str] = {}
    found = []
    for row in rows:
        values = list(row)
        for at in others:
            value = values[at]
            values[at] = texts.get(value) or texts.setdefault(value, dumps(value))
        found.append(form % tuple(values))
    return found


def standing_to_json(standing: Standing, boot_id: str) -> str:
    """Returns the text of one job's note (node/turn_notes.py)."""
    import json

    return json.dumps({"version": VERSION, "boot_id": boot_id, **standing._asdict()}, separators=(",", ":"))


def standing_from_json(text: str, boot_id: str) -> Standing | None:
    """Returns the standing in a note; None for one of another boot or version, or that was cut off."""
    import json

    try:
        table = json.loads(text)
        if (table.pop("version"), table.pop("boot_id")) != (VERSION, boot_id):
            return None
        standing = Standing(**table)
        return standing if _is_typed(standing) else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


_TYPES = {"int": (int,), "str": (str,), "float": (int, float)}


def _is_typed(row: tuple[object, ...]) -> bool:
    """Returns whether a row's numbers are numbers and its texts texts."""
    types = type(row).__annotations__.values()
    return all(type(value) in _TYPES.get(name, (tuple,)) for value, name in zip(row, types, strict=True))


def from_json(text: str) -> AgentState | None:
    """Returns the state in a file's text; None for a text of another version, or one that was cut off."""
    import json

    try:
        table = json.loads(text)
        if table.pop("version") != VERSION:
            return None
        for name in ("gpu_jobs", "standings"):
            table.setdefault(name, [])
        for name, kind in _LISTS.items():
            table[name] = tuple(kind(**row) for row in table[name])
        for name in ("jobs", "gpu_jobs"):
            table[name] = tuple(
                job._replace(findings=tuple(job.findings), latency_buckets=tuple(job.latency_buckets))
                for job in table[name]
            )
        table["gpus"] = tuple(
            gpu._replace(fault_counts=tuple((code, count) for code, count in gpu.fault_counts)) for gpu in table["gpus"]
        )
        table["event_counts"] = tuple((kind, count) for kind, count in table.get("event_counts", ()))
        state = AgentState(**table)
        rows = (state, *(row for name in _LISTS for row in getattr(state, name)))
        return state if all(map(_is_typed, rows)) else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
