# SPDX-License-Identifier: Apache-2.0
"""Jobs for bench_packing.py: random ones of stated distributions, and those of a trace.

Sizes: the memory and the time of a GPU that a job asks for are each distributed as Kumaraswamy's (A, B), between 2 and
100 percent; their ranks have a Gaussian copula with the mix's correlation. Run times: lognormal, with a median of 30
minutes and a sigma of 1.2, at most a day. Arrivals: a Poisson process of the given number of jobs. The load is what is
asked for of the scarcer of the two, memory or time, by what the GPUs have until the last arrival.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

from packing_model import Job

LEAST, MOST = 2, 100  # percent
MEDIAN_S, SIGMA, DAY_S = 1800.0, 1.2, 86400.0
SMALL, LARGE = (1.2, 3.0), (2.0, 2.0)  # of means 31.6 and 54.3 percent


class Mix(NamedTuple):
    """How large jobs are: distributions of memory and of cores, and the correlation of both."""

    name: str
    memory: tuple[float, float]
    cores: tuple[float, float]
    correlation: float


MIXES = (
    Mix("balanced", SMALL, SMALL, 0.9),
    Mix("independent", SMALL, SMALL, 0.0),
    Mix("anti-correlated", SMALL, SMALL, -0.9),
    Mix("memory-heavy", LARGE, SMALL, 0.3),
    Mix("cores-heavy", SMALL, LARGE, 0.3),
)


def quantile(shape: tuple[float, float], part: float) -> int:
    """Returns the percent below which `part` of the jobs are."""
    a, b = shape
    return round(LEAST + (MOST - LEAST) * math.pow(1 - math.pow(1 - part, 1 / b), 1 / a))


def sizes(mix: Mix, count: int, chance: random.Random) -> list[tuple[int, int]]:
    """Returns memory and cores of jobs, in percent."""
    below = NormalDist().cdf
    found = []
    for _ in range(count):
        first, second = chance.gauss(0, 1), chance.gauss(0, 1)
        other = mix.correlation * first + math.sqrt(1 - mix.correlation**2) * second
        found.append((quantile(mix.memory, below(first)), quantile(mix.cores, below(other))))
    return found


def run_times(count: int, chance: random.Random) -> list[float]:
    return [min(DAY_S, MEDIAN_S * math.exp(chance.gauss(0, SIGMA))) for _ in range(count)]


def backlog(mix: Mix, count: int, seed: int) -> list[Job]:
    """Returns jobs that are all there at the start."""
    chance = random.Random(seed)
    both = sizes(mix, count, chance)
    return [Job(n, 0.0, run_s, *both[n]) for n, run_s in enumerate(run_times(count, chance))]


def stream(jobs: Sequence[Job], gpus: int, load: float, seed: int) -> list[Job]:
    """Returns the same jobs as they arrive at random, at this load."""
    chance = random.Random(seed)
    last_s = work(jobs) / gpus / load
    at = sorted(chance.uniform(0, last_s) for _ in jobs)
    return [job._replace(submit_s=submit_s) for job, submit_s in zip(jobs, at, strict=True)]


def work(jobs: Iterable[Job]) -> float:
    """Returns the seconds for which all of these need one GPU at least, if nothing is ever left free."""
    jobs = list(jobs)
    return max(sum(job.memory * job.run_s for job in jobs), sum(job.cores * job.run_s for job in jobs)) / 100


class Row(NamedTuple):
    """A job of a trace. `mem_percent`: None where the trace has one number for both."""

    submit_s: float
    run_s: float
    cores: int
    mem_percent: int | None


def _openb(row: dict[str, str]) -> Row | None:
    """A pod of cluster-trace-gpu-v2023 that shares a GPU and whose run is known."""
    if row["num_gpu"] != "1" or not 0 < int(row["gpu_milli"]) < 1000 or not row["scheduled_time"]:
        return None
    run_s = float(row["deletion_time"]) - float(row["scheduled_time"])
    return Row(float(row["creation_time"]), run_s, max(1, int(row["gpu_milli"]) // 10), None)


def _plain(row: dict[str, str]) -> Row | None:
    return Row(float(row["submit_s"]), float(row["run_s"]), int(row["cores"]), int(row["mem_percent"]))


# Columns, their reader, and which part of the jobs, the first ones, is left out: of the pods that were created long
# before the weeks that the trace covers only those are in it that were still there.
FORMS: tuple[tuple[frozenset[str], Callable[[dict[str, str]], Row | None], float], ...] = (
    (frozenset(("num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time")), _openb, 0.1),
    (frozenset(("submit_s", "run_s", "mem_percent", "cores")), _plain, 0.0),
)


def _memory(row: Row) -> int:
    return row.cores if row.mem_percent is None else row.mem_percent


def read_trace(path: Path) -> list[Row]:
    """Returns the jobs of a CSV file, in the order of their submission; runs of over a day are cut to a day.

    Raises ValueError for a file without the columns of a form, and for one without such jobs.
    """
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        columns = frozenset(reader.fieldnames or ())
        form = next((form for form in FORMS if form[0] <= columns), None)
        if form is None:
            forms = " or ".join(", ".join(sorted(needed)) for needed, _, _ in FORMS)
            raise ValueError(f"{path} has the columns {', '.join(sorted(columns)) or 'none'}; needed are {forms}")
        _, reads, left_out = form
        try:
            rows = [found for row in reader if (found := reads(row)) is not None]
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}") from error
    rows = sorted(row._replace(run_s=min(DAY_S, row.run_s)) for row in rows if row.run_s > 0)
    wrong = [row for row in rows if not 1 <= row.cores <= MOST or not 1 <= _memory(row) <= MOST]
    if wrong:
        raise ValueError(
            f"{path}: cores and mem_percent are from 1 to 100, not {wrong[0].cores} and {wrong[0].mem_percent}"
        )
    if not rows:
        raise ValueError(f"{path} has no job that shares a GPU and whose run is known")
    return rows[int(len(rows) * left_out) :]


COUPLINGS = ("equal", "independent", "opposite")


def memory_of(rows: Sequence[Row], coupling: str, seed: int) -> list[int]:
    """Returns the memory of each job in percent: the trace's; where it has none, its cores' distribution, coupled to
    them as one number for both, by chance, or the largest memory to the fewest cores."""
    if all(row.mem_percent is not None for row in rows):
        return [_memory(row) for row in rows]
    cores = [row.cores for row in rows]
    if coupling == "equal":
        return cores
    if coupling == "independent":
        return random.Random(seed).sample(cores, len(cores))
    memory = [0] * len(cores)
    by_cores = sorted(range(len(cores)), key=lambda index: (cores[index], index))
    for index, value in zip(by_cores, sorted(cores, reverse=True), strict=True):
        memory[index] = value
    return memory


def replay(rows: Sequence[Row], coupling: str, gpus: int, load: float, seed: int) -> list[Job]:
    """Returns a trace's jobs with their order and bursts, the time between them stretched so that this is the load."""
    memory = memory_of(rows, coupling, seed)
    first_s = rows[0].submit_s
    jobs = [Job(n, row.submit_s - first_s, row.run_s, memory[n], row.cores) for n, row in enumerate(rows)]
    stretch = work(jobs) / gpus / load / max(1.0, jobs[-1].submit_s)
    return [job._replace(submit_s=job.submit_s * stretch) for job in jobs]
