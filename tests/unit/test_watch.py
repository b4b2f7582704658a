# SPDX-License-Identifier: Apache-2.0
"""hami_hpc/core/watch.py: what is a finding, and that no honest job ever is one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from watch_testbed import GPU, LIMITS, OTHER_GPU, grant, look, process, suspicion

from hami_hpc.core.time_watch import TimeWatch
from hami_hpc.core.watch import (
    AGAIN_NS,
    CLEAR_NS,
    GRACE_NS,
    MIB,
    SECOND,
    Incidents,
    Kind,
    Look,
    Slice,
    Throttle,
    judge,
    slice_key,
    too_little_left,
)


def kinds(seen: Look) -> list[tuple[Kind, int, int]]:
    return [(one.kind, one.job_id, one.pid) for one in judge(seen, LIMITS)]


def counted(mib: int) -> tuple[Slice, ...]:
    return (Slice(grant(), mib * MIB, 0, 0),)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (look(process()), []),
        (look(process(has_interposer=None)), []),
        (look(process(has_interposer=False)), [(Kind.NO_INTERPOSER, 7, 100)]),
        (look(process(gpu_uuid=OTHER_GPU, has_interposer=False)), [(Kind.WRONG_GPU, 7, 100)]),
        # memory: all processes of the job together, with the site's slack
        (look(process(1, used_mib=512), process(2, used_mib=512 + 64)), []),
        (look(process(1, used_mib=512), process(2, used_mib=512 + 65)), [(Kind.MEMORY_OVER, 7, 0)]),
        (look(process(1, used_mib=2000, gpu_uuid=OTHER_GPU)), [(Kind.WRONG_GPU, 7, 1)]),
        # what the job's own record says
        (look(process(used_mib=512), slices=counted(448)), []),
        (look(process(used_mib=512), slices=counted(447)), [(Kind.UNCOUNTED, 7, 0)]),
        (look(process(used_mib=512, has_interposer=False), slices=counted(0)), [(Kind.NO_INTERPOSER, 7, 100)]),
        (look(process(used_mib=2000), slices=counted(1 << 40)), [(Kind.MEMORY_OVER, 7, 0)]),
        # jobs without a slice: Slurm says what they hold
        (look(process(job_id=8), held={8: frozenset({GPU})}), []),
        (look(process(job_id=8), held={8: None}), []),
        (look(process(job_id=8)), []),
        (look(process(job_id=8), held={8: frozenset()}), [(Kind.NO_GRANT, 8, 100)]),
        (look(process(job_id=8), held={8: frozenset({OTHER_GPU})}), [(Kind.NO_GRANT, 8, 100)]),
        (look(process(job_id=8), held={8: frozenset()}, whole=frozenset({8})), []),
        # no job
        (look(process(job_id=0)), [(Kind.NO_JOB, 0, 100)]),
        (look(process(job_id=0, uid=0)), []),
        (look(process(job_id=-1)), []),
    ],
)
def test_what_one_look_shows(seen: Look, expected: list[tuple[Kind, int, int]]) -> None:
    assert kinds(seen) == expected


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (look(process(job_id=0)), "process 100 of uid 1000 belongs to no job and uses GPU GPU-1"),
        (
            look(process(job_id=8), held={8: frozenset()}),
            "process 100 of job 8 uses GPU GPU-1, which the job does not hold",
        ),
        (look(process(gpu_uuid=OTHER_GPU)), "process 100 of job 7 uses GPU GPU-2; its slice is on GPU-1"),
        (
            look(process(has_interposer=False)),
            "process 100 of job 7 runs without the interposer, so nothing limits it",
        ),
        (look(process(used_mib=2000)), "job 7 holds 2000 MiB of GPU GPU-1; granted are 1024 MiB"),
        (
            look(process(), slices=counted(5)),
            "job 7 holds 512 MiB of GPU GPU-1, of which its interposer counted 5 MiB",
        ),
    ],
)
def test_a_suspicion_says_who_does_what_and_has_the_processes(seen: Look, text: str) -> None:
    (one,) = judge(seen, LIMITS)
    assert (one.text, one.processes, one.gpu_uuid) == (text, seen.processes, seen.processes[0].gpu_uuid)


def limited(most: int, mode: str = "share") -> tuple[Slice, ...]:
    return (Slice(grant()._replace(max_processes=most, mode=mode), None, 0, 0),)


@pytest.mark.parametrize(
    ("seen", "surplus"),
    [
        (look(process(1), process(2), slices=limited(0)), []),
        (look(process(1), process(2), slices=limited(2)), []),
        (look(process(9, started=1), process(1, started=2), process(2, started=3), slices=limited(1)), [1, 2]),
        (look(process(3), process(1), process(2), slices=limited(2)), [3]),
        # others' processes, those on another GPU, and those that hold nothing do not count
        (look(process(1), process(2, job_id=8), slices=limited(1)), []),
        (look(process(1), process(2, job_id=-1), slices=limited(1)), []),
        (look(process(1), process(2, used_mib=0), slices=limited(1)), []),
        (look(process(1), process(2), slices=limited(1, "mig")), []),
        (look(process(1), process(2), slices=limited(1, "mps")), [2]),
    ],
)
def test_processes_that_began_after_as_many_as_may_use_a_slice_are_found(seen: Look, surplus: list[int]) -> None:
    found = [one for one in judge(seen, LIMITS) if one.kind is Kind.PROCESSES_OVER]
    assert [process.pid for one in found for process in one.processes] == surplus
    assert [(one.job_id, one.pid, one.gpu_uuid) for one in found] == [(7, 0, GPU)] * bool(surplus)


def test_a_finding_of_too_many_processes_says_how_many_and_why() -> None:
    (one,) = judge(look(process(1, used_mib=1), process(2, used_mib=1), slices=limited(1)), LIMITS)
    assert one.text == "job 7 has 2 processes on GPU GPU-1; class std allows 1 (max_processes)"


@pytest.mark.parametrize("kind", [kind for kind in Kind if GRACE_NS[kind] and kind is not Kind.UNCOUNTED])
def test_a_suspicion_is_confirmed_by_a_second_look_after_its_grace(kind: Kind) -> None:
    incidents = Incidents()
    assert incidents.update(0, [suspicion(kind)]) == []
    assert incidents.is_waiting()
    assert incidents.update(GRACE_NS[kind] - 1, [suspicion(kind)]) == []
    (incident,) = incidents.update(GRACE_NS[kind], [suspicion(kind)])
    assert incident.is_new
    assert {(found, job) for found, job, _gpu in incidents.open()} == {(kind, 7)}
    assert not incidents.is_waiting()


def test_what_is_gone_at_the_second_look_was_nothing() -> None:
    incidents = Incidents()
    for at in range(0, 100 * SECOND, SECOND):  # every second time
        assert incidents.update(at, [suspicion()] if at // SECOND % 2 else []) == []
    assert incidents.open() == frozenset()


def test_an_incident_is_reported_once_and_acted_on_again_until_it_is_clear() -> None:
    incidents = Incidents()
    incidents.update(0, [suspicion()])
    reported = [
        (at, incident.is_new)
        for at in range(SECOND, 12 * SECOND, SECOND)
        for incident in incidents.update(at, [suspicion()])
    ]
    assert reported == [(SECOND, True), (SECOND + AGAIN_NS, False), (SECOND + 2 * AGAIN_NS, False)]
    last = 11 * SECOND
    incidents.update(last + CLEAR_NS - 1, [])
    assert incidents.open()
    incidents.update(last + CLEAR_NS, [])
    assert incidents.open() == frozenset()
    incidents.update(last + 2 * CLEAR_NS, [suspicion()])
    (again,) = incidents.update(last + 2 * CLEAR_NS + SECOND, [suspicion()])
    assert again.is_new


def test_an_incident_that_comes_back_is_confirmed_again_before_anything_is_done() -> None:
    incidents = Incidents()
    incidents.update(0, [suspicion()])
    assert len(incidents.update(SECOND, [suspicion()])) == 1
    incidents.update(2 * SECOND, [])
    assert incidents.update(8 * SECOND, [suspicion()]) == []
    (again,) = incidents.update(9 * SECOND, [suspicion()])
    assert not again.is_new


def times(percents: Sequence[float], step_ns: int = SECOND, share: int = 25, policy: str = "cap") -> list[int]:
    """Returns the looks at which a job with this share of the time is above it."""
    watch = TimeWatch()
    slices = (Slice(grant(cores=share, policy=policy), None, 0, 0),)
    found = []
    for number, percent in enumerate(percents):
        own = process(busy_ns=int(percent * step_ns / 100))
        if list(watch.judge(look(own, slices=slices, at=number * step_ns))):
            found.append(number)
    return found


def test_time_above_the_share_is_found_grossly_at_once_and_closely_over_half_a_minute() -> None:
    assert times([25, 25, 100, 100, 100])[0] <= 4
    assert times([40] * 25) == []
    assert times([40] * 40)[0] == 30
    assert times([35] * 100) == []
    assert times([100] * 100, policy="burst") == []
    assert times([0] * 50 + [50] * 4 + [0] * 50) == []  # a burst that the duty cycle lets through after idling


def test_the_time_of_each_capped_job_is_watched_whoever_is_before_it() -> None:
    watch = TimeWatch()
    slices = (Slice(grant(8, policy="burst"), None, 0, 0), Slice(grant(7, policy="cap"), None, 0, 0))
    looks = [look(process(busy_ns=SECOND), slices=slices, at=at * SECOND) for at in range(10)]
    assert {found.job_id for one in looks for found in watch.judge(one)} == {7}


def times_of_resized(shares: Sequence[int], used: Sequence[float], step_ns: int = SECOND) -> list[int]:
    """Returns the looks at which a job that has these shares one after the other is above them."""
    watch, found = TimeWatch(), []
    for number, (share, percent) in enumerate(zip(shares, used, strict=True)):
        one = Slice(grant(cores=share, policy="cap"), None, 0, 0)
        own = process(busy_ns=int(percent * step_ns / 100))
        if list(watch.judge(look(own, slices=(one,), at=number * step_ns))):
            found.append(number)
    return found


def test_a_resized_job_is_judged_by_the_shares_that_it_had() -> None:
    assert times_of_resized([100] * 40 + [20] * 40, [100] * 41 + [20] * 39) == []
    assert times_of_resized([20] * 40 + [100] * 40, [20] * 40 + [100] * 40) == []
    assert times_of_resized([100] * 40 + [20] * 40, [100] * 80)[0] <= 44


def test_who_resizes_its_job_at_each_look_is_found_all_the_same() -> None:
    assert times_of_resized([25, 24] * 10, [100] * 20)[0] <= 4
    assert times_of_resized([25, 24] * 30, [40] * 60)[0] == 30


def test_time_above_the_share_is_said_in_figures() -> None:
    watch = TimeWatch()
    slices = (Slice(grant(cores=25, policy="cap"), None, 0, 0),)
    looks = [look(process(busy_ns=SECOND // 2), slices=slices, at=at * SECOND) for at in range(40, 80)]
    (first, *_) = [found for one in looks for found in watch.judge(one)]
    assert first.text == "job 7 had 50 % of the time of GPU GPU-1 over 30.0 s; its share is 25 %"
    assert (first.job_id, first.gpu_uuid, [one.pid for one in first.processes]) == (7, GPU, [100])


def test_a_job_is_judged_as_away_from_the_gpu_once_it_is_so_for_three_seconds_without_a_pause() -> None:
    """Samples of its work before may come until then."""
    watch = TimeWatch()
    one = Slice(grant(cores=25, policy="burst"), None, 0, 0)

    def is_found(at: int, *, is_away: bool) -> bool:
        may_hold = {slice_key(one.grant): 0} if is_away else {slice_key(grant(8)): 0}
        shown = look(process(busy_ns=SECOND), slices=(one,), at=at * SECOND)
        return bool(list(watch.judge(shown._replace(may_hold=may_hold))))

    assert not any(is_found(at, is_away=True) for at in range(3))
    assert not any(is_found(at, is_away=False) for at in range(3, 20)), "its policy is burst"
    assert [at for at in range(20, 30) if is_found(at, is_away=True)] == [25, 26, 27, 28, 29]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 35), min_size=1, max_size=200), st.integers(200, 2000))
def test_a_job_within_its_share_is_never_above_it(percents: list[float], step_ms: int) -> None:
    assert times(percents, step_ms * 1_000_000) == []


def test_the_history_of_a_job_that_has_ended_is_forgotten() -> None:
    watch = TimeWatch()
    for at in range(5):
        list(watch.judge(look(process(busy_ns=SECOND), at=at * SECOND)))
    assert not list(watch.judge(look(slices=(), at=5 * SECOND)))
    assert not list(watch.judge(look(process(busy_ns=SECOND), at=6 * SECOND)))


honest = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 200)), max_size=5, unique_by=lambda pair: pair[0])


@settings(max_examples=100, deadline=None)
@given(st.lists(honest, min_size=1, max_size=40))
def test_no_churn_of_an_honest_job_is_a_finding(looks: list[list[tuple[int, int]]]) -> None:
    """Its processes come and go, take and free; its interposer counts at least what they hold."""
    incidents = Incidents()
    for number, held in enumerate(looks):
        processes = [process(pid, used_mib=mib) for pid, mib in held]
        total = sum(mib for _, mib in held)
        one = Slice(grant(mem_mib=max(total, 1024)), total * MIB, 0, 0)
        seen = look(*processes, slices=(one,), at=number * SECOND)
        assert incidents.update(seen.boot_ns, judge(seen, LIMITS)) == []


def test_whether_a_refused_allocation_was_others_fault() -> None:
    one = Slice(grant(mem_mib=1024), 0, 0, 0)
    seen = look(process(used_mib=1000), slices=(one,))
    assert too_little_left(one, seen, 23 * MIB)
    assert not too_little_left(one, seen, 24 * MIB)
    assert not too_little_left(one, replace_processes(seen), 1024 * MIB)


def replace_processes(seen: Look) -> Look:
    return seen._replace(processes=())


def test_a_suspicion_names_whom_it_concerns() -> None:
    one = suspicion()
    assert one.subject == (Kind.MEMORY_OVER, 7, 0, GPU)


def test_what_is_not_counted_is_confirmed_by_five_looks() -> None:
    incidents = Incidents()
    found = [bool(incidents.update(at * SECOND // 5, [suspicion(Kind.UNCOUNTED)])) for at in range(6)]
    assert found == [False, False, False, False, True, False]


def test_a_throttle_is_for_each_name() -> None:
    throttle = Throttle(2, SECOND)
    assert [throttle.admits("a", at) for at in (0, 1, 2, SECOND - 1, SECOND)] == [True, True, False, False, True]
    assert throttle.admits("b", 2)


def test_a_job_with_a_mig_instance_needs_no_interposer_and_is_limited_by_the_hardware() -> None:
    slices = (Slice(grant()._replace(mode="mig"), 0, 0, 0),)
    own = process(used_mib=4096, has_interposer=False)
    assert kinds(look(own, slices=slices)) == []
    elsewhere = process(gpu_uuid=OTHER_GPU, has_interposer=False)
    assert kinds(look(elsewhere, slices=slices)) == [(Kind.WRONG_GPU, 7, 100)]
