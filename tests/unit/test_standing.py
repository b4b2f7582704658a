# SPDX-License-Identifier: Apache-2.0
"""Where jobs stand on an oversold GPU, as people are told: by made-up tenants of a GPU of 100 GB, and in words."""

from __future__ import annotations

import random

import pytest

from hami_hpc.contract import constants as c
from hami_hpc.core import residents, standing
from hami_hpc.core.agent_state import Standing
from hami_hpc.core.grant import Grant
from hami_hpc.core.residents import Tenant
from hami_hpc.core.standing import Moment, Place

TOTAL = 100_000
S = 1_000_000_000
NOW = 5000 * S
WAITS = "waits for the GPU for 2m now:"


def on(job: int, mem: int = 60_000, since_s: float = 10, **more: object) -> Tenant:
    made = Tenant(job, mem, 10, c.SWAP_IN, since_s, used_mib=mem)
    return made._replace(**more)  # type: ignore[arg-type]


def waits(job: int, mem: int = 60_000, waited_s: float = 5, **more: object) -> Tenant:
    made = Tenant(job, mem, 10, c.SWAP_TURN, 300, used_mib=600, is_away=True, wants=True, waits_s=waited_s)
    return made._replace(**more)  # type: ignore[arg-type]


def place(*tenants: Tenant, others: int = 0) -> dict[int, Place]:
    return standing.places(tenants, TOTAL, others, 60)


def test_the_row_is_that_of_the_decisions_and_says_within_what_time() -> None:
    turn_s = residents.turn_s(60_000, 60)
    found = place(on(1), waits(2, waited_s=50), waits(3, waited_s=90))
    assert found[1] == Place(standing.ON)
    assert (found[3].state, found[3].place) == (standing.WAITS, 1)
    assert (found[2].state, found[2].place) == (standing.WAITS, 2)
    assert found[3].due_s == pytest.approx(turn_s - 10)
    assert found[2].due_s == pytest.approx(2 * turn_s - 10)


def test_who_is_second_waits_for_the_next_of_those_on_the_gpu() -> None:
    """The turns of all on the GPU go on while the first one waits."""
    turn_s = residents.turn_s(45_000, 60)
    row = [waits(3, 45_000, waited_s=90), waits(4, 45_000, waited_s=50)]
    found = place(on(1, 45_000, since_s=10), on(2, 45_000, since_s=40), *row)
    assert found[3].due_s == pytest.approx(turn_s - 40)
    assert found[4].due_s == pytest.approx(turn_s - 10)


def test_a_turn_that_is_over_or_unused_is_waited_for_no_longer() -> None:
    assert place(on(1, since_s=1000), waits(2))[2].due_s == 0
    assert place(on(1, idle_s=20, since_s=20), waits(2))[2].due_s == 0
    assert place(waits(2))[2].due_s == 0, "there is room"


def test_only_the_first_of_a_long_row_have_an_estimate() -> None:
    row = [waits(job, waited_s=100 - job) for job in range(2, 12)]
    found = place(on(1), *row)
    known = [job for job, one in found.items() if one.due_s is not None]
    assert known == list(range(2, 2 + standing.ESTIMATED))


def test_a_job_whose_room_never_comes_is_told_what_it_lacks_and_is_in_no_row() -> None:
    never = on(1, 70_000, order=c.SWAP_NEVER)
    new = Tenant(2, 50_000, 95, c.SWAP_WAIT, 100, is_away=True, wants=True)
    found = place(never, on(3, 20_000), new, waits(4, 20_000))
    assert found[2] == Place(standing.ROOM, 0, None, 50_000 - (TOTAL - 70_000 - 700 - 600), 5)
    assert (found[4].state, found[4].place) == (standing.WAITS, 1)


def test_one_that_could_not_leave_makes_others_wait_for_room() -> None:
    found = place(on(1, stays=True), waits(2))
    assert (found[1].state, found[2].state) == (standing.STAYS, standing.ROOM)
    assert found[2].lacks_mib == 60_000 - 600 - (TOTAL - 60_000 - 600)


@pytest.mark.parametrize(
    ("order", "is_away", "state"),
    [
        (c.SWAP_TURN, False, standing.LEAVES),
        (c.SWAP_TURN, True, standing.AWAY),
        (c.SWAP_WAIT, False, standing.AWAY),
        (c.SWAP_OUT, True, standing.MOVED_OUT),
        (c.SWAP_SUSPENDED, False, standing.SUSPENDED),
        (c.SWAP_NEVER, False, standing.ON),
    ],
)
def test_who_is_not_in_the_row(order: int, is_away: bool, state: str) -> None:
    assert place(on(1, order=order, is_away=is_away))[1].state == state


