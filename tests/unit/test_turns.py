# SPDX-License-Identifier: Apache-2.0
"""Who on a GPU gives way to whom, and when it is whose turn."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.core.turns import PERIOD_PERMILLE, Turn, cores_of_tenants, make_turns


def grant(job_id: int, cores: int, latency: int = 0, policy: str = "burst") -> Grant:
    return Grant(job_id, 1000, "GPU-1", 0, 143155, "h200", 1024, cores, "std", policy, "share", 1, latency, 5 * latency)


JOBS = st.lists(
    st.tuples(
        st.integers(1, 2**32 - 1),
        st.integers(1, 100),
        st.integers(0, 1),
        st.sampled_from(["cap", "burst", "none"]),
        st.sampled_from([0, 0, 0, 1, c.CLASS_PRIORITY_MAX]),
        st.sampled_from([0, 0, c.SLO_US_MIN, c.SLO_US_MAX]),
    ),
    max_size=40,
    unique_by=lambda job: job[0],
).map(lambda jobs: [grant(*job[:4])._replace(class_priority=job[4], slo_us=job[5]) for job in jobs])


def comes_before(one: Grant, other: Grant) -> bool:
    if one.class_priority != other.class_priority:
        return one.class_priority > other.class_priority
    return one.slo_us > 0 and (other.slo_us == 0 or one.slo_us < other.slo_us)


def check(live: Iterable[Grant]) -> None:
    turns = make_turns(live)
    grants = sorted(live, key=lambda grant: grant.job_id)
    assert turns.keys() == {grant.job_id for grant in grants}
    for one in grants:
        others = [other for other in grants if other is not one]
        turn = turns[one.job_id]
        assert turn.latency_others == sum(other.latency for other in others)
        above = [other for other in others if other.latency and comes_before(other, one)] if one.latency else []
        assert turn.latency_above == len(above)
        assert turn.others_capped == sum(other.policy == "cap" for other in others)
        least = min((4 if other.policy == "none" else other.cores_percent for other in others), default=0)
        assert turn.others_least_cores == least
        only = others[0] if len(others) == 1 and others[0].policy != "none" else None
        assert turn.only_other_cores == (only.cores_percent if only else 0)
    ordinary = [grant for grant in grants if not grant.latency]
    with_turns = len(ordinary) >= 2
    begin = 0
    for one in grants:
        at, length = turns[one.job_id].turn_begin_permille, turns[one.job_id].turn_length_permille
        if one.latency:
            several = ordinary and len(grants) - len(ordinary) > 1
            assert (at, length) == (0, PERIOD_PERMILLE - 10 * one.floor_percent if several and one.floor_percent else 0)
        elif not with_turns:
            assert (at, length) == (0, 0)
        else:
            assert (at, length) == (begin, max(length, 1)), "one after the other, in the order of job ids"
            begin += length
    assert begin == (PERIOD_PERMILLE if with_turns else 0)


@given(JOBS)
def test_turns_fill_the_period_without_overlap(live: list[Grant]) -> None:
    check(live)


@given(JOBS, st.randoms(use_true_random=False))
def test_the_order_in_which_the_jobs_are_listed_does_not_matter(live: list[Grant], shuffler: random.Random) -> None:
    mixed = list(live)
    shuffler.shuffle(mixed)
    assert make_turns(mixed) == make_turns(live)


@given(st.lists(st.integers(1, 100), min_size=2, max_size=20).filter(lambda cores: sum(cores) <= 100))
def test_a_turn_is_in_proportion_to_the_jobs_cores(cores: list[int]) -> None:
    turns = make_turns([grant(i, percent) for i, percent in enumerate(cores, start=1)] + [grant(99, 10, latency=1)])
    for i, percent in enumerate(cores, start=1):
        assert abs(turns[i].turn_length_permille - PERIOD_PERMILLE * percent / sum(cores)) < 1


def test_even_the_smallest_of_very_many_jobs_has_a_turn() -> None:
    live = [grant(1, 1, latency=1), *(grant(job_id, 100 - 99 * (job_id % 2)) for job_id in range(2, 802))]
    check(live)


def test_more_jobs_than_a_period_can_hold_are_always_open() -> None:
    live = [grant(1, 1, latency=1), *(grant(job_id, 1) for job_id in range(2, 1003))]
    assert set(make_turns(live).values()) == {Turn(0, 0, 0, 1, 0, 0), Turn(1, 0, 0, 1, 0, 0)}
    check(live[:-1])


def test_several_latency_critical_jobs_leave_the_floor_together() -> None:
    """Where somebody is there who has it. A job whose class leaves nothing has no turn."""
    urgent = [grant(1, 30, latency=1), grant(2, 30, latency=1), grant(3, 10, latency=1)._replace(floor_percent=0)]
    assert [turn.latency_cores for turn in make_turns([*urgent, grant(4, 30)]).values()] == [60, 60, 0, 0]
    lengths = {job: turn.turn_length_permille for job, turn in make_turns([*urgent, grant(4, 30)]).items()}
    assert lengths == {1: 950, 2: 950, 3: 0, 4: 0}
    assert make_turns([*urgent, grant(4, 30)._replace(mode="mps")])[1].turn_length_permille == 950
    for nobody in ([], [grant(4, 30)._replace(mode="mig")]):
        assert all(not turn.turn_length_permille for turn in make_turns([*urgent, *nobody]).values())
    assert all(not turn.turn_length_permille for turn in make_turns([urgent[0], grant(4, 30)]).values())


def test_two_jobs_divide_the_period() -> None:
    live = [grant(3, 10, latency=1), grant(5, 30, policy="cap"), grant(4, 60, policy="none")]
    assert make_turns(live) == {3: Turn(0, 0, 0, 4, 1, 0), 4: Turn(1, 0, 666, 10, 1, 0), 5: Turn(1, 666, 334, 4, 0, 0)}
    alone_beside_it = make_turns(live[:2])
    of_three, of_five = Turn(0, 0, 0, 30, 1, 0, only_other_cores=30), Turn(1, 0, 0, 10, 0, 0, only_other_cores=10)
    assert alone_beside_it == {3: of_three, 5: of_five}, "it waits for nobody's turn"
    two_of_them = make_turns([*live[:1], grant(6, 10, latency=1)])
    assert two_of_them == {job: Turn(1, 0, 0, 10, 0, 0, only_other_cores=10) for job in (3, 6)}
    of_four, of_five = Turn(0, 0, 666, 30, 1, 0, only_other_cores=30), Turn(0, 666, 334, 4, 0, 0)
    assert make_turns(live[1:]) == {4: of_four, 5: of_five}, "a policy of none has the driver's timeslice"
    assert make_turns([]) == {}


@pytest.mark.parametrize(("slice_us", "cores"), [(10, 1), (900, 2), (100_000, 100)])
def test_a_timeslice_of_the_class_counts_as_the_cores_from_which_it_would_follow(slice_us: int, cores: int) -> None:
    live = [grant(1, 30), grant(2, 30)._replace(slice_us=slice_us)]
    assert make_turns(live)[1].others_least_cores == cores


def test_latency_critical_jobs_have_an_order_by_priority_and_then_by_the_shortest_slo() -> None:
    """(priority, slo in us) of each, and how many come before it."""
    expected = {
        1: (700, 0, 0),
        2: (100, 500, 1),
        3: (100, 10_000, 2),
        4: (100, 10_000, 2),
        5: (100, c.SLO_US_MAX, 4),
        6: (100, 0, 5),
        7: (0, c.SLO_US_MIN, 6),
    }
    live = [grant(i, 10, 1)._replace(class_priority=p, slo_us=slo) for i, (p, slo, _above) in expected.items()]
    ordinary = grant(8, 10)._replace(class_priority=c.CLASS_PRIORITY_MAX)
    turns = make_turns([ordinary, *reversed(live)])
    assert {i: turns[i].latency_above for i in turns} == {8: 0} | {i: row[2] for i, row in expected.items()}
    alike = make_turns([grant(1, 10, 1), grant(2, 90, 1), grant(3, 10)])
    assert [turn.latency_above for turn in alike.values()] == [0, 0, 0], "nobody comes before an equal one"


def test_nobody_gives_way_to_a_job_whose_floor_mps_would_have_to_keep() -> None:
    """A user with a latency-critical QoS would have the GPU alone by mode=mps: others at 10 us beside MPS's 2048."""
    lc, of_mps = grant(3, 50, latency=1), grant(4, 50, latency=1, policy="none")._replace(mode="mps")
    turns = make_turns([of_mps, grant(5, 50), grant(6, 50, policy="cap")])
    assert [turns[job].latency_others for job in (4, 5, 6)] == [0, 0, 0]
    assert [turns[job].others_capped for job in (4, 5, 6)] == [1, 1, 0]
    assert [turns[job].others_least_cores for job in (4, 5, 6)] == [50, 50, 50]
    assert [turns[job].server_cores for job in (4, 5, 6)] == [50, 0, 0]
    lengths = [turns[job].turn_length_permille for job in (4, 5, 6)]
    assert lengths == [0, 500, 500], "it has a turn only beside somebody latency-critical"
    turns = make_turns([of_mps._replace(class_priority=9), lc])
    assert (turns[3].latency_above, turns[3].latency_others) == (0, 0)
    assert (turns[4].latency_above, turns[4].latency_others) == (0, 1)


