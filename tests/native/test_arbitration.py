# SPDX-License-Identifier: Apache-2.0
"""The rules of sharing a GPU's time hold for any numbers: turns, timeslices. See also test_use.py and test_budget.py.

The rules are the compiled ones. `make -C native SAN=address,undefined test-arbitration` runs these tests on the build
with sanitizers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import arbitration as a
import parting
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hami_hpc.core.grant import Grant
from hami_hpc.core.turns import PERIOD_PERMILLE, make_turns

SWITCH_NS = 232_600  # a change of context on a full H200 (docs/time-study.md)


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


@given(st.integers(0, 999), st.integers(1, 999), st.integers(-(2**63), 2**63 - 1) | st.integers(0, a.ROUND_NS))
def test_a_turn_is_longer_by_half_of_what_is_left_to_others_at_most(begin: int, length: int, longer: int) -> None:
    terms = a.Terms(50, turn_begin=begin, turn_length=length)
    begins = 100 * a.ROUND_NS + a.ROUND_NS * begin // PERIOD_PERMILLE
    turn = a.ROUND_NS * length // PERIOD_PERMILLE
    ends = begins + turn + max(0, min(longer, (a.ROUND_NS - turn) // 2))
    assert terms.turn(begins, yields=True, longer_ns=longer) == (True, ends)
    assert terms.turn(ends, yields=True, longer_ns=longer) == (False, begins + a.ROUND_NS)


@given(st.integers(-(2**62), 2**62), st.integers(0, 999), st.integers(1, 999))
def test_a_tenant_that_shares_has_no_turns(now: int, begin: int, length: int) -> None:
    assert a.Terms(50, turn_begin=begin, turn_length=length).turn(now) == (True, a.FOREVER)


@given(st.integers(-(2**62), 2**62), st.integers(0, 999), st.integers(1, 999))
def test_a_latency_critical_tenant_that_does_not_yield_has_no_turns(now: int, begin: int, length: int) -> None:
    for others in (0, 2):
        terms = a.Terms(50, latency=True, latency_others=others, turn_begin=begin, turn_length=length)
        assert terms.turn(now) == (True, a.FOREVER)


@given(st.integers(0, 2**62), st.integers(1, 99), st.lists(st.integers(1, 100), min_size=2, max_size=4))
def test_latency_critical_tenants_that_yield_are_paused_together_for_the_floor_and_in_everybodys_turn(
    now: int, floor: int, cores: list[int]
) -> None:
    def turn(at: int, cores_percent: int) -> tuple[bool, int]:
        terms = a.Terms(cores_percent, latency=True, latency_others=1, turn_length=1000 - 10 * floor)
        return terms.turn(at, yields=True)

    paused, at, begins = 0, now - now % a.LEFT_EVERY_NS, set()
    end = at + 5 * a.LEFT_EVERY_NS
    while at < end:
        (opened, until), *others = (turn(at, percent) for percent in cores)
        assert at < until
        assert all(other == (opened, until) for other in others)
        paused += 0 if opened else until - at
        if not opened:
            begins.add(at % a.ROUND_NS // (10 * MS))
        at = until
    least = 5 * floor * a.LEFT_EVERY_NS // 100
    assert least <= paused <= least + 5 * a.LEFT_LATE_NS
    assert len(begins) == 5


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


@given(st.lists(st.integers(1, 100), min_size=2, max_size=32).filter(lambda cores: sum(cores) <= 100))
def test_among_many_caps_with_small_shares_rounds_are_longer_for_all(cores: list[int]) -> None:
    for caps in (len(cores), min(7, len(cores))):
        policies = ["cap"] * caps + ["burst"] * (len(cores) - caps)
        tenants = [
            a.Terms(
                percent,
                policies[n],
                others_least_percent=min(cores[:n] + cores[n + 1 :]),
                others_capped=caps - (policies[n] == "cap"),
            )
            for n, percent in enumerate(cores)
        ]
        each = {tenant.timeslice_us() / tenant.cores_percent for tenant in tenants}
        assert each == {max(450, min(600, 6000 // min(cores))) if caps > 7 else 450}, "in proportion to cores"
        assert {tenant.has_long_rounds() for tenant in tenants} == {caps > 7 and min(cores) <= 13}


@given(st.integers(1, 100), st.integers(2, 64))
def test_many_without_a_share_take_no_more_turns_than_one(cores: int, parts: int) -> None:
    beside, alone = (a.Terms(cores, "none", others_least_percent=percent) for percent in (50, 0))
    assert beside.timeslice_us(parts) == max(2048 // parts, 200)
    assert beside.timeslice_us() == alone.timeslice_us(parts) == 0, "the driver's own"


@given(st.integers(1, 100), st.integers(1, 100), st.integers(0, 3), st.integers(1, 64))
def test_a_servers_timeslice_follows_from_its_cores_beside_others(
    cores: int, least: int, latency: int, processes: int
) -> None:
    """However many clients set it, and though its jobs have no share of time."""
    server = a.Terms(cores, "none", of_server=True, others_least_percent=least, latency_others=latency, slice_us=700)
    other = a.Terms(cores, "burst", others_least_percent=least, latency_others=latency)
    assert server.timeslice_us(processes) == other.timeslice_us()
    assert server.others_timeslice_us() == other.others_timeslice_us()
    assert a.Terms(cores, "none", of_server=True).timeslice_us() == 2048, "alone"


@given(st.integers(1, 100), st.integers(1, 64))
def test_the_processes_of_a_tenant_divide_its_timeslice_unless_it_would_be_too_short(
    cores: int, processes: int
) -> None:
    beside, alone = (a.Terms(cores, others_least_percent=others) for others in (50, 0))
    whole, each = beside.timeslice_us(), beside.timeslice_us(processes)
    assert each == max(200, (whole + 230) // processes - 230), "each has a change of its own"
    if processes > 1:
        assert alone.timeslice_us(processes) == max(2048, whole // processes), "the driver's, where nobody else waits"
    assert beside.timeslice_us(0) == whole == alone.timeslice_us()


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


MS = 1_000_000
TIMES = st.integers(0, 10 * MS)


@given(st.booleans(), TIMES, TIMES, TIMES)
def test_no_change_waits_long_and_only_beside_somebody_latency_critical(
    opens: bool, late: int, stay: int, usual: int
) -> None:
    beside = a.Terms(40, latency_others=1)
    waits = beside.waits(opens, late, stay, usual)
    assert not (waits and (late >= 5 * MS or stay == 0)), "whoever is on the engine, and for how long"
    assert not replace(beside, latency=True).waits(opens, late, stay, usual)
    assert not replace(beside, latency_others=0).waits(opens, late, stay, usual)
    assert not waits or beside.waits(opens, late // 2, stay // 2 or 1, usual)


@pytest.mark.parametrize(
    ("what", "opens", "late", "stay", "usual", "waits"),
    [
        ("a pause amid a request", False, 0, 0.2, 0, True),
        ("a pause amid what lasts too long for a request", False, 0, 4, 0, False),
        ("a pause of the one who is on the engine", False, 0, 0, 2, False),
        ("an opening before the other has left", True, 0.5, 12, 2, True),
        ("an opening when the other has left", True, 0.5, 0, 2, False),
        ("an opening beside one who does not leave", True, 1, 12, 2, False),
        ("an opening amid a request of the usual length", True, 1.5, 1.5, 2, True),
        ("an opening beside a tenant that is done, and whom nobody takes the engine from", True, 1.5, 1.5, 0.3, False),
    ],
)
def test_changes_wait_for_requests(what: str, opens: bool, late: float, stay: float, usual: float, waits: bool) -> None:
    terms = a.Terms(20, latency_others=1)
    assert terms.waits(opens, int(late * MS), int(stay * MS), int(usual * MS)) == waits, what


COUNTS = st.integers(2, 40)


@given(COUNTS, st.integers(0, 999), st.integers(1, 999), st.integers(0, 2**61))
@example(2, 0, 0, 0)
@example(3, 999, 1, 0)
@settings(deadline=None)
def test_processes_of_a_tenant_divide_its_turn(count: int, begin: int, length: int, now: int) -> None:
    """At each time at most one is open, in the tenant's turn alone; each has the same, of nearly all of it. Where more
    are than can have a part within 16 rounds some have theirs together."""
    terms = a.Terms(50, latency_others=1, turn_begin=begin, turn_length=length)
    turn_ns = a.ROUND_NS * length // 1000 if 0 < length < 1000 else a.ROUND_NS
    parts = min(count, max(1, turn_ns // (4 * MS)))
    apart = min(count, 16 * parts)
    had = [0] * count
    at, end = now, now + count * a.ROUND_NS
    while at < end:
        seen = [terms.part(rank, count, at) for rank in range(count)]
        until = min(end, seen[0][1])
        assert {one[1] for one in seen} == {seen[0][1]}
        assert at < seen[0][1] <= at + a.ROUND_NS
        assert sum(one[0] for one in seen[:apart]) <= 1
        assert all(one[0] == seen[rank % apart][0] for rank, one in enumerate(seen))
        for rank, (is_open, _) in enumerate(seen):
            had[rank] += (until - at) * is_open
            assert not is_open or terms.turn(at)[0]
        at = until
    assert max(had) - min(had) <= turn_ns, "but for where it began to count"
    assert abs(sum(had[:apart]) - count * turn_ns) <= turn_ns + count * parts
    assert count * turn_ns // count - max(had) <= turn_ns


@given(st.integers(2, 2048), st.integers(0, 2047), st.integers(0, 999), st.integers(0, 999), st.integers(0, 2**61))
def test_nobody_waits_for_a_part_as_long_as_it_counts_as_busy(
    count: int, rank: int, begin: int, length: int, now: int
) -> None:
    """Which is a second: after that a process has no part, and would be open in those of others."""
    terms = a.Terms(50, latency_others=1, turn_begin=begin, turn_length=length)
    at, is_open = now, False
    while not is_open:
        assert at < now + 1000 * MS
        is_open, until = terms.part(rank % count, count, at)
        at = until if not is_open else at


@given(st.integers(0, 1), st.integers(0, 2**62), st.booleans())
def test_a_process_that_is_alone_or_beside_nobody_latency_critical_has_all_of_the_turn(
    count: int, now: int, latency: bool
) -> None:
    assert a.Terms(50, latency_others=1).part(0, count, now) == (True, 2**63 - 1)
    assert a.Terms(50, others_least_percent=50).part(0, 5, now) == (True, 2**63 - 1), "all have long timeslices"
    assert a.Terms(50, latency=latency, latency_others=1).part(1, 5, now)[0] or not latency


@given(st.integers(2, 24), st.integers(0, 999), st.integers(0, 1200), st.integers(0, 2**61), st.integers(0, 6))
@example(16, 0, 0, 0, 0)
@example(3, 999, 1, 0, 2)
@settings(deadline=None)
def test_contexts_of_a_process_divide_its_time(contexts: int, begin: int, length: int, now: int, others: int) -> None:
    """One at a time is open, and each has the same of the process's time."""
    terms = a.Terms(50, latency_others=1, turn_begin=begin, turn_length=length)
    process = (0, others + 1)
    had = [0] * contexts
    at, end = now, now + 2 * contexts * (others + 1) * a.ROUND_NS
    longest = 0
    while at < end:
        is_open, opened_until = terms.part(*process, at)
        in_turn, turn_until = terms.turn(at)
        context, until = terms.context(process, contexts, at)
        assert 0 <= context < contexts
        assert at < until
        until = min(until, opened_until, turn_until, end)
        if is_open and in_turn:
            had[context] += until - at
            longest = max(longest, until - at)
        at = until
    assert max(had) - min(had) <= 2 * longest + contexts, "but for where it began to count"
    assert min(had) > 0


@given(st.integers(0, 2**61), st.integers(0, 5))
def test_the_only_context_is_open_always(now: int, processes: int) -> None:
    terms = a.Terms(50, latency_others=1)
    assert terms.context((0, processes), 1, now) == terms.context((0, processes), 0, now) == (0, a.FOREVER)


@given(st.lists(st.booleans(), max_size=60), st.integers(0, 1000))
def test_what_has_work_counts_as_busy_at_once_and_without_work_no_longer_soon(seen: list[bool], before: int) -> None:
    for works in seen:
        after = parting.worked(before, works)
        assert 0 <= after <= 1000
        assert after >= parting.PART_BUSY if works else after <= before
        before = after
    for _ in range(6):
        before = parting.worked(before, False)
    assert before < parting.PART_BUSY
