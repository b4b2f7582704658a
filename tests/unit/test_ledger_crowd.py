# SPDX-License-Identifier: Apache-2.0
"""Many processes that open, create, upgrade and replace the ledger at once: none fails, and nothing is lost.

HAMI_HPC_LEDGER_ROUNDS sets the number of rounds; 200 is the full count.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from forked import fork
from node_testbed import GPU_MIB, names_in

from hami_hpc.core.grant import Grant
from hami_hpc.errors import NodeError
from hami_hpc.node import ledger as ledgers
from hami_hpc.node import locks
from hami_hpc.node.ledger import Ledger, open_ledger

PROCESSES = 16
ROUNDS = int(os.environ.get("HAMI_HPC_LEDGER_ROUNDS", "80"))
HELD = Grant(999, 65534, "GPU-1", 0, GPU_MIB, "", 8192, 50, "std", "cap", "share", 10**18)


def held() -> tuple[Grant, ...]:
    """What the run directory shows, throughout."""
    return (HELD,)


def fresh(run_dir: Path) -> None:
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.mkdir()


def empty(run_dir: Path) -> None:
    (run_dir / "ledger.db").write_bytes(b"")


def garbage(run_dir: Path) -> None:
    (run_dir / "ledger.db").write_bytes(os.urandom(20000))


def half(run_dir: Path) -> None:
    path = run_dir / "ledger.db"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zeroed_pages(run_dir: Path) -> None:
    path = run_dir / "ledger.db"
    path.write_bytes(path.read_bytes()[:4096].ljust(path.stat().st_size, b"\0"))


def older(run_dir: Path) -> None:
    with closing(sqlite3.connect(run_dir / "ledger.db")) as connection:
        connection.executescript("ALTER TABLE grants DROP COLUMN floor_percent; PRAGMA user_version = 1")


def older_in_wal_mode(run_dir: Path) -> None:
    older(run_dir)
    with closing(sqlite3.connect(run_dir / "ledger.db")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("DELETE FROM grants")


def wal_mode(run_dir: Path) -> None:
    with closing(sqlite3.connect(run_dir / "ledger.db")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")


def foreign_journal(run_dir: Path) -> None:
    (run_dir / "ledger.db-journal").write_bytes(os.urandom(30000))


def sound(run_dir: Path) -> None:
    pass


STARTS = (
    fresh,
    garbage,
    half,
    older,
    empty,
    older_in_wal_mode,
    zeroed_pages,
    wal_mode,
    foreign_journal,
    sound,
)


def enter_and_leave(run_dir: str, job_id: int) -> None:
    """What a prolog and an epilog do with the ledger. AssertionError when a row is not there or does not go."""
    mine = HELD._replace(job_id=job_id, created_unix_ns=time.time_ns())
    ledger = open_ledger(run_dir, "boot", held)
    try:
        ledger.add((mine,), lambda new, _live: new)
    finally:
        ledger.close()
    ledger = open_ledger(run_dir, "boot", held)
    try:
        assert ledger.grants_of(job_id) == (mine,), "the row was written into a file that is no longer the ledger"
        assert ledger.grants_of(HELD.job_id) == (HELD,), "what the run directory shows was lost"
        ledger.remove(mine)
    finally:
        ledger.close()


def started(count: int, body: Callable[[int], None]) -> list[int]:
    """Forks `count` processes that run `body(number)` and end with status 0, or 1 and a traceback."""
    children = []
    for number in range(count):
        child = fork()
        if child == 0:
            status = 1
            try:
                body(number)
                status = 0
            except BaseException:
                traceback.print_exc(file=sys.stderr)
            finally:
                sys.stderr.flush()
                os._exit(status)
        children.append(child)
    return children


def statuses(children: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def assert_sound(run_dir: Path, rounds: str) -> None:
    ledger = open_ledger(str(run_dir), "boot", held)
    try:
        assert ledger.damage() is None, rounds
        assert ledger.grants() == (HELD,), rounds
    finally:
        ledger.close()
    allowed = {"ledger.db", "ledger.lock"}
    assert [name for name in names_in(run_dir) if name not in allowed and ".damaged-" not in name] == [], rounds


def test_opening_creating_upgrading_and_replacing_never_fail_because_others_do_the_same(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    fresh(run_dir)
    barrier = multiprocessing.get_context("fork").Barrier(PROCESSES)

    def use(number: int) -> None:
        for round_number in range(ROUNDS):
            if number == 0:
                if round_number:
                    assert_sound(run_dir, f"after round {round_number - 1}")
                STARTS[round_number % len(STARTS)](run_dir)
            barrier.wait(60)
            enter_and_leave(str(run_dir), number + 1)
            barrier.wait(60)

    assert statuses(started(PROCESSES, use)) == [0] * PROCESSES
    assert_sound(run_dir, "at the end")


def test_processes_that_are_killed_in_the_middle_leave_a_ledger_that_others_use(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    fresh(run_dir)
    chance = random.Random(8)

    def use_often(number: int) -> None:
        for turn in range(8):
            enter_and_leave(str(run_dir), 1 + number + PROCESSES * turn)

    for round_number in range(max(ROUNDS // 4, 1)):
        STARTS[round_number % len(STARTS)](run_dir)
        children = started(PROCESSES, use_often)
        time.sleep(chance.uniform(0, 0.1))
        killed = set(chance.sample(range(PROCESSES), 6))
        for index in killed:
            os.kill(children[index], signal.SIGKILL)  # one that has ended waits to be collected, and is no other's pid
        ended = statuses(children)
        assert all(status == 0 for index, status in enumerate(ended) if index not in killed), (round_number, ended)
        ledger = open_ledger(str(run_dir), "boot", held)
        assert ledger.damage() is None
        left = ledger.grants()
        assert HELD in left
        assert len(left) <= 1 + len(killed), "at most one row of each that was killed"
        for grant in left:
            if grant != HELD:
                ledger.remove(grant)
        ledger.close()


@pytest.mark.parametrize("leave_wal", [False, True])
def test_a_stopped_process_that_has_the_ledger_open_is_waited_for_and_then_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave_wal: bool
) -> None:
    """Whoever replaces a ledger waits for those that have it open, but not for ever."""
    monkeypatch.setattr(ledgers, "BUSY_TIMEOUT_S", 0.3)
    run_dir = tmp_path / "run"
    fresh(run_dir)
    open_ledger(str(run_dir), "boot", held).close()
    lock = locks.acquire(str(run_dir / ledgers.LOCK_NAME), exclusive=False, timeout_s=1)
    (wal_mode if leave_wal else garbage)(run_dir)
    begin = time.monotonic()
    with pytest.raises(NodeError, match=r"another process has held it for over 0\.3 s: see fuser"):
        open_ledger(str(run_dir), "boot", held)
    assert time.monotonic() - begin >= 0.3, "what it says is true"
    os.close(lock)
    ledger: Ledger = open_ledger(str(run_dir), "boot", held)
    assert ledger.grants() == (HELD,)
    ledger.close()


def test_the_lock_of_a_directory_that_was_removed_locks_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = locks.acquire(str(path), exclusive=True, timeout_s=1)
    path.unlink()
    second = locks.acquire(str(path), exclusive=True, timeout_s=1)
    with pytest.raises(NodeError, match=r"for over 0\.05 s"):
        locks.acquire(str(path), exclusive=True, timeout_s=0.05)
    os.close(first)
    os.close(second)
