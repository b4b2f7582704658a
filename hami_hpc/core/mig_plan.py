# SPDX-License-Identifier: Apache-2.0
"""Which of the queue's MIG requests a node can place now, and what stands in the way of the others. Pure.

An instance never moves. What can be planned is where later ones go: a request for which free slices suffice, and no
place does, gets one when certain jobs have ended, if nothing else is put there meanwhile. That place is then held.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations

from hami_hpc.core.mig_layout import UNLIMITED, Hold, Instance, Layout, Profile, legal_starts, overlaps, whole

NEVER = float("inf")  # the end of what no end of a job frees
Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """An instance on a GPU. `job_id` is None for one that no job's end removes; `end_unix_s` is when its job ends at
    the latest, NEVER without a limit."""

    instance: Instance
    profile: str
    job_id: int | None
    end_unix_s: float = NEVER


@dataclass(frozen=True, slots=True)
class PlanGpu:
    """A GPU in MIG mode that serves jobs: all profiles that NVML lists, the names of those offered, its instances."""

    uuid: str
    minor: int
    profiles: tuple[Profile, ...]
    offered: frozenset[str]
    standing: tuple[Standing, ...]


@dataclass(frozen=True, slots=True)
class Want:
    """One request of the queue, or one that an administrator names (`job_id` None)."""

    profile: str
    job_id: int | None = None


class State(Enum):
    """FITS: there is a place now, beside those ahead in the queue. BEHIND: there is one, which those ahead take.
    FRAGMENTED: free slices suffice on a GPU, and no place does. FULL: no GPU has as many free slices. NOT_OFFERED: no
    GPU here offers the profile."""

    FITS = "fits"
    BEHIND = "behind"
    FRAGMENTED = "fragmented"
    FULL = "full"
    NOT_OFFERED = "not offered"


@dataclass(frozen=True, slots=True)
class Opening:
    """A place that a FRAGMENTED request gets when the jobs `after` have ended, at `end_unix_s` at the latest."""

    gpu: PlanGpu
    hold: Hold
    after: tuple[int, ...]
    end_unix_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a request. `opening` is None for states other than FRAGMENTED, and where no end of jobs helps, or
    none without the place of a request ahead."""

    want: Want
    state: State
    opening: Opening | None = None


def plan(gpus: Sequence[PlanGpu], wants: Sequence[Want]) -> tuple[Verdict, ...]:
    """Returns the verdicts in the order of `wants`, the first of the queue first.

    A request FITS if the node can place it and all accepted before it, each on any GPU: no request further behind takes
    the place of one ahead. Of the openings of a FRAGMENTED one it takes the one whose jobs end first, then the one with
    the fewest jobs, then with the smallest instances.
    """
    names = tuple(sorted({want.profile for want in wants}))
    accepted = [0] * len(names)
    now = _Node(gpus, names)
    verdicts: list[Verdict] = []
    held: dict[str, list[Hold]] = {}
    for want in wants:
        index = names.index(want.profile)
        more = tuple(count + (at == index) for at, count in enumerate(accepted))
        if now.holds(more):
            accepted[index] += 1
            verdicts.append(Verdict(want, State.FITS))
            continue
        state = _state_of(gpus, want.profile)
        opening = _opening(gpus, want.profile, names, tuple(accepted), held) if state is State.FRAGMENTED else None
        if opening is not None:
            held.setdefault(opening.gpu.uuid, []).append(opening.hold)
            now = _Node(gpus, names, held)
        verdicts.append(Verdict(want, state, opening))
    return tuple(verdicts)


def free_slices(gpu: PlanGpu) -> tuple[int, int]:
    """Returns the free memory slices and compute slices of a GPU."""
    full = whole(gpu.profiles)
    if full is None:
        return 0, 0
    compute = {profile.profile_id: profile.compute_slices for profile in gpu.profiles}
    used = sum(compute.get(one.instance.profile_id, 0) for one in gpu.standing)
    return full.size - sum(one.instance.size for one in gpu.standing), full.compute_slices - used


class _Node:
    """What some GPUs can hold of some profiles, beside the instances that are there and the places that are held."""

    def __init__(
        self, gpus: Iterable[PlanGpu], names: tuple[str, ...], held: dict[str, list[Hold]] | None = None
    ) -> None:
        self._sets = [_sets(gpu, names, tuple((held or {}).get(gpu.uuid, ()))) for gpu in gpus]
        self._known: dict[tuple[int, Counts], bool] = {}

    def holds(self, counts: Counts, first: int = 0) -> bool:
        """Returns whether the GPUs from the `first` on can hold so many instances of each profile."""
        if not any(counts):
            return True
        if first == len(self._sets):
            return False
        key = first, counts
        if key not in self._known:
            parts = {tuple(map(min, each, counts)) for each in self._sets[first]}
            largest = [one for one in parts if not any(one != other and _covers(other, one) for other in parts)]
            self._known[key] = any(
                self.holds(tuple(n - m for n, m in zip(counts, part, strict=True)), first + 1)
                for part in sorted(largest, key=sum, reverse=True)
            )
        return self._known[key]