def of_mps(job_id: int, cores: int, uid: int = 1) -> Grant:
    return grant(job_id, cores, policy="none")._replace(mode="mps", uid=uid)


def turns_of(grants: list[Grant], one_server: bool = False) -> list[tuple[int, int]]:
    made = make_turns(grants, one_server)
    return [(made[one.job_id].turn_begin_permille, made[one.job_id].turn_length_permille) for one in grants]


def test_beside_somebody_latency_critical_the_clients_of_an_mps_server_have_one_turn() -> None:
    """As long as all their cores: one client that is paused stops the others (docs/adr/113)."""
    lc, share = grant(1, 40, latency=1), grant(3, 20)
    assert turns_of([lc, of_mps(2, 20), share]) == [(0, 0), (0, 500), (500, 500)]
    assert turns_of([lc, of_mps(2, 20), share, of_mps(4, 40)]) == [(0, 0), (0, 750), (750, 250), (0, 750)]
    assert turns_of([lc, of_mps(2, 20), share, of_mps(4, 40, uid=2)]) == [(0, 0), (0, 250), (250, 250), (500, 500)]
    assert turns_of([lc, of_mps(2, 20), of_mps(4, 60)]) == [(0, 0)] * 3, "nobody else is there"
    assert turns_of([lc, of_mps(2, 20), of_mps(4, 60, uid=2)]) == [(0, 0), (0, 250), (250, 750)]
    assert turns_of([lc, of_mps(2, 20), of_mps(4, 60, uid=2)], one_server=True) == [(0, 0)] * 3
    assert turns_of([lc, of_mps(2, 20), grant(3, 20)._replace(mode="mig")]) == [(0, 0)] * 3


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 3)), min_size=2, max_size=40))
def test_turns_beside_somebody_latency_critical_fill_the_period_once(jobs: list[tuple[int, int]]) -> None:
    """Whoever is there: user 0's are slices, the others' clients of MPS."""
    grants = [of_mps(2 + i, cores, uid) if uid else grant(2 + i, cores) for i, (cores, uid) in enumerate(jobs)]
    made = make_turns([grant(1, 10, latency=1), *grants])
    tenants: dict[tuple[int, int], int] = {}  # cores by turn
    for one in grants:
        turn = made[one.job_id]
        key = (turn.turn_begin_permille, turn.turn_length_permille)
        tenants[key] = tenants.get(key, 0) + one.cores_percent
    if len({one.uid if one.mode == "mps" else -one.job_id for one in grants}) < 2:
        assert list(tenants) == [(0, 0)]
        return
    ends = [begin + length for begin, length in sorted(tenants)]
    assert [begin for begin, _ in sorted(tenants)] == [0, *ends[:-1]]
    assert ends[-1] == 1000
    total = sum(tenants.values())
    assert all(abs(length - 1000 * cores / total) <= 1 for (_, length), cores in tenants.items())


