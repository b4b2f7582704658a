# SPDX-License-Identifier: Apache-2.0
"""Who is on a GPU whose memory is oversold: each decision, and what holds over many of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_hpc.contract import constants as c
from hami_hpc.core import residents, standing
from hami_hpc.core.grant import Grant
from hami_hpc.core.residents import CANNOT_LEAVE, Order, Tenant, decide

TOTAL = 140_000
LATE = 10_000.0  # a turn that is over


def on(job_id: int, mem_mib: int, since_s: float = LATE, **more: object) -> Tenant:
    fields = {"cores": 10, "order": c.SWAP_IN, "used_mib": mem_mib} | more
    return Tenant(job_id, mem_mib, since_s=since_s, **fields)  # type: ignore[arg-type]


def off(job_id: int, mem_mib: int, since_s: float = 1.0, **more: object) -> Tenant:
    fields = {
        "cores": 10,
        "order": c.SWAP_TURN,
        "used_mib": 600,
        "is_away": True,
        "wants": True,
        "waits_s": since_s,
    } | more
    return Tenant(job_id, mem_mib, since_s=since_s, **fields)  # type: ignore[arg-type]


def new(job_id: int, mem_mib: int, since_s: float = 1.0, **more: object) -> Tenant:
    return off(job_id, mem_mib, since_s, **({"order": c.SWAP_WAIT, "used_mib": 0} | more))


def said(*tenants: Tenant, others: int = 0) -> list[tuple[int, int]]:
    return [(order.job_id, order.order) for order in decide(tenants, TOTAL, others, 60)]


def test_who_fits_comes() -> None:
    assert said(on(1, 70_000), off(2, 60_000)) == [(2, c.SWAP_IN)]
    assert said(on(1, 70_000), new(2, 60_000)) == [(2, c.SWAP_NEVER)]
    assert said(on(1, 70_000), off(2, 60_000, wants=False)) == []


def test_memory_and_cores_of_all_that_are_on_fit() -> None:
    assert said(on(1, 80_000, 1), off(2, 60_001)) == []
    assert said(on(1, 10_000, 1, cores=60), off(2, 10_000, cores=50)) == []
    assert said(on(1, 70_000, 1), off(2, 60_001), others=10_000) == []


def test_what_stays_of_those_that_are_away_counts() -> None:
    away = [off(job, 60_000, wants=False) for job in range(10, 20)]
    assert said(off(1, 134_000, used_mib=0), *away) == [(1, c.SWAP_IN)]
    assert said(off(1, 134_001, used_mib=0), *away) == []


def test_nobody_comes_before_the_others_have_left() -> None:
    leaving = on(1, 100_000, 1, order=c.SWAP_TURN)
    assert said(leaving, off(2, 100_000)) == []
    assert said(leaving._replace(used_mib=700, is_away=True), off(2, 100_000)) == [(2, c.SWAP_IN)]


def test_what_has_not_answered_counts_as_all_that_it_may_take() -> None:
    assert said(on(1, 100_000, 1, order=c.SWAP_TURN, used_mib=10), off(2, 60_000)) == []
    for order in (c.SWAP_OUT, c.SWAP_SUSPENDED):
        assert said(on(1, 100_000, order=order), off(2, 60_000)) == []


def test_a_turn_ends_for_one_that_waits_and_not_before_its_time() -> None:
    needed = residents.turn_s(100_000, 60)
    assert said(on(1, 100_000, needed - 1), off(2, 100_000)) == []
    assert said(on(1, 100_000, needed), off(2, 100_000)) == [(1, c.SWAP_TURN)]
    assert said(on(1, 100_000, needed)) == []
    assert residents.turn_s(1024, 60) == 60
    assert residents.turn_s(105 * 1024, 60) >= 20 * 105 * 0.1  # what moving costs is at most a twentieth of it


def test_those_who_do_not_use_the_gpu_leave_first_and_before_their_turn_is_over() -> None:
    busy, idle = on(1, 60_000, LATE), on(2, 60_000, 30, idle_s=20)
    assert said(busy, idle, off(3, 60_000)) == [(2, c.SWAP_TURN)]


def test_only_as_many_leave_as_have_to() -> None:
    tenants = [on(1, 20_000), on(2, 80_000), on(3, 30_000)]
    assert said(*tenants, off(4, 60_000)) == [(2, c.SWAP_TURN)]


def test_who_has_waited_longest_comes_first_and_nobody_takes_the_place() -> None:
    assert said(on(1, 70_000, 1), off(2, 100_000, 50), off(3, 60_000, 40)) == []
    assert said(on(1, 70_000, 1), off(2, 100_000, 40), off(3, 60_000, 50)) == [(3, c.SWAP_IN)]
    assert said(on(1, 70_000, 1), off(2, 100_000, 40, priority=1), off(3, 60_000, 50)) == []


def test_a_job_that_is_never_moved_comes_first_and_waits_for_no_turn() -> None:
    assert said(on(1, 100_000, 1), off(2, 60_000, LATE), new(3, 60_000)) == [(1, c.SWAP_TURN)]
    both = (new(3, 60_000, 9), new(4, 60_000, 1, latency=True))
    assert said(on(1, 60_000, 1), *both)[0] == (4, c.SWAP_NEVER)


def test_the_youngest_of_the_lowest_class_make_room_for_it() -> None:
    tenants = [on(1, 40_000, 90), on(2, 40_000, 10), on(3, 40_000, 5, priority=7)]
    assert said(*tenants, new(4, 40_000)) == [(2, c.SWAP_TURN)]


def test_one_that_must_wait_for_others_to_end_stands_in_nobodys_way() -> None:
    never = on(1, 100_000, order=c.SWAP_NEVER)
    assert said(never, new(2, 60_000, LATE), off(3, 30_000)) == [(3, c.SWAP_IN)]
    assert said(never, on(3, 30_000, 1), new(2, 60_000, LATE), off(4, 30_000)) == []
    assert said(never, on(3, 30_000, LATE), new(2, 60_000, LATE), off(4, 30_000)) == [(3, c.SWAP_TURN)]


def test_one_that_does_not_leave_in_time_stays_and_is_not_asked_again_soon() -> None:
    late = on(1, 100_000, 60, order=c.SWAP_TURN)
    (order,) = decide([late, off(2, 100_000)], TOTAL, 0, 60)
    assert order == Order(1, c.SWAP_IN, CANNOT_LEAVE)
    assert said(on(1, 100_000, LATE, stays=True), off(2, 100_000)) == []
    assert said(on(1, 100_000, LATE, stays=True), new(2, 100_000), off(3, 30_000)) == [(3, c.SWAP_IN)]


def test_one_whose_record_was_made_again_while_it_was_on_the_gpu_is_there() -> None:
    """reconcile knows only that there is no room for all."""
    there = on(1, 100_000, 60, order=c.SWAP_WAIT)
    assert said(there, off(2, 60_000)) == [(1, c.SWAP_NEVER)]
    assert said(there._replace(since_s=1), off(2, 60_000)) == []


def test_one_that_was_sent_away_and_stays_is_in_nobodys_way() -> None:
    """An administrator's order, or Slurm's suspension, that could not be followed."""
    stuck = on(1, 100_000, order=c.SWAP_SUSPENDED)
    assert said(stuck, off(2, 100_000, 500), off(3, 30_000, 400)) == [(3, c.SWAP_IN)]
    stuck = on(1, 60_000, order=c.SWAP_OUT)
    assert said(stuck, on(2, 70_000), off(3, 60_000, 500)) == [(2, c.SWAP_TURN)]


def test_nobody_leaves_for_one_that_what_stays_of_them_keeps_off() -> None:
    many = on(1, 100_000, processes=30)
    assert said(many, off(2, 125_000, 500, used_mib=0)) == []
    assert said(on(1, 100_000), off(2, 125_000, 500, used_mib=0)) == [(1, c.SWAP_TURN)]


def test_one_that_holds_more_than_it_was_granted_makes_no_room() -> None:
    assert said(off(1, 500, 50, used_mib=900), off(2, 140_000, 40, used_mib=0)) == [(1, c.SWAP_IN)]


TENANTS = st.builds(
    Tenant,
    job_id=st.just(0),
    mem_mib=st.sampled_from([500, 1000, 10_000, 30_000, 60_000, 100_000, 126_000]),
    cores=st.integers(1, 100),
    order=st.sampled_from([c.SWAP_NEVER, c.SWAP_IN, c.SWAP_TURN, c.SWAP_WAIT, c.SWAP_OUT, c.SWAP_SUSPENDED]),
    since_s=st.sampled_from([0.0, 1.0, 20.0, 70.0, 400.0, 1e5]),
    used_mib=st.sampled_from([0, 600, 5000, 100_500]),
    is_away=st.booleans(),
    wants=st.booleans(),
    idle_s=st.sampled_from([0.0, 11.0, 61.0, 601.0]),
    latency=st.booleans(),
    priority=st.integers(0, 3),
    stays=st.booleans(),
    processes=st.integers(0, 3),
    waits_s=st.sampled_from([0.0, 5.0, 500.0]),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(TENANTS, min_size=1, max_size=8), st.sampled_from([0, 20_000]))
def test_whatever_is_seen_nobody_comes_without_room_and_orders_do_not_contradict(
    drawn: list[Tenant], others: int
) -> None:
    tenants = [t._replace(job_id=n, is_away=t.is_away and not t.is_on) for n, t in enumerate(drawn, 1)]
    orders = decide(tenants, TOTAL, others, 60)
    by_id = {tenant.job_id: tenant for tenant in tenants}
    assert len({order.job_id for order in orders}) == len(orders)
    for order in orders:
        before = {c.SWAP_TURN: c.SWAP_IN, c.SWAP_IN: c.SWAP_TURN, c.SWAP_NEVER: c.SWAP_WAIT}[order.order]
        assert by_id[order.job_id].order == before
    come = {order.job_id for order in orders if order.order in residents.ON}
    after = [t._replace(order=c.SWAP_IN) if t.job_id in come else t for t in tenants]
    if come:
        assert others + sum(tenant.held_mib for tenant in after) <= TOTAL
        assert sum(tenant.held_cores for tenant in after) <= 100


@pytest.mark.parametrize("since_s", [LATE, 1.0])
def test_hundreds_of_jobs_are_looked_at_some_times_each(monkeypatch: pytest.MonkeyPatch, since_s: float) -> None:
    """A user may begin as many as the node's shards and CPUs allow; the agent decides each second."""
    looks: list[int] = []
    held = Tenant.held_mib.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Tenant, "held_mib", property(lambda tenant: looks.append(1) or held(tenant)))  # type: ignore[func-returns-value]
    tenants = [on(n, 1400, since_s, cores=0, used_mib=1400 + n % 3) for n in range(95)]
    tenants += [off(200 + n, 60_000, n, cores=1, used_mib=0) for n in range(200)]
    tenants += [new(400 + n, 60_000, cores=1) for n in range(5)]
    orders = decide(tenants, TOTAL, 0, 60)
    standing.places(tenants, TOTAL, 0, 60.0)
    assert orders, "somebody leaves"
    assert len(looks) <= 20 * len(tenants)


