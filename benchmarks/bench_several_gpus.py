# SPDX-License-Identifier: Apache-2.0
"""How long jobs with several slices wait if types of GPUs say where they may lie (docs/adr/055-several-gpus.md).

A node of 8 GPUs with 100 shards each. A job has 1, 2 or 4 equal slices on as many GPUs. `free`: any GPUs with room.
`N types`: each GPU has one of N types, N GPUs in turn; job_submit has chosen the types at submission, in rotation, and
Slurm takes the first GPU of each type that has room. A job with one slice has no type. Jobs start in the order of
their submission, and one that fits passes those that do not. Times are in mean run times of a job.

    python benchmarks/bench_several_gpus.py
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import mean

GPUS, SHARDS = 8, 100
SIZES = (10, 20, 25, 35, 50, 80)
JOBS, SEEDS = 4000, 5
Place = Callable[["Job", list[int]], list[int] | None]


@dataclass(frozen=True, slots=True)
class Job:
    number: int
    arrival: float
    count: int
    size: int
    run_time: float


def arrivals(load: float, counts: dict[int, float], seed: int) -> Iterator[Job]:
    """Yields jobs that ask for `load` of the node's shards on average."""
    chance = random.Random(seed)
    asked = mean(SIZES) * sum(count * part for count, part in counts.items())
    now = 0.0
    for number in range(JOBS):
        now += chance.expovariate(load * GPUS * SHARDS / asked)
        (count,) = chance.choices(list(counts), list(counts.values()))
        yield Job(number, now, count, chance.choice(SIZES), chance.expovariate(1.0))


def first(gpus: range | list[int], job: Job, free: list[int]) -> int | None:
    return next((gpu for gpu in gpus if free[gpu] >= job.size), None)


def anywhere(job: Job, free: list[int]) -> list[int] | None:
    fitting = [gpu for gpu in range(GPUS) if free[gpu] >= job.size]
    return fitting[: job.count] if len(fitting) >= job.count else None


def by_types(types: int) -> Place:
    each = GPUS // types

    def place(job: Job, free: list[int]) -> list[int] | None:
        if job.count == 1:
            return anywhere(job, free)
        chosen = [(job.number * job.count + step) % types for step in range(job.count)]
        found = [first(range(name * each, (name + 1) * each), job, free) for name in chosen]
        return None if None in found else [gpu for gpu in found if gpu is not None]

    return place


def waits(jobs: list[Job], place: Place) -> dict[int, list[float]]:
    """Returns how long the jobs waited, by their number of slices."""
    free = [SHARDS] * GPUS
    ends: list[tuple[float, int, list[int], int]] = []
    queue: list[Job] = []
    result: dict[int, list[float]] = {}
    coming = iter(jobs)
    following = next(coming, None)
    while following or queue:
        if following and (not ends or following.arrival <= ends[0][0]):
            now = following.arrival
            queue.append(following)
            following = next(coming, None)
        else:
            now, _, gpus, size = heapq.heappop(ends)
            for gpu in gpus:
                free[gpu] += size
        for job in list(queue):
            gpus_of = place(job, free)
            if gpus_of is None:
                continue
            queue.remove(job)
            for gpu in gpus_of:
                free[gpu] -= job.size
            heapq.heappush(ends, (now + job.run_time, job.number, gpus_of, job.size))
            result.setdefault(job.count, []).append(now - job.arrival)
    return result


def main() -> None:
    places = {"free": anywhere} | {f"{types} types": by_types(types) for types in (2, 4, 8)}
    print("| slices: part of the jobs | load | GPUs | waits, 1 slice | 2 slices | 4 slices |")
    print("|---|---|---|---|---|---|")
    for counts in ({1: 0.8, 2: 0.2}, {1: 0.7, 2: 0.2, 4: 0.1}, {2: 0.7, 4: 0.3}):
        for load in (0.5, 0.7, 0.8):
            for name, place in places.items():
                if name == "2 types" and 4 in counts:
                    continue
                found = [waits(list(arrivals(load, counts, seed)), place) for seed in range(SEEDS)]
                cells = [
                    f"{mean(wait for run in found for wait in run[count]):.3f}" if count in counts else "-"
                    for count in (1, 2, 4)
                ]
                mixture = ", ".join(f"{count}: {part:.0%}" for count, part in counts.items())
                print(f"| {mixture} | {load} | {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
