# SPDX-License-Identifier: Apache-2.0
"""Who on a GPU gives way to whom: what each job is told about the others there. Pure.

Jobs divide a common period into turns. They keep to them while a latency-critical job is on the GPU, which then waits
for at most one timeslice of another job, and where sharing by timeslices serves somebody badly
(native/interposer/arbitration/slice.h).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hami_hpc.core.grant import Grant
from hami_hpc.core.values import NamedTuple

PERIOD_PERMILLE = 1000
# native/interposer/arbitration/terms.c: the timeslice that follows from cores; and the driver's own, of policy none.
TIMESLICE_US_PER_CORE = 450
DRIVERS_TIMESLICE_US = 2048


class Turn(NamedTuple):
    """What a job is told about the others on its GPU. Permille of the common period; length 0 means always open.

    The names are those of the limits record's fields.
    """

    latency_others: int
    turn_begin_permille: int
    turn_length_permille: int
    others_least_cores: int
    others_capped: int


def make_turns(live: Iterable[Grant]) -> dict[int, Turn]:
    """Returns the turn of each job, by job id, from the live grants of one GPU.

    Jobs that are not latency-critical have turns when they are at least two. Each turn is in proportion to the job's
    cores, in the order of job ids; together they fill the period exactly.
    """
    grants = sorted(live, key=lambda grant: grant.job_id)
    latency_count = sum(grant.latency for grant in grants)
    least = _least_of_others(grants)
    cap_count = sum(grant.policy == "cap" for grant in grants)
    turns = {
        grant.job_id: Turn(
            latency_others=latency_count - grant.latency,
            turn_begin_permille=0,
            turn_length_permille=0,
            others_least_cores=least[grant.job_id],
            others_capped=cap_count - (grant.policy == "cap"),
        )
        for grant in grants
    }
    others = [grant for grant in grants if not grant.latency]
    if not 2 <= len(others) <= PERIOD_PERMILLE:
        return turns
    total_percent = sum(grant.cores_percent for grant in others)
    # Rounding would leave a small job nothing among very many: then each has one permille before the rest is divided.
    share_least = int(any(grant.cores_percent * PERIOD_PERMILLE < total_percent for grant in others))
    divided = PERIOD_PERMILLE - share_least * len(others)
    begin = percent_so_far = 0
    for i, grant in enumerate(others, start=1):
        percent_so_far += grant.cores_percent
        end = share_least * i + divided * percent_so_far // total_percent
        turns[grant.job_id] = turns[grant.job_id]._replace(turn_begin_permille=begin, turn_length_permille=end - begin)
        begin = end
    return turns


def _least_of_others(grants: Sequence[Grant]) -> dict[int, int]:
    """Returns, by job id, the fewest cores of another job; 0 for one that is alone. Timeslices follow from cores."""
    cores = [_timeslice_in_cores(grant) for grant in grants]
    two_least = sorted(cores)[:2]
    if len(grants) < 2:
        return {grant.job_id: 0 for grant in grants}
    return {
        grant.job_id: two_least[1] if own == two_least[0] else two_least[0]
        for grant, own in zip(grants, cores, strict=True)
    }


def _timeslice_in_cores(grant: Grant) -> int:
    """Returns the cores from which a job's timeslice follows, or would follow."""
    if grant.policy == "none":
        return DRIVERS_TIMESLICE_US // TIMESLICE_US_PER_CORE
    if grant.slice_us:
        return min(100, max(1, grant.slice_us // TIMESLICE_US_PER_CORE))
    return grant.cores_percent
