# SPDX-License-Identifier: Apache-2.0
"""How the processes of a job divide its time beside other jobs, none of which is latency-critical: the rules."""

from __future__ import annotations

from dataclasses import replace

import arbitration as a
import parting
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

CORES = st.integers(1, 99)
CHANGE_US = 230
LEAST_US = 200  # a timeslice that is worth its change
ROUNDS = 16  # in which each process is open once
U32 = st.integers(0, 2**32 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)


def beside(cores: int) -> a.Terms:
    return a.Terms(cores, others_least_percent=100 - cores)


def at_once(terms: a.Terms, count: int) -> int:
    """How many of so many processes are open in a round."""
    return min(count, max(terms.at_once(), -(-count // ROUNDS)))


def rounds_each(cores: int, terms: a.Terms, count: int) -> int:
    """For how many rounds the same ones are open."""
    return max(1, min(cores // 2, ROUNDS * terms.at_once() // count, ROUNDS))


@given(CORES, st.integers(1, 2048))
def test_a_job_takes_no_more_of_a_round_than_one_of_one_process(cores: int, processes: int) -> None:
    """With all changes between its processes. More than can have a part within 16 rounds are some at once."""
    terms = beside(cores)
    open_at_once = terms.sharers((0, processes), a.FULL * processes) / a.FULL
    assert open_at_once == at_once(terms, processes)
    each = terms.timeslice_us(int(open_at_once * a.FULL))
    assert each >= LEAST_US
    if processes <= ROUNDS * terms.at_once():
        assert open_at_once * (each + CHANGE_US) <= terms.timeslice_us() + CHANGE_US


@given(CORES, st.integers(2, 512), st.integers(0, 2**61))
@settings(deadline=None)
def test_processes_of_which_not_all_can_be_open_are_so_in_turns(cores: int, count: int, now: int) -> None:
    """Each as often as any other, and again before it no longer counts as busy."""
    terms = beside(cores)
    each, most = rounds_each(cores, terms, count) * a.ROUND_NS, at_once(terms, count)
    pieces = -(-ROUNDS * a.ROUND_NS // each) + 1
    seen = [[terms.part(rank, count, now + i * each) for rank in range(count)] for i in range(pieces)]
    for those in seen:
        assert sum(is_open for is_open, _ in those) == most
    if count == most:
        assert {until for _, until in seen[0]} == {a.FOREVER}
        return
    assert {until for _, until in seen[0]} == {now - now % each + each}
    for rank in range(count):
        begun = next(i for i in range(pieces) if seen[i][rank][0])
        assert begun * each <= ROUNDS * a.ROUND_NS, "in each second"


@given(CORES, st.integers(2, 20), st.integers(0, 2**40))
@settings(deadline=None)
def test_in_a_cycle_each_process_has_the_same(cores: int, count: int, cycle: int) -> None:
    terms = beside(cores)
    each = rounds_each(cores, terms, count) * a.ROUND_NS
    begin = (cycle % 10**6 * count - 1) * each
    had = [sum(terms.part(rank, count, begin + i * each)[0] for i in range(count)) for rank in range(count)]
    assert len(set(had)) == 1


@given(CORES, U32, U32, st.integers(0, 2**61))
@example(1, 2**31 + 1, 2**31 - 1, 0)  # their sum is more than 32 bits have
@settings(deadline=None)
def test_of_any_number_each_is_open_in_its_turn(cores: int, count: int, rank: int, now: int) -> None:
    terms, count = beside(cores), max(count, 1)
    seen = [terms.part(rank % count, count, now + i * a.ROUND_NS)[0] for i in range(3 * ROUNDS)]
    assert any(seen)
    assert all(seen) or count > terms.at_once()
    assert sum(seen) <= 4 or count <= ROUNDS * terms.at_once()


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


@given(CORES, st.integers(1, 40), st.integers(0, 39), st.integers(1, 64), st.integers(0, 2**61))
@settings(deadline=None)
def test_contexts_too_many_for_a_timeslice_are_open_one_at_a_time(
    cores: int, processes: int, rank: int, contexts: int, now: int
) -> None:
    """One in each round in which the process is open."""
    terms, process = beside(cores), (rank % processes, processes)
    one = terms.one_context(process, contexts)
    assert one == (
        contexts > 1 and at_once(terms, processes) * contexts > max(terms.at_once(), -(-processes // ROUNDS))
    )
    seen = [
        terms.context(process, contexts, now + i * a.ROUND_NS)
        for i in range(2 * ROUNDS * contexts)
        if terms.part(*process, now + i * a.ROUND_NS)[0]
    ]
    if contexts == 1:
        assert set(seen) == {(0, a.FOREVER)}
        return
    had = [[context for context, _ in seen].count(context) for context in range(contexts)]
    assert max(had) - min(had) <= 1
    assert all(until % a.ROUND_NS == 0 for _, until in seen)


@given(U32, I64, I64)
def test_what_a_process_uses_of_its_timeslices(before: int, stay: int, timeslice: int) -> None:
    now = parting.filled(before, stay, timeslice)
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
def test_a_process_counts_for_what_it_says_and_nearly_all_is_all(said: int) -> None:
    assert parting.counts(said) == (said if said < 750 else a.FULL)


@given(U32, U32)
def test_what_differs_little_changes_no_timeslice(before: int, now: int) -> None:
    settled, was, sharers = parting.settled(before, now), max(before, a.FULL), max(now, a.FULL)
    assert settled == (sharers if abs(sharers - was) > was // 16 else was)
    assert parting.settled(settled, now) == settled


@pytest.mark.parametrize(("stays_us", "least", "most"), [([13], 0, 1), ([11_250], 1000, 1000), ([100, 5000], 400, 445)])
def test_light_processes_take_little_of_a_timeslice(stays_us: list[int], least: int, most: int) -> None:
    said = a.FULL
    for i in range(200):
        said = parting.filled(said, 1000 * stays_us[i % len(stays_us)], 11_250_000)
    assert least <= said <= most
