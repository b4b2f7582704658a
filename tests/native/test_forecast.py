# SPDX-License-Identifier: Apache-2.0
"""Which requests are expected, and what expecting them costs others (native/interposer/arbitration/forecast.h)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, islice

import pytest
from forecasting import LOSS, NS_LEAST, NS_MOST, TAKE_NS, Forecast
from hypothesis import given
from hypothesis import strategies as st

US, MS = 1000, 1_000_000


def at_fixed_times(period: int, jitter: int, dice: random.Random) -> Iterator[int]:
    begin = 10**12
    while True:
        yield begin + int(dice.gauss(0, jitter))
        begin += period


def after_a_rest(period: int, jitter: int, dice: random.Random) -> Iterator[int]:
    begin = 10**12
    while True:
        yield begin
        begin += period + int(dice.gauss(0, jitter))


def at_random(period: int, _jitter: int, dice: random.Random) -> Iterator[int]:
    return (int(at) for at in accumulate((dice.expovariate(1 / period) for _ in range(10**6)), initial=1e12))


def follow(begins: Iterable[int]) -> tuple[float, float, float]:
    """Returns which part of the requests was expected, and which in time, and the part of the time that others lost."""
    forecast, expected, in_time, lost, count, first, last = Forecast(), 0, 0, 0, 0, 0, 0
    for begun in begins:
        span = forecast.next() if count else None
        if span:
            begin, end = span
            expected += 1
            in_time += begin <= begun - TAKE_NS and begun <= end
            lost += max(0, min(begun, end) - begin - TAKE_NS) if begun > begin else 0
        forecast.note(begun)
        first, last, count = first or begun, begun, count + 1
    return expected / count, in_time / count, lost / (last - first)


@pytest.mark.parametrize("program", [at_fixed_times, after_a_rest])
@pytest.mark.parametrize(
    ("period", "jitter"), [(4 * MS, 5 * US), (20 * MS, 30 * US), (1000 * MS, 2 * MS), (NS_LEAST + 100 * US, US)]
)
def test_requests_that_come_regularly_find_the_gpu_taken(
    program: Callable[[int, int, random.Random], Iterator[int]], period: int, jitter: int
) -> None:
    expected, in_time, lost = follow(islice(program(period, jitter, random.Random(3)), 2000))
    assert expected > 0.99
    assert in_time > 0.97
    assert lost < 1 / LOSS


def test_requests_at_random_are_not_expected() -> None:
    for seed in range(20):
        assert follow(islice(at_random(4 * MS, 0, random.Random(seed)), 2000)) == (0, 0, 0)


@pytest.mark.parametrize("jitter", [80 * US, 200 * US, 1000 * US])
def test_a_guess_that_is_off_too_far_costs_nobody_anything(jitter: int) -> None:
    expected, _, lost = follow(islice(at_fixed_times(4 * MS, jitter, random.Random(1)), 2000))
    assert expected < 0.05
    assert lost < 0.002


def test_pairs_of_requests_are_not_expected() -> None:
    begins = [10**12 + n * 20 * MS + late for n in range(500) for late in (0, MS)]
    assert follow(begins)[0] == 0


def test_a_request_that_is_late_once_spoils_no_more_than_a_few() -> None:
    begins = [10**12 + n * 4 * MS + 200 * US * (n % 100 == 50) for n in range(2000)]
    expected, in_time, _ = follow(begins)
    assert in_time > 0.94
    assert expected > 0.95


def test_a_request_left_out_is_no_end_of_the_rhythm() -> None:
    begins = [10**12 + n * 4 * MS for n in range(2000) if n % 40]
    expected, in_time, _ = follow(begins)
    assert expected > 0.85
    assert in_time > 0.82  # one in 39 comes a period later than expected, and four after it are not expected
    assert follow(begin for n, begin in enumerate(begins) if n % 3)[0] == 0


@pytest.mark.parametrize("parts", [2, 3, 4, 5, 7])
def test_a_first_rest_that_is_a_part_of_the_others_is_no_period(parts: int) -> None:
    """As when a program serves once to begin with: requests that are always a few such rests apart are on time."""
    begins = [10**12, 10**12 + 4 * MS // parts, *(10**12 + 4 * MS // parts + n * 4 * MS for n in range(1, 500))]
    expected, in_time, _ = follow(begins)
    assert expected > 0.97
    assert in_time > 0.97


def test_a_new_rhythm_is_learnt() -> None:
    slow = [10**12 + n * 50 * MS for n in range(100)]
    fast = [slow[-1] + n * 4 * MS for n in range(1, 100)]
    assert follow(slow + fast)[1] > 0.8
    assert follow(fast + [fast[-1] + n * 50 * MS for n in range(1, 100)])[1] > 0.8


def test_a_rest_of_the_program_begins_anew() -> None:
    forecast = Forecast()
    for n in range(100):
        forecast.note(10**12 + n * 4 * MS)
    assert forecast.next()
    forecast.note(10**12 + 100 * 4 * MS + NS_MOST + 1)
    assert forecast.next() is None


@given(st.lists(st.integers(1, 3 * NS_MOST), max_size=200), st.integers(0, 2**62))
def test_whatever_comes_the_next_is_later_and_bounded(gaps: list[int], start: int) -> None:
    forecast, at = Forecast(), start + 1
    for gap in gaps:
        forecast.note(at)
        span = forecast.next()
        if span:
            begin, end = span
            assert at < end
            assert at - TAKE_NS - NS_MOST < begin < end
            assert end - begin <= TAKE_NS + NS_MOST // 2
        at = min(at + gap, 2**63 - 10 * NS_MOST)
    forecast.note(at)
    forecast.note(at)  # a clock that stands
    forecast.note(1)  # and one that goes back
    forecast.next()