def test_clients_of_one_mps_server_are_one_tenant_without_a_turn_where_nobody_is_latency_critical() -> None:
    share, clients = [grant(1, 20), grant(2, 60)], [of_mps(3, 10), of_mps(4, 30), of_mps(5, 10)]
    alone, beside = make_turns(share), make_turns([*share, *clients])
    for job, least in ((1, 50), (2, 20)):
        others = {"others_least_cores": least, "only_other_cores": 0}
        assert beside[job] == alone[job]._replace(**others), "turns are of those that keep to them"
    assert [beside[job][1:4] for job in (3, 4, 5)] == [(0, 0, 20)] * 3
    assert make_turns([*share[:1], *clients])[1] == Turn(0, 0, 0, 50, 0, 0, only_other_cores=50), (
        "it waits for nobody's turn"
    )
    assert [beside[job].server_cores for job in (1, 2, 3, 4, 5)] == [0, 0, 50, 50, 50]


def test_a_server_and_a_slice_know_each_other_as_the_only_ones() -> None:
    """So they see at once whether the other has its share, and long timeslices suffice (docs/adr/113)."""

    def only(live: list[Grant], one_server: bool = False) -> list[int]:
        turns = make_turns(live, one_server)
        return [turns[one.job_id].only_other_cores for one in live]

    share, clients = grant(1, 20), [of_mps(2, 10), of_mps(3, 40)]
    assert only([share, *clients]) == [50, 20, 20]
    assert only([share, *clients, of_mps(4, 60, uid=2)]) == [0, 0, 0, 0]
    assert only([share, *clients, of_mps(4, 60, uid=2)], one_server=True) == [100, 20, 20, 20]
    assert only([share, *clients, grant(4, 30)]) == [0, 0, 0, 0]
    assert only([share, *clients, grant(4, 30)._replace(mode="mig")]) == [50, 20, 20, 0], "nobody is beside that one"
    assert only(clients) == [0, 0]
    assert only([share._replace(policy="none"), *clients]) == [50, 0, 0], "it has the driver's timeslice"
    assert only([share._replace(slice_us=900), *clients]) == [50, 0, 0], "and this one that of its class"


