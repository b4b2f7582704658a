# SPDX-License-Identifier: Apache-2.0
"""Shards of MIG profiles: by exhaustion, slurmctld admits no set that the GPU cannot hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mig_models import NAMES, profiles_of

from hami_hpc.core.mig_layout import Instance, Profile, choose_start, slices
from hami_hpc.core.mig_units import count_admitted, holdable, offered_profiles, shards_of, unholdable


def fits_together(profiles: tuple[Profile, ...], left: list[Profile], occupied: int = 0, compute: int = 7) -> bool:
    """Returns whether all of `left` can be placed at once, by trying every start: no part of the code under test."""
    if not left:
        return True
    first, *rest = left
    return compute >= first.compute_slices and any(
        fits_together(profiles, rest, occupied | slices(start, first.size), compute - first.compute_slices)
        for start in first.starts
        if not slices(start, first.size) & occupied
    )


def admitted(weights: dict[str, int], shards: int) -> Iterator[dict[str, int]]:
    """Yields every set of instances whose shards fit, as counts by name."""

    def sets(names: list[str], left: int) -> Iterator[dict[str, int]]:
        if not names:
            yield {}
            return
        name, *rest = names
        for count in range(left // weights[name] + 1):
            for others in sets(rest, left - count * weights[name]):
                yield {name: count} | others

    yield from sets(list(weights), shards)


# Whole GPUs of the four models at 256 MiB a shard, then coarse shards down to one.
@pytest.mark.parametrize("shards", [559, 319, 317, 159, 100, 70, 64, 40, 32, 31, 17, 8, 3, 1])
@pytest.mark.parametrize("model", NAMES)
def test_every_set_that_slurmctld_admits_can_be_placed_together(model: str, shards: int) -> None:
    profiles = profiles_of(model)
    by_name = {profile.name: profile for profile in profiles}
    weights = shards_of(profiles, shards)
    assert list(weights) == [profile.name for profile in offered_profiles(profiles, None)]
    sets = list(admitted(weights, shards))
    for counts in sets:
        wanted = [by_name[name] for name, count in counts.items() for _ in range(count)]
        wanted.sort(key=lambda profile: -profile.size)
        assert fits_together(profiles, wanted), counts
    assert len(sets) == count_admitted(tuple(weights.values()), shards, holdable(profiles))


@pytest.mark.parametrize("shards", [559, 319, 317, 159, 31])
@pytest.mark.parametrize("model", NAMES)
def test_from_31_shards_a_gpu_the_rule_may_cost_nothing(model: str, shards: int) -> None:
    profiles = profiles_of(model)
    weights = shards_of(profiles, shards)
    sets = holdable(profiles)
    assert len(sets) == 78
    assert count_admitted(tuple(weights.values()), shards, sets) == 78


@pytest.mark.parametrize(
    ("model", "shards", "weights", "admitted_sets"),
    [
        ("a100-40", 157, [20, 35, 40, 75, 81, 157], 78),
        ("h100", 316, [41, 69, 82, 151, 164, 316], 78),
        ("h200", 559, [70, 139, 140, 279, 280, 559], 78),
        ("h200", 34, [5, 8, 11, 16, 19, 34], 56),
        ("a100-40", 9, [2, 3, 4, 5, 6, 9], 27),
    ],
)
def test_the_shards_are_those_that_the_measurements_name(
    model: str, shards: int, weights: list[int], admitted_sets: int
) -> None:
    """docs/benchmarks/mig.md; a change of them changes the units of jobs, and prices."""
    profiles = profiles_of(model)
    found = shards_of(profiles, shards)
    assert list(found.values()) == weights
    assert count_admitted(tuple(weights), shards, holdable(profiles)) == admitted_sets


def test_one_sum_of_memory_and_compute_slices_is_the_exact_rule() -> None:
    """The sum that adr/051 names: compute slices and three times the memory slices, at most 31."""
    rows = offered_profiles(profiles_of("h200"), None)
    weights = tuple(row.compute_slices + 3 * row.size for row in rows)
    good = holdable(profiles_of("h200"))
    assert weights == (4, 7, 8, 15, 16, 31)
    assert count_admitted(weights, 31, good) == len(good)
    assert count_admitted(weights, 31, unholdable(good)) == 0
    memory = tuple(row.size for row in rows)
    assert count_admitted(memory, 8, unholdable(good)) == 9  # memory slices alone admit what the GPU cannot hold


def test_the_exact_rule_is_what_trying_all_starts_says() -> None:
    profiles = profiles_of("a100-80")
    rows = offered_profiles(profiles, None)
    good = holdable(profiles)
    for counts in good:
        assert fits_together(profiles, [row for row, n in zip(rows, counts, strict=True) for _ in range(n)])
    for counts in unholdable(good):
        assert not fits_together(profiles, [row for row, n in zip(rows, counts, strict=True) for _ in range(n)])


def test_the_weights_of_some_offered_profiles_follow_from_the_whole_gpu() -> None:
    profiles = profiles_of("h200")
    offered = frozenset({"1g.18gb", "3g.71gb"})
    weights = shards_of(profiles, 559, offered)
    assert list(weights) == ["1g.18gb", "3g.71gb"]
    for counts in admitted(weights, 559):
        assert fits_together(profiles, [each for each in profiles for _ in range(counts.get(each.name, 0))][::-1])
    with pytest.raises(ValueError, match="takes all of it"):
        shards_of(profiles[:3], 559)
    with pytest.raises(ValueError, match="at least one shard"):
        shards_of(profiles, 0)


def test_a_profile_that_may_exist_once_is_never_admitted_twice() -> None:
    h200 = profiles_of("h200")
    media = h200[0]._replace(profile_id=20, name="1g.18gb+me", instances_max=1)
    weights = shards_of((*h200, media), 559)
    assert 2 * weights["1g.18gb+me"] > 559


@st.composite
def geometries(draw: st.DrawFn) -> tuple[Profile, ...]:
    """A GPU that nobody has built: profiles of any size, some of which may not begin everywhere."""
    memory = draw(st.integers(1, 6))
    compute = draw(st.integers(1, 6))
    profiles = [Profile(0, "whole", compute, memory, 1000 * memory, (0,), memory, 1)]
    for number in range(1, draw(st.integers(1, 4))):
        size = draw(st.integers(1, memory))
        every = range(memory - size + 1)
        starts = draw(st.lists(st.sampled_from(every), min_size=1, unique=True))
        need, most = draw(st.integers(1, compute)), draw(st.integers(1, 6))
        profiles.append(Profile(number, f"p{number}", need, size, 1000 * size, tuple(starts), size, most))
    return tuple(profiles)


@settings(max_examples=60, deadline=None)
@given(geometries(), st.integers(1, 600))
def test_on_any_gpu_no_set_is_admitted_that_it_cannot_hold(profiles: tuple[Profile, ...], shards: int) -> None:
    rows = offered_profiles(profiles, None)
    weights = shards_of(profiles, shards)
    good = holdable(profiles)
    assert count_admitted(tuple(weights.values()), shards, unholdable(good)) == 0
    assert all(1 <= weight <= shards for weight in weights.values())
    for counts in good:
        wanted = [row for row, n in zip(rows, counts, strict=True) for _ in range(n)]
        assert fits_together(profiles, wanted, compute=profiles[0].compute_slices)


def test_no_units_save_the_last_placement_from_fragmentation() -> None:
    """Instances that came and went can leave no half free: the prolog then has to put the job back."""
    h200 = profiles_of("h200")
    small, half = h200[0], h200[3]
    taken: tuple[Instance, ...] = ()
    for gi_id in range(7):
        start = choose_start(small, h200, taken)
        assert start is not None
        taken = (*taken, Instance(gi_id, small.profile_id, start, 1, ""))
    left = tuple(each for each in taken if each.start in (2, 5))
    weights = shards_of(h200, 559)
    assert 2 * weights[small.name] + weights[half.name] <= 559  # admitted, as it could be placed together
    assert choose_start(half, h200, left) is None