def _covers(more: Counts, less: Counts) -> bool:
    return all(n >= m for n, m in zip(more, less, strict=True))


def _sets(gpu: PlanGpu, names: tuple[str, ...], held: tuple[Hold, ...]) -> frozenset[Counts]:
    """Returns every set of instances that the GPU can hold beside what is there and the places that are held."""
    by_name = {profile.name: profile for profile in gpu.profiles if profile.name in gpu.offered}
    nothing = Profile(-1, "", UNLIMITED, 0, 0, (), 0, 0)
    rows = tuple(by_name.get(name, nothing) for name in names)
    present = [one.instance for one in gpu.standing]
    counted = [*(one for one in present if not any(overlaps(one, hold) for hold in held)), *map(_as_instance, held)]
    compute = {profile.profile_id: profile.compute_slices for profile in gpu.profiles}
    full = whole(gpu.profiles)
    layout = Layout(rows, full.compute_slices if full else UNLIMITED)
    mask = 0
    for one in (*present, *counted):
        mask |= ((1 << one.size) - 1) << one.start
    # What a held place gets when its jobs have ended may need more compute slices than they have, or fewer.
    used = max(sum(compute.get(one.profile_id, 0) for one in these) for these in (present, counted))
    room = [row.instances_max - sum(one.profile_id == row.profile_id for one in counted) for row in rows]
    return frozenset(
        counts for counts in layout.sets(mask, used) if all(n <= most for n, most in zip(counts, room, strict=True))
    )


def _state_of(gpus: Sequence[PlanGpu], name: str) -> State:
    """Returns the state of a request that does not fit beside those ahead."""
    state = State.NOT_OFFERED
    for gpu in gpus:
        profile = _profile(gpu, name)
        if profile is None:
            continue
        if legal_starts(profile, gpu.profiles, tuple(one.instance for one in gpu.standing)):
            return State.BEHIND
        memory, compute = free_slices(gpu)
        if memory >= profile.size and compute >= profile.compute_slices:
            state = State.FRAGMENTED
        elif state is State.NOT_OFFERED:
            state = State.FULL
    return state


def _opening(
    gpus: Sequence[PlanGpu], name: str, names: tuple[str, ...], accepted: Counts, held: dict[str, list[Hold]]
) -> Opening | None:
    """Returns the best opening for a profile that takes the place of no accepted request, None if there is none."""
    found = []
    for gpu in gpus:
        profile = _profile(gpu, name)
        if profile is None:
            continue
        for start in profile.starts:
            hold = Hold(name, profile.profile_id, start, profile.size)
            jobs = _jobs_in_the_way(gpu, profile, hold, tuple(held.get(gpu.uuid, ())))
            if jobs:
                end_unix_s = max(one.end_unix_s for one in jobs)
                slices = sum(one.instance.size for one in jobs)
                opening = Opening(gpu, hold, tuple(sorted(one.job_id or 0 for one in jobs)), end_unix_s)
                found.append((end_unix_s, len(jobs), slices, gpu.minor, start, opening))
    for *_, opening in sorted(found, key=lambda row: row[:5]):
        of_gpu = {**held, opening.gpu.uuid: [*held.get(opening.gpu.uuid, ()), opening.hold]}
        if _Node(gpus, names, of_gpu).holds(accepted):
            return opening
    return None


def _jobs_in_the_way(gpu: PlanGpu, profile: Profile, hold: Hold, held: tuple[Hold, ...]) -> tuple[Standing, ...] | None:
    """Returns the instances of jobs that have to go before one of `profile` can begin there; None if that is not
    enough. Other holds count as taken, and what is in their way as gone."""
    left = [one for one in gpu.standing if not any(overlaps(one.instance, other) for other in held)]
    must = tuple(one for one in left if overlaps(one.instance, hold))
    if any(one.job_id is None for one in must):
        return None
    others = [one for one in left if one not in must]
    reserved = tuple(map(_as_instance, held))
    ending = sorted((one for one in others if one.job_id is not None), key=lambda one: one.end_unix_s)
    best: tuple[float, int, int] | None = None
    chosen = None
    for count in range(len(ending) + 1):
        for more in combinations(ending, count):
            stay = tuple(one.instance for one in others if one not in more)
            if hold.start not in legal_starts(profile, gpu.profiles, (*stay, *reserved)):
                continue
            go = (*must, *more)
            cost = (max((one.end_unix_s for one in go), default=0.0), len(go), sum(one.instance.size for one in go))
            if best is None or cost < best:
                best, chosen = cost, go
    return chosen


def _profile(gpu: PlanGpu, name: str) -> Profile | None:
    return next((one for one in gpu.profiles if one.name == name and name in gpu.offered), None)


def _as_instance(hold: Hold) -> Instance:
    return Instance(-1, hold.profile_id, hold.start, hold.size, "")
