# SPDX-License-Identifier: Apache-2.0
"""The plan for a node's MIG requests, against an exhaustive search that shares no code with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mig_models import profiles_of

from hami_hpc.core.mig_layout import Hold, Instance, Profile, choose_start, legal_starts
from hami_hpc.core.mig_plan import NEVER, PlanGpu, Standing, State, Verdict, Want, free_slices, plan

PROFILES = profiles_of("h200")
BY_NAME = {profile.name: profile for profile in PROFILES}
SMALL, DOUBLE, HALF, MOST, ALL = "1g.18gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"
NAMES = (SMALL, DOUBLE, HALF, MOST, ALL)
Cells = tuple[frozenset[int], int]  # taken memory slices, taken compute slices


def gpu(*rows: tuple[str, int, int | None], minor: int = 0, end: float = NEVER) -> PlanGpu:
    """A GPU with instances of (profile, start, job). Job N ends at N, unless `end` says another time for all."""
    standing = tuple(
        Standing(
            Instance(at, BY_NAME[name].profile_id, start, BY_NAME[name].size, f"MIG-{at}"),
            name,
            job,
            end if end != NEVER or job is None else float(job),
        )
        for at, (name, start, job) in enumerate(rows)
    )
    return PlanGpu(f"GPU-{minor}", minor, PROFILES, frozenset(NAMES), standing)


def wants(*names: str) -> list[Want]:
    return [Want(name, 100 + at) for at, name in enumerate(names)]


def states(verdicts: Sequence[Verdict]) -> list[State]:
    return [verdict.state for verdict in verdicts]


def test_two_small_instances_in_both_halves_keep_out_a_half_until_one_ends() -> None:
    divided = gpu((SMALL, 0, 30), (SMALL, 6, 20))
    (verdict,) = plan([divided], wants(HALF))
    assert verdict.state is State.FRAGMENTED
    assert free_slices(divided) == (6, 5)
    assert verdict.opening is not None
    assert verdict.opening.after == (20,), "the job that ends first"
    assert verdict.opening.hold == Hold(HALF, 9, 4, 4)
    assert verdict.opening.end_unix_s == 20


def test_a_full_node_is_slurms_affair_and_no_place_is_held() -> None:
    (verdict,) = plan([gpu((HALF, 0, 1), (HALF, 4, 2))], wants(SMALL))
    assert (verdict.state, verdict.opening) == (State.FULL, None)


def test_requests_ahead_take_places_first_and_keep_them() -> None:
    verdicts = plan([gpu()], wants(HALF, HALF, SMALL))
    assert states(verdicts) == [State.FITS, State.FITS, State.BEHIND]
    assert states(plan([gpu(), gpu(minor=1)], wants(ALL, HALF, MOST))) == [State.FITS] * 3
    divided = gpu((SMALL, 0, 30), (SMALL, 6, 20))
    ahead, behind = plan([divided], wants(MOST, HALF))
    assert ahead.state is State.FRAGMENTED
    assert ahead.opening is not None
    assert ahead.opening.after == (30,), "a 4g begins at 0 alone"
    assert (behind.state, behind.opening) == (State.FRAGMENTED, behind.opening)
    assert behind.opening is not None
    assert (behind.opening.hold.start, behind.opening.after) == (4, (20,)), "not the place that the first will have"


def test_what_no_job_holds_does_not_end() -> None:
    foreign = gpu((SMALL, 0, None), (SMALL, 6, None))
    (verdict,) = plan([foreign], wants(HALF))
    assert (verdict.state, verdict.opening) == (State.FRAGMENTED, None)


def test_a_profile_that_is_not_offered_and_a_node_without_gpus() -> None:
    assert states(plan([gpu()], wants("9g.9gb"))) == [State.NOT_OFFERED]
    assert states(plan([], wants(SMALL))) == [State.NOT_OFFERED]
    assert plan([gpu()], []) == ()


def test_a_place_held_for_a_profile_is_its_alone() -> None:
    held = (Hold(HALF, 9, 4, 4),)
    taken = (Instance(1, 19, 6, 1, "MIG-1"),)
    for name in (SMALL, DOUBLE, HALF, MOST):
        start = choose_start(BY_NAME[name], PROFILES, taken, frozenset(NAMES), held)
        assert start is not None
        assert start + BY_NAME[name].size <= 4, name
    assert choose_start(BY_NAME[HALF], PROFILES, (), frozenset(NAMES), held) == 4, "its own comes first"
    lower = (Instance(1, 9, 0, 4, "MIG-1"),)
    assert legal_starts(BY_NAME[SMALL], PROFILES, lower) == (4, 5, 6)
    assert choose_start(BY_NAME[SMALL], PROFILES, lower, frozenset(NAMES), held) is None
    all_held = (Hold(ALL, 0, 0, 8),)
    assert choose_start(BY_NAME[SMALL], PROFILES, (), frozenset(NAMES), all_held) is None


def test_a_held_place_keeps_its_compute_slices_too() -> None:
    """A 2g at 0 takes 2 of 7; a 4g at 0 beside a place for a 3g takes all."""
    held = (Hold(HALF, 9, 4, 4),)
    blocker = (Instance(1, 19, 4, 1, "MIG-1"),)
    assert choose_start(BY_NAME[MOST], PROFILES, blocker, frozenset(NAMES), held) == 0, "the blocker's go to the place"
    beside = (*blocker, Instance(2, 19, 0, 1, "MIG-2"), Instance(3, 19, 1, 1, "MIG-3"))
    crowded = (*beside, Instance(4, 19, 2, 1, "MIG-4"))
    assert choose_start(BY_NAME[SMALL], PROFILES, crowded, frozenset(NAMES), held) == 3, "3 + 3 + 1 = 7"


# The exhaustive search: sets of taken slices, by trying every place of every request.


def cells(rows: Sequence[Standing]) -> Cells:
    taken = frozenset(at for one in rows for at in range(one.instance.start, one.instance.start + one.instance.size))
    return taken, sum(BY_NAME[one.profile].compute_slices for one in rows)


def places(profile: Profile, of: Cells) -> Iterator[Cells]:
    taken, compute = of
    for start in profile.starts:
        more = frozenset(range(start, start + profile.size))
        if not more & taken and compute + profile.compute_slices <= 7:
            yield taken | more, compute + profile.compute_slices


def can_hold(all_cells: list[Cells], names: Sequence[str]) -> bool:
    if not names:
        return True
    for at, of in enumerate(all_cells):
        for after in places(BY_NAME[names[0]], of):
            if can_hold([*all_cells[:at], after, *all_cells[at + 1 :]], names[1:]):
                return True
    return False


def best_opening(gpus: Sequence[PlanGpu], name: str, ahead: list[str]) -> tuple[float, int, int] | None:
    """The least (last end, jobs, slices) of any set of jobs, over all GPUs and places, that leaves room for `ahead`."""
    costs = []
    for at, one in enumerate(gpus):
        jobs = [row for row in one.standing if row.job_id is not None]
        for count in range(1, len(jobs) + 1):
            for go in combinations(jobs, count):
                stay = [row for row in one.standing if row not in go]
                for start in BY_NAME[name].starts:
                    want = frozenset(range(start, start + BY_NAME[name].size))
                    taken, compute = cells(stay)
                    if want & taken or compute + BY_NAME[name].compute_slices > 7:
                        continue
                    # now: those who go are still there, and the place is kept
                    inside = [row for row in one.standing if cells([row])[0] & want]
                    now_taken = cells(one.standing)[0] | want
                    later = cells([row for row in one.standing if row not in inside])[1]
                    now_compute = max(cells(one.standing)[1], later + BY_NAME[name].compute_slices)
                    others = [(now_taken, now_compute) if i == at else cells(g.standing) for i, g in enumerate(gpus)]
                    if can_hold(others, ahead):
                        cost = max(row.end_unix_s for row in go), len(go), sum(row.instance.size for row in go)
                        costs.append(cost)
    return min(costs, default=None)


@st.composite
def a_gpu(draw: st.DrawFn, minor: int) -> PlanGpu:
    rows: list[tuple[str, int, int | None]] = []
    of: Cells = frozenset(), 0
    for job in draw(st.lists(st.integers(1, 6), max_size=6)):
        name = draw(st.sampled_from((SMALL, SMALL, SMALL, DOUBLE, HALF, MOST)))
        starts = [start for start in BY_NAME[name].starts if not of[0] & set(range(start, start + BY_NAME[name].size))]
        if starts and of[1] + BY_NAME[name].compute_slices <= 7:
            start = draw(st.sampled_from(starts))
            rows.append((name, start, draw(st.sampled_from((job * 100 + len(rows), job * 100 + len(rows), None)))))
            of = of[0] | frozenset(range(start, start + BY_NAME[name].size)), of[1] + BY_NAME[name].compute_slices
    return gpu(*rows, minor=minor)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_plan_is_the_exhaustive_optimum(data: st.DataObject) -> None:
    gpus = [data.draw(a_gpu(minor)) for minor in range(data.draw(st.integers(1, 2)))]
    names = data.draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4))
    now = [cells(one.standing) for one in gpus]
    ahead: list[str] = []
    for verdict in plan(gpus, wants(*names)):
        name = verdict.want.profile
        assert (verdict.state is State.FITS) == can_hold(now, [*ahead, name])
        if verdict.state is State.FITS:
            ahead.append(name)
            continue
        alone = can_hold(now, [name])
        profile = BY_NAME[name]
        suffices = any(8 - len(taken) >= profile.size and 7 - used >= profile.compute_slices for taken, used in now)
        assert verdict.state is (State.BEHIND if alone else State.FRAGMENTED if suffices else State.FULL)
        if verdict.state is State.FRAGMENTED:
            found = verdict.opening
            jobs = [row for row in found.gpu.standing if row.job_id in found.after] if found else []
            cost = found and (found.end_unix_s, len(jobs), sum(row.instance.size for row in jobs))
            assert cost == best_opening(gpus, name, ahead)
            return  # what comes after depends on where it is held


@pytest.mark.parametrize("count", [8])
def test_a_long_queue_for_a_large_node_is_planned_in_a_second(count: int) -> None:
    import time

    gpus = [gpu((SMALL, 0, 30), (SMALL, 6, 20), (DOUBLE, 2, 40), minor=minor) for minor in range(count)]
    began = time.process_time()
    verdicts = plan(gpus, wants(*(NAMES * 40)))
    assert time.process_time() - began < 10
    assert State.FRAGMENTED in states(verdicts)
