# SPDX-License-Identifier: Apache-2.0
"""The device memory of jobs that Slurm suspends and resumes (docs/adr/078, 079). Run by root: by task/hami_hpc in
slurmd before Slurm does anything, or by hami-hpc-watch when the job's programs have got SIGTSTP and are soon stopped.

Whatever happens here, Slurm stops the job's programs and continues them; memory that cannot leave stays on the GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from hami_hpc.contract import constants as c
from hami_hpc.core import swap as rules
from hami_hpc.core.grant import Grant
from hami_hpc.errors import HamiError, JobError, NodeError
from hami_hpc.node import job_dirs, locks, swapped, turn_notes
from hami_hpc.node.agent_file import now_boot_ns
from hami_hpc.node.config import Settings
from hami_hpc.stages import common, swap

STAGE = "suspend"
DIRECTIONS = ("out", "out-soon", "in", "after-out", "after-in")
ASK_AGAIN = 75  # exit status: hami-hpc-watch shall run this again in some seconds (native/watch/watch.c)
# hami-hpc-watch runs after-out and after-in no sooner after a step's last signal: an answer that slurmctld gave another
# step since then is as good.
QUIET_NS = 5 * 10**9
ASKED_WAIT_S = 10.0  # for a question of another step of the job
DOUBT_NS = 600 * 10**9  # for which slurmctld is asked first about a job that got SIGTSTP without being suspended

UNHEARD = "job {} is suspended, and its programs got no signal of it: memory that is on the GPU may stay there"


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
    with suppress(JobError):
        grant = swap.movable(settings, job_id)
        if not _was_no_suspension(settings, job_id) or _is_suspended(job_id):
            _order_soon(settings, grant)
    return ""


def _order_soon(settings: Settings, grant: Grant) -> None:
    before, after = swap.order(settings, grant, swap.change_of(settings, "suspend"))
    if before != after and os.fork() == 0:
        _see_to(settings, grant, after)


def after_signal(settings: Settings, job_id: int, *, out: bool) -> bool:
    """Has the record say what slurmctld says, some seconds after the last signal that a step of the job got (`out`:
    SIGTSTP). slurmd takes orders that wait for each other in any sequence, and a step that is stopped, or runs, gets no
    signal of one more of the same kind. Returns whether to look again: the step's programs go on while Slurm suspends
    the job, so that the next resume sends them nothing; or slurmctld does not answer. Raises NodeError."""
    with suppress(JobError):
        grant = swap.movable(settings, job_id)
        try:
            is_suspended = _asked_for_all_steps(settings, job_id)
        except NodeError:
            return True
        if is_suspended:
            _order_soon(settings, grant)
            return not out
        if out:
            _note_no_suspension(settings, job_id)
        resume(settings, job_id)
    return False


def _asked_for_all_steps(settings: Settings, job_id: int) -> bool:
    """Returns whether Slurm suspends the job, by one question for all steps that it has here: each of their watches
    asks. Raises NodeError where slurmctld does not answer, or another step's question takes long."""
    from hami_hpc.slurm import commands

    path = f"{job_dirs.job_dir(settings.run_dir, job_id)}/asked"
    try:
        fd = locks.acquire(path, exclusive=True, timeout_s=ASKED_WAIT_S)
    except OSError:  # no room for a file
        return commands.is_suspended(job_id)
    try:
        begun_ns = now_boot_ns()
        with suppress(ValueError):  # empty, or cut off
            asked_ns, answer = (int(word) for word in os.pread(fd, 64, 0).split())
            if 0 <= begun_ns - asked_ns < QUIET_NS:
                return answer == 1
        is_suspended = commands.is_suspended(job_id)
        with suppress(OSError):  # a full disk
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d %d\n" % (begun_ns, is_suspended), 0)
        return is_suspended
    finally:
        os.close(fd)


def _see_to(settings: Settings, grant: Grant, order: int) -> None:
    """Waits as _wait does, for a job that Slurm suspends. Of any other, to which its user sent SIGTSTP, takes the order
    back: it would have its GPU's place, and a price, for nothing."""
    if not _is_suspended(grant.job_id):
        _note_no_suspension(settings, grant.job_id)
        resume(settings, grant.job_id)
        if not _is_suspended(grant.job_id):
            return
        # Slurm's own signal came meanwhile, and found the order given.
        with suppress(JobError):  # it has ended
            order = swap.order(settings, grant, swap.change_of(settings, "suspend"))[1]
    _wait(settings, grant, order)