def test_estimates_are_those_of_the_decisions() -> None:
    """On made-up GPUs where all use their turns, leave when told to and nobody comes: who is first in the row begins by
    then, and nobody who is promised a time begins later than that, but for the looks and the moves."""
    dice = random.Random(7)
    for _ in range(60):
        tenants = [on(job, dice.randrange(5, 90) * 1000, dice.randrange(200)) for job in range(1, dice.randrange(2, 4))]
        tenants = tenants[:1] if sum(t.mem_mib for t in tenants) > TOTAL else tenants
        tenants += [waits(job, dice.randrange(5, 90) * 1000, dice.randrange(500)) for job in range(10, 14)]
        promised = {job: one.due_s for job, one in place(*tenants).items() if one.due_s is not None}
        now_s, begun = 0.0, dict[int, float]()
        while now_s < 3000 and promised.keys() - begun.keys():
            for order in residents.decide(tenants, TOTAL, 0, 60):
                at = next(i for i, t in enumerate(tenants) if t.job_id == order.job_id)
                if order.order == c.SWAP_IN:
                    begun.setdefault(order.job_id, now_s)
                    tenants[at] = on(order.job_id, tenants[at].mem_mib, 0)
                else:
                    tenants[at] = waits(order.job_id, tenants[at].mem_mib, 0, since_s=0)
            now_s += 1
            tenants = [
                t._replace(since_s=t.since_s + 1, waits_s=t.waits_s + 1 if t.wants else 0, idle_s=0) for t in tenants
            ]
        for job, due_s in promised.items():
            assert job in begun
            assert begun[job] <= due_s + 2 * len(tenants), (job, due_s, begun)


def make(state: str, **more: object) -> Standing:
    made = Standing(7, 1, "GPU-0", state, NOW - 130 * S, on_gpu=2, unmovable=1)
    return made._replace(**more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "cell", "text"),
    [
        (make("on"), "on 2m", ""),
        (
            make("waits", place=1, waiting=3, due_boot_ns=NOW + 94 * S),
            "waits 2m 1/3",
            f"{WAITS} next of 3 in the row, 2 jobs on the GPU; its turn comes within 95s, or later if more urgent jobs "
            "come",
        ),
        (
            make("waits", place=2, waiting=2, on_gpu=1, due_boot_ns=NOW - S),
            "waits 2m 2/2",
            f"{WAITS} number 2 of 2 in the row, 1 job on the GPU; its turn comes as soon as others have left",
        ),
        (
            make("waits", place=9, waiting=9),
            "waits 2m 9/9",
            f"{WAITS} number 9 of 9 in the row, 2 jobs on the GPU; when its turn comes is not known",
        ),
        (
            make("room", lacks_mib=13_000, lacks_cores=5),
            "room 2m",
            "waits for room on the GPU for 2m now: it lacks 13,000 MiB and 5 % of the time even without the jobs that "
            "can be moved. 2 jobs on the GPU, 1 of which cannot be moved; it begins when such a job ends",
        ),
        (
            make("stays", why="the GPU's driver refuses"),
            "stays 2m",
            "stays on the GPU for 2m now, though its turn was over: the GPU's driver refuses",
        ),
        (
            make("away", since_boot_ns=0),
            "away",
            "off the GPU, and no program of it asks for the GPU; when one does, it waits for its turn",
        ),
        (
            make("waits", since_boot_ns=0),
            "waits",
            "waits for the GPU: no agent (hami-hpc agent) decides whose turn it is; when its turn comes is not known",
        ),
    ],
)
def test_what_people_are_told(one: Standing, cell: str, text: str) -> None:
    assert (standing.cell(one, NOW), standing.text(one, NOW)) == (cell, text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (119.9, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (200_000, "2d")]
)
def test_short_durations(seconds: float, text: str) -> None:
    assert standing.short(seconds) == text


def test_the_jobs_of_a_gpu_are_counted() -> None:
    states = ("on", "on", "stays", "waits", "room", "away", "out", "leaves")
    assert standing.counts(make(state) for state in states) == "3 on it, 2 wait, 3 away"
    assert standing.counts([make("waits")]) == "0 on it, 1 waits"
    assert standing.counts([]) == ""


