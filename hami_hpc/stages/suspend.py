# SPDX-License-Identifier: Apache-2.0
"""The device memory of jobs that Slurm suspends and resumes (docs/adr/078, 079). Run by root: by task/hami_hpc in
slurmd before Slurm does anything, or by hami-hpc-watch when the job's programs have got SIGTSTP and are soon stopped.

Whatever happens here, Slurm stops the job's programs and continues them; memory that cannot leave stays on the GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from hami_hpc.contract import constants as c
from hami_hpc.core import swap as rules
from hami_hpc.core.grant import Grant
from hami_hpc.errors import HamiError, JobError
from hami_hpc.node import job_dirs, swapped
from hami_hpc.node.config import Settings
from hami_hpc.stages import common, swap

STAGE = "suspend"


def suspend(settings: Settings, job_id: int) -> str:
    """Moves the memory of all processes of the job on this node to the host, before they are stopped, and waits until
    it has left. Returns one line about it, "" for a job without a vGPU here, and for what was ordered before. Raises
    NodeError."""
    if not job_dirs.read_grants(job_dirs.job_dir(settings.run_dir, job_id), owner=0):
        return ""
    try:
        grant = swap.movable(settings, job_id)
        before, after = swap.order(settings, grant, swap.change_of(settings, "suspend"))
    except JobError as error:
        return f"job {job_id} is suspended, and its device memory stays on the GPU: {error}"
    return "" if before == after == c.SWAP_SUSPENDED else _wait(settings, grant, after)


def suspend_soon(settings: Settings, job_id: int) -> str:
    """Orders the same. A process of its own waits for what this order, and no earlier one, moves."""
    try:
        grant = swap.movable(settings, job_id)
        before, after = swap.order(settings, grant, swap.change_of(settings, "suspend"))
    except JobError:
        return ""
    if before != after and os.fork() == 0:
        _wait(settings, grant, after)
    return ""


def _wait(settings: Settings, grant: Grant, order: int) -> str:
    """Waits until the job's memory has left, or will not, or the order has changed. Returns, and writes as an event,
    what left or why not; "" when the order has changed."""

    def stands(_found: Sequence[rules.Process]) -> bool:
        return swapped.order_of(settings.run_dir, grant.job_id) == order

    found = swap.wait(settings, grant, out=True, wait_s=rules.seconds_for(grant.mem_mib), see=stands)
    if not stands(found):
        return ""
    if rules.is_done(found, out=True):
        until = "Slurm resumes it" if order == c.SWAP_SUSPENDED else f"hami-hpc swap in {grant.job_id}"
        text = rules.line(grant.job_id, found, out=True, until=until)
    else:
        text = rules.stays(grant.job_id, found)
    swap.write_event(settings, grant, text)
    return text


def resume(settings: Settings, job_id: int) -> str:
    """Lets the job's memory come back to the GPU, now that its processes go on, and does not wait for that. Returns one
    line about it, "" for a job whose memory was not moved for Slurm. Raises NodeError."""
    try:
        grant = swap.movable(settings, job_id)
        before, after = swap.order(settings, grant, swap.change_of(settings, "resume"))
    except JobError:
        return ""
    if before == after:
        return ""
    when = f" when {rules.UNTIL[after]}" if after == c.SWAP_TURN else ""
    text = f"job {job_id} goes on: its memory comes back to the GPU{when}"
    swap.write_event(settings, grant, text)
    return text


def forgotten(settings: Settings, suspended_jobs: Callable[[], frozenset[int]]) -> tuple[int, ...]:
    """Returns the jobs whose memory was moved for Slurm and that Slurm does not suspend: slurmd died before it said so.
    `suspended_jobs` asks slurmctld, and is called after the records are read, if there is such a record at all: it may
    raise NodeError. A job is suspended in slurmctld before its node hears of it."""
    names = job_dirs.entries(settings.run_dir)
    jobs = (int(name) for name in names if name.isascii() and name.isdigit())
    away = [job for job in jobs if swapped.order_of(settings.run_dir, job) == c.SWAP_SUSPENDED]
    still = suspended_jobs() if away else frozenset()
    return tuple(sorted(job for job in away if job not in still))


def main(arguments: Sequence[str]) -> int:
    """Runs out|out-soon|in --job ID [--config PATH]. Prints one line for slurmd's log, if there is anything to say.
    Returns the exit status: 0, or 1 when nothing was done."""
    try:
        direction, word, job, *config = arguments
        run = {"out": suspend, "out-soon": suspend_soon, "in": resume}[direction]
        job_id = {"--job": int}[word](job)
    except (KeyError, ValueError):
        print(f"{STAGE}: the arguments are not those of hami_hpc's plugins: install one version of both")
        return 1
    try:
        text = run(common.load(config), job_id)
        if text:
            print(text)
        return 0
    except HamiError as error:
        print(common.report(STAGE, f"job {job_id}: {error}"))
    except Exception as error:
        print(common.report(STAGE, f"job {job_id}: {common.error_text(error)}"))
    return 1
