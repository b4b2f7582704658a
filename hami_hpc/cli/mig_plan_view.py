# SPDX-License-Identifier: Apache-2.0
"""What `hami-hpc mig defragment` prints: which requests fit, what stands in the way of the others, what is done."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import click

from hami_hpc.cli import colours
from hami_hpc.core.mig_plan import NEVER, Opening, PlanGpu, State, Verdict, free_slices
from hami_hpc.core.tables import table
from hami_hpc.stages.mig_defragment import Result

DEMAND_MAX = 1000
LISTED_MAX = 8
WHY = {
    State.FITS: "there is a place now",
    State.BEHIND: "those ahead of it take the places",
    State.FULL: "no GPU has as many free slices: it waits as at any full GPU",
    State.NOT_OFFERED: "no GPU of this node that is in MIG mode and in service offers it",
}


def parse_demand(words: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Returns the profiles and counts of words such as `3g.71gb=2`. Raises UsageError for another form."""
    found = []
    for word in words:
        name, equals, count = word.partition("=")
        number = count if equals else "1"
        is_number = number.isascii() and number.isdigit() and len(number) <= 4
        if not name or not is_number or not 1 <= int(number) <= DEMAND_MAX:
            allowed = f"PROFILE or PROFILE=COUNT with a count from 1 to {DEMAND_MAX}, such as 3g.71gb=2"
            raise click.UsageError(f"--demand {word[:64]} is not understood; allowed is {allowed}")
        found.append((name, int(number)))
    return tuple(found)


def clock(unix_s: float) -> str:
    """Returns a time as people read it; for the end of a job without a time limit, that."""
    return "any time, without a limit" if unix_s == NEVER else time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))


def slices_text(start: int, size: int) -> str:
    return f"{start}-{start + size - 1}"


def as_json(result: Result) -> str:
    """Returns the plan as JSON. `end_unix_s` is null for jobs without a time limit."""
    document = {
        "leftovers": [{"job_id": one.job_id, "text": one.text, "error": error} for one, error in result.leftovers],
        "gpus": [_gpu_json(gpu) for gpu in result.gpus],
        "requests": [_verdict_json(verdict) for verdict in result.verdicts],
        "holds": [
            {
                "gpu_uuid": one.gpu_uuid,
                "profile": one.hold.profile,
                "start": one.hold.start,
                "size": one.hold.size,
                "until_unix_s": one.until_unix_s,
            }
            for one in result.holds
        ],
    }
    return json.dumps(document, indent=2)


def _gpu_json(gpu: PlanGpu) -> dict[str, object]:
    memory, compute = free_slices(gpu)
    return {"uuid": gpu.uuid, "minor": gpu.minor, "free_memory_slices": memory, "free_compute_slices": compute}


def _verdict_json(verdict: Verdict) -> dict[str, object]:
    opening = verdict.opening
    return {
        "profile": verdict.want.profile,
        "job_id": verdict.want.job_id,
        "state": verdict.state.value,
        "opening": opening
        and {
            "gpu_uuid": opening.gpu.uuid,
            "start": opening.hold.start,
            "size": opening.hold.size,
            "after_jobs": list(opening.after),
            "end_unix_s": None if opening.end_unix_s == NEVER else int(opening.end_unix_s),
        },
    }


def show(result: Result, dry_run: bool) -> None:
    """Prints the plan for people."""
    for action, error in result.leftovers:
        click.echo(f"{action.text}{' (dry run: it stays)' if dry_run else ''}{f': {error}' if error else ''}")
    rows = [(gpu.minor, *free_slices(gpu), _standing(gpu), gpu.uuid) for gpu in result.gpus]
    head = ("GPU", "FREE MEMORY SLICES", "FREE COMPUTE SLICES", "TAKEN", "UUID")
    click.echo(colours.table_head(table(head, rows, right=(0, 1, 2))))
    if not result.gpus:
        click.echo("no GPU of this node is in MIG mode and in service: see hami-hpc mig list")
    elif not result.verdicts:
        click.echo("\nno request for MIG waits for this node")
    if not result.verdicts:
        return
    cells = [(one.want.job_id or "-", one.want.profile, one.state.value, _why(one)) for one in result.verdicts]
    click.echo("\n" + colours.table_head(table(("JOB", "PROFILE", "STATE", "WHY"), cells, right=(0,))))
    minors = {gpu.uuid: gpu.minor for gpu in result.gpus}
    for kept in result.holds:
        where = f"slices {slices_text(kept.hold.start, kept.hold.size)} of GPU {minors[kept.gpu_uuid]}"
        done = "would be held" if dry_run else "are held"
        click.echo(f"{where} {done} for {kept.hold.profile} until {clock(kept.until_unix_s)}")


def _standing(gpu: PlanGpu) -> str:
    places = sorted((one.instance.start, one.instance.size, one.profile, one.job_id) for one in gpu.standing)
    texts = [
        f"{slices_text(start, size)} {profile}{f' job {job_id}' if job_id is not None else ''}"
        for start, size, profile, job_id in places
    ]
    return ", ".join(texts) or "-"


def _why(verdict: Verdict) -> str:
    if verdict.state is not State.FRAGMENTED:
        return WHY[verdict.state]
    if verdict.opening is None:
        return "free slices suffice and lie badly; no end of jobs gives it a place beside those ahead of it"
    return f"free slices suffice and lie badly; {_after(verdict.opening)}"


def _after(opening: Opening) -> str:
    jobs = ", ".join(map(str, opening.after[:LISTED_MAX])) + (" ..." if len(opening.after) > LISTED_MAX else "")
    where = f"slices {slices_text(opening.hold.start, opening.hold.size)} of GPU {opening.gpu.minor}"
    return f"it fits {where} when job {jobs} has ended, by {clock(opening.end_unix_s)}"
