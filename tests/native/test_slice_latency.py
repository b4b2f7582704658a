# SPDX-License-Identifier: Apache-2.0
"""Timeslices and pauses of several latency-critical tenants in the simulation of
benchmarks/gpu_time.py."""

from __future__ import annotations

import sys

import arbitration as a
import numpy as np
import pytest
from conformance import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(ROOT / "benchmarks"))
from gpu_time import MS, US, Gpu, Load, Tenant
from gpu_time import S as SECOND

few = settings(max_examples=60, deadline=None)
BUSY = Load(saturating=True)


def test_an_equal_tenant_beyond_its_share_is_interrupted_by_one_within_its_own() -> None:
    terms = a.Terms(30, latency=True, floor_percent=5, latency_others=1, others_least_percent=30)
    requests = [(at, 100 * US) for at in range(SECOND, 3 * SECOND, 3_997 * US)]
    within = Tenant(terms, Load(requests=requests, full=False))
    beyond = Tenant(terms, BUSY)
    Gpu((within, beyond)).run(3 * SECOND)
    assert np.percentile(within.waits_ns, 99) <= 2100 * US
    assert beyond.worked_ns >= 0.75 * 3 * SECOND
    assert (within.slice_ns, beyond.slice_ns) == (20 * MS, 1500 * US)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8), st.integers(0, 99))
@few
def test_shares_are_the_cores_unless_all_together_could_leave_less_than_the_floor(cores: list[int], floor: int) -> None:
    all_cores = sum(cores)
    shares = [a.Terms(own, latency=True, floor_percent=floor, latency_cores=all_cores).latency_share() for own in cores]
    assert all(1 <= share <= own for share, own in zip(shares, cores, strict=True))
    most = max(1, 97 - floor)  # the rest are the floor and changes
    if 110 * all_cores <= 100 * most:
        assert shares == cores
    else:
        assert 110 * sum(share for share in shares if share > 1) <= 100 * most
    assert a.Terms(cores[0], latency=True, floor_percent=floor).latency_share() == cores[0], "there are not several"


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
@few
def test_a_share_is_survived_whatever_was_written(cores: int, floor: int, all_cores: int) -> None:
    share = a.Terms(cores, latency=True, floor_percent=floor, latency_cores=all_cores).latency_share()
    assert share <= 100


def test_services_that_take_turns_in_being_at_work_leave_the_floor() -> None:
    """Each uses what it asked for, and what is left when they alternate is less than the floor."""
    every, us = 20 * MS, 9600 * US
    got = {}
    for latency_cores in (0, 96):
        terms = a.Terms(
            48, latency=True, floor_percent=5, latency_others=1, turn_length=950, latency_cores=latency_cores
        )
        urgent = [
            Tenant(terms, Load(requests=[(at, us) for at in range(begin, 6 * SECOND, every)], full=False))
            for begin in (0, every // 2)
        ]
        other = Tenant(a.Terms(4, latency_others=2), BUSY)
        Gpu((*urgent, other)).run(6 * SECOND)
        got[latency_cores] = 100 * other.worked_ns / (6 * SECOND)
    assert got[0] < 3
    assert got[96] >= 4


@pytest.mark.parametrize("gaps", [(0, 0), (300 * US, 8 * US), (20 * US, 5 * US)], ids=["none", "some", "many"])
@pytest.mark.parametrize("count", [2, 4])
def test_several_that_leave_no_time_leave_the_floor_together(count: int, gaps: tuple[int, int]) -> None:
    """And the floor is that of two others, who have a turn each."""
    terms = a.Terms(80 // count, latency=True, floor_percent=5, latency_others=count - 1, turn_length=950)
    load = Load(think=gaps) if gaps[0] else BUSY
    urgent = [Tenant(terms, load) for _ in range(count)]
    others = [Tenant(a.Terms(10, latency_others=count, turn_begin=at, turn_length=500), BUSY) for at in (0, 500)]
    Gpu((*urgent, *others)).run(5 * SECOND)
    got = [100 * tenant.worked_ns / (5 * SECOND) for tenant in others]
    assert sum(got) >= 4
    assert min(got) >= 0.35 * sum(got)
