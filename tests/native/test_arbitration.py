# SPDX-License-Identifier: Apache-2.0
"""The rules of sharing a GPU's time hold for whatever numbers come in: budgets, turns, timeslices, time used.

The rules are the compiled ones. `make -C native SAN=address,undefined test-arbitration` runs these tests on the build
with sanitizers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import arbitration as a
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hami_hpc.core.grant import Grant
from hami_hpc.core.turns import PERIOD_PERMILLE, make_turns

MS = 1_000_000
WINDOW_NS = 2 * a.ROUND_NS
SLEEP_NS_LEAST = MS // 20  # of share.c: nobody looks sooner again
SWITCH_NS = 232_600  # a change of context on a full H200 (docs/time-study.md)
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


def grants(cores: Sequence[int], latency: int = 1) -> list[Grant]:
    return [
        Grant(i, 1000, "GPU-1", 0, 143155, "h200", 1024, percent, "std", "burst", "share", 1, int(i <= latency), 0)
        for i, percent in enumerate(cores, start=1)
    ]


CORES = st.lists(st.integers(1, 100), min_size=3, max_size=40)


@given(CORES, st.integers(1, 3), st.integers(-(2**62), 2**62))
@settings(deadline=None)
def test_at_each_moment_it_is_exactly_one_ordinary_tenants_turn(cores: list[int], latency: int, now: int) -> None:
    live = grants(cores, latency)
    turns = make_turns(live)
    ordinary = [
        a.Terms(
            one.cores_percent,
            latency_others=turns[one.job_id].latency_others,
            turn_begin=turns[one.job_id].turn_begin_permille,
            turn_length=turns[one.job_id].turn_length_permille,
        )
        for one in live
        if not one.latency
    ]
    answers = [terms.turn(now) for terms in ordinary]
    assert sum(opened for opened, _ in answers) == (1 if ordinary else 0)
    for terms, (opened, until) in zip(ordinary, answers, strict=True):
        if len(ordinary) > 1:
            assert now < until <= now + a.ROUND_NS
            assert terms.turn(until - 1)[0] == opened
            assert terms.turn(until)[0] != opened
        else:
            assert until == a.FOREVER
    ends = {until for opened, until in answers if opened and until != a.FOREVER}
    for end in ends:
        assert sum(terms.turn(end)[0] for terms in ordinary) == 1, "the next one's turn begins where this one's ends"


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(-(2**62), 2**62))
def test_any_turn_ends(begin: int, length: int, now: int) -> None:
    opened, until = a.Terms(50, turn_begin=begin, turn_length=length).turn(now, yields=True)
    if 0 < length < PERIOD_PERMILLE:
        assert now < until <= now + a.ROUND_NS
    else:
        assert (opened, until) == (True, a.FOREVER)


@given(st.integers(-(2**62), 2**62), st.integers(0, 999), st.integers(1, 999))
def test_a_tenant_that_shares_has_no_turns(now: int, begin: int, length: int) -> None:
    assert a.Terms(50, turn_begin=begin, turn_length=length).turn(now) == (True, a.FOREVER)


@given(st.integers(-(2**62), 2**62), st.integers(0, 999), st.integers(1, 999))
def test_a_latency_critical_tenant_has_no_turns(now: int, begin: int, length: int) -> None:
    assert a.Terms(50, latency=True, turn_begin=begin, turn_length=length).turn(now) == (True, a.FOREVER)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=32).filter(lambda cores: sum(cores) <= 100))
def test_timeslices_give_everybody_its_cores_less_the_switches(cores: list[int]) -> None:
    """All of them want everything, one process each: a round is all slices, and a switch after each."""
    slices = [a.Terms(percent).timeslice_us() * 1000 for percent in cores]
    round_ns = sum(slices) + len(slices) * (SWITCH_NS if len(slices) > 1 else 0)
    worked = sum(slices) / round_ns
    for percent, timeslice in zip(cores, slices, strict=True):
        assert timeslice * sum(cores) == percent * sum(slices), "in proportion to cores"
        assert timeslice / round_ns >= percent / 100 * worked - 1e-9
        assert timeslice < a.ROUND_NS * percent // 100, "shorter than the piece that a budget gives"


@given(st.integers(1, 100), st.integers(1, 64))
def test_the_processes_of_a_tenant_divide_its_timeslice_unless_it_would_be_too_short(
    cores: int, processes: int
) -> None:
    whole, each = a.Terms(cores).timeslice_us(), a.Terms(cores).timeslice_us(processes)
    assert each == max(200, whole // processes)
    assert a.Terms(cores).timeslice_us(0) == whole


SLICE_US = st.integers(1, 2**32 - 1) | st.integers(1, 100_000)


@given(st.integers(1, 100), st.sampled_from(("cap", "burst", "none")), st.booleans(), SLICE_US, st.integers(1, 64))
@example(50, "burst", False, 5, 1)
@example(50, "none", True, 100_001, 1)
def test_a_class_may_have_a_timeslice_of_its_own_within_bounds(
    cores: int, policy: str, latency: bool, slice_us: int, processes: int
) -> None:
    terms = a.Terms(cores, policy, latency, slice_us=slice_us)
    assert terms.timeslice_us(processes) == min(max(slice_us // processes, 10), 100_000)
    assert terms.timeslice_us(0) == terms.timeslice_us(1)
    assert terms.cap() == a.Terms(cores, policy, latency).cap(), "a cap is a budget's, whatever the timeslice is"


@given(st.integers(1, 100), st.sampled_from(("cap", "burst", "none")), st.integers(0, 100_000), st.integers(0, 64))
def test_beside_a_latency_critical_job_no_class_keeps_its_timeslice(
    cores: int, policy: str, slice_us: int, processes: int
) -> None:
    assert a.Terms(cores, policy, latency_others=1, slice_us=slice_us).timeslice_us(processes) == 10


@given(st.integers(1, 100), st.sampled_from(("cap", "burst", "none")), st.integers(0, 100_000), st.integers(0, 64))
@example(50, "burst", 10, 1)
@example(50, "burst", 100_000, 1)
def test_a_latency_critical_tenant_gives_way_to_those_before_it_whatever_its_class_says(
    cores: int, policy: str, slice_us: int, processes: int
) -> None:
    first = a.Terms(cores, policy, True, latency_others=2, slice_us=slice_us)
    below = replace(first, latency_above=1)
    assert first.timeslice_us(processes) == 20_000, "its requests are not interrupted, nor by its own class's slice"
    assert below.timeslice_us(processes) == max(1000 // max(1, processes), 500)
    assert replace(below, latency_above=2**32 - 1).timeslice_us(processes) == below.timeslice_us(processes)
    assert (below.cap(), below.turn(0)) == (first.cap(), first.turn(0)), "the order is one of timeslices alone"
    assert replace(below, latency=False).timeslice_us(processes) == 10


@given(st.integers(0, 2**32 - 1), st.sampled_from(("cap", "burst", "none")), st.booleans(), st.integers(0, 2**32 - 1))
def test_a_cap_is_never_more_than_everything(cores: int, policy: str, latency: bool, floor: int) -> None:
    terms = a.Terms(cores, policy, latency, floor)
    assert terms.cap() <= 100
    most = 100 - floor if latency and floor < 100 else 100
    assert terms.cap() == (min(cores, most) if policy == "cap" else most), "the floor is for others, by every policy"
    terms.timeslice_us(2**32 - 1)


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
    use, now = a.Use(0), 0
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
    use, now, lead, told, total = a.Use(0), 0, 20, -1, 0
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
    with_all, with_gap = a.Use(0), a.Use(0)
    limit = min(a.SAVE_NS, 200 * US // 8)  # what is taken for the save moves with the stay that ends
    assert with_gap.count(between(off, -1, 200), [], 200 * US) <= (
        with_all.count(between(switches, -1, 200), [], 200 * US) + limit * len(switches)
    )


@given(EVENTS, EVENTS, st.data())
def test_an_idle_sample_never_adds_to_the_use(
    switches: list[tuple[int, bool]], samples: list[tuple[int, bool]], data: st.DataObject
) -> None:
    idler = [(at, yes and data.draw(st.booleans())) for at, yes in samples]
    on, all_of_it = between(switches, -1, 200), 200 * US
    assert a.Use(0).count(on, between(idler, -1, 200), all_of_it) <= a.Use(0).count(
        on, between(samples, -1, 200), all_of_it
    )


@given(st.integers(1, 100))
def test_a_process_alone_that_is_idle_at_all_samples_has_used_nothing(count: int) -> None:
    samples = [((i + 1) * US, False) for i in range(count)]
    assert a.Use(0).count([], samples, (count + 1) * US) < count


@given(st.lists(st.tuples(TIME, st.booleans()), max_size=20), st.lists(st.tuples(TIME, st.booleans())), TIME, TIME)
@example([(2**62, False), (0, True), (2**62, False), (0, True), (2**62, False)], [], 0, 2**62)
def test_times_out_of_order_and_out_of_range_are_survived(
    switches: list[tuple[int, bool]], samples: list[tuple[int, bool]], begin: int, now: int
) -> None:
    """The most that can come of them is what a budget takes: hami_budget_use limits it."""
    use = a.Use(begin)
    assert use.count(switches, samples, now) >= 0
    assert use.count([], [], now) >= 0
