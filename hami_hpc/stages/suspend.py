# SPDX-License-Identifier: Apache-2.0
"""The device memory of jobs that Slurm suspends and resumes (docs/adr/078, 079). Run by root: by task/hami_hpc in
slurmd before Slurm does anything, or by hami-hpc-watch when the job's programs have got SIGTSTP and are soon stopped.

Whatever happens here, Slurm stops the job's programs and continues them; memory that cannot leave stays on the GPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from hami_hpc.contract import constants as c
from hami_hpc.core import swap as rules
from hami_hpc.errors import HamiError, JobError
from hami_hpc.node import job_dirs, stopped, swapped
from hami_hpc.node.config import Settings
from hami_hpc.stages import common, swap

STAGE = "suspend"
LET_GO_ON_S = 1.0  # after SIGTSTP; Slurm's default is to stop all after 2 s


def suspend(settings: Settings, job_id: int, ordered: Callable[[], None] = lambda: None) -> str:
    """Moves the memory of all processes of the job on this node to the host, before they are stopped. Returns one line
    about it, "" for a job without a vGPU here, and for what was said before. `ordered` is called when the job's
    programs are told, before this waits for them. Raises NodeError."""
    if not job_dirs.read_grants(job_dirs.job_dir(settings.run_dir, job_id), owner=0):
        return ""
    try:
        grant = swap.movable(settings, job_id)
        before, after = swap.order(settings, grant, rules.ORDERS["suspend"])
    except JobError as error:
        return f"job {job_id} is suspended, and its device memory stays on the GPU: {error}"
    ordered()

    begun, let_go = time.monotonic(), set[int]()

    def see(found: Sequence[rules.Process]) -> bool:
        """SIGTSTP stops a program that does not handle it, and a stopped program moves nothing. Once, and soon after
        SIGTSTP: what stops it later is Slurm, and final."""
        if time.monotonic() - begun < LET_GO_ON_S:
            away = {process.pid for process in found if process.state != "host"}
            let_go.update(pid for pid in away - let_go if stopped.let_go_on(pid, grant.uid))
        return swapped.order_of(settings.run_dir, job_id) == after

    found = swap.wait(settings, grant, out=True, wait_s=rules.seconds_for(grant.mem_mib), see=see)
    if before == after == c.SWAP_SUSPENDED or swapped.order_of(settings.run_dir, job_id) != after:
        return ""
    if rules.is_done(found, out=True):
        until = "Slurm resumes it" if after == c.SWAP_SUSPENDED else f"hami-hpc swap in {job_id}"
        text = rules.line(job_id, found, out=True, until=until)
    else:
        text = rules.stays(job_id, found)
    swap.write_event(settings, grant, text)
    return text


def suspend_soon(settings: Settings, job_id: int) -> str:
    """Does the same, and this process ends when the job's programs are told; another waits for them."""

    def leave() -> None:
        if os.fork():
            os._exit(0)

    return suspend(settings, job_id, leave)


def resume(settings: Settings, job_id: int) -> str:
    """Lets the job's memory come back to the GPU, now that its processes go on, and does not wait for that. Returns one
    line about it, "" for a job whose memory was not moved for Slurm. Raises NodeError."""
    try:
        grant = swap.movable(settings, job_id)
        before, after = swap.order(settings, grant, rules.ORDERS["resume"])
    except JobError:
        return ""
    if before == after:
        return ""
    text = f"job {job_id} goes on: its memory comes back to the GPU"
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
