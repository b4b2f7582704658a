# SPDX-License-Identifier: Apache-2.0
"""Writes into jobs' records that their turn on an oversold GPU has come, or is over (docs/adr/080). By the agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hami_hpc.contract import constants as c
from hami_hpc.core import swap as rules
from hami_hpc.core.grant import Grant
from hami_hpc.core.residents import CANNOT_LEAVE, Order
from hami_hpc.node import job_dirs, neighbours, swapped
from hami_hpc.node.config import Settings
from hami_hpc.stages import common, swap

STAGE = "turns"
# What each order follows; another one, of an administrator's or Slurm's, came first and stands.
BEFORE = {c.SWAP_TURN: c.SWAP_IN, c.SWAP_IN: c.SWAP_TURN, c.SWAP_NEVER: c.SWAP_WAIT}


def give(
    settings: Settings, grants: Sequence[Grant], orders: Iterable[Order], decided_on: Mapping[int, int]
) -> tuple[list[Order], str]:
    """Writes the orders, and tells all jobs who is on their GPU now. `grants` and `decided_on`: the GPU's jobs, and the
    order of each, from which was decided; where that is not so any more, nothing is written, as others may have the
    place. Returns those that were written: not those of jobs that have ended; and "", or why one could not be written.
    Raises NodeError where the ledger cannot be read."""
    by_job = {grant.job_id: grant for grant in grants}
    given: list[Order] = []
    problem = ""
    ledger = common.open_ledger(settings)
    try:
        with ledger.held_still() as live:
            runs = {(grant.job_id, grant.created_unix_ns) for grant in live}
            for order in orders if _is_as_decided(settings, live, grants, decided_on) else ():
                grant = by_job[order.job_id]
                is_expected = swapped.order_of(settings.run_dir, order.job_id) == BEFORE[order.order]
                if is_expected and (grant.job_id, grant.created_unix_ns) in runs:
                    try:
                        neighbours.write_swap(settings.run_dir, grant, order.order)
                        given.append(order)
                    except (OSError, neighbours.SkippedRecordError) as error:
                        problem = f"the limits record of job {grant.job_id} cannot be changed ({error})"
        if given:
            common.tell_neighbours(STAGE, settings, ledger)
    finally:
        ledger.close()
    for order in given:
        swap.write_event(settings, by_job[order.job_id], _line(settings, by_job[order.job_id], order))
    return given, problem


def _is_as_decided(
    settings: Settings, live: Iterable[Grant], grants: Sequence[Grant], decided_on: Mapping[int, int]
) -> bool:
    """Returns whether all that were on the GPU are as they were, and nobody else is on it. One that has ended is in
    nobody's way, nor is a row of a job without a record."""
    known = {(one.job_id, one.created_unix_ns): one for one in grants}
    here = [one for one in live if one.gpu_uuid == grants[0].gpu_uuid]
    for one in here:
        old = known.get((one.job_id, one.created_unix_ns))
        order = swapped.order_of(settings.run_dir, one.job_id)
        if old is None:
            if order != c.SWAP_NEVER or job_dirs.read_grants(job_dirs.job_dir(settings.run_dir, one.job_id)):
                return False
        elif order != decided_on[one.job_id] or one.mem_mib > old.mem_mib or one.cores_percent > old.cores_percent:
            return False
    return True


def why_it_stays(settings: Settings, grant: Grant) -> str:
    """Returns why the job's memory did not leave the GPU, as its programs say."""
    found = swapped.processes(settings.run_dir, grant)
    late = [process for process in found if process.state not in rules.ON_HOST]
    return rules.REASONS.get(late[0].state, rules.NO_ANSWER) if late else "NVML shows memory that nobody counts"


def _line(settings: Settings, grant: Grant, order: Order) -> str:
    if order.why == CANNOT_LEAVE:
        reason = why_it_stays(settings, grant)
        return f"job {grant.job_id} did not leave GPU {grant.gpu_minor} when its turn was over: {reason}. It stays"
    verb = "leaves" if order.order == c.SWAP_TURN else "may use"
    return f"job {grant.job_id} {verb} GPU {grant.gpu_minor}: {order.why}"
