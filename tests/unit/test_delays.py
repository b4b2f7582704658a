# SPDX-License-Identifier: Apache-2.0
"""The histogram of requests in a usage record: its rows, its quantiles, and whatever a user writes into it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_hpc.contract import constants as c
from hami_hpc.core.delays import BOUNDS_NS, INT64_MAX, NO_DELAYS, Delays, parse_delays, quantile_us
from hami_hpc.core.duration import requests
from hami_hpc.core.records import empty_usage_head

ROWS = st.lists(st.integers(0, 2**64 - 1), min_size=c.LATENCY_BUCKETS, max_size=c.LATENCY_BUCKETS)


def head(buckets: list[int], **counts: int) -> bytes:
    data = bytearray(empty_usage_head())
    offset = c.USAGE_FIELDS["latency_buckets"][0]
    data[offset : offset + 8 * len(buckets)] = b"".join(count.to_bytes(8, "little") for count in buckets)
    for name, value in counts.items():
        offset = c.USAGE_FIELDS[name][0]
        data[offset : offset + 8] = value.to_bytes(8, "little")
    return bytes(data)


def test_each_bound_is_the_root_of_two_times_the_one_before() -> None:
    assert len(BOUNDS_NS) == c.LATENCY_BUCKETS - 1 == 41
    assert c.USAGE_FIELDS["latency_buckets"][1] == 8 * c.LATENCY_BUCKETS
    assert (BOUNDS_NS[0], BOUNDS_NS[-1]) == (64_000, 67_108_864_000)
    for before, after in itertools.pairwise(BOUNDS_NS):
        assert after / before == pytest.approx(2**0.5, rel=1e-4)


def test_a_record_without_requests_and_pauses_has_no_delays() -> None:
    assert parse_delays(empty_usage_head()) is NO_DELAYS
    assert parse_delays(head([0] * 42, pause_count=3, paused_ns=7)) == Delays((), 0, 0, 3, 7, 0)


def test_every_count_is_read_from_its_place() -> None:
    data = head(list(range(42)), latency_sum_ns=1, slo_miss_count=2, pause_count=3, paused_ns=4, floor_hit_count=5)
    assert parse_delays(data) == Delays(tuple(range(42)), 1, 2, 3, 4, 5)


@given(buckets=ROWS, count=st.integers(0, 2**64 - 1))
def test_whatever_a_user_writes_is_bounded(buckets: list[int], count: int) -> None:
    found = parse_delays(head(buckets, latency_sum_ns=count, slo_miss_count=count, floor_hit_count=count))
    assert all(0 <= number <= INT64_MAX for number in (*found.buckets, *found[1:], found.request_count))
    assert 0 <= quantile_us(found.buckets, 50) <= quantile_us(found.buckets, 99) <= 67_108_864


@pytest.mark.parametrize(
    ("rows", "p50", "p99"),
    [
        ({}, 0, 0),
        ({0: 1}, 64, 64),
        ({1: 1}, 91, 91),
        ({0: 50, 2: 50}, 64, 128),
        ({0: 49, 2: 51}, 128, 128),
        ({0: 99, 4: 1}, 64, 64),
        ({0: 98, 4: 2}, 64, 256),
        ({41: 5}, 67_108_864, 67_108_864),
    ],
)
def test_a_quantile_is_the_bound_of_its_row(rows: dict[int, int], p50: int, p99: int) -> None:
    buckets = tuple(rows.get(row, 0) for row in range(42))
    assert (quantile_us(buckets, 50), quantile_us(buckets, 99)) == (p50, p99)


def test_requests_are_told_in_one_line() -> None:
    assert requests(1234, 2048, 0) == "1,234; 99 of 100 took at most 2.05 ms"
    assert requests(2, 1_024_000, 1) == "2; 99 of 100 took at most 1,024.00 ms; 1 took longer than they should"
