# SPDX-License-Identifier: Apache-2.0
"""Which jobs work in step, when they begin in the common period, and what others on their GPUs keep to."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from hami_hpc.core.grant import Grant
from hami_hpc.core.in_step import (
    NOT_IN_STEP,
    ON_ONE_NODE,
    ON_SEVERAL_NODES,
    kind_of,
    make_begins,
    slices_beside,
)
from hami_hpc.core.turns import make_turns


def grant(job_id: int, gpu: str, cores: int = 50, in_step: int = ON_ONE_NODE, policy: str = "cap") -> Grant:
    return Grant(job_id, 1000, gpu, 0, 80000, "h200", 1000, cores, "std", policy, "share", 1, in_step=in_step)


def test_jobs_with_slices_on_several_gpus_or_nodes_work_in_step() -> None:
    assert kind_of(1, 1, "share", "cap") == NOT_IN_STEP
    assert kind_of(2, 1, "share", "cap") == kind_of(2, 1, "share", "burst") == ON_ONE_NODE
    assert kind_of(1, 2, "share", "cap") == kind_of(4, 3, "share", "cap") == ON_SEVERAL_NODES
    assert kind_of(2, 1, "share", "none") == kind_of(1, 2, "mps", "none") == kind_of(1, 2, "mig", "cap") == NOT_IN_STEP


def test_two_jobs_of_half_a_gpu_that_meet_on_one_take_turns() -> None:
    begins = make_begins([grant(7, "A"), grant(7, "B"), grant(9, "B"), grant(9, "C")])
    assert begins == {7: 0, 9: 500}


def test_jobs_that_meet_nowhere_begin_together() -> None:
    assert make_begins([grant(7, "A"), grant(7, "B"), grant(9, "C"), grant(9, "D")]) == {7: 0, 9: 0}


def test_a_place_is_found_between_others_and_across_the_end_of_the_period() -> None:
    jobs = [grant(1, "A", 30), grant(2, "A", 30), grant(2, "B", 30), grant(1, "C", 30)]
    assert make_begins([*jobs, grant(3, "A", 40), grant(3, "B", 40)]) == {1: 0, 2: 300, 3: 600}
    assert make_begins([*jobs[1:3], grant(3, "A", 40), grant(3, "B", 40)]) == {2: 0, 3: 300}


def test_who_finds_no_place_begins_at_0() -> None:
    assert make_begins([grant(1, "A", 60), grant(1, "B", 60), grant(2, "A", 60), grant(2, "B", 60)])[2] == 0


def test_only_caps_in_step_have_a_begin() -> None:
    assert make_begins([grant(1, "A", policy="burst"), grant(2, "A", in_step=NOT_IN_STEP)]) == {}


def test_a_job_on_several_nodes_begins_by_its_id_on_each_of_them() -> None:
    here = make_begins([grant(8, "A", in_step=ON_SEVERAL_NODES), grant(3, "A")])
    there = make_begins([grant(8, "X", in_step=ON_SEVERAL_NODES), grant(5, "X", in_step=ON_SEVERAL_NODES)])
    assert here[8] == there[8]
    assert here == {8: 62, 3: 562}, "who is on this node alone goes out of its way"
    halves = [make_begins([grant(i, "A", in_step=ON_SEVERAL_NODES)])[i] for i in range(16)]
    assert sorted(halves) == [1000 * i // 16 for i in range(16)]
    assert [abs(a - b) for a, b in zip(halves[::2], halves[1::2], strict=True)] == [500] * 8


JOBS = st.lists(
    st.tuples(st.integers(1, 100), st.integers(0, 2), st.sets(st.sampled_from("ABCD"), min_size=1)),
    min_size=1,
    max_size=12,
)


@given(JOBS, st.randoms())
def test_begins_do_not_depend_on_the_order_of_grants_and_lie_in_the_period(
    jobs: list[tuple[int, int, set[str]]], random: Random
) -> None:
    live = [grant(i, gpu, cores, in_step) for i, (cores, in_step, gpus) in enumerate(jobs, 1) for gpu in sorted(gpus)]
    begins = make_begins(live)
    random.shuffle(live)
    assert make_begins(live) == begins
    assert all(0 <= begin < 1000 for begin in begins.values())
    for gpu in "ABCD":
        on_gpu = [one for one in live if one.gpu_uuid == gpu]
        assert set(slices_beside(on_gpu)) == {one.job_id for one in on_gpu}


def test_beside_a_cap_in_step_timeslices_of_others_are_short() -> None:
    own, other, free = grant(1, "A"), grant(2, "A", in_step=0), grant(3, "A", in_step=0, policy="none")
    assert slices_beside([own, other, free]) == {1: 0, 2: 1000, 3: 1000}
    assert slices_beside([own, own._replace(job_id=5)]) == {1: 0, 5: 0}


def test_beside_a_burst_in_step_all_have_timeslices_in_proportion_to_cores() -> None:
    own, other, free = grant(1, "A", policy="burst"), grant(2, "A", 25, 0), grant(3, "A", 10, 0, "none")
    assert slices_beside([own, other, free]) == {1: 2000, 2: 1000, 3: 0}
    assert slices_beside([own]) == {1: 0}, "alone it keeps its own"
    assert slices_beside([own, grant(4, "A", 20), other]) == {1: 1000, 4: 0, 2: 1000}


def test_a_latency_critical_job_keeps_its_own_timeslice() -> None:
    urgent = grant(2, "A", in_step=0, policy="burst")._replace(latency=1)
    assert slices_beside([grant(1, "A"), urgent])[2] == 0


def test_turns_tell_both() -> None:
    live = [grant(7, "B"), grant(9, "B"), grant(11, "B", in_step=0)]
    turns = make_turns(live, begins=make_begins(live))
    assert [turns[i].step_begin_permille for i in (7, 9, 11)] == [0, 500, 0]
    assert [turns[i].beside_slice_us for i in (7, 9, 11)] == [0, 0, 1000]
