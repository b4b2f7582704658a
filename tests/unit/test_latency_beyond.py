# SPDX-License-Identifier: Apache-2.0
"""Which latency-critical jobs of a GPU are treated as any other: the decisions (core/latency_beyond.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from hami_hpc.core.latency_beyond import APART_NS, SECOND, SHORT_NS, SILENT_NS, TRIED_NS, TRIED_NS_MOST, OfGpu, Said

STEP = SECOND // 2
BEGIN = 1_700_000_000 * SECOND
U63 = st.integers(0, 2**63 - 1)


@dataclass
class Job:
    """`says` tells, from whether it is treated as any other, whether it wants more and how much of the time it uses."""

    cores: int
    says: Callable[[bool], tuple[bool, float]]
    is_beyond: bool = False
    is_latency: bool = True
    used_ns: int = 0
    more_ns: int = 0


@dataclass
class Gpu:
    jobs: dict[int, Job]
    now: int = BEGIN
    rules: OfGpu = field(default_factory=OfGpu)
    log: list[tuple[float, int, bool]] = field(default_factory=list)  # seconds, job, whether it is as any other now

    def go_on(self, seconds: float) -> None:
        for _ in range(round(seconds * SECOND / STEP)):
            self.now += STEP
            for job in self.jobs.values():
                wants, used = job.says(job.is_beyond)
                job.used_ns += int(used * STEP)
                job.more_ns = self.now - 20_000_000 if wants else job.more_ns
            for job_id, to in self.rules.decide(self.said(), self.now).items():
                assert self.jobs[job_id].is_beyond != to, "a change changes something"
                self.jobs[job_id].is_beyond = to
                self.log.append(((self.now - BEGIN) / SECOND, job_id, to))

    def said(self) -> list[Said]:
        return [
            Said(i, job.cores, job.is_latency, job.is_beyond, job.more_ns, job.used_ns) for i, job in self.jobs.items()
        ]

    def beyond(self) -> list[int]:
        return [job_id for job_id, job in self.jobs.items() if job.is_beyond]


def always(wants: bool, used: float) -> Callable[[bool], tuple[bool, float]]:
    return lambda _is_beyond: (wants, used)


def test_who_wants_more_is_taken_soon_and_comes_back_soon_after() -> None:
    gpu = Gpu({1: Job(40, always(True, 0.8)), 2: Job(20, always(False, 0.04))})
    gpu.go_on(60)
    assert [(job, to) for _at, job, to in gpu.log] == [(1, True)]
    assert gpu.log[0][0] <= 1
    gpu.jobs[1].says = always(False, 0.1)
    gpu.go_on(3)
    last_heard = 60.5  # what it said at 60 s was heard then, too
    assert gpu.log[1:] == [(last_heard + SILENT_NS / SECOND, 1, False)]


def test_who_is_alone_on_the_gpu_is_latency_critical_again_a_second_later() -> None:
    gpu = Gpu({1: Job(40, always(True, 0.8)), 2: Job(20, always(False, 0.04))})
    gpu.go_on(2)
    assert gpu.beyond() == [1]
    del gpu.jobs[2]
    gpu.go_on(5)
    assert gpu.log[1:] == [(2 + SILENT_NS / SECOND, 1, False)]


def test_requests_that_pile_up_behind_another_job_take_nobody() -> None:
    """The service has work all the time while the other one is latency-critical; both say so at the same look."""
    gpu = Gpu({})
    greedy = Job(40, always(True, 0.8))
    gpu.jobs = {1: Job(20, lambda _is: (not greedy.is_beyond, 0.1 if not greedy.is_beyond else 0.15)), 2: greedy}
    gpu.go_on(30)
    assert [(job, to) for _at, job, to in gpu.log] == [(2, True)]


def test_of_two_that_say_it_at_once_the_one_that_uses_most_of_its_cores_now_is_taken() -> None:
    """What a job used earlier does not count."""
    gpu = Gpu({1: Job(20, always(False, 0.9)), 2: Job(40, always(False, 0.1))})
    gpu.go_on(20)
    gpu.jobs[1].says, gpu.jobs[2].says = always(True, 0.1), always(True, 0.8)
    gpu.go_on(2)
    assert [(job, to) for _at, job, to in gpu.log] == [(2, True)]


def test_all_that_want_more_are_taken_one_after_the_other() -> None:
    gpu = Gpu({i: Job(20, always(True, 0.3)) for i in range(4)})
    gpu.go_on(10)
    assert gpu.beyond() == [0, 1, 2, 3]
    times = [at for at, _job, _to in gpu.log]
    assert [later - earlier for earlier, later in pairwise(times)] == [APART_NS / SECOND] * 3


def test_a_service_whose_requests_piled_up_is_latency_critical_again_and_stays_so() -> None:
    """Treated as any other it has 3 % of the time, for whose requests it always waits; else it has what it asks for."""
    gpu = Gpu(
        {1: Job(45, always(True, 0.5)), 2: Job(45, lambda is_beyond: (is_beyond, 0.03 if is_beyond else 0.4), True)}
    )
    gpu.go_on(TRIED_NS / SECOND + 2)
    assert gpu.beyond() == [1]
    gpu.log.clear()
    gpu.go_on(60)
    assert gpu.log == []


def test_who_wants_everything_and_has_too_little_is_tried_ever_more_seldom() -> None:
    gpu = Gpu({1: Job(60, lambda is_beyond: (True, 0.4 if is_beyond else 0.9)), 2: Job(20, always(False, 0.1))})
    gpu.go_on(2000)
    returns = [at for at, job, to in gpu.log if (job, to) == (1, False)]
    gaps = [later - earlier for earlier, later in pairwise(returns)]
    assert gaps == sorted(gaps)
    assert TRIED_NS_MOST / SECOND <= gaps[-1] <= TRIED_NS_MOST / SECOND + 3
    assert len(returns) < 15


def greedy_ones(*cores: int) -> Gpu:
    """Each wants everything. Those that are latency-critical have 90 % together, the others the rest by their cores."""
    gpu = Gpu({})

    def part(job_id: int) -> float:
        alike = [job.cores for job in gpu.jobs.values() if job.is_beyond == gpu.jobs[job_id].is_beyond]
        of_all = 1.0 if len(alike) == len(gpu.jobs) else 0.1 if gpu.jobs[job_id].is_beyond else 0.9
        return of_all * gpu.jobs[job_id].cores / sum(alike)

    gpu.jobs = {i: Job(own, lambda _is, i=i: (True, part(i))) for i, own in enumerate(cores)}  # type: ignore[misc]
    return gpu


def test_those_that_have_their_cores_once_all_are_taken_are_not_tried() -> None:
    """What the first of them had until the last one was taken does not count."""
    gpu = greedy_ones(60, 20, 20)
    gpu.go_on(60)
    assert [to for _at, _job, to in gpu.log] == [True] * 3


def test_nine_tenths_of_its_cores_are_enough_for_who_is_treated_as_any_other() -> None:
    gpu = Gpu({1: Job(50, lambda is_beyond: (True, 0.45 if is_beyond else 0.9)), 2: Job(20, always(False, 0.1))})
    gpu.go_on(20)
    assert [(job, to) for _at, job, to in gpu.log] == [(1, True)]


def test_a_user_whose_jobs_change_all_the_time_keeps_no_other_from_being_tried_for_long() -> None:
    gpu = Gpu({1: Job(60, lambda is_beyond: (True, 0.4 if is_beyond else 0.9)), 2: Job(20, always(False, 0.1))})
    gpu.jobs |= {i: Job(1, lambda is_beyond: (not is_beyond, 9.0)) for i in (3, 4)}
    gpu.go_on(30)
    assert any((job, to) == (1, False) for _at, job, to in gpu.log)
    assert sum(job > 2 for _at, job, _to in gpu.log) > 10, "they did change"


def test_a_job_that_says_it_now_and_then_keeps_no_other_from_being_taken() -> None:
    """Three of them, of one user, that are silent again as soon as they are taken."""
    gpu = Gpu({4: Job(30, always(True, 0.8))})
    gpu.jobs |= {i: Job(1, lambda is_beyond: (not is_beyond, 9.0)) for i in range(3)}
    gpu.go_on(10)
    assert 4 in gpu.beyond()


def test_a_job_whose_record_cannot_be_written_keeps_no_other_from_being_taken() -> None:
    """Its user alone says it, and root leaves its record as it is."""
    rules = OfGpu()
    taken: list[int] = []
    said = [Said(1, 20, True, False, BEGIN, 0), Said(3, 20, True, False, 0, 0)]
    for now in range(BEGIN, BEGIN + 6 * SECOND, STEP):
        said = [one._replace(more_unix_ns=now if one.job_id < 3 else 0) for one in said]
        taken += rules.decide(said, now)
        if now == BEGIN + STEP:
            said.append(Said(2, 40, True, False, now, 0))
    assert set(taken) == {1, 2}


@given(st.integers(0, 499), st.integers(0, 390))
def test_who_says_it_for_less_than_it_takes_is_not_taken_whenever_that_is_heard(at_ms: int, for_ms: int) -> None:
    """A service with one request that is much longer than the others."""
    rules, first = OfGpu(), BEGIN + at_ms * SECOND // 1000
    for now in range(BEGIN, BEGIN + 4 * SECOND, STEP):
        word = min(now, first + for_ms * SECOND // 1000) if now >= first else 0
        assert rules.decide([Said(1, 40, True, False, word, 0), Said(2, 20, True, False, 0, 0)], now) == {}


def test_words_of_the_future_and_of_long_ago_are_not_heard() -> None:
    gpu = Gpu({1: Job(40, always(False, 0.8)), 2: Job(40, always(False, 0.1))})
    for more_ns in (2**63 - 1, BEGIN + 3600 * SECOND, BEGIN - 3600 * SECOND, 0):
        gpu.jobs[1].more_ns = more_ns
        gpu.go_on(5)
        assert gpu.beyond() == []


def test_a_clock_that_is_set_forward_takes_nobody_from_whom_nobody_lacks_anything() -> None:
    gpu = Gpu({1: Job(30, always(True, 0.4)), 2: Job(50, always(True, 0.5), is_latency=False)})
    for _ in range(3):
        gpu.go_on(20)
        gpu.now += 3600 * SECOND
    gpu.go_on(20)
    assert gpu.log == []


def test_a_clock_that_is_set_back_stops_nothing() -> None:
    gpu = Gpu({1: Job(40, always(True, 0.8)), 2: Job(20, always(False, 0.1))})
    gpu.go_on(5)
    gpu.now -= 3600 * SECOND
    gpu.go_on(5)
    assert gpu.beyond() == [1]
    gpu.jobs[1].says = always(False, 0.1)
    gpu.go_on(3)
    assert gpu.beyond() == []
    gpu.jobs[1].says = always(True, 0.8)
    gpu.go_on(3)
    assert gpu.beyond() == [1]


def batch(cores: int, wants: bool, used: float) -> Job:
    return Job(cores, always(wants, used), is_latency=False)


def test_who_wants_more_is_latency_critical_beside_others_that_have_what_they_asked_for() -> None:
    gpu = Gpu({1: Job(40, always(True, 0.6)), 2: batch(30, wants=True, used=0.3), 3: batch(30, wants=False, used=0.1)})
    gpu.go_on(60)
    assert gpu.log == []


def test_who_wants_more_is_taken_where_one_that_wants_more_does_not_get_its_cores() -> None:
    gpu = Gpu({1: Job(40, lambda is_beyond: (True, 0.5 if is_beyond else 0.9)), 2: batch(30, wants=True, used=0.05)})
    gpu.go_on(3)
    assert gpu.log == [], "a peak is not taken"
    gpu.go_on(60)
    assert [(job, to) for _at, job, to in gpu.log] == [(1, True)]
    assert gpu.log[0][0] == (STEP + SHORT_NS) / SECOND, "from the first look on"


def test_who_is_within_its_cores_is_latency_critical_whatever_others_lack() -> None:
    gpu = Gpu({1: Job(60, always(False, 0.55)), 2: batch(40, wants=True, used=0.01), 3: batch(0, wants=True, used=0)})
    gpu.go_on(60)
    assert gpu.log == []


def test_others_that_want_now_and_then_are_not_short() -> None:
    """Their rest would count as time that they lacked."""
    at = [0]

    def now_and_then(_is_beyond: bool) -> tuple[bool, float]:
        at[0] += 1
        return at[0] % 8 < 4, 0.1

    gpu = Gpu({1: Job(40, always(True, 0.8)), 2: Job(30, now_and_then, is_latency=False)})
    gpu.go_on(60)
    assert gpu.log == []


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 4), st.integers(0, 200), st.booleans(), st.booleans(), U63, U63)), max_size=10
    ),
    U63,
)
@settings(max_examples=100, deadline=None)
def test_any_words_are_survived_and_at_most_one_is_taken_at_a_look(
    looks: list[list[tuple[int, int, bool, bool, int, int]]], now: int
) -> None:
    rules = OfGpu()
    for look in looks:
        said = {words[0]: Said(*words) for words in look}
        changes = rules.decide(said.values(), now)
        assert sum(changes.values()) <= 1
        assert all(said[job_id].is_beyond != to for job_id, to in changes.items())
        now += STEP
