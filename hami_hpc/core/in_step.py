# SPDX-License-Identifier: Apache-2.0
"""Slices of one job on several GPUs that are to advance together: when each begins, and what others keep to. Pure.

A collective advances only while all GPUs of the job work on it. So the slices of such a job open, or pause, at the same
instants of a common period (native/interposer/arbitration/terms.c), by the nodes' clocks and without a message; and
while they are open, others on their GPUs do not keep the GPU for long at a time (docs/adr/065).
"""

from __future__ import annotations

from hami_hpc.core.grant import Grant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

NOT_IN_STEP, ON_ONE_NODE, ON_SEVERAL_NODES = range(3)
PERIOD_PERMILLE = 1000
PERMILLE_PER_PERCENT = PERIOD_PERMILLE // 100
# Timeslices of others, us. Beside a cap, which is paused for the rest of the period: short, since each is a pause in
# its piece. Beside a burst, which is not: in proportion to cores, as for the burst itself; 50 % has the driver's own.
BESIDE_CAP_US = 1000
BESIDE_BURST_US_PER_CORE = 40
BITS = 4  # of the job id, which make the begin of a job on several nodes


def kind_of(slice_count: int, node_count: int, mode: str, policy: str) -> int:
    """Returns whether a job's slices work in step, and whether on other nodes too."""
    if mode != "share" or policy == "none" or max(slice_count, node_count) < 2:
        return NOT_IN_STEP
    return ON_SEVERAL_NODES if node_count > 1 else ON_ONE_NODE


def make_begins(grants: Iterable[Grant]) -> dict[int, int]:
    """Returns when in the common period each job in step begins, permille, by job id, from all grants of a node.

    All nodes of a job must find the same, and know nothing of each other: a job on several nodes begins where the last
    bits of its id, mirrored, put it, so that jobs that follow each other lie apart. One on this node alone begins where
    it meets no other job in step on any of its GPUs, or, where there is no such place, at 0.
    """
    gpus: dict[int, set[str]] = {}
    jobs: dict[int, Grant] = {}
    for grant in grants:
        if grant.in_step and grant.policy == "cap":
            gpus.setdefault(grant.job_id, set()).add(grant.gpu_uuid)
            jobs[grant.job_id] = grant
    begins: dict[int, int] = {}
    for job_id, grant in sorted(jobs.items(), key=lambda item: (item[1].in_step != ON_SEVERAL_NODES, item[0])):
        if grant.in_step == ON_SEVERAL_NODES:
            begins[job_id] = _mirrored(job_id)
            continue
        others = [
            (begins[other], jobs[other].cores_percent * PERMILLE_PER_PERCENT)
            for other in begins
            if gpus[other] & gpus[job_id]
        ]
        begins[job_id] = _free_place(grant.cores_percent * PERMILLE_PER_PERCENT, others)
    return begins


def slices_beside(live: Sequence[Grant]) -> Mapping[int, int]:
    """Returns the timeslice, us, of each job of one GPU beside those in step, by job id; 0: it keeps its own."""
    caps = {grant.job_id for grant in live if grant.in_step and grant.policy == "cap"}
    bursts = {grant.job_id for grant in live if grant.in_step and grant.policy == "burst"}
    return {grant.job_id: _slice_beside(grant, caps, bursts if len(live) > 1 else set()) for grant in live}


def _slice_beside(grant: Grant, caps: set[int], bursts: set[int]) -> int:
    if grant.latency or grant.job_id in caps:
        return 0
    of_burst = grant.cores_percent * BESIDE_BURST_US_PER_CORE if bursts and grant.policy != "none" else 0
    if not caps:
        return of_burst
    return min(of_burst, BESIDE_CAP_US) if of_burst else BESIDE_CAP_US


def _mirrored(job_id: int) -> int:
    last = job_id % 2**BITS
    return PERIOD_PERMILLE * int(f"{last:0{BITS}b}"[::-1], 2) // (1 << BITS)


def _free_place(length: int, others: Sequence[tuple[int, int]]) -> int:
    """Returns the first begin at which a piece of that length meets none of the others (begin, length), or 0."""
    for begin in sorted({0, *((start + size) % PERIOD_PERMILLE for start, size in others)}):
        if all(_apart(begin, length, start, size) for start, size in others):
            return begin
    return 0


def _apart(begin: int, length: int, start: int, size: int) -> bool:
    """Returns whether two pieces of the period, which is a circle, do not meet."""
    return (start - begin) % PERIOD_PERMILLE >= length and (begin - start) % PERIOD_PERMILLE >= size