def test_a_clients_time_is_that_of_all_jobs_of_its_server() -> None:
    live = [grant(1, 20), of_mps(2, 10), of_mps(3, 40), of_mps(4, 60, uid=2), grant(5, 14)._replace(mode="mig")]
    assert cores_of_tenants(live) == {1: 20, 2: 50, 3: 50, 4: 60, 5: 14}
    assert cores_of_tenants(live, one_server=True) == {1: 20, 2: 100, 3: 100, 4: 100, 5: 14}


def test_an_mps_server_is_another_tenants_unless_all_users_have_one() -> None:
    clients = [of_mps(3, 10), of_mps(4, 40), of_mps(5, 60, uid=2)]
    turns = make_turns(clients).values()
    assert [(turn.others_least_cores, turn.server_cores) for turn in turns] == [(0, 50), (0, 50), (0, 60)], (
        "2048 us each"
    )
    turns = make_turns([*clients, grant(6, 30), grant(7, 20)]).values()
    assert [turn.others_least_cores for turn in turns] == [20, 20, 20, 20, 30]
    turns = make_turns([*clients, grant(6, 90)]).values()
    assert [turn.others_least_cores for turn in turns] == [90, 90, 90, 50]
    turns = make_turns([*clients, grant(6, 2)], one_server=True).values()
    assert [(turn.others_least_cores, turn.server_cores) for turn in turns] == [(2, 100)] * 3 + [(100, 0)], "no more"


def test_nobody_is_beside_a_job_with_a_mig_instance() -> None:
    """Instances have compute units of their own, whatever else is on the GPU, and whoever is latency-critical there."""
    alone = Turn(0, 0, 0, 0, 0, 0)
    divided = [grant(job_id, 14, latency=job_id % 2, policy="cap")._replace(mode="mig") for job_id in range(1, 8)]
    assert make_turns(divided) == {one.job_id: alone for one in divided}
    shares = [grant(11, 30), grant(12, 30)]  # a GPU whose mode was switched, before its last shares ended
    turns = make_turns([*divided, *shares])
    assert [turns[one.job_id] for one in shares] == [make_turns(shares)[one.job_id] for one in shares]
    assert turns[1] == alone
