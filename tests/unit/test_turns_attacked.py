# SPDX-License-Identifier: Apache-2.0
"""Turns on an oversold GPU: what a job's user may write or take, and what a node may meet."""

from __future__ import annotations

from typing import Any

import pytest
from node_testbed import UUIDS
from turns_testbed import FIRST, SECOND_JOB, STAYS, Site, away, both, site

from hami_hpc.agent.turns_taken import TurnsTaken, are_left
from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.core.residents import Order
from hami_hpc.core.swap import Process as Program
from hami_hpc.core.time_watch import TimeWatch
from hami_hpc.core.watch import SECOND, Kind, Suspicion
from hami_hpc.errors import JobError, NodeError
from hami_hpc.node import swapped, turn_notes
from hami_hpc.stages import common, resize, suspend, swap, turns

__all__ = ["site"]  # the fixture


def test_no_word_of_a_process_wins_a_place_that_others_have(site: Site) -> None:
    away(site)
    site.says[FIRST] = ["gpu"]
    site.look()
    site.look(100)
    assert (site.order(FIRST), site.order(SECOND_JOB)) == (c.SWAP_TURN, c.SWAP_IN)
    new_agent = TurnsTaken(site.node.settings, lambda: site.last, lambda: int(site.now_s * SECOND))
    site.turns = new_agent
    site.look()
    site.look(100)
    assert (site.order(FIRST), site.order(SECOND_JOB)) == (c.SWAP_TURN, c.SWAP_IN)


def test_no_word_of_a_process_begins_a_job_that_has_no_room(site: Site) -> None:
    assert site.begin(FIRST) == c.SWAP_IN
    site.comes(FIRST)
    assert site.begin(STAYS, service_class="std") == c.SWAP_WAIT
    site.look()
    site.says[STAYS] = ["gpu"]
    site.look(100)
    site.look(100)
    assert site.order(STAYS) == c.SWAP_WAIT


def test_memory_that_is_taken_while_away_wins_no_place_and_is_found(site: Site) -> None:
    away(site)
    before = dict(site.turns.may_hold)
    for mib in (690, 780, 870, 50_000):
        site.used_mib[FIRST] = mib
        site.look()
        assert site.order(FIRST) == c.SWAP_TURN
        assert site.turns.may_hold == before, "the least that it held"


def test_work_while_away_is_found_under_any_policy(site: Site) -> None:
    away(site)
    site.busy = {FIRST}
    watch, found = TimeWatch(), list[Suspicion]()
    for n in range(8):
        may = dict(site.turns.may_hold)
        site.look()
        assert site.last is not None
        found += watch.judge(site.last._replace(may_hold=may))
        assert n > 2 or not found, "samples of before come later"
    assert [one.kind for one in found][:1] == [Kind.TIME_OVER]
    assert "its share is 0 %" in found[0].text


def test_one_damaged_record_does_not_stop_the_others(site: Site) -> None:
    both(site)
    site.begin(10, mem="1000")
    path = site.node.jobs / str(FIRST) / c.FILE_JOB_LIMITS
    data = bytearray(path.read_bytes())
    data[c.LIMITS_FIELDS["step_id"][0]] ^= 1
    path.write_bytes(bytes(data))
    orders = [Order(FIRST, c.SWAP_TURN, "x"), Order(10, c.SWAP_IN, "y")]
    grants = list(site.node.grants().values())
    given, problem = turns.give(
        site.node.settings, grants, orders, {one.job_id: site.order(one.job_id) for one in grants}
    )
    assert [order.job_id for order in given] == [10]
    assert problem.startswith(f"the limits record of job {FIRST} cannot be changed (it is not this job's record")


def test_turns_go_on_where_memory_is_no_longer_oversold_until_nobody_waits(site: Site) -> None:
    away(site)
    text = site.node.config.read_text().replace("memory_scaling = 3\nturn_s = 60\n", "")
    site.node.config.write_text(text)
    assert are_left(site.node.settings)
    site.says[FIRST] = ["host"]
    with pytest.raises(NodeError, match="the GPU has no room yet"):
        swap.swap(site.node.settings, FIRST, out=False, wait_s=0)
    assert site.order(FIRST) == c.SWAP_IN, "by hand at once"
    assert not are_left(site.node.settings)