def _is_suspended(job_id: int) -> bool:
    """Returns whether Slurm suspends the job, which slurmctld knows before the job's node does; True where it does not
    answer: the agent asks again."""
    from hami_hpc.slurm import commands  # when the order is given

    try:
        return commands.is_suspended(job_id)
    except NodeError:
        return True


def _was_no_suspension(settings: Settings, job_id: int) -> bool:
    """Returns whether the job got SIGTSTP from somebody else than Slurm a short while ago."""
    try:
        with open(_signalled(settings, job_id), encoding="ascii") as file:
            return 0 <= now_boot_ns() - int(file.read(32)) < DOUBT_NS
    except (OSError, ValueError):
        return False


def _note_no_suspension(settings: Settings, job_id: int) -> None:
    """Has slurmctld asked before the next orders. Never fails: then it is asked after each one, as before."""
    with suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(_signalled(settings, job_id), flags, 0o600), "w", encoding="ascii") as file:
            file.write(str(now_boot_ns()))


def _signalled(settings: Settings, job_id: int) -> str:
    return f"{job_dirs.job_dir(settings.run_dir, job_id)}/signalled"


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
        # Where memory is not oversold any more, those that wait go on taking turns, and who goes on waits with them.
        change = rules.change("resume", oversold=turn_notes.are_taken(settings))
        before, after = swap.order(settings, grant, change)
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


def unheard(settings: Settings, suspended_jobs: Callable[[], frozenset[int]]) -> tuple[int, ...]:
    """Returns the jobs that Slurm suspends while their memory was not moved for it, among those that once got SIGTSTP
    while slurmctld had them running: slurmd may have stopped such a one in the wrong sequence, and then its next
    suspension sends no signal. `suspended_jobs` as above, and not called without such a job."""
    names = job_dirs.entries(settings.run_dir)
    jobs = (int(name) for name in names if name.isascii() and name.isdigit())
    here = [job for job in jobs if os.path.lexists(_signalled(settings, job)) and _may_leave(settings, job)]
    suspended = suspended_jobs() if here else frozenset()
    return tuple(sorted(job for job in here if job in suspended))


def order_unheard(settings: Settings, job_id: int) -> str:
    """Orders the memory of such a job to the host, and does not wait: its programs may be stopped. Returns one line
    about it, "" for a job that has ended. Raises NodeError."""
    try:
        grant = swap.movable(settings, job_id)
        before, after = swap.order(settings, grant, swap.change_of(settings, "suspend"))
    except JobError:
        return ""
    if before == after:
        return ""
    text = UNHEARD.format(job_id)
    swap.write_event(settings, grant, text)
    return text


def _may_leave(settings: Settings, job_id: int) -> bool:
    return swapped.order_of(settings.run_dir, job_id) in swap.change_of(settings, "suspend")


def _run(settings: Settings, direction: str, job_id: int) -> int:
    if direction.startswith("after-"):
        return ASK_AGAIN if after_signal(settings, job_id, out=direction == "after-out") else 0
    text = {"out": suspend, "out-soon": suspend_soon, "in": resume}[direction](settings, job_id)
    if text:
        print(text)
    return 0


def main(arguments: Sequence[str]) -> int:
    """Runs out|out-soon|in|after-out|after-in --job ID [--config PATH]. Prints one line for slurmd's log, if there is
    anything to say. Returns the exit status: 0, ASK_AGAIN from after-out and after-in, or 1 when nothing was done."""
    try:
        direction, word, job, *config = arguments
        if direction not in DIRECTIONS:
            raise ValueError(direction)
        job_id = {"--job": int}[word](job)
    except (KeyError, ValueError):
        print(f"{STAGE}: the arguments are not those of hami_hpc's plugins: install one version of both")
        return 1
    try:
        return _run(common.load(config), direction, job_id)
    except HamiError as error:
        print(common.report(STAGE, f"job {job_id}: {error}"))
    except Exception as error:
        print(common.report(STAGE, f"job {job_id}: {common.error_text(error)}"))
    return 1
