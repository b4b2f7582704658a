# SPDX-License-Identifier: Apache-2.0
"""What the agent and the node's stages do on a GPU whose memory is oversold: orders in the records of real directories,
by made-up looks."""

from __future__ import annotations

import os

import pytest
from agent_states import make_state
from node_testbed import GPU_MIB, UUIDS
from turns_testbed import FIRST, NO_LIMITS, SECOND_JOB, STAYS, Site, both, site

from hami_hpc.agent.turns_taken import make
from hami_hpc.contract import constants as c
from hami_hpc.core import residents
from hami_hpc.core.finding import Level
from hami_hpc.core.inventory import Device
from hami_hpc.core.residents import Order
from hami_hpc.core.swap import seconds_for
from hami_hpc.core.watch import MIB, Kind, judge
from hami_hpc.doctor import agent_checks
from hami_hpc.doctor.facts import Facts
from hami_hpc.errors import JobError
from hami_hpc.node import agent_file, neighbours, nvml
from hami_hpc.stages import suspend, swap, turns

__all__ = ["site"]  # the fixture


def test_two_jobs_take_turns(site: Site) -> None:
    both(site)
    site.look()
    site.look(residents.turn_s(100_000, 60) - 10)
    assert (site.order(FIRST), site.order(SECOND_JOB)) == (c.SWAP_IN, c.SWAP_TURN)
    site.look(10)
    assert (site.order(FIRST), site.order(SECOND_JOB)) == (c.SWAP_TURN, c.SWAP_TURN)
    assert site.turns.is_moving
    site.look()
    assert site.order(SECOND_JOB) == c.SWAP_TURN, "the memory of the first is still there"
    site.leaves(FIRST)
    site.look()
    assert (site.order(FIRST), site.order(SECOND_JOB)) == (c.SWAP_TURN, c.SWAP_IN)
    site.comes(SECOND_JOB)
    site.look()
    assert not site.turns.is_moving
    site.says[FIRST] = ["wanted"]
    site.look(residents.turn_s(100_000, 60))
    assert site.order(SECOND_JOB) == c.SWAP_TURN
    minor = site.node.grants()[FIRST].gpu_minor
    assert site.events() == [
        f"job {FIRST} leaves GPU {minor}: for job {SECOND_JOB}",
        f"job {SECOND_JOB} may use GPU {minor}: the GPU has room for it",
        f"job {SECOND_JOB} leaves GPU {minor}: for job {FIRST}",
    ]


def test_what_nvml_showed_before_an_order_says_nothing_of_after_it(site: Site) -> None:
    both(site)
    site.used_mib[FIRST] = 10
    site.look()
    site.look(1000)
    assert site.order(FIRST) == c.SWAP_TURN
    site.says[FIRST] = ["host"]
    assert site.turns.once() == ""  # on what was seen before the order
    assert site.order(SECOND_JOB) == c.SWAP_TURN
    site.look()
    assert site.order(SECOND_JOB) == c.SWAP_IN


def test_a_job_waits_for_memory_that_nvml_shows_of_no_process(site: Site) -> None:
    both(site)
    site.look()
    site.look(1000)
    site.leaves(FIRST)
    site.unseen_mib = 60_000  # what the first held is there still, though no process of it has it
    site.look()
    assert (site.order(FIRST), site.order(SECOND_JOB)) == (c.SWAP_TURN, c.SWAP_TURN)
    site.unseen_mib = 0
    site.look()
    assert (site.order(FIRST), site.order(SECOND_JOB)) == (c.SWAP_TURN, c.SWAP_IN)


def test_a_program_that_has_not_answered_is_not_away_whatever_nvml_shows(site: Site) -> None:
    both(site)
    site.look()
    site.look(1000)
    site.used_mib[FIRST], site.says[FIRST] = 10, ["host", "gpu"]
    site.look()
    assert site.order(SECOND_JOB) == c.SWAP_TURN
    site.says[FIRST] = ["host", "host"]
    site.look()
    assert site.order(SECOND_JOB) == c.SWAP_IN


