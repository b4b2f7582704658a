# SPDX-License-Identifier: Apache-2.0
"""What a tenant used is counted over whole rounds (native/interposer/arbitration/rounds.h, docs/adr/121)."""

from __future__ import annotations

from typing import Any

from fitting import Seen, Slice
from hypothesis import given
from hypothesis import strategies as st
from test_slice import PRESSING, few, go_on

MS, SECOND = 1_000_000, 1_000_000_000


@few
@given(st.integers(5, 60), st.integers(0, 60), st.integers(1, 50))
def test_the_part_of_a_round_that_a_step_sees_changes_no_timeslice(length: int, begun: int, step: int) -> None:
    """Of rounds of any length a tenant of 50 cores has 49.8 %, enough and not too much, in the first part of each."""
    tenant = Slice()
    now = go_on(tenant, 100 * SECOND, SECOND, can_yield=False, **PRESSING)
    settled, end, length = now + SECOND, now + 7 * SECOND, length * MS

    def used(now: int) -> int:
        of_round = (now + begun * MS) % length
        return (now + begun * MS - of_round) * 498 // 1000 + min(of_round, length * 498 // 1000)

    level = 0
    while now < end:
        now, before = now + step * MS, now
        in_round = (now + begun * MS) % length
        seen: dict[str, Any] = {"begun_ns": in_round, "begun_used_ns": min(in_round, length * 498 // 1000), **PRESSING}
        tenant.step(Seen(now, now - before, used(now) - used(before), can_yield=False, **seen), 50, 22_500)
        level = tenant.level if now < settled else level
        assert tenant.level == level > 0
