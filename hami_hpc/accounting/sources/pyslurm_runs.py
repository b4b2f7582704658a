# SPDX-License-Identifier: Apache-2.0
"""Finds every run of every job with pyslurm, which returns one run of each job, and formats it as sacct -P does.

pyslurm's slurmdb_jobs.get returns a dict by job number, so it keeps only one run of a job that was requeued. slurmdbd
(all releases from 22.05 to 26.05, as_mysql_jobacct_process.c) reads rows ``order by id_job, time_submit desc``; it puts
the first row of a job at the end of its answer and every further row at the front. Therefore, in the dict,

- the run that is kept is the one submitted last, and
- jobs with several runs come first, in descending order, then the others, in ascending order.

The order shows which jobs to query again. Their other runs were submitted before the known one, and slurmdbd can be
queried for the runs of a job that were submitted before an instant.
"""

from __future__ import annotations

import pwd
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hami_hpc.accounting.errors import AccountingError

# JOBCOND_FLAG_… of slurmdb.h, the same from 22.05 to 26.05: all runs, no steps, times not cut to the window.
EVERY_RUN = 1 | 2 | 4
WHOLE_HET_JOB = 16
ONLY_THESE_NUMBERS = 32  # without the other components of heterogeneous jobs

_NO_VAL, _INFINITE = 0xFFFFFFFE, 0xFFFFFFFF
_UNSET_64 = (0xFFFFFFFFFFFFFFFE, 0xFFFFFFFFFFFFFFFF)
_TRES_MEM = 2
_NUMBERS_PER_CALL = 2000  # libslurm searches the whole list for each number that it adds
_TRIES = 5

Job = Mapping[str, Any]
# One call of slurmdb_jobs.get for one cluster: (jobs, from, until, flags). jobs: N, or N+OFFSET of a heterogeneous job;
# empty: all jobs of the window. Times are seconds since 1970; 0 means no bound.
Ask = Callable[[Sequence[str], int, int, int], Mapping[int, Job]]


@dataclass(frozen=True, slots=True)
class Names:
    """The names of slurmdbd's numbers for TRES and for QoS."""

    tres: Mapping[int, str]
    qos: Mapping[int, str]


def printed(ask: Ask, names: Names, jobs: Sequence[int], start_s: int, end_s: int) -> Iterator[dict[str, str]]:
    """Yields the fields of each run that ``every_run`` yields. Raises AccountingError."""
    runs = list(every_run(ask, jobs, start_s, end_s))
    hets = het_ids(ask, {job["jobid"]: job for job in runs}, start_s)
    for job in runs:
        yield fields(job, names, hets.get(job["jobid"]))


def every_run(ask: Ask, jobs: Sequence[int], start_s: int, end_s: int) -> Iterator[Job]:
    """Yields the runs that ``sacct -D`` shows: all runs of ``jobs``, or of the window if ``jobs`` is empty."""
    answer = ask([str(number) for number in jobs], start_s, end_s, EVERY_RUN)
    yield from answer.values()
    # Jobs to query again, by the instant before which their other runs were submitted: one query per instant.
    to_query: defaultdict[int, list[int]] = defaultdict(list)
    for number in _maybe_several_runs(list(answer)):
        to_query[answer[number]["submit"]].append(number)
    while to_query:
        until_s = max(to_query)
        for batch in _batches(to_query.pop(until_s)):
            latest_runs, maybe_more = _latest_before(ask, batch, until_s, start_s)
            for number, run in latest_runs.items():
                if number in maybe_more:
                    to_query[run["submit"]].append(number)
                if not end_s or (0 < run["eligible"] < end_s and (not run["end"] or run["end"] >= start_s)):
                    yield run


def _maybe_several_runs(order: Sequence[int]) -> Sequence[int]:
    """Returns the jobs that may have several runs: the descending numbers at the start of the dict's order.

    The last of them may be the first of the jobs with one run. Returns all if the other numbers do not ascend.
    """
    first = next((index + 1 for index, (job, next_job) in enumerate(pairwise(order)) if next_job > job), len(order))
    ascends = all(job < next_job for job, next_job in pairwise(order[first:]))
    return order[:first] if ascends else order


def _latest_before(
    ask: Ask, numbers: Sequence[int], until_s: int, start_s: int
) -> tuple[dict[int, Job], frozenset[int]]:
    """Returns (each job's latest run submitted before ``until_s``, if any; the jobs that may have more such runs)."""
    names = [str(number) for number in numbers]
    for _ in range(_TRIES):
        # slurmdbd extends a window of length 0 by a second, so the window begins a second earlier here.
        answer = ask(names, min(start_s, until_s - 1), until_s, EVERY_RUN | ONLY_THESE_NUMBERS)
        latest_runs = {number: answer[number] for number in numbers if number in answer}
        if all(run["submit"] < until_s for run in latest_runs.values()):
            return latest_runs, frozenset(_maybe_several_runs(list(answer)))
        time.sleep(1)  # slurmdbd also extends a window that ends in the present second; wait until that is over.
    raise AccountingError(
        f"slurmdbd returned later runs of jobs {', '.join(names[:5])} for a query for runs submitted before "
        f"{until_s}; compare this machine's clock with slurmdbd's, or use --source sacct"
    )