def test_what_a_program_says_does_not_make_room(site: Site) -> None:
    both(site)
    site.look()
    site.look(1000)
    site.says[FIRST] = ["host"]  # and holds 90,000 MiB
    site.look()
    assert site.order(SECOND_JOB) == c.SWAP_TURN


def test_one_of_which_more_stays_than_usual_has_left_and_that_counts(site: Site) -> None:
    both(site)
    site.look()
    site.look(1000)
    site.leaves(FIRST)
    site.used_mib[FIRST] = 12_501
    site.look()
    assert site.order(SECOND_JOB) == c.SWAP_TURN
    site.used_mib[FIRST] = 12_500
    site.look()
    assert site.order(SECOND_JOB) == c.SWAP_IN
    site.comes(SECOND_JOB)
    assert site.begin(10, mem="40000") == c.SWAP_TURN
    site.says[10] = ["wanted"]
    for _ in range(3):
        site.look()
    assert site.order(10) == c.SWAP_TURN, "100,000 and 40,000 MiB would fit without what the first holds"


def test_one_that_does_not_leave_stays_and_its_reason_is_said(site: Site) -> None:
    both(site)
    site.look()
    site.look(1000)
    assert site.order(FIRST) == c.SWAP_TURN
    site.says[FIRST] = ["busy"]
    site.look(60)
    assert site.order(FIRST) == c.SWAP_IN
    assert "did not leave GPU 0 when its turn was over: its work on the GPU does not end" in site.events()[-1]
    site.look(residents.STAYS_S - 10)
    assert site.order(FIRST) == c.SWAP_IN
    site.look(11)
    assert site.order(FIRST) == c.SWAP_TURN


def test_one_that_is_still_being_copied_has_longer(site: Site) -> None:
    both(site)
    site.look()
    site.look(1000)
    site.says[FIRST] = ["leaving"]
    site.look(2 * seconds_for(100_000))
    assert site.order(FIRST) == c.SWAP_TURN
    site.look(2 * seconds_for(100_000))
    assert site.order(FIRST) == c.SWAP_IN
    assert "did not leave GPU 0 when its turn was over: it is still being copied" in site.events()[-1]


def test_a_job_that_is_never_moved_waits_only_until_there_is_room(site: Site) -> None:
    assert site.begin(FIRST) == c.SWAP_IN
    site.comes(FIRST)
    assert site.begin(STAYS, service_class="std") == c.SWAP_WAIT
    site.look()
    assert site.order(FIRST) == c.SWAP_IN, "no program of it wants the GPU yet"
    site.says[STAYS] = ["wanted"]
    site.look()
    assert site.order(FIRST) == c.SWAP_TURN
    site.leaves(FIRST)
    site.look()
    assert site.order(STAYS) == c.SWAP_NEVER
    site.comes(STAYS)
    site.says[FIRST] = ["wanted"]
    site.look(100_000)
    assert (site.order(FIRST), site.order(STAYS)) == (c.SWAP_TURN, c.SWAP_NEVER)
    assert site.node.epilog(STAYS) == 0
    del site.used_mib[STAYS]
    site.look()
    assert site.order(FIRST) == c.SWAP_IN


def test_jobs_that_are_away_have_no_part_in_the_gpus_time(site: Site) -> None:
    """Two caps of 60 % never meet: each is told that it is alone."""
    site.begin(FIRST, cores="60", service_class="be")
    site.comes(FIRST)
    site.begin(SECOND_JOB, mem="1000", cores="60")

    def turn(job: int) -> tuple[int, int]:
        record = (site.node.jobs / str(job) / c.FILE_JOB_LIMITS).read_bytes()
        found = []
        for name in ("turn_begin_permille", "turn_length_permille"):
            offset, width, _kind = c.LIMITS_FIELDS[name]
            found.append(int.from_bytes(record[offset : offset + width], "little"))
        return found[0], found[1]

    assert site.order(SECOND_JOB) == c.SWAP_TURN
    assert turn(FIRST) == (0, 0)
    site.begin(10, mem="1000", cores="20")
    assert site.order(10) == c.SWAP_TURN, "with all of them there is no room"
    site.says[10] = ["wanted"]
    site.look()
    site.look()
    assert site.order(10) == c.SWAP_IN
    assert turn(FIRST) == (0, 750)
    assert turn(10) == (750, 250)


