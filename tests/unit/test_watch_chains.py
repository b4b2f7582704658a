# SPDX-License-Identifier: Apache-2.0
"""Processes that each end before a suspicion of them is confirmed, and follow one another."""

from __future__ import annotations

import pytest
from watch_testbed import GPU, process, suspicion

from hami_hpc.core.watch import GRACE_NS, LONGEST_GAP_NS, SECOND, Incidents, Kind, Suspicion


def chain(kind: Kind, at: int, job_id: int = 7, uid: int = 1000) -> Suspicion:
    """Returns the suspicion of the at-th of processes that follow one another."""
    pid = 100 + at
    return Suspicion(kind, job_id, pid, GPU, (process(pid, job_id, uid=uid),), "text")


@pytest.mark.parametrize("kind", [Kind.NO_INTERPOSER, Kind.WRONG_GPU, Kind.NO_GRANT, Kind.NO_JOB])
def test_processes_that_follow_one_another_are_found_although_each_ends_before_it_is_confirmed(kind: Kind) -> None:
    incidents = Incidents()
    step = SECOND // 5
    job_id = 0 if kind is Kind.NO_JOB else 7
    found = [(at, one) for at in range(60) for one in incidents.update(at * step, [chain(kind, at, job_id)])]
    at, first = found[0]
    assert first.is_new
    assert first.suspicion.text == "text; processes like this one follow one another"
    assert at * step <= GRACE_NS[kind] + 2 * SECOND
    assert first.suspicion.processes[0].pid == 100 + at
    assert first.suspicion.subject == (kind, job_id, 0 if job_id else -1001, GPU), "the job, or the user without one"
    assert [one.is_new for _, one in found[1:]] == [False] * (len(found) - 1)
    assert len(found) > 20  # whoever comes later is acted on at once


def test_processes_that_follow_one_another_are_found_by_four_looks_however_long_these_take() -> None:
    incidents = Incidents()
    found = [bool(incidents.update(at * SECOND, [chain(Kind.NO_INTERPOSER, at)])) for at in range(4)]
    assert found == [False, False, False, True]


def test_users_without_a_job_are_not_one_chain() -> None:
    incidents = Incidents()
    for at in range(60):
        assert not incidents.update(at * SECOND // 5, [chain(Kind.NO_JOB, at, 0, uid=1000 + at)])


def test_a_process_that_stays_is_no_chain() -> None:
    incidents = Incidents()
    found = [one for at in range(60) for one in incidents.update(at * SECOND // 5, [chain(Kind.NO_INTERPOSER, 0)])]
    assert {one.suspicion.pid for one in found} == {100}
    assert sum(one.is_new for one in found) == 1


def test_who_comes_after_a_killed_process_does_not_have_seconds_of_its_own() -> None:
    incidents = Incidents()
    first, second = (suspicion()._replace(processes=(process(pid),)) for pid in (100, 101))
    assert not incidents.update(0, [first])
    assert incidents.update(SECOND, [first])
    assert not incidents.update(2 * SECOND, [])
    assert not incidents.update(3 * SECOND, [second])
    assert incidents.update(3 * SECOND + SECOND // 5, [second])


def test_a_chain_with_gaps_is_found_and_some_processes_now_and_then_are_none() -> None:
    often, seldom = Incidents(), Incidents()
    step = SECOND // 5
    kind = Kind.NO_INTERPOSER
    found = [at for at in range(60) if often.update(at * step, [chain(kind, at)] if at % 3 else [])]
    assert found
    assert found[0] * step <= 2 * SECOND + step
    assert not any(seldom.update(at * step, [chain(kind, at)] if at % 4 == 0 else []) for at in range(600))


def test_looks_before_and_after_a_pause_of_the_agent_are_not_consecutive() -> None:
    incidents = Incidents()
    assert not incidents.update(0, [suspicion()])
    assert not incidents.update(60 * SECOND, [suspicion()])
    assert incidents.update(60 * SECOND + SECOND // 2, [suspicion()])
    slow = Incidents()
    assert not slow.update(0, [suspicion()])
    assert slow.update(LONGEST_GAP_NS, [suspicion()]), "as far apart as looks can be"
