# SPDX-License-Identifier: Apache-2.0
"""Hints in Python outside of a job: nothing happens, and mistakes are told all the same. In one: test_latency.py."""

from __future__ import annotations

import math

import pytest

from hami_hpc import hints


def test_outside_of_a_job_a_request_is_nothing_and_errors_pass() -> None:
    assert not hints.is_active()
    with hints.request(deadline_ms=10), hints.request():
        pass
    with pytest.raises(KeyError), hints.request():
        raise KeyError


@pytest.mark.parametrize("deadline_ms", [0, -1, math.nan, math.inf])
def test_a_deadline_that_is_none_is_refused(deadline_ms: float) -> None:
    with pytest.raises(ValueError, match="allowed is a number above 0"), hints.request(deadline_ms):
        pass


def test_deadlines_reach_the_library_in_whole_microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int | str] = []

    def begin(deadline_us: int) -> int:
        calls.append(deadline_us)
        return -16 if calls.count("end") else 0  # later: one is under way

    def end() -> int:
        calls.append("end")
        return 0

    monkeypatch.setattr(hints, "_HINTS", (begin, end))
    with hints.request(deadline_ms=1.5):
        pass
    with hints.request(deadline_ms=1e-9):
        pass
    assert calls == [1500, "end", 1], "the one that did not begin is not ended"
    with hints.request(deadline_ms=1e300), hints.request():
        pass
    assert calls[3:] == [2**64 - 1, 0]