def test_what_was_suspended_or_moved_by_hand_comes_back_in_its_turn(site: Site) -> None:
    both(site)
    site.look()
    site.says[FIRST] = ["host"]
    assert suspend.main(("out", "--job", str(FIRST), "--config", str(site.node.config))) == 0
    assert site.order(FIRST) == c.SWAP_SUSPENDED
    site.leaves(FIRST)
    site.look()
    site.look()
    assert site.order(SECOND_JOB) == c.SWAP_IN
    site.comes(SECOND_JOB)
    assert suspend.main(("in", "--job", str(FIRST), "--config", str(site.node.config))) == 0
    assert site.order(FIRST) == c.SWAP_TURN
    site.says[FIRST] = ["host"]
    assert swap.swap(site.node.settings, FIRST, out=True, wait_s=0).startswith(f"job {FIRST}: 0 MiB")
    assert site.order(FIRST) == c.SWAP_OUT
    site.look()
    site.look(10_000)
    assert site.order(SECOND_JOB) == c.SWAP_IN
    site.says[FIRST] = []
    text = swap.swap(site.node.settings, FIRST, out=False, wait_s=0)
    assert text == f"job {FIRST} has no process on the GPU; those that come wait until it is the job's turn"
    assert site.order(FIRST) == c.SWAP_TURN
    site.begin(STAYS, service_class="std")
    with pytest.raises(JobError, match="cannot be moved"):
        swap.swap(site.node.settings, STAYS, out=True, wait_s=0)


def test_an_order_of_others_stands(site: Site) -> None:
    """Between the look and the order an administrator moved the job, or it ended and began again."""
    both(site)
    site.look()
    site.now_s += 1000
    site.says[FIRST] = ["host"]
    grants = [site.node.grants()[FIRST]]
    assert swap.swap(site.node.settings, FIRST, out=True, wait_s=0)
    leaves = [Order(FIRST, c.SWAP_TURN, "")]
    second = site.node.grants()[SECOND_JOB]
    decided_on = {FIRST: c.SWAP_IN, SECOND_JOB: c.SWAP_TURN}
    assert turns.give(site.node.settings, [*grants, second], leaves, decided_on) == ([], "")
    assert site.order(FIRST) == c.SWAP_OUT
    old = [grants[0]._replace(created_unix_ns=1), second]
    assert turns.give(site.node.settings, old, leaves, decided_on) == ([], "")


def test_a_job_that_holds_memory_though_it_is_away_is_found(site: Site) -> None:
    both(site)
    site.look()
    site.look(1000)
    site.leaves(FIRST)
    site.look()
    assert site.turns.may_hold == {(FIRST, UUIDS[0]): 600 * MIB}
    assert site.last is not None
    seen = site.last._replace(may_hold=site.turns.may_hold)
    assert list(judge(seen, NO_LIMITS)) == []
    more = tuple(one._replace(used_bytes=800 * MIB) if one.job_id == FIRST else one for one in seen.processes)
    (found,) = judge(seen._replace(processes=more), NO_LIMITS)
    assert (found.kind, found.job_id) == (Kind.MEMORY_OVER, FIRST)
    assert "holds 800 MiB" in found.text
    assert "until its turn comes it may hold 600 MiB" in found.text