def het_ids(ask: Ask, runs: Mapping[int, Job], start_s: int) -> dict[int, str]:
    """Returns job number -> id as users write it (200+1), for the components of heterogeneous jobs.

    slurmdbd's answers do not mark these jobs, but it can be queried for N+0, N+1, …. The first component of a job that
    was submitted before the window may have ended before the window.
    """
    numbers = [number for number, job in runs.items() if not _is_array_task(job)]
    early = [number for number in numbers if not start_s or runs[number]["submit"] < start_s]
    known = set(numbers)
    for batch in _batches(early):
        siblings = ask([str(number) for number in batch], 0, 0, EVERY_RUN | WHOLE_HET_JOB)
        known.update(number for number, job in siblings.items() if not _is_array_task(job))
    ids: dict[int, str] = {}
    for batch in _batches(sorted(known)):
        for leader in ask([f"{number}+0" for number in batch], 0, 0, EVERY_RUN):
            offset, component = 0, [leader]
            while component:
                ids.update(dict.fromkeys(component, f"{leader}+{offset}"))
                offset += 1
                component = list(ask([f"{leader}+{offset}"], 0, 0, EVERY_RUN))
    return ids


def _batches(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    for index in range(0, len(numbers), _NUMBERS_PER_CALL):
        yield numbers[index : index + _NUMBERS_PER_CALL]


def fields(job: Job, names: Names, het_id: str | None) -> dict[str, str]:
    """Returns a run's fields as sacct -P --noconvert prints them with SLURM_TIME_FORMAT=%s.

    Raises AccountingError when a TRES of the run is not in slurmdbd's list.
    """
    return {
        "JobIDRaw": str(job["jobid"]),
        "JobID": _display_id(job, het_id),
        "Account": job["account"] or "",
        "User": job["user"] or _local_user(job["uid"]),
        "UID": str(job["uid"]),
        "Partition": job["partition"] or "",
        "QOS": "" if job["qosid"] == _NO_VAL else names.qos.get(job["qosid"], "Unknown"),
        "State": _state(job),
        "Submit": _time(job["submit"]),
        "Eligible": _time(job["eligible"]),
        "Start": _time(job["start"]),
        "End": _time(job["end"]),
        "ElapsedRaw": str(job["elapsed"]),
        "Suspended": _clock(job["suspended"]),
        "AllocTRES": _tres(job, names.tres),
        "Cluster": job["cluster"] or "",
        "NodeList": job["nodes"] or "",
        "Constraints": job["constraints"] or "",
    }


def _is_array_task(job: Job) -> bool:
    return bool(job["array_task_str"]) or job["array_task_id"] != _NO_VAL


def _display_id(job: Job, het_id: str | None) -> str:
    if job["array_task_str"]:  # the tasks that have not started, as a bitmap; they give no record
        return f"{job['array_job_id']}_[{job['array_task_str']}]"
    if _is_array_task(job):
        return f"{job['array_job_id']}_{job['array_task_id']}"
    return het_id or str(job["jobid"])


def _local_user(uid: int) -> str:
    """Returns this machine's name of a user, or "". sacct does so too for a user without an association in slurmdbd."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def _state(job: Job) -> str:
    state: str = job["state_str"]
    has_canceller = state == "CANCELLED" and job["requid"] not in (-1, _INFINITE)
    return f"CANCELLED by {job['requid']}" if has_canceller else state


def _time(instant_s: int) -> str:
    if instant_s == _NO_VAL:
        return "None"
    return "Unknown" if instant_s in (0, -1, _INFINITE) else str(instant_s)


def _clock(duration_s: int) -> str:
    days, rest_s = divmod(duration_s, 86400)
    clock = f"{rest_s // 3600:02d}:{rest_s // 60 % 60:02d}:{rest_s % 60:02d}"
    return f"{days}-{clock}" if days else clock


def _tres(job: Job, names: Mapping[int, str]) -> str:
    """Converts 1=4,1001=2 to cpu=4,gres/gpu=2: sorted by name, memory with its unit, without unset counts."""
    parts = []
    for entry in filter(None, (job["tres_alloc_str"] or "").split(",")):
        number, _, count = entry.partition("=")
        if count.isdigit() and int(count) in _UNSET_64:
            continue
        try:
            name = names[int(number)]
        except (KeyError, ValueError):
            raise AccountingError(
                f"job {job['jobid']} held TRES '{entry}', which slurmdbd does not list (sacctmgr show tres)"
            ) from None
        parts.append(f"{name}={count}M" if int(number) == _TRES_MEM else f"{name}={count}")
    return ",".join(sorted(parts))
