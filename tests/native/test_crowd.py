# SPDX-License-Identifier: Apache-2.0
"""How the processes of a job divide its time beside other jobs, none of which is latency-critical: the rules."""

from __future__ import annotations

from dataclasses import replace

import arbitration as a
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

CORES = st.integers(1, 99)
CHANGE_US = 230
LEAST_US = 500  # a timeslice that is worth its change
U32 = st.integers(0, 2**32 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)


def beside(cores: int) -> a.Terms:
    return a.Terms(cores, others_least_percent=100 - cores)


@given(CORES, st.integers(1, 512))
def test_a_job_takes_no_more_of_a_round_than_one_of_one_process(cores: int, processes: int) -> None:
    """With all changes between its processes. More than can have a part within 16 rounds are some at once."""
    terms = beside(cores)
    open_at_once = terms.sharers((0, processes), a.FULL * processes) / a.FULL
    each = terms.timeslice_us(open_at_once)
    whole = terms.timeslice_us() + CHANGE_US
    if processes <= 16 * terms.at_once():
        assert open_at_once * (each + CHANGE_US) <= max(whole, 200 + CHANGE_US)
    assert each >= min(LEAST_US, terms.timeslice_us()) or processes > 16 * terms.at_once()


@given(CORES, st.integers(2, 512), st.integers(0, 2**61))
@settings(deadline=None)
def test_processes_of_which_not_all_can_be_open_are_so_in_turns(cores: int, count: int, now: int) -> None:
    """Each as often as any other, and again before it no longer counts as busy."""
    terms = beside(cores)
    most = max(terms.at_once(), count // 16 + 1)
    rounds = 2 * count
    seen = [[terms.part(rank, count, now + i * a.ROUND_NS) for rank in range(count)] for i in range(min(rounds, 40))]
    for at_once in seen:
        assert sum(is_open for is_open, _ in at_once) == min(count, most)
    if count <= most:
        assert {until for _, until in seen[0]} == {a.FOREVER}
        return
    assert {until for _, until in seen[0]} == {now - now % a.ROUND_NS + a.ROUND_NS}
    for rank in range(count):
        assert any(seen[i][rank][0] for i in range(17)), "in each second"


@given(CORES, st.integers(2, 20), st.integers(0, 2**40))
@settings(deadline=None)
def test_in_a_cycle_of_rounds_each_process_has_the_same(cores: int, count: int, cycle: int) -> None:
    terms = beside(cores)
    begin = (cycle * count - 1) * a.ROUND_NS
    had = [sum(terms.part(rank, count, begin + i * a.ROUND_NS)[0] for i in range(count)) for rank in range(count)]
    assert len(set(had)) == 1


@given(CORES, U32, U32, st.integers(0, 2**61))
def test_who_is_none_of_those_that_divide_is_always_open(cores: int, rank: int, count: int, now: int) -> None:
    terms = beside(cores)
    assert terms.part(count + rank if count + rank < 2**32 else 2**32 - 1, min(count, rank), now) == (True, a.FOREVER)


@given(st.integers(2, 2048), st.integers(0, 2**61))
def test_where_nobody_else_is_or_timeslices_are_fixed_all_are_open(count: int, now: int) -> None:
    crowded = beside(1)
    assert not all(crowded.part(rank, count, now)[0] for rank in range(count))
    others: list[dict[str, int | str]] = [
        {"others_least_percent": 0},
        {"policy": "none"},
        {"slice_us": 1000},
        {"beside_slice_us": 1000},
        {"in_step": 1},
        {"of_server": 1},
        {"latency": 1},
    ]
    for fields in others:
        terms = replace(crowded, **fields)  # type: ignore[arg-type]
        assert terms.at_once() == a.ANY_NUMBER
        assert all(terms.part(rank, count, now)[0] for rank in range(count))
        assert terms.sharers((0, count), a.FULL * count) == a.FULL * count


@given(CORES, st.integers(1, 40), st.integers(1, 64), st.integers(0, 2**61))
def test_contexts_too_many_for_a_timeslice_are_open_one_at_a_time(
    cores: int, processes: int, contexts: int, now: int
) -> None:
    terms = beside(cores)
    at_once = min(processes, max(terms.at_once(), processes // 16 + 1))
    one = terms.one_context((0, processes), contexts)
    assert one == (contexts > 1 and at_once * contexts > max(terms.at_once(), processes // 16 + 1))
    seen = [
        terms.context((0, processes), contexts, now + i * a.ROUND_NS)[0]
        for i in range(3 * processes * contexts)
        if terms.part(0, processes, now + i * a.ROUND_NS)[0]
    ]
    had = [seen.count(context) for context in range(contexts)]
    assert sum(had) == len(seen)
    assert max(had) - min(had) <= 2 * at_once, "each the same, but for where it begins and ends"


@given(U32, I64, I64)
def test_what_a_process_uses_of_its_timeslices(before: int, stay: int, timeslice: int) -> None:
    now = a.filled(before, stay, timeslice)
    if stay < 0 or timeslice <= 0:
        assert now == before
        return
    assert now <= a.FULL
    if stay >= timeslice:
        assert now == a.FULL, "at once"
    else:
        assert now >= min(before, a.FULL) * 7 // 8, "slowly"
        assert now >= (stay * a.FULL // timeslice if stay < 2**53 else 0)


@given(U32)
def test_a_process_counts_for_what_it_says_rounded_up(said: int) -> None:
    counts = a.counts(said)
    assert min(said, a.FULL) <= counts <= a.FULL
    assert counts <= 1.25 * said or counts == said, "in few steps"
    assert a.counts(counts) == counts


def test_the_steps_are_few() -> None:
    assert len({a.counts(said) for said in range(1001)}) < 40


@pytest.mark.parametrize(("stays_us", "least", "most"), [([13], 0, 1), ([11_250], 1000, 1000), ([100, 5000], 400, 445)])
def test_light_processes_take_little_of_a_timeslice(stays_us: list[int], least: int, most: int) -> None:
    said = a.FULL
    for i in range(200):
        said = a.filled(said, 1000 * stays_us[i % len(stays_us)], 11_250_000)
    assert least <= said <= most
