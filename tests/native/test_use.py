# SPDX-License-Identifier: Apache-2.0
"""What a process used of a GPU's time, and what that cost others, holds for any numbers; by the compiled rules."""

from __future__ import annotations

import using
from hypothesis import example, given, settings
from hypothesis import strategies as st

TIME = st.integers(0, 2**62)
EVENTS = st.lists(st.tuples(st.integers(0, 200), st.booleans()), max_size=40).map(sorted)
STEPS = st.lists(st.integers(0, 60), min_size=1, max_size=12)
US = 1000


def between(events: list[tuple[int, bool]], begin: int, end: int) -> list[tuple[int, bool]]:
    return [(at * US, yes) for at, yes in events if begin < at <= end]


@given(EVENTS, EVENTS, STEPS)
@settings(deadline=None)
def test_no_more_is_used_than_time_passes(
    switches: list[tuple[int, bool]], samples: list[tuple[int, bool]], steps: list[int]
) -> None:
    """Switches come as they are told: an END or START may be missing."""
    use, now = using.Use(0), 0
    for step in steps:
        used = use.count(between(switches, now, now + step), between(samples, now, now + step), (now + step) * US)
        now += step
        assert 0 <= used <= step * US


@given(EVENTS, EVENTS, STEPS)
@settings(deadline=None)
def test_switches_that_are_read_after_the_clock_are_counted_once(
    switches: list[tuple[int, bool]], samples: list[tuple[int, bool]], steps: list[int]
) -> None:
    """The clock is read before the switches: some of them may be later. All in all no more than passed is counted."""
    use, now, lead, told, total = using.Use(0), 0, 20, -1, 0
    for step in steps:
        now += step
        total += use.count(between(switches, told, now + lead), between(samples, now - step, now), now * US)
        told = now + lead
        assert total <= (now + lead) * US


@given(EVENTS, st.integers(1, 198), st.integers(1, 199))
def test_a_stay_off_the_engine_never_adds_to_the_use(switches: list[tuple[int, bool]], begin: int, length: int) -> None:
    """The same switches, less what they say of a while in which the process was off."""
    end = min(begin + length, 199)
    on_after = ([True] + [on for at, on in switches if at <= end])[-1]
    off = [(at, on) for at, on in switches if at < begin] + [(begin, False), (end, on_after)]
    off += [(at, on) for at, on in switches if at > end]
    with_all, with_gap = using.Use(0), using.Use(0)
    limit = min(using.SAVE_NS, 200 * US // 8)  # what is taken for the save moves with the stay that ends
    assert with_gap.count(between(off, -1, 200), [], 200 * US) <= (
        with_all.count(between(switches, -1, 200), [], 200 * US) + limit * len(switches)
    )


@given(EVENTS, EVENTS, st.data())
def test_an_idle_sample_never_adds_to_the_use(
    switches: list[tuple[int, bool]], samples: list[tuple[int, bool]], data: st.DataObject
) -> None:
    idler = [(at, yes and data.draw(st.booleans())) for at, yes in samples]
    on, all_of_it = between(switches, -1, 200), 200 * US
    assert using.Use(0).count(on, between(idler, -1, 200), all_of_it) <= using.Use(0).count(
        on, between(samples, -1, 200), all_of_it
    )


@given(st.integers(1, 100))
def test_a_process_alone_that_is_idle_at_all_samples_has_used_nothing(count: int) -> None:
    samples = [((i + 1) * US, False) for i in range(count)]
    assert using.Use(0).count([], samples, (count + 1) * US) < count


@given(st.integers(0, 2**32 - 1), TIME, TIME, TIME, TIME)
@example(3000, 300_000 * US, 450_000 * US, 1_000_000 * US, 0)
def test_what_arrivals_cost_others_is_time_that_nobody_had(
    arrivals: int, used: int, others: int, elapsed: int, gaps: int
) -> None:
    costs = using.costs(arrivals, used, others, elapsed, on_ns=used + gaps)
    assert 0 <= costs <= arrivals * 265 * US + gaps
    assert not costs or used + costs + others <= elapsed
    assert using.costs(arrivals, used, others, elapsed + US, on_ns=used + gaps) >= costs
    assert using.costs(0, used, others, elapsed, on_ns=used + gaps, paused_ns=9000 * US) == 0, "nobody else was there"


def test_what_others_lose_of_a_pause_counts_once_they_came() -> None:
    costs = [using.costs(1, 90_000 * US, us * US, 90_000 * US, paused_ns=8000 * US) for us in (8500, 7000, 5000, 100)]
    assert costs == [0, 1000 * US, 3000 * US, 4000 * US]
    assert using.costs(0, 90_000 * US, 100 * US, 90_000 * US, paused_ns=8000 * US) == 0


def test_gaps_count_where_others_wait_and_not_where_they_hardly_come() -> None:
    """300 us of work and 10 us of nothing, all the time; then half of the time, beside somebody who comes seldom."""
    used, on = 955_000 * US, 986_000 * US
    assert used + using.costs(49, used, 0, 1_000_000 * US, on_ns=on) > 998_000 * US
    half = 500_000 * US
    assert using.costs(2, half, 0, 1_000_000 * US, on_ns=990_000 * US) == 2 * (20_000 + 265) * US


def test_who_comes_all_the_time_is_charged_all_that_others_cannot_use() -> None:
    """Requests of 30 us, 3000 a second: others are on the engine for the rest, and save their contexts there."""
    used, lost = 90_000 * US, 3000 * 265 * US
    assert used + using.costs(3000, used, 5_000 * US, 1_000_000 * US) == used + lost
    assert used + using.costs(3000, used, 300_000 * US, 1_000_000 * US) == 700_000 * US
    assert [using.of_stay(us * US) for us in (10, 160, 180, 200, 1000)] == [0, 0, 0, 50 * US, 850 * US]


@given(st.lists(st.tuples(TIME, st.booleans()), max_size=20), st.lists(st.tuples(TIME, st.booleans())), TIME, TIME)
@example([(2**62, False), (0, True), (2**62, False), (0, True), (2**62, False)], [], 0, 2**62)
def test_times_out_of_order_and_out_of_range_are_survived(
    switches: list[tuple[int, bool]], samples: list[tuple[int, bool]], begin: int, now: int
) -> None:
    """The most that can come of them is what a budget takes: hami_budget_use limits it."""
    use = using.Use(begin)
    assert use.count(switches, samples, now) >= 0
    assert use.count([], [], now) >= 0
