# SPDX-License-Identifier: Apache-2.0
"""Turns on an oversold GPU and what a node may meet: two agents, a locked ledger, a full run directory, NVML that hangs
or lags behind, a clock that jumps, programs that are stopped, an agent that begins anew."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.mounting import can_mount
from node_testbed import UUIDS, Node
from turns_testbed import FIRST, SECOND_JOB, TURN_S, Site, agent_of, assert_fits, away, both, said_by, site

from hami_hpc.contract import constants as c
from hami_hpc.core import residents
from hami_hpc.errors import NodeError
from hami_hpc.node import ledger, neighbours, turn_notes
from hami_hpc.stages import common, suspend, turns

__all__ = ["site"]  # the fixture
LOW, THIRD = 5, 10


def test_two_agents_give_one_place_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """One from before an upgrade, in whose eyes another job has waited longest, decides between the other's decision
    and its order: the lock of an emptied run directory keeps nobody out."""
    both(site)
    site.look()
    old = site.turns
    site.begin(LOW)
    site.says[LOW] = ["wanted"]
    site.look()
    new = agent_of(site)
    site.turns = new
    site.look()
    site.look(TURN_S)
    assert site.order(FIRST) == c.SWAP_TURN
    site.leaves(FIRST)
    give, is_first = turns.give, True

    def between(*words: Any) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            assert new.once() == ""
            assert site.order(LOW) == c.SWAP_IN
        return give(*words)

    monkeypatch.setattr(turns, "give", between)
    site.turns = old
    for _ in range(2):
        site.look()
    assert not is_first
    assert (site.order(LOW), site.order(SECOND_JOB)) == (c.SWAP_IN, c.SWAP_TURN)
    assert_fits(site)


def test_a_slice_that_grew_or_a_job_that_began_since_the_look_is_seen(site: Site) -> None:
    away(site)
    grants = [one for one in site.node.grants().values() if one.gpu_uuid == UUIDS[0]]
    decided_on = {one.job_id: site.order(one.job_id) for one in grants}
    comes = [residents.Order(FIRST, c.SWAP_IN, "x")]
    smaller = [grants[0], grants[1]._replace(mem_mib=grants[1].mem_mib - 1)]
    assert turns.give(site.node.settings, smaller, comes, decided_on) == ([], "")
    site.begin(THIRD, mem="100")
    neighbours.write_swap(site.node.settings.run_dir, site.node.grants()[THIRD], c.SWAP_IN)
    assert turns.give(site.node.settings, grants, comes, decided_on) == ([], "")
    site.node.epilog(THIRD)
    given, _problem = turns.give(site.node.settings, grants, comes, decided_on)
    assert [order.job_id for order in given] == [FIRST]


def test_a_row_without_a_record_stops_no_turns(site: Site) -> None:
    """Of a prolog that was killed, until reconcile finds it."""
    both(site)
    site.look()
    opened = common.open_ledger(site.node.settings)
    lost = site.node.grants()[SECOND_JOB]._replace(job_id=THIRD, mem_mib=100)
    opened.add((lost,), lambda new, _live: new)
    opened.close()
    site.last = None
    node_grants = site.node.grants
    seen = {job: grant for job, grant in node_grants().items() if job != THIRD}
    site.grants = lambda: seen
    site.look(TURN_S)
    assert site.order(FIRST) == c.SWAP_TURN


def test_a_ledger_that_somebody_holds_delays_turns_and_loses_none(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each of three steps of a change, for longer than a writer waits."""
    monkeypatch.setattr(ledger, "BUSY_TIMEOUT_S", 0.05)
    both(site)
    site.look()

    def locked(after_s: float) -> None:
        path = f"{site.node.settings.run_dir}/{ledger.FILE_NAME}"
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        orders = [site.order(job) for job in (FIRST, SECOND_JOB)]
        with pytest.raises(NodeError, match="another process has held it"):
            site.look(after_s)
        assert [site.order(job) for job in (FIRST, SECOND_JOB)] == orders
        holder.execute("ROLLBACK")
        holder.close()

    locked(TURN_S)
    site.look()
    assert site.order(FIRST) == c.SWAP_TURN
    site.leaves(FIRST)
    locked(1)
    notes = turn_notes.TurnNotes(site.node.settings.run_dir).kept()
    assert notes.keys() == {FIRST, SECOND_JOB}, "who waits is still told so"
    site.look()
    assert site.order(SECOND_JOB) == c.SWAP_IN
    site.comes(SECOND_JOB)
    site.look()
    assert_fits(site)


