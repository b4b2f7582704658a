# SPDX-License-Identifier: Apache-2.0
"""The rule that fits timeslices to tenants that have little to do (native/interposer/arbitration/slice.h).

Its properties by any inputs, and what it gives in mixtures, by the simulation of benchmarks/gpu_time.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import arbitration as a
import fitting
import numpy as np
import pytest
import using
from arbitration import FOREVER
from conformance import ROOT
from fitting import Seen, Slice
from hypothesis import example, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(ROOT / "benchmarks"))
from gpu_time import MS, US, Gpu, Load, Tenant, tenants_of
from gpu_time import S as SECOND

LEAST_US, ROUND = 500, a.ROUND_NS
LOOK_EVERY_NS, TRY_EVERY_NS, WARY_NS = 16 * SECOND, 2 * SECOND, 8 * SECOND
few = settings(max_examples=40, deadline=None)
I64_MOST = 2**63 - 1
I64, U32 = st.integers(-(2**63), I64_MOST), st.integers(0, 2**32 - 1)
ANYTHING = st.builds(
    Seen,
    now_ns=I64,
    elapsed_ns=I64 | st.integers(0, 2 * SECOND),
    used_ns=I64 | st.integers(0, ROUND),
    begun_ns=I64 | st.integers(0, ROUND),
    begun_used_ns=I64 | st.integers(0, ROUND),
    caps=U32 | st.integers(0, 6),
    held_back=st.booleans(),
    can_yield=st.booleans(),
    samples=U32,
    outstanding=U32,
    other_percent=U32 | st.integers(0, 100),
    worked=I64 | st.integers(0, ROUND),
    unused=I64 | st.integers(0, 10**5),
    tiny=U32,
    returns=U32,
    met=U32,
    pressed=U32,
    thrashed=U32,
)
# What may be seen of others in one step.
STAYS = st.fixed_dictionaries(
    {
        "unused": st.integers(0, 10**5),
        "tiny": st.integers(0, 100),
        "returns": st.integers(0, 100),
        "met": st.integers(0, 100),
        "pressed": st.integers(0, 100),
        "thrashed": st.integers(0, 100),
    }
)
NOTHING = {"unused": 0, "tiny": 0, "returns": 0, "met": 0, "pressed": 0, "thrashed": 0}
PRESSING = {"unused": 50_000, "tiny": 50, "returns": 50, "met": 50, "pressed": 50}


def go_on(tenant: Slice, begin: int, length: int, of_share: float = 1.02, **values: Any) -> int:
    """Steps through a time with the same to see in each step, for a tenant of 50 cores. Returns its end."""
    now, end = begin, begin + length
    while now < end:
        following = min(now + ROUND, tenant.next_ns(now), end)
        elapsed = following - now
        used = int(elapsed * 0.5 * of_share)
        seen: dict[str, Any] = {"samples": 10, "outstanding": 10, **values}
        tenant.step(Seen(following, elapsed, used, **seen), 50, 22_500)
        now = following
    return now


def modes_of(tenant: Slice) -> tuple[str, int]:
    return tenant.mode, tenant.level


@few
@given(st.lists(ANYTHING, max_size=30), st.integers(0, 2**32 - 1), U32)
def test_any_inputs_keep_timeslices_and_steps_within_bounds(seen: list[Seen], cores: int, longest: int) -> None:
    tenant = Slice()
    for one in seen:
        tenant.step(one, cores, longest)
        assert min(longest, LEAST_US) <= tenant.timeslice_us(longest) <= longest
        assert min(longest, LEAST_US) * US <= tenant.others_ns(longest) <= longest * US
        following = tenant.next_ns(one.now_ns)
        assert one.now_ns < following or one.now_ns == FOREVER
        if modes_of(tenant) == ("shares", 0):
            assert following == FOREVER
        elif one.now_ns < FOREVER - LOOK_EVERY_NS:
            assert following <= one.now_ns + LOOK_EVERY_NS
        assert one.caps <= 4 or modes_of(tenant) == ("shares", 0)


@few
@given(st.integers(1, 100), st.integers(1, 100))
def test_the_only_other_tenant_is_none_to_who_has_several_processes(own: int, other: int) -> None:
    tenant = tenants_of([(own, "burst", Load()), (other, "burst", Load())])[0]
    assert tenant.terms.other_percent() == other
    assert tenant.terms.other_percent(2) == 0, "they are others to one another"
    assert replace(tenant.terms, of_server=True).other_percent(2) == other, "but not as clients of one MPS server"


@few
@given(st.integers(1, 50), st.lists(st.integers(5, 100), min_size=2, max_size=10))
def test_of_several_others_none_is_the_only_one(own: int, others: list[int]) -> None:
    tenants = tenants_of([(cores, "burst", Load()) for cores in (own, *others)])
    assert tenants[0].terms.other_percent() == 0


def test_what_a_record_says_of_the_only_other_tenant_is_brought_within_bounds() -> None:
    for percent in (0, 100, 101, 2**32 - 1):
        assert a.Terms(50, only_other_percent=percent).other_percent() == min(100, percent)


@few
@given(I64, I64)
def test_what_a_stay_left_unused_is_a_part(stay: int, timeslice: int) -> None:
    assert 0 <= fitting.slice_unused(stay, timeslice) <= 1000
    assert fitting.slice_unused(timeslice + using.SAVE_NS, timeslice) == 0 or timeslice > 2**62
    assert fitting.slice_tiny_ns(timeslice) > 0
    assert 0 <= fitting.slice_worked(stay, timeslice) <= max(stay, 0)
    assert fitting.slice_worked(stay, timeslice) == 0 or stay <= max(timeslice, 0) * 5 // 4 + using.SAVE_NS


@few
@given(st.lists(STAYS, max_size=40), st.integers(0, 4))
@example([NOTHING] * 36 + [NOTHING | {"thrashed": 50}, NOTHING | {"thrashed": 80}], 0)
def test_a_tenant_that_misses_its_share_returns_to_long_timeslices(stays: list[dict[str, int]], caps: int) -> None:
    """Whatever others show: in 1.5 s, but for a try of 150 ms. Who was hindered waits for the next one."""
    tenant, now = Slice(), 100 * SECOND
    for one in stays:
        now = go_on(tenant, now, ROUND, caps=caps, **one)
    hindered = any(one["thrashed"] for one in stays)
    within = TRY_EVERY_NS + SECOND // 2 if hindered else 3 * SECOND // 2
    now = go_on(tenant, now, within, 0.3, caps=caps, **(PRESSING | {"pressed": 0}))
    assert modes_of(tenant) in (("shares", 0), ("tries", 0))


def test_who_yields_for_nothing_again_and_again_yields_to_nobody_for_longer_each_time() -> None:
    """A second, and up to eight."""
    tenant, now = Slice(), 100 * SECOND
    for wary in (1, 2, 4, 8, 8):
        begun = now
        while tenant.mode != "yields":
            now = go_on(tenant, now, ROUND, **PRESSING)
            assert now - begun < 14 * SECOND
        begun = now
        while tenant.mode == "yields":
            now = go_on(tenant, now, ROUND, 0.4, **PRESSING)
            assert now - begun <= 300 * MS
        assert modes_of(tenant) == ("shares", 0)
        end = now + wary * SECOND - ROUND
        while now < end:
            now = go_on(tenant, now, ROUND, **PRESSING)
            assert modes_of(tenant) == ("shares", 0)
        now = go_on(tenant, now, 4 * ROUND, **PRESSING)
        assert tenant.level > 0, wary


def test_who_has_yielded_well_for_eight_seconds_is_wary_for_a_second_again() -> None:
    tenant, now = Slice(), 100 * SECOND
    for _ in range(3):
        now = go_on(tenant, now, 20 * SECOND, **PRESSING)
        now = go_on(tenant, now, SECOND // 2, 0.2, **PRESSING)
        assert modes_of(tenant) == ("shares", 0)
        now = go_on(tenant, now, SECOND + 4 * ROUND, **PRESSING)
        assert tenant.level > 0


@few
@given(st.floats(0.5, 2))
def test_the_turn_of_who_yields_is_longer_as_long_as_it_lacks_something_of_its_share(of_share: float) -> None:
    """For a tenant of 50 cores; 49 of them are enough."""
    tenant = Slice()
    now = go_on(tenant, 100 * SECOND, 6 * SECOND, **PRESSING)
    assert (tenant.mode, tenant.longer_ns) == ("yields", 0)
    now = go_on(tenant, now, 4 * ROUND, 0.94, **PRESSING)
    was = tenant.longer_ns
    assert (tenant.mode, was) == ("yields", ROUND * 49 // 100 - ROUND * 47 // 100)
    go_on(tenant, now, ROUND, of_share, **PRESSING)
    if tenant.mode == "yields":
        assert (tenant.longer_ns > was) == (of_share < 0.979) or 0.979 < of_share < 0.981


@few
@given(st.lists(st.integers(0, 40), max_size=60), st.floats(0, 2))
def test_without_anybody_light_timeslices_are_never_short(unused: list[int], of_share: float) -> None:
    """Stays of others that fill their timeslices to within a tenth leave 10 thousandths each."""
    tenant, now = Slice(), 0
    for one in unused:
        now = go_on(tenant, now, ROUND, of_share, unused=one, returns=2)
        assert modes_of(tenant) == ("shares", 0)


@few
@given(st.integers(0, 40 * SECOND), st.sampled_from([0, 1, 2, 4]))
def test_when_the_reason_goes_it_shares_with_long_timeslices_again(begin: int, caps: int) -> None:
    tenant = Slice()
    now = go_on(tenant, begin, 20 * SECOND, caps=caps, **PRESSING)
    assert modes_of(tenant) != ("shares", 0)
    go_on(tenant, now, 2 * LOOK_EVERY_NS, caps=caps, returns=20)
    assert modes_of(tenant) == ("shares", 0)


@few
@given(st.lists(STAYS, min_size=20, max_size=60), st.integers(0, 40 * SECOND))
def test_who_cannot_be_paused_never_yields(stays: list[dict[str, int]], now: int) -> None:
    tenant = Slice()
    for one in stays:
        now = go_on(tenant, now, 3 * ROUND, can_yield=False, **one)
        assert tenant.mode in ("shares", "looks")


@few
@given(st.lists(ANYTHING, max_size=20))
def test_one_who_may_be_paused_tries_and_yields_at_the_same_times_as_others(before: list[Seen]) -> None:
    """Whatever was before, once it has begun anew."""
    tenants = [Slice(), Slice()]
    for one in before:
        tenants[0].step(one, 50, 22_500)
    for tenant in tenants:
        tenant.step(Seen(0, SECOND, caps=5), 50, 22_500)  # a fifth cap came and went
        go_on(tenant, 0, 6 * SECOND, **PRESSING)
    assert modes_of(tenants[0]) == modes_of(tenants[1])
    assert tenants[0].mode == "yields"


@few
@given(I64, st.integers(0, 2 * SECOND))
def test_timeslices_are_changed_at_instants_that_all_share(now: int, later: int) -> None:
    instant = fitting.instant_ns(now)
    assert instant - now <= ROUND or instant == I64_MOST
    assert instant % ROUND == 0 or instant == I64_MOST
    assert fitting.instant_ns(instant - 1) == instant or instant == I64_MOST
    after = min(now + later, I64_MOST)
    assert fitting.instant_came(instant, after) == (after >= instant)
    if now > -(2**62):
        assert fitting.instant_came(instant, now - 3600 * SECOND)  # set back


def test_a_clock_that_steps_back_ends_no_mode_for_ever() -> None:
    tenant = Slice()
    now = go_on(tenant, 100 * SECOND, 6 * SECOND, **PRESSING)
    assert tenant.mode == "yields"
    now = go_on(tenant, now - 3600 * SECOND, 4 * SECOND, **PRESSING)
    go_on(tenant, now - 3600 * SECOND, 2 * LOOK_EVERY_NS, returns=20)
    assert modes_of(tenant) == ("shares", 0)


def test_the_longest_timeslices_of_classes_become_the_shortest_and_long_again() -> None:
    tenant, now = Slice(), 2 * SECOND
    for _ in range(200):
        now += ROUND // 2
        tenant.step(Seen(now, ROUND // 2, ROUND // 2, unused=10_000), 50, 100_000)
    assert tenant.timeslice_us(100_000) == LEAST_US
    for _ in range(200):
        now += ROUND
        tenant.step(Seen(now, ROUND, ROUND * 48 // 100, unused=10_000), 50, 100_000)
    assert tenant.timeslice_us(100_000) > 50_000


# In the simulation.

BUSY = Load(saturating=True)
Spec = tuple[int, str, Load]


def simulated(*specs: Spec, seconds: float = 6, **of_last: int) -> tuple[list[float], list[Tenant]]:
    """Returns the shares of tenants (cores, policy, load), percent, and the tenants."""
    tenants = tenants_of(specs)
    for name, value in of_last.items():
        setattr(tenants[-1], name, value)
    end = int(seconds * SECOND)
    Gpu(tenants).run(end)
    return [100 * tenant.worked_ns / end for tenant in tenants], tenants


def gappy(work: int, wait: int) -> Load:
    return Load(think=(work, wait))


def of_alone(load: Load, share: float) -> float:
    return share / simulated((50, "burst", load), seconds=1)[0][0]


@pytest.mark.parametrize(
    ("specs", "least"),
    [
        ([(50, "cap"), (50, "burst")], 98),
        ([(50, "burst"), (50, "burst")], 98),
        ([(30, "cap"), (30, "cap"), (40, "burst")], 98),
        ([(25, "cap")] * 4, 97),
        ([(25, "burst")] * 4, 97),
        ([(10, "cap")] * 10, 93),
    ],
    ids=str,
)
def test_tenants_that_want_everything_stay_as_they_were(specs: list[tuple[int, str]], least: float) -> None:
    shares, tenants = simulated(*((cores, policy, BUSY) for cores, policy in specs))
    assert sum(shares) >= least
    for share, tenant in zip(shares, tenants, strict=True):
        assert share >= tenant.terms.cores_percent * 0.93
        assert modes_of(tenant.slice) == ("shares", 0)


@pytest.mark.parametrize(("work", "wait", "least"), [(1000, 1500, 0.75), (200, 100, 0.36), (10, 8, 0.32)])
@pytest.mark.parametrize("policy", ["burst", "cap"])
def test_a_program_with_gaps_gets_much_of_what_it_does_alone(policy: str, work: int, wait: int, least: float) -> None:
    load = gappy(work * US, wait * US)
    shares, _ = simulated((50, policy, BUSY), (50, "burst", load), seconds=12)
    assert of_alone(load, shares[1]) >= least
    assert shares[0] >= 46


@pytest.mark.parametrize("light", [(10 * US, 8 * US), (13 * US, 987 * US), (200 * US, 300 * US), (MS, 1500 * US)])
@pytest.mark.parametrize("first_ms", [300, 1300, 1700, 2300, 3700, 7900])
@pytest.mark.parametrize("small", [10, 40])
def test_a_program_that_has_little_to_do_while_it_starts_costs_two_seconds(
    small: int, first_ms: int, light: tuple[int, int]
) -> None:
    """Others shorten their timeslices then, which looks like little to do to the one that has started."""
    starts = Load(plan=lambda now: light if now < first_ms * MS else (5 * MS, 0))
    tenants = tenants_of([(50, "cap", starts), (small, "burst", BUSY)])
    gpu = Gpu(tenants)
    gpu.run((first_ms + 2200) * MS)
    before = [tenant.worked_ns for tenant in tenants]
    gpu.run((first_ms + 5200) * MS)
    shares = [100 * (tenant.worked_ns - was) / (3 * SECOND) for tenant, was in zip(tenants, before, strict=True)]
    assert sum(shares) >= 97, shares


def test_two_launch_bound_programs_do_not_hinder_each_other() -> None:
    load = gappy(10 * US, 8 * US)
    shares, _ = simulated((50, "burst", load), (50, "cap", load), seconds=10)
    assert min(of_alone(load, share) for share in shares) >= 0.3


@pytest.mark.parametrize("policy", ["burst", "cap"])
def test_a_light_tenant_waits_for_less_than_2_ms(policy: str) -> None:
    light = Load(requests=[(at, 13 * US) for at in range(MS, 8 * SECOND, MS)], full=False)
    shares, tenants = simulated((50, policy, BUSY), (50, "cap", light), seconds=8)
    settled = tenants[1].waits_ns[len(tenants[1].waits_ns) // 4 :]
    assert np.percentile(settled, 99) < 2 * MS
    assert shares[0] >= 48


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_of_one_job_are_no_light_tenants_to_each_other(processes: int) -> None:
    each = [Tenant(a.Terms(50, turn_length=500, others_least_percent=50), BUSY, job="several")] * processes
    tenants = [Tenant(t.terms, BUSY, job="several") for t in each]
    tenants.append(Tenant(a.Terms(50, turn_begin=500, turn_length=500, others_least_percent=50), BUSY))
    Gpu(tenants).run(6 * SECOND)
    assert all(modes_of(tenant.slice) == ("shares", 0) for tenant in tenants[:-1])
    assert sum(tenant.worked_ns for tenant in tenants) >= 0.97 * 6 * SECOND


# Attacks: by tenants that are light when others look and try, and work while these give way.

TINY, LIGHT = (10 * US, 8 * US), (13 * US, 987 * US)
WHEN: dict[str, Callable[[int], bool]] = {
    "around each try": lambda now: not 300 * MS <= now % (2 * SECOND) < 1600 * MS,
    "except at tries": lambda now: now % (2 * SECOND) >= 150 * MS,
    "around each look": lambda now: 0.8 * SECOND < now % (16 * SECOND) < 1.1 * SECOND,
    "2.2 of 4 s": lambda now: now % (4 * SECOND) < 2.2 * SECOND,
    "0.3 of 0.4 s": lambda now: now % (400 * MS) < 300 * MS,
    "2.2 of 9 s": lambda now: now % (9 * SECOND) < 2.2 * SECOND,
}


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("light", [TINY, LIGHT], ids=["tiny", "light"])
@pytest.mark.parametrize("policy", ["burst", "cap"])
def test_who_is_light_at_chosen_times_takes_nobodys_cores(policy: str, light: tuple[int, int], when: str) -> None:
    """It has no keeper: its own timeslices stay long, and it never yields."""
    load = Load(plan=lambda now: light if WHEN[when](now) else (5 * MS, 0))
    shares, _ = simulated((50, policy, BUSY), (50, "burst", load), seconds=10, keeper_stops_ns=0)
    assert shares[0] >= 47


def test_tiny_stays_of_several_take_nobodys_cores() -> None:
    tiny: Sequence[Spec] = [(3, "burst", gappy(*TINY))] * 3
    shares, tenants = simulated((90, "burst", BUSY), *tiny, seconds=8)
    assert shares[0] >= 87
    shares, _ = simulated((50, "burst", BUSY), (50, "burst", BUSY), seconds=8, keeper_stops_ns=0, slice_us=10)
    assert shares[0] >= 47
    assert tenants[0].slice.timeslice_us(40_500) >= LEAST_US
