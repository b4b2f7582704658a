# SPDX-License-Identifier: Apache-2.0
"""The budget of a cap, for whatever numbers come in: who wants everything, who rests, what a user has written.

The rules are the compiled ones, as in test_arbitration.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import arbitration as a
from hypothesis import example, given, settings
from hypothesis import strategies as st

MS = 1_000_000
WINDOW_NS = 2 * a.ROUND_NS
SLEEP_NS_LEAST = MS // 20  # of keeper.c: nobody looks sooner again
PERCENT = st.integers(1, 99)
INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from((-(2**63), 2**63 - 1, -1, 0, 1))
TIME = st.integers(0, 2**62)


@dataclass
class Saturating:
    """A tenant that always has work, and whose keeper looks late: what it used, by pieces (begin, end)."""

    percent: int
    pieces: list[tuple[int, int]] = field(default_factory=list)
    late_open_ns: int = 0
    now: int = 0

    def run(self, until_ns: int, late_pause: Iterator[int], late_open: Iterator[int]) -> None:
        budget, shut, begun = a.Budget(self.percent), False, 0
        while self.now < until_ns:
            step = max(a.budget_wait(budget.credit, shut, self.percent), SLEEP_NS_LEAST)
            late = next(late_open if shut else late_pause)
            self.late_open_ns += SLEEP_NS_LEAST + late if shut else 0
            self.now += step + late
            credit = budget.go_on(step + late, 0 if shut else step + late)
            after = a.budget_shut(credit, shut, self.percent)
            if after and not shut:
                self.pieces.append((begun, self.now))
            if shut and not after:
                begun = self.now
            shut = after
        if not shut:
            self.pieces.append((begun, self.now))

    def used(self, begin_ns: int, end_ns: int) -> int:
        return sum(max(0, min(end, end_ns) - max(begin, begin_ns)) for begin, end in self.pieces)


def repeat(values: Sequence[int]) -> Iterator[int]:
    while True:
        yield from values


PAUSE_LEAD_NS = 500_000  # HAMI_PAUSE_LEAD_NS


def early(percent: int) -> tuple[int, ...]:
    """By how much credit a pause and an opening are called early: they take effect later, but not in these tests."""
    half = a.budget_half(percent)
    return tuple(min(PAUSE_LEAD_NS * part // 100, half // 2) for part in (100 - percent, percent))


LATE = st.lists(st.integers(0, 2 * MS), min_size=1, max_size=20)


@given(PERCENT, LATE, LATE)
@example(50, [0], [0])
@example(1, [2 * MS], [0])
@settings(max_examples=60, deadline=None)
def test_who_wants_everything_gets_percent_of_any_100_ms_within_the_overshoot_of_its_pieces(
    percent: int, pauses: list[int], opens: list[int]
) -> None:
    tenant = Saturating(percent)
    tenant.run(20 * WINDOW_NS, repeat(pauses), repeat(opens))
    share = WINDOW_NS * percent // 100
    pause, opened = max(pauses) + SLEEP_NS_LEAST + 100, max(opens) + SLEEP_NS_LEAST + 100
    shorter = 2 * sum(early(percent)) * 10000 // (percent * (100 - percent))  # than 100 ms, two rounds
    most = share + 2 * pause + shorter
    least = share - 2 * (pause * (100 - percent) // percent + opened) - 2 * pause - shorter
    last = bisect_right(tenant.pieces, (tenant.now - WINDOW_NS, 0))
    starts = [t for piece in tenant.pieces[:last] for t in (*piece, piece[1] - WINDOW_NS) if t >= 0]
    for start in starts:  # where what a window holds has its extremes
        if start + WINDOW_NS <= tenant.now:
            assert least <= tenant.used(start, start + WINDOW_NS) <= most


@given(PERCENT, LATE, LATE)
@settings(max_examples=40, deadline=None)
def test_who_wants_everything_gets_exactly_percent_in_the_long_run(
    percent: int, pauses: list[int], opens: list[int]
) -> None:
    """A pause that comes late is repaid; what a late opening loses is lost."""
    tenant = Saturating(percent)
    tenant.run(400 * a.ROUND_NS, repeat(pauses), repeat(opens))
    used, swing = tenant.used(0, tenant.now), 2 * a.budget_half(percent) + max(pauses) + SLEEP_NS_LEAST
    rounding = 4000
    assert used <= tenant.now * percent / 100 + swing + rounding
    assert used >= (tenant.now - tenant.late_open_ns) * percent / 100 - swing - rounding


@given(PERCENT, st.lists(st.booleans(), min_size=300, max_size=600), st.lists(st.integers(1, 120), min_size=1))
@example(4, [False] * 297 + [True] * 3, [1])
@settings(max_examples=60, deadline=None)
def test_who_uses_less_than_percent_of_every_round_is_never_shut(
    percent: int, wants: list[bool], gaps: list[int]
) -> None:
    """Ticks of a hundredth of a round; any round's worth of them in a row holds less than percent of use, less what a
    pause is called early."""
    tick = a.ROUND_NS // 100
    most = percent - 1 - -(-early(percent)[0] * 100 // (100 - percent) // tick)
    uses: list[bool] = []
    for want in wants:
        uses.append(want and sum(uses[-99:]) < most)
    budget, at, gap = a.Budget(percent), 0, repeat(gaps)
    while at < len(uses):
        step = min(next(gap), len(uses) - at)
        credit = budget.go_on(step * tick, sum(uses[at : at + step]) * tick)
        at += step
        assert not a.budget_shut(credit, False, percent)


@given(PERCENT)
def test_one_piece_of_a_whole_share_is_run_without_a_pause(percent: int) -> None:
    """After idling, the first piece is as long as any other."""
    piece = (2 * a.budget_half(percent) - early(percent)[0]) * 100 // (100 - percent)
    for longer, shut in ((-200, False), (200, True)):
        budget = a.Budget(percent, full_at=a.SHUT_NS_MOST, now=10**12)
        assert a.budget_shut(budget.go_on(piece + longer, piece + longer), False, percent) == shut


@given(PERCENT, st.integers(150, 5000))
def test_a_burst_after_idling_has_its_share_and_no_more(percent: int, idle_ms: int) -> None:
    """By the end of each piece and of each pause it is as far above its share as it is below: on average it has it."""
    tick, began = MS // 20, idle_ms * MS
    budget, used, above = a.Budget(percent), 0, []
    first = budget.use(0, began, 0)
    assert first == a.budget_half(percent)
    budget.use(began, began, 0)
    for at in range(tick, 8 * a.ROUND_NS, tick):
        mine = 0 if budget.shut else tick
        used += mine
        budget.go_on(tick, mine)
        budget.decide()
        if at > 2 * a.ROUND_NS:
            above.append(used - at * percent / 100)
    assert abs((max(above) + min(above)) / 2) < a.budget_half(percent) / 4 + tick


@given(PERCENT, st.lists(st.booleans(), min_size=1, max_size=6))
def test_only_the_first_pause_after_a_rest_gives_back_what_was_saved_up(percent: int, rests: list[bool]) -> None:
    """It is longer by half of the credit."""
    tick = MS // 20
    usual = (2 * a.budget_half(percent) - sum(early(percent))) * 100 / percent
    longer = a.budget_half(percent) * 100 / percent
    budget = a.Budget(percent, full_at=a.ROUND_NS, now=a.ROUND_NS)
    for rest in rests:
        if rest:
            since = budget.now + 4 * a.ROUND_NS
            budget.use(since, since, 0)
        while not budget.decide():
            budget.go_on(tick, tick)
        begun = budget.now
        while budget.decide():
            budget.go_on(tick, 0)
        pause = budget.now - begun
        assert abs(pause - usual - rest * longer) <= tick * (100 / percent + 1)


@given(PERCENT, st.lists(st.tuples(INT64, TIME, INT64), min_size=1, max_size=20), st.booleans(), st.booleans())
@settings(deadline=None)
def test_nobody_is_shut_for_longer_than_the_most_whatever_numbers_came_in(
    percent: int, numbers: list[tuple[int, int, int]], shut: bool, several: bool
) -> None:
    """Budgets that a user wrote, clocks that jumped, uses that cannot be."""
    for forged, now, used in numbers:
        budget = a.Budget(percent, several, forged, now)
        credit = budget.go_on(0, used)
        assert -a.SHUT_NS_MOST <= credit <= a.budget_half(percent) + several * a.COUNT_NS_SEVERAL
        shut = a.budget_shut(credit, shut, percent)
        assert not shut or 0 <= a.budget_wait(credit, shut, percent) <= a.SHUT_NS_MOST
    passed = 0
    while shut:
        step = max(SLEEP_NS_LEAST, a.budget_wait(credit, True, percent))
        passed += step
        assert passed <= a.SHUT_NS_MOST + SLEEP_NS_LEAST
        credit = budget.go_on(step, 0)
        shut = a.budget_shut(credit, True, percent)


@given(PERCENT, INT64, st.integers(0, 10**9), st.booleans())
def test_nothing_changes_before_the_wait_is_over(percent: int, forged: int, more: int, shut: bool) -> None:
    budget = a.Budget(percent, full_at=forged)
    shut = a.budget_shut(budget.go_on(0, 0), shut, percent)
    wait = a.budget_wait(budget.credit, shut, percent)
    sooner = min(more, wait - 201)  # the last 200 ns are lost in whole numbers
    if sooner >= 0:
        assert a.budget_shut(budget.go_on(sooner, 0 if shut else sooner), shut, percent) == shut


@given(PERCENT, INT64, st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9), st.booleans())
def test_more_use_never_leaves_more_credit_and_more_time_never_less(
    percent: int, forged: int, elapsed: int, used: int, more: int, several: bool
) -> None:
    def credit(elapsed_ns: int, used_ns: int) -> int:
        return a.Budget(percent, several, forged).go_on(elapsed_ns, used_ns)

    assert credit(elapsed, used + more) <= credit(elapsed, used)
    assert credit(elapsed + more, used) >= credit(elapsed, used)


@given(PERCENT, st.lists(st.integers(0, 10**7), min_size=2, max_size=6), st.randoms())
def test_processes_may_take_what_they_used_in_any_order(percent: int, uses: list[int], random: Random) -> None:
    budgets = a.Budget(percent, True, 0, a.ROUND_NS), a.Budget(percent, True, 0, a.ROUND_NS)
    shuffled = random.sample(uses, len(uses))
    for one, other in zip(uses, shuffled, strict=True):
        budgets[0].go_on(0, one)
        budgets[1].go_on(0, other)
    assert abs(budgets[0].full_at - budgets[1].full_at) <= len(uses)


def test_without_a_cap_nobody_is_shut() -> None:
    assert not a.budget_shut(-(2**62), True, 100)
    assert a.budget_wait(-(2**62), True, 100) == a.FOREVER
