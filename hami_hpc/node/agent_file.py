# SPDX-License-Identifier: Apache-2.0
"""The agent's state file, <run_dir>/agent/state.json: written by the agent, read by epilog, doctor and commands."""

from __future__ import annotations

import os
import stat
import time

from hami_hpc.core.agent_state import AgentState, from_json, to_json
from hami_hpc.core.contexts import closing, suppress
from hami_hpc.core.records import NOT_OBSERVED, Observed
from hami_hpc.core.values import NamedTuple
from hami_hpc.errors import NodeError
from hami_hpc.node.sqlite import sqlite3

TYPE_CHECKING = False  # prolog and epilog import this, and not typing: docs/adr/021
if TYPE_CHECKING:
    from typing import Any

FOLDER = "agent"
NAME = "state.json"
MAX_BYTES = 16 << 20


def folder(run_dir: str) -> str:
    return f"{run_dir}/{FOLDER}"


def now_boot_ns() -> int:
    """Returns the time since boot, suspended time included, which no change of the clock moves."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def write(run_dir: str, state: AgentState, group: int = -1) -> None:
    """Replaces the file. A reader sees the old or the new one, whole. Raises OSError when that fails."""
    path = f"{folder(run_dir)}/{NAME}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(f"{path}.new", flags, 0o640)
    except FileNotFoundError:  # somebody emptied the run directory
        make_folder(run_dir, group)
        fd = os.open(f"{path}.new", flags, 0o640)
    with open(fd, "w", encoding="utf-8") as file:
        os.fchmod(fd, 0o640)
        if group != -1:
            os.fchown(fd, -1, group)
        file.write(to_json(state))
    os.replace(f"{path}.new", path)


def make_folder(run_dir: str, group: int = -1) -> None:
    """Makes the file's folder, which only root can write, where it is missing. Raises NodeError for another one."""
    path = folder(run_dir)
    with suppress(FileExistsError):
        os.mkdir(path, 0o750)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise NodeError(f"{path} is not a directory that only root can write; move it away, the agent makes it again")
    os.chmod(path, 0o750)
    os.chown(path, -1, group)


def _text(run_dir: str) -> str | None:
    """Returns the file's text; None where root has none. Raises NodeError when this user may not read it."""
    path = f"{folder(run_dir)}/{NAME}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(fd, encoding="utf-8", errors="replace") as file:
            status = os.fstat(fd)
            if status.st_uid != 0 or not stat.S_ISREG(status.st_mode):
                return None
            return file.read(MAX_BYTES)
    except PermissionError as error:
        raise NodeError(f"{path}: only root and the group of [agent] can read it") from error
    except OSError:
        return None


def read(run_dir: str, boot_id: str) -> AgentState | None:
    """Returns the state of this boot, or None when there is none. Raises NodeError when this user may not read it."""
    text = _text(run_dir)
    state = None if text is None else from_json(text)
    return state if state is not None and state.boot_id == boot_id else None


# In the order of Observed's fields. SQLite reads JSON too, and prolog and epilog have loaded it (docs/adr/021). A row
# for each slice of the run; of a job with whole GPUs there is one.
_OBSERVED = """
SELECT job.value ->> 'watched_ns', job.value ->> 'peak_bytes', job.value ->> 'busy_ns', job.value ->> 'energy_mj',
  coalesce(job.value ->> 'pcie_bytes', 0), coalesce(job.value ->> 'nvlink_bytes', 0), job.value ->> 'disturbed_count',
  coalesce(job.value ->> 'gpu_fault', 0), coalesce(job.value ->> 'off_gpu_ns', 0)
  {more}
FROM json_each(?1, '$.{jobs}') AS job
WHERE ?1 ->> 'boot_id' = ?2 AND job.value ->> 'job_id' = ?3 AND job.value ->> 'created_unix_ns' = ?4
"""
_GPU_JOB = """, job.value ->> 'gpu_uuid', job.value ->> 'model', job.value ->> 'mem_bytes',
  job.value ->> 'processes', ?1 ->> 'boot_time_ns'"""
