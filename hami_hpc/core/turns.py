# SPDX-License-Identifier: Apache-2.0
"""Who on a GPU gives way to whom: the turns of ordinary jobs beside latency-critical ones. Pure.

A latency-critical job waits for at most one timeslice of another job if only one other job has work open at a time. So
while one is on the GPU, the other jobs divide a common period into turns.
"""

from __future__ import annotations

from collections.abc import Iterable

from hami_hpc.core.grant import Grant
from hami_hpc.core.values import NamedTuple

PERIOD_PERMILLE = 1000


class Turn(NamedTuple):
    """What a job is told about the others on its GPU. Permille of the common period; length 0 means always open.

    The names are those of the limits record's fields.
    """

    latency_others: int
    turn_begin_permille: int
    turn_length_permille: int


def make_turns(live: Iterable[Grant]) -> dict[int, Turn]:
    """Returns the turn of each job, by job id, from the live grants of one GPU.

    Jobs that are not latency-critical have turns while a latency-critical one is there and they are at least two. Each
    turn is in proportion to the job's cores, in the order of job ids; together they fill the period exactly.
    """
    grants = sorted(live, key=lambda grant: grant.job_id)
    latency_count = sum(grant.latency for grant in grants)
    turns = {grant.job_id: Turn(latency_count - grant.latency, 0, 0) for grant in grants}
    others = [grant for grant in grants if not grant.latency]
    if latency_count == 0 or not 2 <= len(others) <= PERIOD_PERMILLE:
        return turns
    total_percent = sum(grant.cores_percent for grant in others)
    # Rounding would leave a small job nothing among very many: then each has one permille before the rest is divided.
    least = int(any(grant.cores_percent * PERIOD_PERMILLE < total_percent for grant in others))
    divided = PERIOD_PERMILLE - least * len(others)
    begin = percent_so_far = 0
    for i, grant in enumerate(others, start=1):
        percent_so_far += grant.cores_percent
        end = least * i + divided * percent_so_far // total_percent
        turns[grant.job_id] = Turn(latency_count, begin, end - begin)
        begin = end
    return turns
