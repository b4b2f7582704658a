# SPDX-License-Identifier: Apache-2.0
"""Every run of every job, and its line as sacct -P prints it, from answers that hold one run of each job.

pyslurm's slurmdb_jobs.get answers with a dict by job number, so of a job that was requeued it keeps one run. slurmdbd
(all releases from 22.05 to 26.05, as_mysql_jobacct_process.c) reads rows ``order by id_job, time_submit desc``; the
first row of a job is put at the end of its answer and every further one at the front. In the dict, therefore,

- the run that stays is the one submitted last, and
- jobs of several runs come first, by falling number, and the others after them, by rising number,

which tells which jobs must be asked about again. Their other runs were submitted before the one that is known, and
slurmdbd can be asked for runs of one job submitted before an instant.
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
ONLY_THESE_NUMBERS = 32  # not also the components of heterogeneous jobs that they lead

_NO_VAL, _INFINITE = 0xFFFFFFFE, 0xFFFFFFFF
_UNSET_64 = (0xFFFFFFFFFFFFFFFE, 0xFFFFFFFFFFFFFFFF)
_TRES_MEM = 2
_NUMBERS_PER_CALL = 2000  # libslurm goes through the whole list for each number that it adds
_TRIES = 5

Job = Mapping[str, Any]
# One call of slurmdb_jobs.get for one cluster: (jobs, from, until, flags). jobs: N, or N+OFFSET of a heterogeneous job;
# none: those of the window. Times are seconds since 1970, 0 where there is no bound.
Ask = Callable[[Sequence[str], int, int, int], Mapping[int, Job]]


@dataclass(frozen=True, slots=True)
class Names:
    """What slurmdbd's numbers for TRES and for QoS stand for."""

    tres: Mapping[int, str]
    qos: Mapping[int, str]


def printed(ask: Ask, names: Names, jobs: Sequence[int], start_s: int, end_s: int) -> Iterator[dict[str, str]]:
    """The fields of what ``every_run`` gives. Raises AccountingError."""
    runs = list(every_run(ask, jobs, start_s, end_s))
    hets = het_ids(ask, {job["jobid"]: job for job in runs}, start_s)
    for job in runs:
        yield fields(job, names, hets.get(job["jobid"]))


def every_run(ask: Ask, jobs: Sequence[int], start_s: int, end_s: int) -> Iterator[Job]:
    """The runs that ``sacct -D`` shows: of the window if ``jobs`` is empty, else of these jobs, whenever they ran."""
    answer = ask([str(number) for number in jobs], start_s, end_s, EVERY_RUN)
    yield from answer.values()
    # By the instant before which each job's other runs were submitted; those of one instant are asked for at once.
    open_before: defaultdict[int, list[int]] = defaultdict(list)
    for number in _maybe_several_runs(list(answer)):
        open_before[answer[number]["submit"]].append(number)
    while open_before:
        until_s = max(open_before)
        for batch in _batches(open_before.pop(until_s)):
            found, maybe_more = _latest_before(ask, batch, until_s, start_s)
            for number, run in found.items():
                if number in maybe_more:
                    open_before[run["submit"]].append(number)
                if not end_s or (0 < run["eligible"] < end_s and (not run["end"] or run["end"] >= start_s)):
                    yield run


def _maybe_several_runs(order: Sequence[int]) -> Sequence[int]:
    """Of job numbers in the dict's order, those that may have more runs than one: the falling ones that it begins
    with (the last of which may be the first of the others). All, where the others do not rise."""
    first = next((index + 1 for index, (one, next_one) in enumerate(pairwise(order)) if next_one > one), len(order))
    rises = all(one < next_one for one, next_one in pairwise(order[first:]))
    return order[:first] if rises else order


def _latest_before(
    ask: Ask, numbers: Sequence[int], until_s: int, start_s: int
) -> tuple[dict[int, Job], frozenset[int]]:
    """Of each of these jobs the latest run submitted before ``until_s``, where it has one; which may have more."""
    names = [str(number) for number in numbers]
    for _ in range(_TRIES):
        # slurmdbd widens a window of no length by a second, so it begins a second earlier here.
        answer = ask(names, min(start_s, until_s - 1), until_s, EVERY_RUN | ONLY_THESE_NUMBERS)
        found = {number: answer[number] for number in numbers if number in answer}
        if all(run["submit"] < until_s for run in found.values()):
            return found, frozenset(_maybe_several_runs(list(answer)))
        time.sleep(1)  # It also widens one that ends in the present second, until that has passed.
    raise AccountingError(
        f"slurmdbd answers with later runs of jobs {', '.join(names[:5])} when asked for those submitted before "
        f"{until_s}; compare this machine's clock with slurmdbd's, or use --source sacct"
    )


def het_ids(ask: Ask, runs: Mapping[int, Job], start_s: int) -> dict[int, str]:
    """By job number, the components of heterogeneous jobs as users write them (200+1).

    The answers do not say which jobs these are, but slurmdbd can be asked for N+0, N+1, …. The first component of a
    job that was submitted before the window may have ended before it.
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
    """A run's fields as sacct -P --noconvert prints them with SLURM_TIME_FORMAT=%s.

    Raises AccountingError when slurmdbd's list of TRES does not have what the run held.
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
    if job["array_task_str"]:  # the tasks that have not started, as a bitmap: no record comes of them
        return f"{job['array_job_id']}_[{job['array_task_str']}]"
    if _is_array_task(job):
        return f"{job['array_job_id']}_{job['array_task_id']}"
    return het_id or str(job["jobid"])


def _local_user(uid: int) -> str:
    """slurmdbd gives no name for a user without an association; this machine may know one, which sacct then shows."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def _state(job: Job) -> str:
    state: str = job["state_str"]
    cancelled_by_whom = state == "CANCELLED" and job["requid"] not in (-1, _INFINITE)
    return f"CANCELLED by {job['requid']}" if cancelled_by_whom else state


def _time(instant_s: int) -> str:
    if instant_s == _NO_VAL:
        return "None"
    return "Unknown" if instant_s in (0, -1, _INFINITE) else str(instant_s)


def _clock(duration_s: int) -> str:
    days, rest_s = divmod(duration_s, 86400)
    clock = f"{rest_s // 3600:02d}:{rest_s // 60 % 60:02d}:{rest_s % 60:02d}"
    return f"{days}-{clock}" if days else clock


def _tres(job: Job, names: Mapping[int, str]) -> str:
    """1=4,1001=2 as cpu=4,gres/gpu=2: in the order of names, memory with its unit, without what is not known."""
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