def test_an_estimate_is_kept_while_it_changes_little() -> None:
    """So that nothing is written for the rounding of a clock."""
    tenants = [on(1), waits(2)]
    moments = {1: Moment(1, NOW - S, 0, ""), 2: Moment(1, 7, NOW - 5 * S, "")}
    placed = place(*tenants)
    first = standing.standings("GPU-0", tenants, placed, moments, {}, NOW)
    old = {one.job_id: one for one in first}
    assert old[2].since_boot_ns == NOW - 5 * S, "since when it waits, not since its order"
    assert old[1].since_boot_ns == NOW - S
    assert (old[1].left_mib, old[2].left_mib) == (-1, -1)
    left = {job: moment._replace(left_mib=77) for job, moment in moments.items()}
    assert [one.left_mib for one in standing.standings("GPU-0", tenants, placed, left, {}, NOW)] == [-1, 77]
    later = [t._replace(since_s=t.since_s + 0.5) for t in tenants]
    assert standing.standings("GPU-0", later, place(*later), moments, old, NOW + S // 2 + 999) == first
    moved = standing.standings("GPU-0", tenants, placed, moments, old, NOW + 60 * S)
    assert moved[1].due_boot_ns == old[2].due_boot_ns + 60 * S


def test_an_estimate_that_is_over_stays_while_the_turn_may_come_at_once() -> None:
    """Nothing is written at each look while others leave."""
    tenants = [on(1, since_s=1000), waits(2)]
    moments = {job: Moment(1, NOW, 0, "") for job in (1, 2)}
    old = {2: make("waits", due_boot_ns=NOW - 60 * S)}
    found = standing.standings("GPU-0", tenants, place(*tenants), moments, old, NOW)
    assert found[1].due_boot_ns == NOW - 60 * S


def test_what_keeps_a_job_is_said_of_one_that_stays_and_what_it_lacks_of_one_that_waits_for_room() -> None:
    tenants = [on(1, stays=True), on(2, 1000), waits(3, cores=95)]
    moments = {job: Moment(1, NOW, 0, "the driver refuses") for job in (1, 2, 3)}
    placed = place(*tenants)
    found = standing.standings("GPU-0", tenants, placed, moments, {}, NOW)
    assert [one.why for one in found] == ["the driver refuses", "", ""]
    assert placed[3].lacks_mib > 0
    assert [(one.lacks_mib, one.lacks_cores) for one in found] == [(0, 0), (0, 0), (placed[3].lacks_mib, 5)]


def test_numbers_for_machines_are_in_seconds() -> None:
    table = standing.to_table(make("waits", place=1, waiting=3, due_boot_ns=NOW + 94 * S), NOW)
    assert (table["since_s"], table["due_s"], table["place"], table["state"]) == (130.0, 94.0, 1, "waits")
    assert not {"job_id", "created_unix_ns", "gpu_uuid", "since_boot_ns", "due_boot_ns", "left_mib"} & table.keys()
    assert standing.to_table(make("on", since_boot_ns=0), NOW)["since_s"] is None
    assert standing.to_table(make("waits", due_boot_ns=NOW - 9 * S), NOW)["due_s"] == 0.0, "it is over"


@pytest.mark.parametrize(
    ("order", "wants", "state"),
    [
        (c.SWAP_IN, False, "on"),
        (c.SWAP_IN, True, "on"),
        (c.SWAP_NEVER, True, "on"),
        (c.SWAP_OUT, True, "out"),
        (c.SWAP_SUSPENDED, True, "suspended"),
        (c.SWAP_TURN, False, "away"),
        (c.SWAP_TURN, True, "waits"),
        (c.SWAP_WAIT, False, "away"),
        (c.SWAP_WAIT, True, "waits"),
    ],
)
def test_without_an_agent_a_jobs_record_says_where_it_is(order: int, wants: bool, state: str) -> None:
    grant = Grant(7, 65534, "GPU-1", 0, 143156, "h200", 8192, 50, "std", "cap", "share", 10**18)
    assert standing.by_order(grant, order, wants) == Standing(7, 10**18, "GPU-1", state, 0)


def test_a_job_that_was_sent_back_as_it_cannot_leave_stays_and_others_do_not() -> None:
    tenants = [on(1), on(2, stays=True), on(3)]
    orders = [
        residents.Order(1, c.SWAP_IN, residents.CANNOT_LEAVE),
        residents.Order(2, c.SWAP_TURN, "its turn is over"),
    ]
    found = standing.after(tenants, orders)
    assert [(one.order, one.since_s, one.stays) for one in found] == [
        (c.SWAP_IN, 0.0, True),
        (c.SWAP_TURN, 0.0, True),
        (c.SWAP_IN, 10, False),
    ]
    assert not standing.after([on(1)], [residents.Order(1, c.SWAP_TURN, "its turn is over")])[0].stays


def test_a_job_whose_turn_is_over_leaves_until_its_memory_is_away() -> None:
    assert place(on(1, order=c.SWAP_TURN))[1].state == "leaves"
    assert place(on(1, order=c.SWAP_TURN, is_away=True))[1].state == "away"


def test_jobs_that_are_never_moved_or_could_not_leave_are_counted() -> None:
    tenants = [on(1, 1000), on(2, 1000, order=c.SWAP_NEVER), on(3, 1000, stays=True), waits(4, stays=True)]
    moments = {one.job_id: Moment(1, NOW, 0, "") for one in tenants}
    found = standing.standings("GPU-0", tenants, place(*tenants), moments, {}, NOW)
    assert {(one.on_gpu, one.unmovable) for one in found} == {(3, 2)}