def test_under_pressure_those_leave_that_do_not_use_the_gpu() -> None:
    for used, idle_s, leaves in (
        (100_000, 5000, False),
        (105_000, 599, False),
        (105_000, 600, True),
        (119_000, 59, False),
        (119_000, 60, True),
        (133_000, 9, False),
        (133_000, 10, True),
    ):
        busy = on(1, used - 10_000, order=c.SWAP_NEVER)
        want = [(2, c.SWAP_TURN)] if leaves else []
        assert said(busy, on(2, 10_000, idle_s=idle_s)) == want, used


def test_a_job_begins_where_there_is_room_for_all() -> None:
    def grant(job_id: int, mem_mib: int, cores: int, gpu: str = "GPU-a") -> Grant:
        return Grant(job_id, 1, gpu, 0, TOTAL, "h200", mem_mib, cores, "be", "cap", "share", 0)

    def first(own: Grant, *live: Grant, order: int = c.SWAP_IN) -> int:
        return residents.first_order(own, (own, *live), order)

    assert first(grant(1, 70_000, 50), grant(2, 70_000, 50)) == c.SWAP_IN
    assert first(grant(1, 70_000, 50), grant(2, 70_001, 50)) == c.SWAP_TURN
    assert first(grant(1, 70_000, 50), grant(2, 70_000, 51)) == c.SWAP_TURN
    assert first(grant(1, 70_000, 50), grant(2, 70_001, 50, "GPU-b")) == c.SWAP_IN
    assert first(grant(1, 70_000, 50), grant(2, 70_001, 50), order=c.SWAP_NEVER) == c.SWAP_WAIT
    assert first(grant(1, 70_000, 50), order=c.SWAP_NEVER) == c.SWAP_NEVER


