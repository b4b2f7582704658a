# SPDX-License-Identifier: Apache-2.0
"""Slices of one job on two GPUs that wait for each other advance as fast as their cap allows: both are open together.

The rules are the compiled ones, of both keepers, which count at times of their own and pause late. A slice whose
partner is shut waits on the GPU, as NCCL's kernels do, and that counts as use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import arbitration as a
import pytest

MS = 1_000_000
TICK_NS = MS // 5
LENGTH_NS = 2500 * MS


@dataclass
class Keeper:
    """One slice: what limits/share.c does with its budget."""

    percent: int
    in_step: bool
    random: Random
    begin_permille: int = 0
    offset_ns: int = 0  # of its node's clock
    is_open: bool = True
    shut: bool = False
    said_ns: int = 0
    duty: int = 1000
    used_ns: int = 0
    uncounted_ns: int = 0
    opened: tuple[int, int] = (0, 0)  # when, and what was used until then
    closed_ns: int = 0
    count_ns: int = 0
    coming: tuple[int, bool] | None = None  # when a call to the driver takes effect
    budget: a.Budget = field(init=False)

    def __post_init__(self) -> None:
        self.budget = a.Budget(self.percent)

    def tick(self, now_ns: int, used_ns: int) -> None:
        self.used_ns += used_ns
        self.uncounted_ns += used_ns
        if self.coming and now_ns >= self.coming[0]:
            self._set_open(now_ns, self.coming[1])
            self.coming = None
        if now_ns >= self.count_ns:
            self._count(now_ns)
        terms = a.Terms(self.percent, "cap", in_step=self.in_step, step_begin=self.begin_permille)
        wanted, _ = terms.open(self.shut, self.said_ns, now_ns + self.offset_ns)
        if wanted != self.is_open and not self.coming:
            self.coming = (now_ns + self.random.randint(300_000, 800_000), wanted)

    def _set_open(self, now_ns: int, is_open: bool) -> None:
        self.is_open = is_open
        if not is_open:
            self.closed_ns = now_ns
            return
        length = self.closed_ns - self.opened[0]
        if self.opened[0] and length >= MS:
            duty = max(1, min(1000, (self.used_ns - self.opened[1]) * 1000 // length))
            self.duty = (3 * self.duty + duty) // 4
        self.opened = (now_ns, self.used_ns)

    def _count(self, now_ns: int) -> None:
        credit = self.budget.use(self.budget.now, now_ns, self.uncounted_ns)
        self.uncounted_ns = 0
        credit += a.budget_in_step(self.shut, self.duty, self.percent) if self.in_step else 0
        shut = a.budget_shut(credit, self.shut, self.percent)
        if shut != self.shut:
            self.shut, self.said_ns = shut, now_ns + self.offset_ns
        self.count_ns = now_ns + self.random.randint(MS // 2, 3 * MS)


def advance(
    percent: int, duty_permille: int, seed: int, in_step: bool = True, ahead_ns: int = 0, clock_ns: int = 0
) -> tuple[float, list[float]]:
    """Returns for how much of LENGTH_NS both were open, and what each used, percent. One begins with `ahead_ns`."""
    random = Random(seed)
    pair = [Keeper(percent, in_step, random), Keeper(percent, in_step, random, offset_ns=clock_ns)]
    pair[0].uncounted_ns = ahead_ns
    both_ns = now_ns = 0
    while now_ns < LENGTH_NS:
        now_ns += TICK_NS
        both = all(keeper.is_open for keeper in pair)
        both_ns += TICK_NS * both
        for keeper in pair:
            keeper.tick(now_ns, keeper.is_open * (TICK_NS * duty_permille // 1000 if both else TICK_NS))
    return 100 * both_ns / now_ns, [100 * keeper.used_ns / now_ns for keeper in pair]


@pytest.mark.parametrize("ahead_ms", [0, 20])
@pytest.mark.parametrize("duty_permille", [1000, 970, 900])
@pytest.mark.parametrize("percent", [10, 25, 40, 50, 55, 60, 75, 85])
def test_slices_that_wait_for_each_other_advance_for_their_share_of_the_time(
    percent: int, duty_permille: int, ahead_ms: int
) -> None:
    both, used = advance(percent, duty_permille, percent, ahead_ns=ahead_ms * MS)
    assert both >= 0.92 * percent - 1.5
    assert max(used) <= percent + 1


def test_two_nodes_whose_clocks_differ_by_two_milliseconds_are_in_step() -> None:
    for percent in (25, 50, 75):
        both, _ = advance(percent, 1000, 1, clock_ns=2 * MS)
        assert both >= 0.92 * percent - 3


def test_without_the_rule_they_hinder_each_other() -> None:
    for percent in (10, 25, 50, 75):
        both, _ = advance(percent, 1000, 1, in_step=False, ahead_ns=20 * MS)
        assert both <= 0.8 * percent


@pytest.mark.parametrize("percent", [25, 75])
def test_each_begins_at_its_own_part_of_the_round(percent: int) -> None:
    for begin in (0, 333, 999):
        terms = a.Terms(percent, "cap", in_step=True, step_begin=begin)
        for since in (0, 1, 17 * MS, 10**18 + 3):
            shut = percent >= 60
            _, until = terms.open(shut, since, since)
            instant = since if until == a.FOREVER else until
            assert since <= instant < since + a.ROUND_NS
            assert (instant - a.ROUND_NS * begin // 1000) % a.ROUND_NS == 0
            assert terms.open(shut, since, instant) == (not shut, a.FOREVER)


def test_a_clock_that_was_set_back_keeps_nobody_shut() -> None:
    for percent in (25, 75):
        terms = a.Terms(percent, "cap", in_step=True)
        assert terms.open(False, 10**18, 10**18 - 3600 * 10**9)[0]


def test_who_works_alone_is_shut_and_opened_as_its_budget_says() -> None:
    terms = a.Terms(50, "cap")
    assert terms.open(False, 0, 1) == (True, a.FOREVER)
    assert terms.open(True, 0, 1) == (False, a.FOREVER)


def test_timeslices_beside_one_in_step_are_those_of_the_record_and_are_not_fitted() -> None:
    beside = a.Terms(50, "cap", others_least_percent=50, beside_slice_us=1000)
    own = a.Terms(50, "cap", others_least_percent=50, in_step=True)
    assert (beside.timeslice_us(), beside.timeslice_us(2), own.timeslice_us()) == (1000, 500, 22500)
    assert beside.others_timeslice_us() == own.others_timeslice_us() == 0
    assert a.Terms(50, "none", beside_slice_us=1000).timeslice_us() == 1000
    assert a.Terms(50, "burst", latency_others=1, beside_slice_us=1000).timeslice_us() == 10
    assert a.Terms(50, "cap", beside_slice_us=2**32 - 1).timeslice_us() <= 100_000
