# SPDX-License-Identifier: Apache-2.0
"""The runs of a job as Slurm knows them, with the times of each: from sacct, and from slurmctld while it has it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hami_hpc.contract import constants as c
from hami_hpc.errors import NodeError
from hami_hpc.slurm import cluster_view, commands
from hami_hpc.slurm.run import completed

_FIELDS = (
    "JobIDRaw",
    "JobID",
    "User",
    "UID",
    "State",
    "Submit",
    "Eligible",
    "Start",
    "NodeList",
    "AllocTRES",
    "ReqTRES",
)
# Before a start. (sacct calls a run that was ended by a requeue REQUEUED.)
_WAITING = ("PENDING", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
_VGPU = re.compile(rf"(?:^|,)gres[/:]{c.GRES_CLASS}[:=]")


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job. Times are seconds since 1970, None where Slurm has none. `shown`: 10_3, 11+1."""

    job_id: int
    shown: str
    user: str
    uid: int
    state: str
    submitted_s: int | None
    eligible_s: int | None
    started_s: int | None
    nodes: str
    has_vgpu: bool


def read_runs(job: str) -> list[Run]:
    """Returns the runs of a job, the oldest first, of all tasks or parts if it has several; none for an unknown job.

    Shows those jobs that sacct and squeue show to the caller. Raises NodeError when neither answers.
    """
    problem: NodeError | None = None
    recorded: list[Run] = []
    try:
        recorded = parse_sacct(_sacct(job))
    except NodeError as error:
        problem = error
    try:
        return merged(recorded, _from_controller(job))
    except NodeError as error:
        if problem is None and recorded:
            return recorded
        raise (problem or error) from error


def merged(recorded: list[Run], present: list[Run]) -> list[Run]:
    """Returns sacct's runs with slurmctld's in place of the same ones: slurmdbd hears of a job seconds later."""
    kept = [run for run in recorded if not any(_is_same(run, other) for other in present)]
    return sorted(kept + present, key=_order)


def _is_same(run: Run, other: Run) -> bool:
    """A requeued job has a submission of its own for each run. slurmdbd's first row of a job has no user yet."""
    return run.job_id == other.job_id and (run.submitted_s == other.submitted_s or run.uid < 0)


def _order(run: Run) -> tuple[int, int, int]:
    return run.job_id, run.submitted_s or 0, run.started_s or 2**62


def parse_sacct(text: str) -> list[Run]:
    """Returns the runs in sacct's lines; leaves out lines of another form, such as of steps."""
    runs = []
    for line in text.splitlines():
        words = line.split("|")
        if len(words) != len(_FIELDS) or not words[0].isdigit():
            continue
        raw, shown, user, uid, state, submitted, eligible, started, nodes, allocated, asked = map(
            cluster_view.printable, words
        )
        word = (state.split() or ["UNKNOWN"])[0]
        runs.append(
            Run(
                job_id=int(raw),
                shown=shown,
                user=user,
                uid=int(uid) if uid.isdigit() else -1,
                state=word,
                submitted_s=_seconds(submitted),
                eligible_s=_seconds(eligible),
                started_s=None if word in _WAITING else _seconds(started),
                nodes="" if nodes in ("None assigned", *cluster_view.NO_VALUES) else nodes,
                has_vgpu=_VGPU.search(allocated or asked) is not None,
            )
        )
    return _whole_runs(sorted(runs, key=_order))


def _whole_runs(rows: list[Run]) -> list[Run]:
    """Returns runs: slurmdbd has several rows of one that gave up nodes, each submitted when the one before ended."""
    runs: list[Run] = []
    for row in rows:
        before = runs[-1] if runs else None
        if before and before.job_id == row.job_id and before.state == "RESIZING":
            times = (before.submitted_s, before.eligible_s, before.started_s)
            runs[-1] = replace(row, submitted_s=times[0], eligible_s=times[1], started_s=times[2])
        else:
            runs.append(row)
    return runs


def _seconds(text: str) -> int | None:
    return int(text) if text.isdigit() and 0 < int(text) < 2**33 else None


def _sacct(job: str) -> str:
    # -D: all runs of a requeued job; -X: no steps; -a: also others' jobs, where this user may see them; --local: none
    # of the other clusters of a federation.
    command = ("sacct", "--local", "-a", "-D", "-X", "-n", "-P", f"--format={','.join(_FIELDS)}", f"--jobs={job}")
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
    done = completed(command, environment, daemon="slurmdbd")
    if done.returncode != 0:
        message = (done.stderr or done.stdout).strip().replace("\n", "; ") or "it said nothing"
        raise NodeError(f"sacct --jobs={job} failed: {cluster_view.printable(message)}. Is slurmdbd up?")
    return done.stdout


def records_of(job: str, rows: Sequence[cluster_view.JobRow], time_format: str = "") -> dict[int, str]:
    """Returns scontrol's record of each of a job's rows, by the row's job id. One question to slurmctld is for all
    tasks of an array, or parts of a heterogeneous job. Raises NodeError as commands.show_jobs."""
    found = cluster_view.records(commands.show_jobs(job, time_format)) if len(rows) > 1 else {}
    missing = [row.job_id for row in rows if row.job_id not in found]
    return found | {
        job_id: cluster_view.record_of(commands.show_jobs(str(job_id), time_format), job_id) for job_id in missing
    }


def _from_controller(job: str) -> list[Run]:
    """Returns the present run of a job as slurmctld shows it, also without accounting."""
    rows = cluster_view.of_name(cluster_view.parse_squeue(commands.queue_rows(job, cluster_view.SQUEUE_FORMAT)), job)
    records = records_of(job, rows, "%s")
    runs = []
    for row in rows:
        record = records[row.job_id]
        units = cluster_view.value(record, "AllocTRES") or cluster_view.value(record, "TRES")
        runs.append(
            Run(
                job_id=row.job_id,
                shown=row.shown,
                user=row.user,
                uid=row.uid,
                state=row.state,
                submitted_s=_seconds(cluster_view.value(record, "SubmitTime")),
                eligible_s=_seconds(cluster_view.value(record, "EligibleTime")),
                started_s=None if row.state in _WAITING else _seconds(cluster_view.value(record, "StartTime")),
                nodes=row.nodes,
                has_vgpu=_VGPU.search(units) is not None,
            )
        )
    return runs
