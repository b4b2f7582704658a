# SPDX-License-Identifier: Apache-2.0
"""The processes of a job keep its cap together: whenever each of them looks, comes, dies or is stopped.

The rules are the compiled ones, the GPU and the keepers those of the study (benchmarks/gpu_time.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import arbitration as a
import pytest
from gpu_time import MS, Gpu, Load, S, Tenant
from hypothesis import given, settings
from hypothesis import strategies as st

WINDOW_NS, LOOK_NS = S, 5 * MS
PAUSE_NS = 2 * MS  # from the decision until the context is saved, with the keeper's shortest sleep
END_NS = 4 * S


class Watched(Gpu):
    """Notes what all tenants together have used, each LOOK_NS."""

    def __init__(self, tenants: Sequence[Tenant]) -> None:
        super().__init__(tenants)
        self.used = [0]
        self._at(LOOK_NS, "watch", 0)

    def _watch(self, number: int) -> None:
        self._charge()
        self.used.append(sum(tenant.worked_ns for tenant in self.tenants))
        self._at(self.now + LOOK_NS, "watch", number)

    def most(self) -> int:
        """Returns the most that they used in any window, ns."""
        span = WINDOW_NS // LOOK_NS
        return max(end - begin for begin, end in zip(self.used, self.used[span:], strict=False))

    def longest_idle_ns(self) -> int:
        idle = most = 0
        for before, after in zip(self.used, self.used[1:], strict=False):
            idle = idle + LOOK_NS if before == after else 0
            most = max(most, idle)
        return most


def bound_ns(percent: int, processes: int) -> int:
    """What a job of several processes may use in a window of 1 s: docs/time-study.md."""
    half, rest = a.budget_half(percent), (100 - percent) / 100
    swing = 4 * half + a.COUNT_NS_SEVERAL * percent // 100
    overshoot = rest * (2 * a.COUNT_NS_SEVERAL + PAUSE_NS) + processes * 0.35 * MS
    return int(WINDOW_NS * percent / 100 + swing + overshoot)


def job(percent: int, processes: int, dies_ns: int = a.FOREVER, keeper_stops_ns: int = a.FOREVER) -> list[Tenant]:
    terms, load = a.Terms(percent, "cap"), Load(saturating=True)
    return [Tenant(terms, load, job="job", dies_ns=dies_ns, keeper_stops_ns=keeper_stops_ns) for _ in range(processes)]


@given(st.integers(1, 99), st.integers(2, 8))
@settings(max_examples=25, deadline=None)
def test_a_job_of_several_processes_stays_within_its_cap_in_any_second(percent: int, processes: int) -> None:
    gpu = Watched(job(percent, processes))
    gpu.run(END_NS)
    assert gpu.most() <= bound_ns(percent, processes)
    assert gpu.longest_idle_ns() <= a.SHUT_NS_MOST + a.ROUND_NS


@pytest.mark.parametrize(
    ("percent", "processes"), [(25, 3), (25, 8), (50, 3), (50, 8), (75, 2), (75, 8), (90, 2), (90, 8)]
)
def test_a_job_of_several_processes_gets_its_share(percent: int, processes: int) -> None:
    """While one worked, the others' counts filled the budget up, and what it had used was taken later: a third lost."""
    gpu = Watched(job(percent, processes))
    gpu.run(2 * END_NS)
    first = S // LOOK_NS  # in which the keepers take their processes as at work before they know
    share = 100 * (gpu.used[-1] - gpu.used[first]) / ((len(gpu.used) - 1 - first) * LOOK_NS)
    assert percent * 0.94 <= share <= percent + 1


@given(
    st.integers(1, 99),
    st.lists(st.tuples(st.integers(0, 3000), st.booleans()), min_size=1, max_size=6),
)
@settings(max_examples=25, deadline=None)
def test_processes_that_die_or_are_stopped_change_nothing_for_those_that_are_left(
    percent: int, ends: list[tuple[int, bool]]
) -> None:
    """Each of them takes with it what it had not counted; one that is stopped while open is its timeslice's to hold."""
    tenants = job(percent, 2)
    for at, dies in ends:
        tenants += job(percent, 1, dies_ns=at * MS) if dies else job(percent, 1, keeper_stops_ns=at * MS)
    gpu = Watched(tenants)
    gpu.run(END_NS)
    stopped = any(not dies for _, dies in ends)
    lost = len(ends) * 2 * a.COUNT_NS_SEVERAL
    assert stopped or gpu.most() <= bound_ns(percent, len(tenants)) + lost
    pauses = [length for tenant in tenants[:2] for length in tenant.shut_ns]
    assert all(length <= 2 * a.SHUT_NS_MOST for length in pauses)
    assert all(tenant.worked_ns > 0 for tenant in tenants[:2])


def test_a_job_of_several_processes_that_was_idle_saves_little_up() -> None:
    """The first second after idling: no more than any other."""
    requests = [(S + i * 10 * MS, 10 * MS) for i in range(300)]
    tenants = [Tenant(a.Terms(50, "cap"), Load(requests=requests), job="job") for _ in range(3)]
    gpu = Watched(tenants)
    gpu.run(END_NS)
    last = bisect_right(gpu.used, 0)
    assert gpu.used[last + S // LOOK_NS] <= bound_ns(50, 3)
