# SPDX-License-Identifier: Apache-2.0
"""Whether a latency-critical tenant wants more than it asked for (native/interposer/arbitration/greed.h)."""

from __future__ import annotations

from fitting import Greed
from hypothesis import given, settings
from hypothesis import strategies as st

few = settings(max_examples=60, deadline=None)
I64, U32 = st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**32 - 1)
MS, SECOND = 1_000_000, 1_000_000_000


def lasting(greed: Greed, used: float, cores_percent: int, seconds: float, step_ns: int = 50 * MS) -> float:
    """Returns for how long a tenant that uses so much of the time was beyond its share, seconds."""
    was = 0
    for _ in range(int(seconds * SECOND / step_ns)):
        greed.step(step_ns, int(step_ns * used), cores_percent)
        was += greed.over
    return was * step_ns / SECOND


@given(st.integers(1, 100), st.floats(0, 1), st.integers(5, 200))
@few
def test_a_latency_critical_tenant_is_beyond_its_share_by_what_it_used_lately(
    cores_percent: int, used: float, step_ms: int
) -> None:
    greed, of_share = Greed(), 100 * used / cores_percent
    beyond = lasting(greed, used, cores_percent, 3, step_ms * MS)
    assert beyond == 0 if of_share < 1.09 else beyond > 0 if of_share > 1.2 else True
    assert lasting(greed, 0.98 * cores_percent / 100, cores_percent, 6, step_ms * MS) < 3
    assert not greed.over


def test_who_wants_everything_is_beyond_its_share_soon_and_after_a_rest_no_longer() -> None:
    greed = Greed()
    assert lasting(greed, 1, 40, 0.5) >= 0.3
    greed.step(10 * SECOND, 50 * MS, 40)
    assert not greed.over
    greed.step(10 * SECOND, 9 * SECOND, 40)  # other processes of its job worked while it rested
    assert greed.over


def test_who_has_work_nearly_always_yields_whatever_it_uses() -> None:
    greed = Greed()
    for _ in range(20):
        greed.step(50 * MS, 10 * MS, 40, samples=25, outstanding=24)
    assert greed.yields
    assert not greed.over
    greed.step(50 * MS, 50 * MS, 40, samples=25, outstanding=25, others_ns=0)
    assert not greed.yields, "nobody else was there"
    assert greed.greedy
    greed.step(50 * MS, 10 * MS, 40, samples=25, outstanding=25)
    assert greed.yields
    greed.step(SECOND, 10 * MS, 40, samples=500, outstanding=24)  # it rested
    assert not greed.yields


@given(st.lists(st.tuples(I64, I64, U32, U32, U32), max_size=20))
@few
def test_a_latency_critical_tenant_takes_any_numbers(steps: list[tuple[int, int, int, int, int]]) -> None:
    greed = Greed()
    for elapsed_ns, used_ns, cores_percent, samples, outstanding in steps:
        greed.step(elapsed_ns, used_ns, cores_percent, samples=samples, outstanding=outstanding)
        used, wants = greed.means
        assert 0 <= used <= SECOND
        assert 0 <= wants <= SECOND


def says_more(greed: Greed, used: float, cores_percent: int, outstanding: float, seconds: float = 2) -> bool:
    """Returns whether a job of these cores that uses so much of the time says after some seconds that it wants more."""
    for _ in range(int(seconds / 0.05)):
        greed.step(50 * MS, int(50 * MS * used), 20, cores_percent, 100, int(100 * outstanding))
    return greed.more


def test_a_job_wants_more_that_uses_a_quarter_more_than_its_cores_or_always_has_work() -> None:
    assert not says_more(Greed(), used=0.48, cores_percent=40, outstanding=0.6), (
        "its own share, of a step, does not count"
    )
    assert says_more(Greed(), used=0.53, cores_percent=40, outstanding=0.6)
    assert says_more(Greed(), used=0.1, cores_percent=40, outstanding=0.9)
    assert not says_more(Greed(), used=1, cores_percent=100, outstanding=0.8), "nobody can use more than all"


def test_a_job_wants_more_until_it_is_within_its_cores() -> None:
    greed = Greed()
    assert says_more(greed, used=0.6, cores_percent=40, outstanding=0.6)
    assert says_more(greed, used=0.42, cores_percent=40, outstanding=0.6)
    assert not says_more(greed, used=0.39, cores_percent=40, outstanding=0.6)
