# SPDX-License-Identifier: Apache-2.0
"""How many chunks of multiprocessors a job gets, and what is read of the table of `lspart`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_hpc.core.mps_chunks import Listing, chunks_of, parse

UUID = "GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65"
FIRST, SECOND = "Dx4AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "D/79e/DgwYMDAAAAAAAAAAAAAAAAAAAAAAAA"


@pytest.mark.parametrize(
    ("cores", "total", "others", "wanted"),
    [
        (100, 15, [], 15),
        (50, 15, [], 8),
        (50, 15, [(50, 8)], 7),
        (20, 15, [], 3),
        (25, 15, [], 4),
        (25, 15, [(25, 4)], 4),
        (25, 15, [(25, 4), (25, 4)], 4),
        (25, 15, [(25, 4), (25, 4), (25, 4)], 3),
        (1, 15, [], 1),
        (1, 15, [(1, 1)], 1),
        (7, 15, [(7, 2)], 1),
        (33, 22, [], 8),
        (33, 22, [(33, 8), (33, 8)], 7),
        # What all have beyond their cores is below one chunk; what others lack counts for nothing.
        (50, 13, [(27, 4)], 7),
        (50, 13, [(27, 4), (50, 6)], 7),
        (50, 13, [(50, 7)], 6),
        (100, 3, [(1, 1), (33, 1)], 3),
    ],
)
def test_jobs_get_whole_chunks(cores: int, total: int, others: list[tuple[int, int]], wanted: int) -> None:
    assert chunks_of(cores, total, others) == wanted


@given(st.integers(1, 36), st.lists(st.tuples(st.integers(1, 100), st.integers(0, 99)), max_size=60))
def test_whoever_comes_and_goes_each_job_finds_the_chunks_of_its_cores(
    total: int, events: list[tuple[int, int]]
) -> None:
    """Jobs of at least a chunk's cores, together at most 100: what is free suffices, for any that slurmctld may send
    next, too. Each gets its cores' chunks, rounded down or up."""
    jobs: list[tuple[int, int]] = []
    for cores, victim in events:
        if jobs and (victim % 3 == 0 or sum(one for one, _ in jobs) + cores > 100):
            jobs.pop(victim % len(jobs))
            continue
        if cores * total < 100 or sum(one for one, _ in jobs) + cores > 100:
            continue
        free = total - sum(chunks for _, chunks in jobs)
        own = chunks_of(cores, total, jobs)
        assert cores * total // 100 <= own <= -(-cores * total // 100)
        assert own <= free
        jobs.append((cores, own))
        rest = 100 - sum(one for one, _ in jobs)
        assert total - sum(chunks for _, chunks in jobs) >= rest * total // 100


HEADS = "GPU Partition free used free used clients\n chunk chunk SM SM\n"


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("", None),
        ("Unknown command \"lspart\"\n", None),
        ("Static partitioning is not enabled for GPU-74d43ed3\n", None),
        (HEADS, None),
        # As NVIDIA documents it, with and without partitions.
        (HEADS + "GPU-74d43ed3 - 10 0 92 92 -\n", Listing("GPU-74d43ed3", 10, 0, {})),
        (
            HEADS + f"GPU-74d43ed3 - 3 7 24 56 -\nGPU-74d43ed3 {FIRST} - 7 - 56 -\n",
            Listing("GPU-74d43ed3", 3, 7, {FIRST: 7}),
        ),
        # As programs read it that others run: no marks for empty cells, a shorter UUID.
        (
            HEADS + f"GPU-89 0 15 12 120\nGPU-89 {FIRST} 7 56 No\nGPU-89 {SECOND} 8 64 Yes\n",
            Listing("GPU-89", 0, 15, {FIRST: 7, SECOND: 8}),
        ),
        # After the answer to another command, in either form.
        (f"Partition {UUID}/{FIRST} created\n{HEADS}GPU-7 8 7 76 56\nGPU-7 {FIRST} 7 56 No\n",
         Listing("GPU-7", 8, 7, {FIRST: 7})),
        (f"{UUID}/{FIRST}\n{HEADS}GPU-7 8 7 76 56\nGPU-7 {FIRST} 7 56 No\n", Listing("GPU-7", 8, 7, {FIRST: 7})),
        # Nothing that would be an option, a second line or a second variable is taken for a name.
        (HEADS + "GPU-7 8 7 76 56\nGPU-7 a;b 7 56 No\nGPU-7 \u00fc 7 56 No\n", Listing("GPU-7", 8, 7, {})),
        (HEADS + f"GPU-7 8 7 76 56\nGPU-7 {'A' * 129} 7 56 No\n", Listing("GPU-7", 8, 7, {})),
        (HEADS + f"GPU-7 8 7 76 56\nGPU-7 {'A' * 128} 7 56 No\n", Listing("GPU-7", 8, 7, {"A" * 128: 7})),
        # Two counts at least in the GPU's own row, which comes first; numbers of five digits are none.
        (HEADS + "GPU-7 8 7\n", Listing("GPU-7", 8, 7, {})),
        (HEADS + "GPU-7 8\n", None),
        (HEADS + f"GPU-7 {FIRST} 7 56 No\n", None),
        (HEADS + "GPU-7 9999 10000 7\n", Listing("GPU-7", 9999, 7, {})),
        (f"{UUID}/{FIRST} has 3 of 9 chunks\n{UUID}/3 3 9\n{HEADS}GPU-7 8 7 76 56\n", Listing("GPU-7", 8, 7, {})),
    ],
)  # fmt: skip
def test_the_table_is_read_in_each_of_its_forms(answer: str, wanted: Listing | None) -> None:
    assert parse(answer) == wanted
    assert parse(" ".join(answer.split())) == wanted, "in one line, as mps_daemon.ask returns it"


def test_the_chunks_of_a_gpu_are_those_free_and_those_used() -> None:
    assert Listing("GPU-7", 8, 7, {}).total == 15


@given(st.text(alphabet="GPU-74 -Dx/+AY\n12", max_size=120))
def test_any_answer_is_read_or_is_no_table(answer: str) -> None:
    seen = parse(answer)
    assert seen is None or seen.total >= 0
