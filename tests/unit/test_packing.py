# SPDX-License-Identifier: Apache-2.0
"""The exact packer of the benchmark of several nodes, compared with trying everything."""

from __future__ import annotations

import random
import sys
from itertools import combinations, product

import pytest
from harness.layout import CHECKOUT

sys.path.insert(0, str(CHECKOUT / "benchmarks"))
from packing import CAPACITY, Job, fits


def tried(jobs: list[Job], gpus: list[int]) -> bool:
    """Every job on every choice of nodes and GPUs."""
    ways = [
        [
            [(node, gpu) for node, chosen in zip(nodes, picks, strict=True) for gpu in chosen]
            for nodes in combinations(range(len(gpus)), job.nodes)
            for picks in product(*(combinations(range(gpus[node]), job.gpus) for node in nodes))
        ]
        for job in jobs
    ]
    for choice in product(*ways):
        used: dict[tuple[int, int], int] = {}
        for job, places in zip(jobs, choice, strict=True):
            for place in places:
                used[place] = used.get(place, 0) + job.size
        if all(amount <= CAPACITY for amount in used.values()):
            return True
    return False


@pytest.mark.parametrize("seed", range(60))
def test_it_agrees_with_trying_everything(seed: int) -> None:
    chance = random.Random(seed)
    gpus = [chance.choice((1, 2)) for _ in range(2)]
    jobs = [
        Job(chance.choice((25, 35, 50, 60, 80)), chance.choice((1, 1, 2)), chance.choice((1, 1, 2))) for _ in range(4)
    ]
    assert fits(jobs, gpus) == tried(jobs, gpus)


def test_slices_of_one_job_never_share_a_gpu() -> None:
    assert fits([Job(50, 2, 1)], [2])
    assert not fits([Job(50, 2, 1)], [1, 1])
    assert not fits([Job(10, 1, 2)], [4])
    assert fits([Job(50, 4, 2), Job(50, 2, 1), Job(50, 2, 2)], [4, 4])
    assert not fits([Job(60, 4, 2), Job(50, 1, 1)], [4, 4])


def test_it_says_that_it_does_not_know() -> None:
    assert fits([Job(25, 1, 1)] * 32, [4, 4], budget=3) is None
    assert fits([Job(25, 1, 1)] * 32, [4, 4])
