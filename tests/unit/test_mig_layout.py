# SPDX-License-Identifier: Apache-2.0
"""Placement of MIG instances: what is legal, what covers a request, and what is left for later ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mig_models import NAMES, profiles_of

from hami_hpc.core.mig_layout import (
    Instance,
    Layout,
    Profile,
    by_size,
    choose_start,
    covering,
    legal_starts,
    slices,
    whole,
)

H200 = profiles_of("h200")
BY_NAME = {profile.name: profile for profile in H200}
MEMORY_SLICES = 8
COMPUTE_SLICES = 7


def instance(profile: Profile, start: int, gi_id: int = 1) -> Instance:
    return Instance(gi_id, profile.profile_id, start, profile.size, f"MIG-{gi_id}")


def taken_by(*places: tuple[str, int]) -> tuple[Instance, ...]:
    return tuple(instance(BY_NAME[name], start, gi_id) for gi_id, (name, start) in enumerate(places, 1))


@st.composite
def histories(draw: st.DrawFn) -> tuple[tuple[Profile, ...], tuple[Instance, ...]]:
    """Profiles of a model, and instances that came and went on one GPU, placed by choose_start or anywhere legal."""
    profiles = profiles_of(draw(st.sampled_from(NAMES)))
    taken: tuple[Instance, ...] = ()
    for gi_id in range(draw(st.integers(0, 25))):
        move = draw(st.sampled_from(["end", "choose", "anywhere"]))
        if taken and move == "end":
            gone = draw(st.sampled_from(taken))
            taken = tuple(each for each in taken if each is not gone)
            continue
        profile = draw(st.sampled_from(profiles))
        starts = legal_starts(profile, profiles, taken)
        start = choose_start(profile, profiles, taken)
        if starts and move == "anywhere":
            start = draw(st.sampled_from(starts))
        if start is not None:
            taken = (*taken, instance(profile, start, gi_id))
    return profiles, taken


@given(histories())
def test_instances_never_overlap_and_never_pass_what_the_gpu_has(
    history: tuple[tuple[Profile, ...], tuple[Instance, ...]],
) -> None:
    profiles, taken = history
    rows = {profile.profile_id: profile for profile in profiles}
    occupied = 0
    for each in taken:
        mask = slices(each.start, each.size)
        assert each.start in rows[each.profile_id].starts
        assert not mask & occupied
        occupied |= mask
    assert occupied < 1 << MEMORY_SLICES
    assert sum(rows[each.profile_id].compute_slices for each in taken) <= COMPUTE_SLICES
    for profile in profiles:
        assert sum(each.profile_id == profile.profile_id for each in taken) <= profile.instances_max


@given(histories(), st.data())
def test_a_start_is_chosen_exactly_where_one_is_legal(
    history: tuple[tuple[Profile, ...], tuple[Instance, ...]], data: st.DataObject
) -> None:
    profiles, taken = history
    profile = data.draw(st.sampled_from(profiles))
    starts = legal_starts(profile, profiles, taken)
    chosen = choose_start(profile, profiles, taken)
    assert (chosen in starts) if starts else chosen is None
    shuffled = tuple(data.draw(st.permutations(taken)))
    assert choose_start(profile, profiles, shuffled) == chosen  # the order in which NVML lists them does not matter


@given(histories(), st.data())
def test_no_other_start_leaves_more_placements(
    history: tuple[tuple[Profile, ...], tuple[Instance, ...]], data: st.DataObject
) -> None:
    profiles, taken = history
    profile = data.draw(st.sampled_from(profiles))

    def left(start: int) -> int:
        after = (*taken, instance(profile, start, 99))
        unlimited = [each._replace(instances_max=99) for each in profiles]
        return sum(len(legal_starts(each, profiles, after)) for each in unlimited)

    starts = legal_starts(profile, profiles, taken)
    if starts:
        chosen = choose_start(profile, profiles, taken)
        assert chosen is not None
        assert left(chosen) == max(map(left, starts))


def test_small_instances_are_placed_where_they_take_no_large_ones_place() -> None:
    # First fit takes slice 0 each time, which is where a 4g has to begin, and cuts the GPU's first half.
    assert choose_start(BY_NAME["1g.18gb"], H200, ()) == 6
    assert choose_start(BY_NAME["3g.71gb"], H200, ()) == 4
    assert choose_start(BY_NAME["1g.18gb"], H200, taken_by(("3g.71gb", 4))) in (2, 3)
    assert choose_start(BY_NAME["2g.35gb"], H200, taken_by(("1g.18gb", 6))) == 4
    assert choose_start(BY_NAME["7g.141gb"], H200, taken_by(("1g.18gb", 6))) is None


def test_of_starts_with_as_many_placements_the_one_with_more_sets_is_chosen() -> None:
    # After slice 6 as many placements remain, but none of a 3g beside others: 14 sets and not 18.
    assert choose_start(BY_NAME["1g.18gb"], H200, taken_by(("2g.35gb", 0))) == 3


def by_trying(rows: tuple[Profile, ...], compute: int, taken: int) -> set[tuple[int, ...]]:
    """Every set of instances that fits, by trying each placement after each other."""
    found = {(0,) * len(rows)}
    for index, row in enumerate(rows):
        for start in row.starts if row.compute_slices <= compute else ():
            if not slices(start, row.size) & taken:
                for rest in by_trying(rows, compute - row.compute_slices, taken | slices(start, row.size)):
                    found.add((*rest[:index], rest[index] + 1, *rest[index + 1 :]))
    return found


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 4), st.sets(st.integers(0, 4), min_size=1)), min_size=1, max_size=3
    ),
    st.integers(0, 255),
    st.integers(0, 7),
)
def test_the_sets_of_instances_are_those_that_trying_all_placements_finds(
    rows: list[tuple[int, int, set[int]]], taken: int, compute: int
) -> None:
    profiles = made_up(*((need, size, tuple(starts)) for need, size, starts in rows))
    assert Layout(profiles, 7).sets(taken, compute) == by_trying(profiles, 7 - compute, taken)


def test_only_offered_profiles_count_for_later() -> None:
    assert choose_start(BY_NAME["2g.35gb"], H200, taken_by(("1g.18gb", 0))) == 2
    assert choose_start(BY_NAME["2g.35gb"], H200, taken_by(("1g.18gb", 0)), frozenset({"1g.18gb", "1g.35gb"})) == 4


def made_up(*rows: tuple[int, int, tuple[int, ...]]) -> tuple[Profile, ...]:
    """Profiles of compute slices, memory slices and starts; the last row is the whole GPU."""
    return tuple(Profile(i, f"p{i}", need, size, 1, starts, size, 9) for i, (need, size, starts) in enumerate(rows))


def test_what_the_compute_slices_still_allow_counts_for_later_and_nothing_else() -> None:
    one, any_start = (1, 1, (0, 1, 2, 3)), (0,)
    enough = made_up(one, (2, 2, (2,)), (3, 4, any_start))
    assert choose_start(enough[0], enough, ()) == 1  # 2 of 3 compute slices remain: the pair at 2 keeps its place
    too_few = made_up(one, (3, 2, (2,)), (3, 4, any_start))
    assert choose_start(too_few[0], too_few, ()) == 3


def test_the_smallest_is_the_one_of_the_fewest_memory_slices() -> None:
    rows = made_up((1, 2, (0,)), (2, 1, (0,)), (2, 2, (0,)))
    dense = (rows[0]._replace(mem_mib=1000), rows[1]._replace(mem_mib=2000), rows[2]._replace(mem_mib=4000))
    assert covering(dense, 500, 1) == dense[1]


def test_a_profile_that_may_exist_once_is_placed_once() -> None:
    media = Profile(20, "1g.18gb+me", 1, 1, 16384, (0, 1, 2, 3, 4, 5, 6), 1, 1)
    profiles = (*H200, media)
    first = choose_start(media, profiles, ())
    assert first is not None
    assert choose_start(media, profiles, (instance(media, first),)) is None
    assert choose_start(BY_NAME["1g.18gb"], profiles, (instance(media, first),)) is not None


def test_the_compute_slices_limit_where_memory_slices_would_not() -> None:
    # A GPU that had room in memory for two halves of 4 compute slices each, and has 7.
    halves = (
        Profile(1, "4g.8gb", 4, 4, 8192, (0, 4), 4, 2),
        Profile(0, "7g.16gb", 7, 8, 16384, (0,), 8, 1),
    )
    assert choose_start(halves[0], halves, ()) is not None
    assert choose_start(halves[0], halves, (instance(halves[0], 0),)) is None


def test_an_instance_of_a_profile_that_nvml_does_not_list_takes_its_memory_slices() -> None:
    foreign = Instance(7, 1234, 0, 4, "MIG-7")
    assert legal_starts(BY_NAME["1g.18gb"], H200, (foreign,)) == (4, 5, 6)
    assert choose_start(BY_NAME["4g.71gb"], H200, (foreign,)) is None
    assert choose_start(BY_NAME["1g.18gb"], H200, (foreign,)) == 6


def test_without_the_whole_gpus_profile_the_placements_alone_decide() -> None:
    few = tuple(profile for profile in H200 if profile.name in ("1g.18gb", "2g.35gb"))
    assert whole(few) is None
    assert choose_start(few[0], few, ()) == 6
    assert choose_start(few[0], H200[:-1], taken_by(("1g.18gb", 0))) == 1
    with pytest.raises(ValueError, match="takes all of it"):
        covering(few, 1, 1)


@given(st.sampled_from(NAMES), st.integers(0, 150_000), st.integers(0, 101))
def test_the_covering_profile_is_the_smallest_that_has_enough(model: str, mem_mib: int, cores: int) -> None:
    profiles = profiles_of(model)

    def has_enough(profile: Profile) -> bool:
        return profile.mem_mib >= mem_mib and 100 * profile.compute_slices // COMPUTE_SLICES >= cores

    chosen = covering(profiles, mem_mib, cores)
    if chosen is None:
        assert not any(map(has_enough, profiles))
        return
    assert has_enough(chosen)
    for other in filter(has_enough, profiles):
        assert (other.size, other.compute_slices) >= (chosen.size, chosen.compute_slices)


@pytest.mark.parametrize(
    ("mem_mib", "cores", "name"),
    [
        (16384, 1, "1g.18gb"),
        (16384, 14, "1g.18gb"),
        (16384, 15, "2g.35gb"),
        (16385, 14, "1g.35gb"),
        (33280, 28, "2g.35gb"),
        (33281, 1, "3g.71gb"),
        (1, 50, "4g.71gb"),
        (1, 58, "7g.141gb"),
        (143104, 100, "7g.141gb"),
        (143105, 1, None),
    ],
)
def test_requests_and_the_profile_that_covers_them(mem_mib: int, cores: int, name: str | None) -> None:
    chosen = covering(H200, mem_mib, cores)
    assert (chosen and chosen.name) == name


def test_only_offered_profiles_cover() -> None:
    chosen = covering(H200, 1, 1, frozenset({"3g.71gb", "7g.141gb"}))
    assert chosen is not None
    assert chosen.name == "3g.71gb"
    assert covering(H200, 1, 50, frozenset({"3g.71gb"})) is None


def test_of_equal_profiles_the_one_that_may_exist_more_often_comes_first() -> None:
    media = BY_NAME["1g.18gb"]._replace(profile_id=20, name="1g.18gb+me", instances_max=1)
    assert covering((media, *H200), 1, 1) == BY_NAME["1g.18gb"]
    assert [profile.name for profile in sorted((media, *H200), key=by_size)][:2] == ["1g.18gb", "1g.18gb+me"]
