# SPDX-License-Identifier: Apache-2.0
"""Timeslices and pauses of several latency-critical tenants (hami_slice_step_latency of
native/interposer/arbitration/slice.h): by any inputs, and in the simulation of benchmarks/gpu_time.py."""

from __future__ import annotations

import sys

import arbitration as a
import numpy as np
import pytest
from conformance import ROOT
from fitting import Slice
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(ROOT / "benchmarks"))
from gpu_time import MS, US, Gpu, Load, Tenant
from gpu_time import S as SECOND

few = settings(max_examples=60, deadline=None)
I64, U32 = st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**32 - 1)
BUSY = Load(saturating=True)


def lasting(slice: Slice, used: float, cores_percent: int, seconds: float, step_ns: int = 50 * MS) -> float:
    """Returns for how long a tenant that uses so much of the time was beyond its share, seconds."""
    was = 0
    for _ in range(int(seconds * SECOND / step_ns)):
        slice.step_latency(step_ns, int(step_ns * used), cores_percent)
        was += slice.beyond
    return was * step_ns / SECOND


@given(st.integers(1, 100), st.floats(0, 1), st.integers(5, 200))
@few
def test_a_latency_critical_tenant_is_beyond_its_share_by_what_it_used_lately(
    cores_percent: int, used: float, step_ms: int
) -> None:
    slice, of_share = Slice(), 100 * used / cores_percent
    beyond = lasting(slice, used, cores_percent, 3, step_ms * MS)
    assert beyond == 0 if of_share < 1.09 else beyond > 0 if of_share > 1.2 else True
    assert lasting(slice, 0.98 * cores_percent / 100, cores_percent, 6, step_ms * MS) < 3
    assert not slice.beyond


def test_who_wants_everything_is_beyond_its_share_soon_and_after_a_rest_no_longer() -> None:
    slice = Slice()
    assert lasting(slice, 1, 40, 0.5) >= 0.3
    slice.step_latency(10 * SECOND, 50 * MS, 40)
    assert not slice.beyond
    slice.step_latency(10 * SECOND, 9 * SECOND, 40)  # other processes of its job worked while it rested
    assert slice.beyond


def test_who_has_work_nearly_always_yields_whatever_it_uses() -> None:
    slice = Slice()
    for _ in range(20):
        slice.step_latency(50 * MS, 10 * MS, 40, samples=25, outstanding=24)
    assert slice.yields
    assert not slice.beyond
    slice.step_latency(50 * MS, 50 * MS, 40, samples=25, outstanding=25, others_ns=0)
    assert not slice.yields, "nobody else was there"
    assert slice.greedy
    slice.step_latency(50 * MS, 10 * MS, 40, samples=25, outstanding=25)
    assert slice.yields
    slice.step_latency(SECOND, 10 * MS, 40, samples=500, outstanding=24)  # it rested
    assert not slice.yields


@given(st.lists(st.tuples(I64, I64, U32), max_size=20))
@few
def test_a_latency_critical_tenant_takes_any_numbers(steps: list[tuple[int, int, int]]) -> None:
    slice = Slice()
    for elapsed_ns, used_ns, cores_percent in steps:
        slice.step_latency(elapsed_ns, used_ns, cores_percent)
        assert slice.timeslice_us(20_000) == 20_000


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
