# SPDX-License-Identifier: Apache-2.0
"""Turns on an oversold GPU while stages and commands run between any two steps of a change, and programs obey late
or lie."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from node_testbed import GPU_MIB
from turns_testbed import FIRST, ON, SECOND_JOB, Site, agent_of, assert_fits, site

from hami_hpc.errors import HamiError
from hami_hpc.stages import common, reconcile, resize, suspend, swap, turns

__all__ = ["site"]  # the fixture
LOW, THIRD = 5, 10


class World:
    """Programs that obey within some looks, each in its own time, on a node where anything may happen in between."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site, self.dice = site, random.Random(seed)
        self.late: dict[int, int] = {}
        self.mem_mib: dict[int, int] = {}

    def begin(self, job: int, mem_mib: int = 100_000, service_class: str = "be") -> None:
        self.site.begin(job, mem=str(mem_mib), service_class=service_class)
        self.mem_mib[job] = mem_mib
        self.site.says[job] = ["wanted"] if self.site.order(job) not in ON else ["gpu"]
        self.site.used_mib[job] = mem_mib if self.site.order(job) in ON else 0

    def end(self, job: int) -> None:
        self.site.says.pop(job, None)
        self.site.used_mib.pop(job, None)
        self.mem_mib.pop(job, None)
        assert self.site.node.epilog(job) == 0

    def step(self, after_s: float = 1.0) -> None:
        for job, mem_mib in self.mem_mib.items():
            is_on = self.site.order(job) in ON
            if is_on == (self.site.says[job] == ["gpu"]):
                self.late.pop(job, None)
                if not is_on and self.site.says[job] == ["host"]:
                    self.site.says[job] = ["wanted"]
                continue
            left = self.late.setdefault(job, self.dice.randrange(3))
            self.late[job] = left - 1
            if left <= 0:
                self.site.says[job] = ["gpu"] if is_on else ["host"]
                self.site.used_mib[job] = mem_mib if is_on else 600
        self.site.busy = {job for job in self.mem_mib if self.site.says[job] == ["gpu"]}
        self.site.look(after_s)
        assert_fits(self.site)
        assert sum(self.site.used_mib.values()) <= GPU_MIB, "two had the same memory"


def requeue(world: World, job: int) -> None:
    mem_mib = world.mem_mib[job]
    world.end(job)
    world.begin(job, mem_mib)


def ended(world: World, job: int) -> None:
    if job in world.mem_mib:
        world.end(job)


def squared(world: World, _job: int) -> None:
    running = frozenset(world.mem_mib)
    results = reconcile.reconcile(world.site.node.settings, lambda: running, dry_run=False)
    assert [one.error for one in results if one.error] == []


def newcomer(world: World, _job: int) -> None:
    if THIRD not in world.mem_mib:
        world.begin(THIRD, 40_000)


def moved_out(world: World, job: int) -> None:
    swap.order(world.site.node.settings, world.site.node.grants()[job], swap.change_of(world.site.node.settings, "out"))


def moved_in(world: World, job: int) -> None:
    swap.order(world.site.node.settings, world.site.node.grants()[job], swap.change_of(world.site.node.settings, "in"))


def suspended(world: World, job: int) -> None:
    grant = world.site.node.grants()[job]
    swap.order(world.site.node.settings, grant, swap.change_of(world.site.node.settings, "suspend"))


def resumed(world: World, job: int) -> None:
    suspend.resume(world.site.node.settings, job)


def smaller(world: World, job: int) -> None:
    settings = world.site.node.settings
    opened = common.open_ledger(settings)
    try:
        (grant,) = opened.grants_of(job)
        new = resize._enter(settings, opened, (grant.resized(grant.mem_mib - 1000, grant.cores_percent),))
        resize._see_to_records(settings, opened, new)
    except HamiError:
        return
    finally:
        opened.close()
    world.mem_mib[job] -= 1000
    if world.site.says[job] == ["gpu"]:
        world.site.used_mib[job] = world.mem_mib[job]


def killed_agent(world: World, _job: int) -> None:
    world.site.turns = agent_of(world.site)


ACTIONS = (requeue, squared, newcomer, moved_out, moved_in, suspended, resumed, smaller, killed_agent)
Act = Callable[[World, int], None]