def test_no_suspension_wins_a_place_where_memory_is_no_longer_oversold(site: Site) -> None:
    away(site)
    text = site.node.config.read_text().replace("memory_scaling = 3\nturn_s = 60\n", "")
    site.node.config.write_text(text)
    suspend.suspend(site.node.settings, FIRST)
    assert site.order(FIRST) == c.SWAP_SUSPENDED
    swap.order(site.node.settings, site.node.grants()[SECOND_JOB], {c.SWAP_IN: c.SWAP_OUT})
    assert are_left(site.node.settings), "an agent that begins now goes on with turns"
    suspend.resume(site.node.settings, FIRST)
    assert site.order(FIRST) == c.SWAP_TURN


def test_where_no_agent_decides_a_resumed_job_waits_for_no_turn(site: Site) -> None:
    """Memory was oversold, nobody was away when the agent began anew, and now Slurm suspends a job."""
    away(site)
    text = site.node.config.read_text().replace("memory_scaling = 3\nturn_s = 60\n", "")
    site.node.config.write_text(text)
    assert site.node.epilog(FIRST) == 0
    assert not are_left(site.node.settings)
    turn_notes.end(site.node.settings.run_dir)
    turn_notes.end(site.node.settings.run_dir)
    site.says[SECOND_JOB] = ["host"]
    suspend.suspend(site.node.settings, SECOND_JOB)
    assert not are_left(site.node.settings)
    suspend.resume(site.node.settings, SECOND_JOB)
    assert site.order(SECOND_JOB) == c.SWAP_IN


def test_a_failed_swap_out_does_not_take_a_place_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory leaves just as root gives up, and others have the place."""
    both(site)
    site.look()
    site.says[FIRST] = ["busy"]
    real = swap.wait

    def late(*words: Any, **more: Any) -> list[Program]:
        found = real(*words, **more)
        site.leaves(FIRST)
        site.look()
        site.look()
        assert site.order(SECOND_JOB) == c.SWAP_IN
        return found

    monkeypatch.setattr(swap, "wait", late)
    with pytest.raises(JobError):
        swap.swap(site.node.settings, FIRST, out=True, wait_s=0)
    assert site.order(FIRST) == c.SWAP_TURN


def test_an_order_is_for_the_run_that_was_meant(site: Site) -> None:
    """The job is requeued, and begins again, between what was read of it and the order."""
    assert site.begin(FIRST) == c.SWAP_IN
    old = site.node.grants()[FIRST]
    assert site.node.epilog(FIRST) == 0
    assert site.begin(FIRST) == c.SWAP_IN
    for word in ("out", "suspend"):
        with pytest.raises(JobError, match=f"job {FIRST} has ended"):
            swap.order(site.node.settings, old, swap.change_of(site.node.settings, word))
    assert site.order(FIRST) == c.SWAP_IN


def test_of_a_gpu_that_does_not_answer_nothing_is_decided(site: Site) -> None:
    away(site)
    site.begin(10, mem="40000")
    site.says[10] = ["wanted"]
    site.used_mib[0] = 30_000
    site.look()
    assert site.order(10) == c.SWAP_TURN
    held = dict(site.turns.may_hold)
    site.used_mib.clear()
    site.silent = frozenset({UUIDS[0]})
    site.look()
    assert site.order(10) == c.SWAP_TURN
    assert site.turns.may_hold == held


def test_a_job_that_is_away_can_be_resized(site: Site) -> None:
    away(site)
    ledger = common.open_ledger(site.node.settings)
    try:
        (grant,) = ledger.grants_of(FIRST)
        new = resize._enter(site.node.settings, ledger, (grant.resized(grant.mem_mib, 5),))
        resize._see_to_records(site.node.settings, ledger, new)
    finally:
        ledger.close()


def test_swap_in_says_whose_turn_it_is(site: Site) -> None:
    away(site)
    text = swap.swap(site.node.settings, FIRST, out=False, wait_s=0)
    assert text == f"job {FIRST}: its memory comes back when it is the job's turn"


def test_who_sleeps_has_not_waited(site: Site) -> None:
    """A notebook that was away for hours asks after one that has waited for minutes."""
    away(site)
    site.begin(10)
    site.says[10] = ["wanted"]
    site.look(100)
    site.says[FIRST] = ["wanted"]
    site.look(1000)
    assert site.order(SECOND_JOB) == c.SWAP_TURN
    site.leaves(SECOND_JOB)
    site.look()
    assert (site.order(10), site.order(FIRST)) == (c.SWAP_IN, c.SWAP_TURN)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many programs answered, each time that a job was asked."""
    counts: list[int] = []
    words = swapped.processes

    def counted(run_dir: str, grant: Grant) -> list[Program]:
        found = words(run_dir, grant)
        counts.append(len(found))
        return found

    monkeypatch.setattr(swapped, "processes", counted)
    return counts