# ---- many decisions, of a GPU whose jobs do what they are told, each at its speed


@dataclass
class Job:
    job_id: int
    mem_mib: int
    cores: int
    movable: bool
    begins_s: int
    ends_s: int
    busy: list[bool]  # in each part of its life
    order: int = 0
    since_s: int = 0
    used_mib: int = 0
    idle_since_s: int = 0
    waited_s: int = 0
    longest_s: int = 0
    has_begun: bool = False

    def is_busy(self, now_s: int) -> bool:
        part = (now_s - self.begins_s) * len(self.busy) // (self.ends_s - self.begins_s)
        return self.busy[part]

    def is_on(self) -> bool:
        return self.order in residents.ON

    def begin(self, live: list[Job], now_s: int) -> None:
        here = [*live, self]
        fits = sum(job.mem_mib for job in here) <= TOTAL and sum(job.cores for job in here) <= 100
        self.order = (c.SWAP_TURN, c.SWAP_IN)[fits] if self.movable else (c.SWAP_WAIT, c.SWAP_NEVER)[fits]
        self.since_s = self.idle_since_s = now_s

    def step(self, now_s: int) -> None:
        busy = self.is_busy(now_s)
        if self.is_on():
            if busy:
                self.has_begun = True
                self.used_mib = self.mem_mib  # all of it, at once
                self.idle_since_s = now_s
            self.waited_s = 0
            return
        if self.used_mib > 600:
            self.used_mib = max(600, self.used_mib - 16_000)
        self.waited_s = self.waited_s + 1 if busy else 0
        self.longest_s = max(self.longest_s, self.waited_s)

    def tenant(self, now_s: int) -> Tenant:
        away = not self.is_on() and self.used_mib <= 600 and now_s > self.since_s
        return Tenant(
            job_id=self.job_id,
            mem_mib=self.mem_mib,
            cores=self.cores,
            order=self.order,
            since_s=now_s - self.since_s,
            used_mib=self.used_mib,
            is_away=away,
            wants=away and self.is_busy(now_s),
            waits_s=self.waited_s,
            idle_s=now_s - self.idle_since_s,
        )