def settle(world: World) -> None:
    """All that is asked of the node is taken back, and everybody has had a turn."""
    for job in world.mem_mib:
        moved_in(world, job)
        resumed(world, job)
        moved_in(world, job)
    had: set[int] = set()
    for _ in range(250):
        world.step(1 if world.site.turns.is_moving else 20)
        had |= {job for job in world.mem_mib if world.site.says[job] == ["gpu"]}
        if had == world.mem_mib.keys():
            return
    raise AssertionError(f"of {sorted(world.mem_mib)} only {sorted(had)} have had their turn")


@pytest.mark.parametrize("act", [*ACTIONS, ended])
@pytest.mark.parametrize("point", ["before", "between", "after"])
def test_anything_between_two_steps_of_a_change_leaves_turns_whole(
    site: Site, monkeypatch: pytest.MonkeyPatch, act: Act, point: str
) -> None:
    """Before the orders are written, between them and what neighbours are told, and after that; of each job."""
    give, tell = turns.give, common.tell_neighbours
    for at_change in range(1, 4):
        for job in (FIRST, SECOND_JOB):
            site.node.clear()
            site.node.enter_gpus()
            site.used_mib.clear()
            site.says.clear()
            site.turns = agent_of(site)
            world = World(site, at_change)
            world.begin(FIRST)
            world.begin(SECOND_JOB)
            changes = 0

            def gives(*words: Any, world: World = world, at_change: int = at_change, job: int = job) -> Any:
                nonlocal changes
                changes += 1
                is_now = changes == at_change
                if is_now and point == "before":
                    act(world, job)
                if is_now and point == "between":

                    def tells(*more: Any) -> None:
                        monkeypatch.setattr(common, "tell_neighbours", tell)
                        act(world, job)
                        tell(*more)

                    monkeypatch.setattr(common, "tell_neighbours", tells)
                result = give(*words)
                if is_now and point == "after":
                    act(world, job)
                return result

            monkeypatch.setattr(turns, "give", gives)
            while changes < at_change:
                world.step(1 if site.turns.is_moving else 20)
            world.step()
            monkeypatch.setattr(turns, "give", give)
            settle(world)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_in_whatever_order_turns_stay_whole(site: Site, seed: int) -> None:
    world = World(site, seed)
    for job, mem_mib in ((FIRST, 100_000), (SECOND_JOB, 60_000), (LOW, 90_000)):
        world.begin(job, mem_mib)
    for _ in range(60):
        if world.dice.random() < 0.5:
            world.dice.choice(ACTIONS)(world, world.dice.choice(sorted(world.mem_mib)))
        world.step(world.dice.choice((0.5, 1, 5, 100)))
    settle(world)


WORDS = ("gpu", "host", "busy", "contexts", "shared", "room", "driver", "returning", "wanted", "leaving")


@pytest.mark.parametrize("seed", range(12))
def test_no_nonsense_that_a_user_writes_gives_one_memory_to_two(site: Site, seed: int) -> None:
    """The first says anything, of any number of programs, and its memory leaves and comes back as it likes while it is
    told to be away; NVML alone tells the truth."""
    world = World(site, seed)
    world.begin(FIRST)
    world.begin(SECOND_JOB)
    world.begin(LOW, 30_000)
    honest = dict(world.mem_mib)
    del world.mem_mib[FIRST]
    for _ in range(150):
        many = world.dice.choice((0, 1, 2, 200))
        site.says[FIRST] = [world.dice.choice(WORDS) for _ in range(many)]
        if site.order(FIRST) not in ON:
            # What others have is not there to be taken.
            free = GPU_MIB - sum(mib for job, mib in site.used_mib.items() if job != FIRST)
            site.used_mib[FIRST] = min(free, world.dice.choice((0, 600, 13_000, 100_000)))
        else:
            site.used_mib[FIRST] = 100_000
        honest_on = [job for job in honest if job != FIRST and site.order(job) in ON]
        before = {job: site.order(job) for job in honest}
        site.look(world.dice.choice((0.5, 1, 30)))
        given = [job for job in honest if site.order(job) in ON and before[job] not in ON]
        held = sum(honest[job] for job in {*honest_on, *given} - {FIRST} if site.order(job) in ON)
        if given:
            assert held + max(site.used_mib[FIRST], 100_000 if site.order(FIRST) in ON else 0) <= GPU_MIB
        for job in (SECOND_JOB, LOW):
            is_on = site.order(job) in ON
            site.says[job] = ["gpu"] if is_on else ["wanted"]
            site.used_mib[job] = honest[job] if is_on else 600
