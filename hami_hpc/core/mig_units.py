# SPDX-License-Identifier: Apache-2.0
"""The shards that an instance of each MIG profile takes, so that slurmctld admits only what a GPU can hold.

slurmctld adds up shards and knows nothing else of a GPU. A set of instances is limited by compute slices, by memory
slices and by where an instance may begin. docs/adr/051 says why one sum can stand for all of it. Pure; no prolog
imports this.
"""

from __future__ import annotations

import math

from hami_hpc.core.mig_layout import Layout, Profile, by_size, whole

Counts = tuple[int, ...]
_RATIO_MAX = 7  # of memory slices to compute slices in a sum, and the reverse


def offered_profiles(profiles: tuple[Profile, ...], offered: frozenset[str] | None) -> tuple[Profile, ...]:
    """Returns the profiles of those names (None: all), the smallest first."""
    return tuple(sorted((each for each in profiles if offered is None or each.name in offered), key=by_size))


def holdable(profiles: tuple[Profile, ...], offered: frozenset[str] | None = None) -> frozenset[Counts]:
    """Returns every set of instances that the GPU can hold at once if they are placed together: the exact rule.

    A set has a count for each of `offered_profiles`, in that order. Raises ValueError as `shards_of` does.
    """
    rows = offered_profiles(profiles, offered)
    sets = Layout(rows, _whole(profiles).compute_slices).sets()
    limits = [row.instances_max for row in rows]
    return frozenset(counts for counts in sets if all(n <= most for n, most in zip(counts, limits, strict=True)))


def unholdable(sets: frozenset[Counts]) -> frozenset[Counts]:
    """Returns the smallest sets that are not in `sets`: each of them without any one instance is in it."""
    beyond = set()
    for counts in sets:
        for index in range(len(counts)):
            more = _with(counts, index, 1)
            if more not in sets and all(not n or _with(more, i, -1) in sets for i, n in enumerate(more)):
                beyond.add(more)
    return frozenset(beyond)


def shards_of(profiles: tuple[Profile, ...], shards: int, offered: frozenset[str] | None = None) -> dict[str, int]:
    """Returns the shards of one instance of each offered profile, on a GPU of `shards`, the smallest profile first.

    No set of instances whose shards fit is one that the GPU cannot hold. Of the ways to do that this takes the one that
    admits the most sets. Raises ValueError when `profiles` lacks the whole GPU's, or `shards` is below 1.
    """
    if shards < 1:
        raise ValueError("a GPU has at least one shard")
    rows = offered_profiles(profiles, offered)
    full = _whole(profiles)
    good = holdable(profiles, offered)
    bad = unholdable(good)
    best: tuple[int, ...] = ()
    most = -1
    for compute, memory in ratios():
        total = compute * full.compute_slices + memory * full.size
        parts = [compute * row.compute_slices + memory * row.size for row in rows]
        weights = raised([max(1, shards * part // total) for part in parts], shards, good, bad)
        admitted = count_admitted(weights, shards, good)
        if admitted > most:
            best, most = weights, admitted
    return {row.name: weight for row, weight in zip(rows, best, strict=True)}


def count_admitted(weights: tuple[int, ...], shards: int, sets: frozenset[Counts]) -> int:
    """Returns how many of the sets fit into the shards."""
    return sum(_sum(weights, counts) <= shards for counts in sets)


def ratios() -> list[tuple[int, int]]:
    """Returns the weights of a compute slice and a memory slice to try, simple ones first."""
    numbers = range(_RATIO_MAX + 1)
    pairs = [(compute, memory) for compute in numbers for memory in numbers if math.gcd(compute, memory) == 1]
    return sorted(pairs, key=lambda pair: (sum(pair), pair))


def raised(weights: list[int], shards: int, good: frozenset[Counts], bad: frozenset[Counts]) -> tuple[int, ...]:
    """Returns the weights, raised until no set in `bad` fits, each time so that the most sets in `good` still do."""
    now = tuple(weights)
    while True:
        fits = min((counts for counts in bad if _sum(now, counts) <= shards), default=None)
        if fits is None:
            return now
        lacking = shards + 1 - _sum(now, fits)
        choices = [_with(now, index, -(-lacking // n)) for index, n in enumerate(fits) if n]
        now = max(choices, key=lambda each: (count_admitted(each, shards, good), each))


def _sum(weights: tuple[int, ...], counts: Counts) -> int:
    return sum(weight * n for weight, n in zip(weights, counts, strict=True))


def _with(counts: Counts, index: int, more: int) -> Counts:
    return (*counts[:index], counts[index] + more, *counts[index + 1 :])


def _whole(profiles: tuple[Profile, ...]) -> Profile:
    full = whole(profiles)
    if full is None:
        raise ValueError("the profiles of a GPU include the one that takes all of it")
    return full
