# SPDX-License-Identifier: Apache-2.0
"""Where the windows of a GPU's tenants lie in the common period."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from hami_hpc.core.grant import Grant, free_phase


def grant(job_id: int, cores: int, phase: int = 0, gpu: str = "GPU-1") -> Grant:
    return Grant(job_id, 1000, gpu, 0, 143155, "h200", 1024, cores, "std", "cap", "share", 1, phase)


def windows(live: Iterable[Grant]) -> list[int]:
    """How many windows cover each percent of the period."""
    covered = [0] * 100
    for held in live:
        for i in range(held.cores_percent):
            covered[(held.phase_percent + i) % 100] += 1
    return covered


def test_shares_that_fill_the_gpu_take_turns_without_overlap() -> None:
    live: list[Grant] = []
    for job_id, cores in enumerate((25, 40, 10, 25)):
        new = grant(job_id, cores)
        live.append(new._replace(phase_percent=free_phase(new, live)))
    assert windows(live) == [1] * 100


def test_the_gap_of_an_ended_job_is_used_again() -> None:
    live = [grant(1, 30, 0), grant(2, 20, 50), grant(3, 30, 70)]
    assert free_phase(grant(4, 20), live) == 30


def test_other_gpus_and_whole_ones_do_not_matter() -> None:
    assert free_phase(grant(3, 50), [grant(1, 50, 0, gpu="GPU-2"), grant(2, 100)]) == 0


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(0, 99)), max_size=8), st.integers(1, 100))
def test_no_other_place_overlaps_less(held: list[tuple[int, int]], cores: int) -> None:
    live = [grant(i, c, phase) for i, (c, phase) in enumerate(held)]
    new = grant(99, cores)
    covered = windows(live)

    def overlap(start: int) -> int:
        return sum(covered[(start + i) % 100] for i in range(cores))

    assert overlap(free_phase(new, live)) == min(map(overlap, range(100)))
