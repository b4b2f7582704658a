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
LEAST_US = 200
U32 = st.integers(0, 2**32 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)


def beside(cores: int) -> a.Terms:
    return a.Terms(cores, others_least_percent=100 - cores)


def rounds_each(cores: int) -> int:
    """For how many rounds the same ones are open: what changes is a round of the job's own, each time."""
    return min(16, max(1, cores // 2))


def open_at_once(cores: int, count: int) -> int:
    """So many that each has a timeslice, and all have one within 16 rounds."""
    return max(beside(cores).at_once(), count * rounds_each(cores) // 16 + 1)


@given(CORES, st.integers(1, 512))
def test_a_job_takes_no_more_of_a_round_than_one_of_one_process(cores: int, processes: int) -> None:
    """With all changes between its processes, unless more are open than fit, so that each has its turn in a second."""
    terms = beside(cores)
    together = terms.sharers((0, processes), a.FULL * processes) / a.FULL
    each, whole = terms.timeslice_us(together), terms.timeslice_us() + CHANGE_US
    assert each >= LEAST_US
    if open_at_once(cores, processes) == terms.at_once():
        assert together * (each + CHANGE_US) <= max(whole, LEAST_US + CHANGE_US)


@given(CORES, st.integers(2, 512), st.integers(0, 2**61))
@settings(deadline=None)
def test_processes_of_which_not_all_can_be_open_are_so_in_turns(cores: int, count: int, now: int) -> None:
    """Each again before it no longer counts as busy, which is a second."""
    terms, most, length = beside(cores), open_at_once(cores, count), rounds_each(cores) * a.ROUND_NS
    seen = [
        [terms.part(rank, count, now + i * length) for rank in range(count)]
        for i in range(16 // (length // a.ROUND_NS) + 1)
    ]
    for at_once in seen:
        assert sum(is_open for is_open, _ in at_once) == min(count, most)
    if count <= most:
        assert {until for _, until in seen[0]} == {a.FOREVER}
        return
    assert {until for _, until in seen[0]} == {now - now % length + length}
    for rank in range(count):
        assert any(at_once[rank][0] for at_once in seen)


@given(CORES, st.integers(2, 20), st.integers(0, 2**40))
@settings(deadline=None)
def test_in_a_cycle_of_turns_each_process_has_the_same(cores: int, count: int, cycle: int) -> None:
    terms, length = beside(cores), rounds_each(cores) * a.ROUND_NS
    begin = cycle * count * length
    had = [sum(terms.part(rank, count, begin + i * length)[0] for i in range(count)) for rank in range(count)]
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
    terms, most = beside(cores), open_at_once(cores, processes)
    assert terms.one_context((0, processes), contexts) == (contexts > 1 and min(processes, most) * contexts > most)
    cycle = 3 * processes * contexts * rounds_each(cores)
    seen = [
        terms.context((0, processes), contexts, now + i * a.ROUND_NS)[0]
        for i in range(cycle)
        if terms.part(0, processes, now + i * a.ROUND_NS)[0]
    ]
    had = [seen.count(context) for context in range(contexts)]
    assert sum(had) == len(seen)
    assert max(had) - min(had) <= 2 * processes * rounds_each(cores), "each the same, but for where it begins and ends"


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
        assert now >= min(before, a.FULL) * 15 // 16, "slowly"
        assert now >= (stay * a.FULL // timeslice if timeslice <= 10**9 else 0)


@given(U32)
def test_a_process_counts_for_what_it_says_and_for_all_from_three_quarters_on(said: int) -> None:
    assert a.counts(said) == (said if said < 750 else a.FULL)


@given(U32, U32)
def test_what_differs_little_changes_no_timeslice(before: int, now: int) -> None:
    settled = a.settled(before, now)
    least, sharers = max(before, a.FULL), max(now, a.FULL)
    assert settled == (sharers if abs(sharers - least) > least // 16 else least)
    assert a.settled(settled, now) == settled


@pytest.mark.parametrize(("stays_us", "least", "most"), [([13], 0, 1), ([11_250], 1000, 1000), ([100, 5000], 400, 445)])
def test_light_processes_take_little_of_a_timeslice(stays_us: list[int], least: int, most: int) -> None:
    said = a.FULL
    for i in range(200):
        said = a.filled(said, 1000 * stays_us[i % len(stays_us)], 11_250_000)
    assert least <= said <= most
