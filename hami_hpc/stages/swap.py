# SPDX-License-Identifier: Apache-2.0
"""Moves the device memory of a running job's programs to the host, or back (docs/adr/077). Run by root on the node."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from hami_hpc.contract import constants as c
from hami_hpc.core import swap as rules
from hami_hpc.core.grant import Grant
from hami_hpc.errors import JobError, NodeError
from hami_hpc.node import events, job_dirs, neighbours, swapped
from hami_hpc.node.config import Settings
from hami_hpc.stages import common

STAGE = "swap"
LOOK_S = 0.02


def swap(settings: Settings, job_id: int, *, out: bool, wait_s: float) -> str:
    """Moves the memory of all processes of the job on this node, and returns one line about it when that is done.

    Raises JobError when the job cannot be moved, or a process of it is not within `wait_s`, or on Ctrl-C: then all of
    it stays on the GPU. Raises NodeError for what is wrong with the node; also when memory that should come back has
    not yet.
    """
    grant = movable(settings, job_id)
    before, after = order(settings, grant, change_of(settings, "out" if out else "in"))
    if not out and before == c.SWAP_SUSPENDED:
        return f"job {job_id} is suspended: its memory comes back when Slurm resumes it"
    if not out and after == c.SWAP_TURN and swapped.processes(settings.run_dir, grant):
        return f"job {job_id}: its memory comes back when {rules.UNTIL[after]}"
    # Others may have its place by now: the agent gives it back, if it is still there.
    back = {after: c.SWAP_TURN if settings.memory_scaling > 1 and before == c.SWAP_IN else before}
    try:
        found = wait(settings, grant, out=out, wait_s=wait_s)
    except KeyboardInterrupt as error:
        if out:
            order(settings, grant, back)
            raise JobError(f"interrupted: the memory of job {job_id} goes back to where it was") from error
        raise
    if after == c.SWAP_TURN and not found:
        return f"job {job_id} has no process on the GPU; those that come wait until {rules.UNTIL[after]}"
    if not rules.is_done(found, out=out):
        if out:
            order(settings, grant, back)
            raise JobError(rules.failure(job_id, found, out=out))
        raise NodeError(rules.failure(job_id, found, out=out))
    text = rules.line(job_id, found, out=out, until=f"hami-hpc swap in {job_id}")
    write_event(settings, grant, text)
    return text


def wait(
    settings: Settings,
    grant: Grant,
    *,
    out: bool,
    wait_s: float,
    see: Callable[[list[rules.Process]], bool] | None = None,
) -> list[rules.Process]:
    """Returns the job's live processes once their memory is where it should be, or as they are when that cannot be, or
    after `wait_s`. `see` is called with them at each look before, and ends the waiting by False."""
    begun = time.monotonic()
    while not rules.is_done(found := swapped.processes(settings.run_dir, grant), out=out):
        waited = time.monotonic() - begun
        if waited >= wait_s or (out and waited >= rules.TRIED_S and rules.will_not_move(found)):
            break
        if see is not None and not see(found):
            break
        time.sleep(LOOK_S)
    return found


def movable(settings: Settings, job_id: int) -> Grant:
    """Returns the job's only slice. Raises JobError when there is none that may be moved."""
    grants = job_dirs.read_grants(job_dirs.job_dir(settings.run_dir, job_id), owner=0)
    if not grants:
        raise JobError(f"job {job_id} has no vGPU on this node")
    if len(grants) > 1:
        raise JobError(f"job {job_id} has slices on {len(grants)} GPUs of this node, and such a job is not moved")
    if grants[0].mode != "share":
        raise JobError(f"job {job_id} has mode={grants[0].mode}, and only mode=share can be moved")
    if swapped.order_of(settings.run_dir, job_id) in (c.SWAP_NEVER, c.SWAP_WAIT):
        name = grants[0].service_class
        raise JobError(
            f"job {job_id} cannot be moved: its class {name} did not allow it when the job began. "
            f"For later jobs: swap = true in [classes.{name}] of {settings.path}"
        )
    return grants[0]


def change_of(settings: Settings, word: str) -> dict[int, int]:
    """Returns what an order makes of each value of a job's record on this node."""
    return rules.change(word, oversold=settings.memory_scaling > 1)


def order(settings: Settings, grant: Grant, change: Mapping[int, int]) -> tuple[int, int]:
    """Says in the job's record where the memory shall be: what `change` makes of what it says, if that is there.
    Returns what it said and what it says. Raises JobError when the job has ended, NodeError."""
    ledger = common.open_ledger(settings)
    try:
        with ledger.held_still() as live:
            run = (grant.job_id, grant.created_unix_ns)  # another one may have begun since
            if run not in {(one.job_id, one.created_unix_ns) for one in live}:
                raise JobError(f"job {grant.job_id} has ended")
            before = swapped.order_of(settings.run_dir, grant.job_id)
            after = change.get(before, before)
            if after != before:
                neighbours.write_swap(settings.run_dir, grant, after)
        if after != before and settings.memory_scaling > 1:  # who is away has no part in the GPU's time
            common.tell_neighbours(STAGE, settings, ledger)
        return before, after
    except (OSError, neighbours.SkippedRecordError) as error:
        raise NodeError(f"the limits record of job {grant.job_id} cannot be changed ({error})") from error
    finally:
        ledger.close()


def write_event(settings: Settings, grant: Grant, text: str) -> None:
    events.write(
        settings.state_dir,
        STAGE,
        "swap",
        text=text,
        job_id=grant.job_id,
        uid=grant.uid,
        gpu_uuid=grant.gpu_uuid,
        start_unix_ns=grant.created_unix_ns,
    )