FRESH_NS = 15_000_000_000  # the agent's longest period, and a half


class SeenGpuJob(NamedTuple):
    """What the agent saw of one run of a job with whole GPUs. `mem_mib` is of all of them together; `is_running`: the
    job had processes on a GPU seconds ago."""

    observed: Observed
    gpu_uuids: tuple[str, ...]
    model: str
    mem_mib: int
    is_running: bool


def read_observed(run_dir: str, boot_id: str, job_id: int, created_unix_ns: int) -> Observed:
    """Returns what the agent saw of one run of a job, of all its slices together; nothing where the file does not say.
    Never fails."""
    rows = _rows(run_dir, _OBSERVED.format(jobs="jobs", more=""), boot_id, job_id, created_unix_ns)
    slices = [one for one in map(_observed, rows) if one is not None]
    if len(slices) != len(rows) or not slices:
        return NOT_OBSERVED
    both = Observed(*map(sum, zip(*slices, strict=True)))
    fault = next((one.gpu_fault for one in slices if one.gpu_fault), 0)
    return both._replace(observed_ns=max(one.observed_ns for one in slices), gpu_fault=fault)


def read_off_gpu(run_dir: str, boot_id: str, job_id: int, created_unix_ns: int) -> dict[str, int] | None:
    """Returns how long the memory of a running job was off each of its slices' GPUs, ns, by the GPU's UUID; None where
    this user may not know, or the agent did not see the job."""
    try:
        state = read(run_dir, boot_id)
    except NodeError:
        return None
    jobs = state.jobs if state is not None else ()
    seen = {
        one.gpu_uuid: one.off_gpu_ns for one in jobs if (one.job_id, one.created_unix_ns) == (job_id, created_unix_ns)
    }
    return seen or None


def read_gpu_job(run_dir: str, boot_id: str, job_id: int, created_unix_ns: int) -> SeenGpuJob | None:
    """Returns what the agent saw of one run of a job with whole GPUs; None where it saw nothing. Never fails."""
    rows = _rows(run_dir, _OBSERVED.format(jobs="gpu_jobs", more=_GPU_JOB), boot_id, job_id, created_unix_ns)
    *numbers, uuids, model, mem_bytes, processes, looked_ns = rows[0] if rows else (None,) * 5
    observed = _observed(tuple(numbers))
    is_typed = type(uuids) is type(model) is str and type(mem_bytes) is type(processes) is type(looked_ns) is int
    if observed is None or not (is_typed and uuids):
        return None
    is_running = processes > 0 and now_boot_ns() - looked_ns < FRESH_NS
    return SeenGpuJob(observed, tuple(uuids.split(",")), model, max(0, mem_bytes) >> 20, is_running)


def _rows(run_dir: str, query: str, boot_id: str, job_id: int, created_unix_ns: int) -> list[tuple[Any, ...]]:
    try:
        text = _text(run_dir)
        with closing(sqlite3.connect(":memory:")) as connection:
            return connection.execute(query, (text or "{}", boot_id, job_id, created_unix_ns)).fetchall()
    except (NodeError, sqlite3.Error):
        return []


def _observed(row: tuple[Any, ...] | None) -> Observed | None:
    return Observed(*row) if row and all(type(value) is int and value >= 0 for value in row) else None


def seconds_old(state: AgentState) -> float:
    """Returns how long ago the agent last looked, s."""
    return (now_boot_ns() - state.boot_time_ns) / 1e9


def seconds_silent(run_dir: str) -> float | None:
    """Returns how long ago the file was written, s, by the clock; None when there is none. For the prolog."""
    try:
        return time.time() - os.lstat(f"{folder(run_dir)}/{NAME}").st_mtime
    except OSError:
        return None