def test_a_thousand_processes_that_wait_are_not_asked_all_the_time(site: Site, asked: list[int]) -> None:
    """Asking one takes some microseconds, and the agent has a hundredth of a core."""
    away(site)
    site.says[FIRST] = ["host"] * 1000
    for _ in range(60):
        site.look(0.5)
    assert sum(n for n in asked if n == 1000) <= 5000, "of 60,000"
    site.says[FIRST] = ["wanted"] * 1000
    for _ in range(40):
        site.look(0.5)
    assert {one.job_id: one.state for one in site.turns.standings}[FIRST] == "waits", "and they are heard"


def test_a_thousand_idle_processes_on_the_gpu_are_not_asked_all_the_time(site: Site, asked: list[int]) -> None:
    both(site)
    site.busy = set()
    site.says[FIRST] = ["gpu"] * 1000
    del site.says[SECOND_JOB]
    for _ in range(60):
        site.look()
    assert sum(n for n in asked if n == 1000) <= 5000, "of 57,000"


def test_a_suspended_job_that_never_leaves_has_nobody_look_more_often(site: Site, asked: list[int]) -> None:
    """Its programs were stopped in the middle of a kernel: they say the same for as long as it is suspended."""
    both(site)
    swap.order(site.node.settings, site.node.grants()[FIRST], swap.change_of(site.node.settings, "suspend"))
    site.says[FIRST] = ["busy"] * 1000
    site.look()
    assert site.turns.is_moving
    site.look(60)
    asked.clear()
    for _ in range(60):
        site.look()
        assert not site.turns.is_moving
    assert (site.order(FIRST), site.order(SECOND_JOB)) == (c.SWAP_SUSPENDED, c.SWAP_TURN)
    assert sum(n for n in asked if n == 1000) <= 5000, "of 60,000"


def test_a_job_that_leaves_is_asked_each_time_however_many_it_is(site: Site) -> None:
    both(site)
    site.look()
    site.says[FIRST] = ["host"] * 999 + ["gpu"]
    site.look(1000)
    site.leaves(FIRST)
    site.says[FIRST] = ["host"] * 999 + ["gpu"]
    site.look(0.5)
    assert site.order(SECOND_JOB) == c.SWAP_TURN
    site.says[FIRST] = ["host"] * 1000
    site.look(0.5)
    assert site.order(SECOND_JOB) == c.SWAP_IN


def test_while_nothing_moves_decisions_are_rarer_but_each_look_has_one(site: Site) -> None:
    away(site)
    decided: list[int] = []
    once = site.turns.once
    site.turns.once = lambda: decided.append(1) or once()  # type: ignore[method-assign, func-returns-value]
    site.now_s += 10
    for _ in range(6):
        site.now_s += 0.5
        site.turns.if_due()
    assert len(decided) == 3
    assert site.last is not None
    site.last = site.last._replace(boot_ns=int(site.now_s * SECOND))
    site.turns.if_due()
    assert len(decided) == 4
    site.turns.is_moving = True
    site.turns.if_due()
    assert len(decided) == 5