def test_before_a_job_may_come_back_nothing_is_said_of_what_it_may_hold(site: Site) -> None:
    both(site)
    site.look()
    site.look(1000)
    site.leaves(FIRST)
    site.look()
    site.comes(SECOND_JOB)
    site.says[FIRST] = ["wanted"]
    site.look(1000)
    assert (FIRST, UUIDS[0]) in site.turns.may_hold
    site.leaves(SECOND_JOB)
    site.look()
    assert site.order(FIRST) == c.SWAP_IN
    assert (FIRST, UUIDS[0]) not in site.turns.may_hold


def test_a_new_agent_sees_to_what_a_killed_one_left(site: Site) -> None:
    """Killed between the order and the word to the neighbours: the job that came back has no turn of the GPU's time."""
    site.begin(FIRST, mem="1000", cores="60")
    site.begin(SECOND_JOB, mem="1000", cores="40")
    grant = site.node.grants()[SECOND_JOB]
    neighbours.write_swap(site.node.settings.run_dir, grant, c.SWAP_OUT)
    assert site.node.prolog(10, HAMI_HPC_CLASS="be", HAMI_HPC_MEM_MIB="1000", HAMI_HPC_CORES="1") == 0
    neighbours.write_swap(site.node.settings.run_dir, grant, c.SWAP_IN)

    def length(job: int) -> int:
        record = (site.node.jobs / str(job) / c.FILE_JOB_LIMITS).read_bytes()
        offset, width, _kind = c.LIMITS_FIELDS["turn_length_permille"]
        return int.from_bytes(record[offset : offset + width], "little")

    assert length(FIRST) == 0, "it is told that it is alone"
    reported: list[str] = []
    make(site.turns, reported.append).once()
    assert reported == []
    assert length(FIRST) == 600


def test_others_memory_and_small_gpus_count(site: Site) -> None:
    both(site)
    site.used_mib[0] = GPU_MIB - 90_000  # of no job
    site.look()
    site.look(1000)
    assert site.order(FIRST) == c.SWAP_IN, "even without the first there is no room for the second"


def test_who_uses_too_little_for_nvml_to_show_is_not_idle(site: Site) -> None:
    both(site)
    site.busy = set()
    site.look()
    for _ in range(30):
        site.counted_ns += 1000
        site.look()
    assert site.order(FIRST) == c.SWAP_IN
    for _ in range(5):
        site.look()
    assert site.order(FIRST) == c.SWAP_IN
    for _ in range(9):
        site.look()
    assert site.order(FIRST) == c.SWAP_TURN


def test_doctor_says_what_turns_need(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    both(site)
    devices = tuple(Device(index, uuid, "NVIDIA H200", GPU_MIB) for index, uuid in enumerate(UUIDS))
    monkeypatch.setattr(nvml, "read_devices", lambda: devices)
    pages = {"SC_PHYS_PAGES": 4 * GPU_MIB + 1, "SC_PAGE_SIZE": MIB}
    monkeypatch.setattr(os, "sysconf", lambda name: pages[name])
    facts = Facts(site.node.settings)
    (agent,) = agent_checks.check_agent(facts)
    assert (agent.level, agent.detail) == (
        Level.FAIL,
        "has not looked in this boot; jobs wait for their turn until it does",
    )
    alive = make_state()
    monkeypatch.setattr(agent_file, "read", lambda *_words: alive)
    agent, turns_of_it = list(agent_checks.check_agent(facts))[:2]
    assert (agent.level, turns_of_it.what, turns_of_it.level) == (Level.OK, "agent, turns", Level.FAIL)
    assert "it began before memory_scaling was above 1" in turns_of_it.detail
    site.look()
    assert [one.what for one in agent_checks.check_agent(facts)] == ["agent"]
    (memory,) = agent_checks.check_host_memory(facts)
    assert memory.level == Level.OK
    pages["SC_PHYS_PAGES"] -= 1
    (memory,) = agent_checks.check_host_memory(facts)
    assert memory.level == Level.WARN
    assert f"up to {4 * GPU_MIB} MiB of GPU memory" in memory.detail
    assert list(agent_checks.check_host_memory(Facts(site.node.settings._replace(memory_scaling=1.0)))) == []