@dataclass
class Gpu:
    jobs: list[Job]
    live: list[Job] = field(default_factory=list)

    def run(self, end_s: int) -> None:
        for now_s in range(end_s):
            self.live = [job for job in self.live if job.ends_s > now_s]
            for job in self.jobs:
                if job.begins_s == now_s:
                    job.begin(self.live, now_s)
                    self.live.append(job)
            for job in self.live:
                job.step(now_s)
            self.check()
            by_id = {job.job_id: job for job in self.live}
            for order in decide([job.tenant(now_s) for job in self.live], TOTAL, 0, 60):
                job = by_id[order.job_id]
                before = {c.SWAP_TURN: c.SWAP_IN, c.SWAP_IN: c.SWAP_TURN, c.SWAP_NEVER: c.SWAP_WAIT}[order.order]
                assert job.order == before, order
                assert order.why != CANNOT_LEAVE
                job.order, job.since_s = order.order, now_s

    def check(self) -> None:
        promised = sum(max(job.mem_mib, job.used_mib) if job.is_on() else job.used_mib for job in self.live)
        assert promised <= TOTAL, [(job.job_id, job.order, job.used_mib) for job in self.live]
        assert sum(job.cores for job in self.live if job.is_on()) <= 100


JOBS = st.builds(
    Job,
    job_id=st.just(0),
    mem_mib=st.integers(1, 126).map(lambda gib: gib * 1000),
    cores=st.integers(1, 100),
    movable=st.booleans(),
    begins_s=st.integers(0, 500),
    ends_s=st.integers(510, 3000),
    busy=st.lists(st.booleans(), min_size=1, max_size=6),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(JOBS, min_size=1, max_size=8))
def test_whatever_comes_all_that_is_promised_is_there(jobs: list[Job]) -> None:
    for number, job in enumerate(jobs, 1):
        job.job_id = number
    Gpu(jobs).run(max(job.ends_s for job in jobs))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 126), st.integers(1, 100)), min_size=2, max_size=6))
def test_each_that_can_be_moved_has_its_turn(sizes: list[tuple[int, int]]) -> None:
    jobs = [Job(n, gib * 1000, cores, True, n, 6000, [True]) for n, (gib, cores) in enumerate(sizes)]
    Gpu(jobs).run(5999)
    a_turn_s = residents.turn_s(126_000, 60) + 30
    for job in jobs:
        assert job.has_begun
        assert job.longest_s <= len(jobs) * a_turn_s, (job, jobs)