def test_a_problem_is_reported_once_while_nothing_is_new(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from hami_hpc.agent.turns_taken import make

    away(site)
    reported: list[str] = []
    work = make(site.turns, reported.append)
    monkeypatch.setattr(site.turns, "once", lambda: "the record cannot be changed")
    for _ in range(6):
        work.once()
    assert len(reported) == 1


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    if not can_mount():
        pytest.skip("no right to mount")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_run_directory_stops_no_turn(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node.make(tmp_path / "node", run=small / "run")
    site = said_by(node, monkeypatch)
    both(site)
    site.look()
    with pytest.raises(OSError, match="No space left"):
        (small / "filler").write_bytes(b"x" * (4 << 20))
    site.look(TURN_S)
    assert site.order(FIRST) == c.SWAP_TURN
    site.leaves(FIRST)
    site.look()
    assert site.order(SECOND_JOB) == c.SWAP_IN
    site.comes(SECOND_JOB)
    site.look()
    assert not (Path(turn_notes.folder(node.settings.run_dir)) / f"{FIRST}.new").exists()
    (small / "filler").unlink()
    site.look()
    assert (Path(turn_notes.folder(node.settings.run_dir)) / str(FIRST)).exists()
    assert_fits(site)


@pytest.mark.skipif(not can_mount(), reason="needs to mount")
@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_state_directory_that_takes_no_event_stops_no_turn_and_no_suspension(site: Site, how: str) -> None:
    both(site)
    site.look()
    state = Path(site.node.settings.state_dir)
    options = "size=64k,ro" if how == "read-only" else "size=64k"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", state], check=True)
    try:
        with pytest.raises(OSError, match=r"No space left|Read-only"):
            (state / "filler").write_bytes(b"x" * (1 << 20))
        site.look(TURN_S)
        assert site.order(FIRST) == c.SWAP_TURN
        site.leaves(FIRST)
        site.look()
        assert site.order(SECOND_JOB) == c.SWAP_IN
        site.says[SECOND_JOB] = ["host"]
        suspend.suspend(site.node.settings, SECOND_JOB)
        assert site.order(SECOND_JOB) == c.SWAP_SUSPENDED
        suspend.resume(site.node.settings, SECOND_JOB)
        assert site.order(SECOND_JOB) == c.SWAP_TURN
    finally:
        subprocess.run(["umount", state], check=True)


def test_a_stopped_program_keeps_its_place_and_is_named(site: Site) -> None:
    """Its user sends SIGSTOP while it has its turn: it does not answer. The others are told that they wait for room."""
    both(site)
    site.look()
    site.says[FIRST], site.busy = ["gpu"], set()
    site.look(TURN_S)
    assert site.order(FIRST) == c.SWAP_TURN
    site.look(30)
    assert site.order(FIRST) == c.SWAP_IN
    assert "it does not answer (is it stopped?). It stays" in site.events()[-1]
    site.look()
    assert {one.job_id: one.state for one in site.turns.standings} == {FIRST: "stays", SECOND_JOB: "room"}
    site.look(residents.STAYS_S)
    assert site.order(FIRST) == c.SWAP_TURN, "it is asked again"
    site.leaves(FIRST)
    site.look()
    assert site.order(SECOND_JOB) == c.SWAP_IN


def test_on_what_was_seen_long_ago_nothing_is_decided(site: Site) -> None:
    """NVML hangs: the last look does not change. A job that was told to leave is not said to stay for it."""
    both(site)
    site.look()
    site.look(TURN_S)
    assert site.order(FIRST) == c.SWAP_TURN
    site.says[FIRST] = ["host"]
    site.now_s += 31
    assert site.turns.once() == ""
    assert site.order(FIRST) == c.SWAP_TURN
    site.leaves(FIRST)
    site.look()
    assert site.order(SECOND_JOB) == c.SWAP_IN
    assert not [text for text in site.events() if "did not leave" in text]


def test_numbers_of_nvml_that_lag_behind_delay_a_turn_and_no_more(site: Site) -> None:
    both(site)
    site.look()
    site.look(TURN_S)
    site.says[FIRST] = ["host"]
    for _ in range(5):
        site.look()
        assert site.order(SECOND_JOB) == c.SWAP_TURN
    site.leaves(FIRST)
    site.look()
    assert site.order(SECOND_JOB) == c.SWAP_IN
    site.says[SECOND_JOB], site.busy = ["gpu"], {SECOND_JOB}
    for _ in range(5):
        site.look()
    assert site.order(SECOND_JOB) == c.SWAP_IN, "it is there, though NVML does not show it yet"
    assert_fits(site)


@pytest.mark.parametrize("hours", [-10, 10])
def test_a_clock_that_jumps_changes_no_turn(site: Site, monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    """Turns are counted by the time since boot; users' commands alone ask the clock, whether an agent decides."""
    import time

    away(site)
    grant = site.node.grants()[FIRST]
    assert turn_notes.read(site.node.settings.run_dir, grant) is not None
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + hours * 3600)
    os.utime(turn_notes.folder(site.node.settings.run_dir), (time.time(), time.time()))
    assert turn_notes.read(site.node.settings.run_dir, grant) is not None
    orders = site.order(FIRST), site.order(SECOND_JOB)
    site.look()
    assert (site.order(FIRST), site.order(SECOND_JOB)) == orders


def test_a_new_agent_knows_who_had_left_whatever_they_say_now(site: Site) -> None:
    away(site)
    site.look()
    site.says[FIRST] = ["gpu"]
    site.turns = agent_of(site)
    site.begin(THIRD, mem="40000")
    site.says[THIRD] = ["wanted"]
    for _ in range(3):
        site.look()
    assert site.order(THIRD) == c.SWAP_IN, "it keeps nobody off by a word"
    assert site.order(FIRST) == c.SWAP_TURN
    assert_fits(site)


def test_one_that_came_back_while_no_agent_looked_counts_in_full(site: Site) -> None:
    away(site)
    site.look()
    site.says[FIRST], site.used_mib[FIRST] = ["gpu"], 3_000
    site.turns = agent_of(site)
    site.begin(THIRD, mem="35000")
    site.says[THIRD] = ["wanted"]
    for _ in range(3):
        site.look()
    assert site.order(THIRD) == c.SWAP_TURN


def test_a_note_of_another_run_or_of_one_that_came_says_nothing(site: Site) -> None:
    away(site)
    site.look()
    notes = turn_notes.TurnNotes(site.node.settings.run_dir).kept()
    assert notes[FIRST].left_mib == 600
    path = Path(turn_notes.folder(site.node.settings.run_dir)) / str(FIRST)
    for old in ("created_unix_ns", "boot_id"):
        path.write_text(path.read_text().replace(f'"{old}":', f'"{old}":1,"x":', 1))
        assert turn_notes.TurnNotes(site.node.settings.run_dir).kept().keys() <= {SECOND_JOB}


def test_a_job_that_hides_its_processes_is_not_away_while_nvml_shows_its_memory(site: Site) -> None:
    """Nothing in its usage file: its user has emptied it, or runs without the interposer."""
    both(site)
    site.look()
    site.look(TURN_S)
    site.says[FIRST] = []
    for _ in range(3):
        site.look()
        assert site.order(SECOND_JOB) == c.SWAP_TURN
    site.look(30)
    assert site.order(FIRST) == c.SWAP_IN
    assert site.events()[-1].endswith("NVML shows memory that nobody counts. It stays")
    assert_fits(site)


def test_where_memory_is_not_oversold_any_more_those_that_wait_have_no_part_in_the_gpus_time(site: Site) -> None:
    site.begin(FIRST, cores="60")
    site.comes(FIRST)
    assert site.begin(SECOND_JOB, mem="1000", cores="60") == c.SWAP_TURN
    site.look()
    text = site.node.config.read_text().replace("memory_scaling = 3\nturn_s = 60\n", "")
    site.node.config.write_text(text)
    ledger_of_node = common.open_ledger(site.node.settings)
    try:
        common.tell_neighbours("test", site.node.settings, ledger_of_node)
    finally:
        ledger_of_node.close()
    record = (site.node.jobs / str(FIRST) / c.FILE_JOB_LIMITS).read_bytes()
    offset, width, _kind = c.LIMITS_FIELDS["turn_length_permille"]
    assert int.from_bytes(record[offset : offset + width], "little") == 0, "it is told that it is alone"


def test_who_may_come_back_is_not_noted_as_away_before_its_order_says_so(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that is killed in between leaves nothing by which the next one takes it for away while it comes."""
    both(site)
    site.look()
    site.look(TURN_S)
    site.leaves(FIRST)
    noted: list[int] = []

    def killed(*_words: object) -> None:
        notes = turn_notes.TurnNotes(site.node.settings.run_dir).kept()
        noted.extend(notes[job].left_mib for job in (FIRST, SECOND_JOB))
        raise NodeError("killed")

    monkeypatch.setattr(turns, "give", killed)
    with pytest.raises(NodeError, match="killed"):
        site.look()
    assert noted == [600, -1], "the one that left, and the one that is about to come"
