# SPDX-License-Identifier: Apache-2.0
"""Jobs that come, wait, run on a part of a GPU and end, under a rule of what fits on a GPU. Pure.

A rule says what a job needs of a GPU, and what a GPU has: shards (hami_hpc's), MiB and percent (exact), one (whole
GPUs), or MIG instances. The queue is that of Slurm with backfill: jobs start in their order; the first that does not
fit has a time by which it will, on the GPU where that is soonest, and a later one starts if it does not delay that. Run
times are known to it. Slurm takes the first GPU with room, in the order of nodes and of their GPUs, unless
SelectTypeParameters has LL_SHARED_GRES, with which it takes the emptiest of a node (gres_select_filter.c, 26.05).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, Protocol

from hami_hpc.core.mig_layout import Instance, Profile, choose_start, covering, legal_starts

DEPTH = 100  # waiting jobs that backfill looks at; bf_max_job_test is Slurm's number
GPUS_OF_NODE = 8
PARTS_MAX = 2  # of which a GPU has sums

Need = tuple[int, ...]


class Job(NamedTuple):
    """A job with one slice of a GPU: percent of its memory and of its time."""

    number: int
    submit_s: float
    run_s: float
    memory: int
    cores: int


class Gpu(Protocol):
    """What runs on one GPU."""

    def fits(self, need: Need) -> bool:
        """Returns whether one more job has room."""

    def add(self, number: int, need: Need) -> None:
        """Places a job, which fits."""

    def remove(self, number: int) -> None:
        """Takes a job away."""

    def copy(self) -> Gpu:
        """Returns another one with the same jobs."""


def covers(free: Need, need: Need) -> bool:
    """Returns whether no part of a need is above what there is of it."""
    for part, most in zip(need, free, strict=True):  # noqa: SIM110  half the time of a run
        if part > most:
            return False
    return True


class Sums:
    """A GPU on which jobs fit as long as no sum of what they need is above what it has."""

    def __init__(self, whole: Need) -> None:
        self.whole = self.free = whole
        self.needs: dict[int, Need] = {}

    def fits(self, need: Need) -> bool:
        return covers(self.free, need)

    def add(self, number: int, need: Need) -> None:
        self.needs[number] = need
        self.free = tuple(free - part for part, free in zip(need, self.free, strict=True))

    def remove(self, number: int) -> None:
        self.free = tuple(free + part for part, free in zip(self.needs.pop(number), self.free, strict=True))

    def copy(self) -> Sums:
        other = Sums(self.whole)
        other.free, other.needs = self.free, dict(self.needs)
        return other


@cache
def _has_place(profile: Profile, profiles: tuple[Profile, ...], taken: tuple[Instance, ...]) -> bool:
    return bool(legal_starts(profile, profiles, taken))


@cache
def _start(profile: Profile, profiles: tuple[Profile, ...], taken: tuple[Instance, ...]) -> int | None:
    return choose_start(profile, profiles, taken)


class Instances:
    """A GPU with MIG instances, placed as prologs place them. A need is the index of a profile."""

    def __init__(self, profiles: tuple[Profile, ...]) -> None:
        self.profiles = profiles
        self.taken: dict[int, Instance] = {}

    def _taken(self) -> tuple[Instance, ...]:
        return tuple(sorted(self.taken.values()))

    def fits(self, need: Need) -> bool:
        return _has_place(self.profiles[need[0]], self.profiles, self._taken())

    def add(self, number: int, need: Need) -> None:
        profile = self.profiles[need[0]]
        start = _start(profile, self.profiles, self._taken())
        assert start is not None, "it was asked whether it fits"
        self.taken[number] = Instance(0, profile.profile_id, start, profile.size, "")

    def remove(self, number: int) -> None:
        del self.taken[number]

    def copy(self) -> Instances:
        other = Instances(self.profiles)
        other.taken = dict(self.taken)
        return other


@dataclass(frozen=True)
class Rule:
    """What a job needs, an empty GPU, and which of the GPUs with room is taken: the first with the least rank."""

    name: str
    need: Callable[[Job], Need]
    empty: Callable[[], Gpu]
    rank: Callable[[int, Gpu], float] = field(default=lambda index, gpu: 0.0)


def fullest(index: int, gpu: Gpu) -> float:
    """Ranks GPUs for best fit: the one with the least left comes first, memory and time counting alike."""
    assert isinstance(gpu, Sums)
    return sum(free / whole for free, whole in zip(gpu.free, gpu.whole, strict=True))


def emptiest(index: int, gpu: Gpu) -> float:
    """Ranks GPUs as LL_SHARED_GRES does: the emptiest of the first node."""
    return index // GPUS_OF_NODE * PARTS_MAX - fullest(index, gpu)


def mig_need(profiles: tuple[Profile, ...], total_mib: int) -> Callable[[Job], Need]:
    """Returns what gives a job the smallest profile that covers it; the whole GPU's has all memory that MIG leaves."""
    most_mib = max(profile.mem_mib for profile in profiles)

    def need(job: Job) -> Need:
        profile = covering(profiles, min(total_mib * job.memory // 100, most_mib), job.cores)
        assert profile is not None, "the whole GPU covers every job"
        return (profiles.index(profile),)

    return need


class Outcome(NamedTuple):
    """What became of a run: when each job began, by number; when the queue was empty for good."""

    begin_s: dict[int, float]
    queue_empty_s: float
    end_s: float


class Shadow(NamedTuple):
    """Where and when the first waiting job will fit, and that GPU as it will be then, without the job."""

    at_s: float
    gpu: int
    then: Gpu


def run(jobs: Sequence[Job], rule: Rule, gpus: int) -> Outcome:
    """Plays all jobs on so many GPUs. Raises ValueError for a job that no empty GPU has room for."""
    return _Run(jobs, rule, gpus).play()


class _Run:
    def __init__(self, jobs: Sequence[Job], rule: Rule, gpus: int) -> None:
        self.rule = rule
        self.gpus: list[Gpu] = [rule.empty() for _ in range(gpus)]
        self.ends: list[tuple[float, int]] = []  # a heap: end, number
        self.where: dict[int, tuple[int, float]] = {}  # GPU, end
        self.on: list[set[int]] = [set() for _ in range(gpus)]
        self.needs = {job.number: rule.need(job) for job in jobs}
        self.to_come = sorted(jobs, key=lambda job: (job.submit_s, job.number))
        self.waiting: list[Job] = []
        self.begin_s: dict[int, float] = {}
        self.queue_empty_s = 0.0
        empty = rule.empty()
        for job in jobs:
            if not empty.fits(self.needs[job.number]):
                raise ValueError(f"job {job.number} fits on no GPU: {job}")

    def play(self) -> Outcome:
        index, now = 0, 0.0
        while index < len(self.to_come) or self.ends:
            coming = self.to_come[index].submit_s if index < len(self.to_come) else float("inf")
            now = min(coming, self.ends[0][0] if self.ends else float("inf"))
            while self.ends and self.ends[0][0] <= now:
                _, number = heapq.heappop(self.ends)
                gpu, _ = self.where.pop(number)
                self.gpus[gpu].remove(number)
                self.on[gpu].discard(number)
            while index < len(self.to_come) and self.to_come[index].submit_s <= now:
                self.waiting.append(self.to_come[index])
                index += 1
            if self.waiting:
                self._schedule(now)
                if not self.waiting:
                    self.queue_empty_s = now
        assert not self.waiting, "an empty cluster has room for each"
        return Outcome(self.begin_s, self.queue_empty_s, now)

    def _schedule(self, now: float) -> None:
        begun = 0
        for job in self.waiting:
            gpu = self._find(self.needs[job.number])
            if gpu is None:
                break
            self._begin(job, gpu, now)
            begun += 1
        del self.waiting[:begun]
        if len(self.waiting) > 1:
            self._backfill(now)

    def _backfill(self, now: float) -> None:
        """Starts later jobs that do not delay the first."""
        head = self.needs[self.waiting[0].number]
        shadow = self._shadow(head)
        begun: set[int] = set()
        refused: list[Need] = []  # for which no GPU has room: nor is there for those that need more
        is_sums = isinstance(self.gpus[0], Sums)
        for job in self.waiting[1 : DEPTH + 1]:
            need = self.needs[job.number]
            if need in refused or (is_sums and any(covers(need, other) for other in refused)):
                continue
            gpu = self._find(need)
            if gpu is None:
                refused = [other for other in refused if not (is_sums and covers(other, need))] + [need]
                continue
            if gpu == shadow.gpu and now + job.run_s > shadow.at_s:
                if _both_fit(shadow.then, head, need):
                    shadow.then.add(job.number, need)
                else:
                    gpu = self._find(need, without=gpu)
                    if gpu is None:
                        continue
            self._begin(job, gpu, now)
            begun.add(job.number)
        self.waiting = [job for job in self.waiting if job.number not in begun]

    def _shadow(self, head: Need) -> Shadow:
        best: Shadow | None = None
        for index, gpu in enumerate(self.gpus):
            then = gpu.copy()
            for end_s, number in sorted((self.where[number][1], number) for number in self.on[index]):
                if best is not None and end_s >= best.at_s:
                    break
                then.remove(number)
                if then.fits(head):
                    best = Shadow(end_s, index, then)
                    break
        assert best is not None, "it fits on an empty GPU"
        return best

    def _find(self, need: Need, without: int = -1) -> int | None:
        fitting = (index for index, gpu in enumerate(self.gpus) if index != without and gpu.fits(need))
        return min(fitting, key=lambda index: self.rule.rank(index, self.gpus[index]), default=None)

    def _begin(self, job: Job, gpu: int, now: float) -> None:
        self.gpus[gpu].add(job.number, self.needs[job.number])
        self.where[job.number] = (gpu, now + job.run_s)
        self.on[gpu].add(job.number)
        heapq.heappush(self.ends, (now + job.run_s, job.number))
        self.begin_s[job.number] = now


def _both_fit(gpu: Gpu, head: Need, need: Need) -> bool:
    if not gpu.fits(need):
        return False
    after = gpu.copy()
    after.add(-1, need)
    return after.fits(head)


def most_at_once(needs: Sequence[Need], capacity: Need, gpus: int) -> int:
    """Returns how many of these fit at once on so many GPUs, by trying everything: for small numbers."""

    @cache
    def best(index: int, free: tuple[Need, ...]) -> int:
        if index == len(needs):
            return 0
        most = best(index + 1, free)
        for number, each in enumerate(free):
            if covers(each, needs[index]):
                left = tuple(room - part for part, room in zip(needs[index], each, strict=True))
                most = max(most, 1 + best(index + 1, tuple(sorted((*free[:number], left, *free[number + 1 :])))))
        return most

    return best(0, (capacity,) * gpus)
