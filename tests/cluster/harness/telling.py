# SPDX-License-Identifier: Apache-2.0
"""What the demo's stories have in common: how they print, submit, check and end their jobs, and the bill."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import jobs
from .layout import ClusterError, Layout

_WIDTH = 112


@dataclass(frozen=True, slots=True)
class StoryJob:
    """A job of the demo, and the file that ends it."""

    job: int
    user: str
    release: Path


def cancel_own(layout: Layout, scripts: Sequence[str]) -> None:
    """Cancels jobs that a failed or interrupted demo has left in the queue."""
    for name in scripts:
        jobs.admin(layout, "scancel", f"--name={name}")
    jobs.wait(layout, lambda: not jobs.admin(layout, "squeue", "-h", f"--name={','.join(scripts)}"), "old jobs to end")


def heading(number: int, text: str) -> None:
    print(f"\n{number}. {text}\n{'-' * (len(text) + 3)}", flush=True)


def say(text: str) -> None:
    print(textwrap.fill(text, _WIDTH), flush=True)


def show(text: str) -> None:
    print(textwrap.indent(text.rstrip("\n"), "    "), flush=True)


def expect(layout: Layout, what: str, holds: bool, job: int | None = None) -> None:
    if not holds:
        raise ClusterError(f"the demo expected that {what}; it is not so\n{jobs.evidence(layout, job)}")


def submit(layout: Layout, user: str, name: str, program: str, *options: str) -> StoryJob:
    """Submits a job and prints the user's command. The job runs until its release file exists."""
    release = layout.home / user / f"{name}.release"
    release.unlink(missing_ok=True)
    script = jobs.write_script(layout, user, f"{name}.sh", f"#!/bin/sh\n{program.format(until=release)}\n")
    command = ("sbatch", *options, script.name)
    show(f"{user}$ {' '.join(command)}")
    done = jobs.run_as(layout, user, command)
    show(done.text)
    if done.status != 0:
        raise ClusterError(f"that was refused, with status {done.status}\n{jobs.evidence(layout)}")
    return StoryJob(int(done.out.split()[-1]), user, release)


def scheduled(layout: Layout, job: int) -> str:
    """Returns the lines of `scontrol show job -d` that show the job's allocation."""
    wanted = ("TRES=", "AllocTRES=", "JOB_GRES=", "Nodes=", "TresPerNode=")
    lines = [line.strip() for line in jobs.admin(layout, "scontrol", "show", "job", "-d", str(job)).splitlines()]
    return "\n".join(line for line in lines if line.startswith(wanted))


def billed(layout: Layout, number: int, began_unix_s: int, demo_jobs: Sequence[StoryJob]) -> str:
    """Prints the bill since the story began, and returns it."""
    heading(number, "The bill: GPU-hours, from Slurm's own records")
    # By time, as the bill asks: a query by job number has a job's end some tenths of a second earlier.
    sacct = ("sacct", "-a", "-D", "-n", "-X", "-P", "-o", "JobIDRaw,State", "-S", f"uts{began_unix_s}")

    def recorded() -> bool:
        lines = set(jobs.admin(layout, *sacct).splitlines())
        return {f"{demo_job.job}|COMPLETED" for demo_job in demo_jobs} <= lines

    jobs.wait(layout, recorded, "sacct to know that the jobs ended", 30)
    stamp = "%Y-%m-%dT%H:%M:%S"
    start, end = time.gmtime(began_unix_s), time.gmtime(time.time() + 1)
    command = ("hami-hpc", "bill", "--start", time.strftime(stamp, start), "--end", time.strftime(stamp, end))
    show(f"# {' '.join(command)}")
    text = jobs.admin(layout, *command)
    show(text)
    return text
