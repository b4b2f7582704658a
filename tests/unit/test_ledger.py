# SPDX-License-Identifier: Apache-2.0
"""The ledger: transactions, boots, and what happens to one that was damaged or lost."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from harness.mounting import can_mount
from node_testbed import GPU_MIB, Node, names_in

from hami_hpc.core.grant import Grant
from hami_hpc.core.inventory import Gpu
from hami_hpc.errors import NodeError
from hami_hpc.node import ledger as ledgers
from hami_hpc.node.ledger import Ledger, open_ledger
from hami_hpc.stages import common

GRANT = Grant(7, 65534, "GPU-1", 0, GPU_MIB, "h200", 8192, 50, "std", "cap", "share", 10**18)


def nobody() -> tuple[Grant, ...]:
    return ()


def fine(new: Grant, _live: tuple[Grant, ...]) -> Grant:
    """A decision that changes nothing."""
    return new


@pytest.fixture
def state(tmp_path: Path) -> str:
    folder = tmp_path / "run"
    folder.mkdir()
    return str(folder)


def test_a_grant_is_there_after_reopening(state: str) -> None:
    ledger = open_ledger(state, "boot", nobody)
    assert ledger.add((GRANT,), fine) == (GRANT,)
    ledger.close()
    again = open_ledger(state, "boot", nobody)
    assert again.grants() == (GRANT,)
    assert again.grants_of(7) == (GRANT,)
    assert again.grants_of(8) == ()
    again.close()


def test_only_root_can_read_it(state: str) -> None:
    open_ledger(state, "boot", nobody).close()
    assert Path(state, "ledger.db").stat().st_mode & 0o777 == 0o600


def test_the_same_slice_keeps_its_first_time_and_another_one_replaces_it(state: str) -> None:
    ledger = open_ledger(state, "boot", nobody)
    ledger.add((GRANT,), fine)
    assert ledger.add((GRANT._replace(created_unix_ns=2 * 10**18),), fine) == (GRANT,)
    other = GRANT._replace(mem_mib=1, created_unix_ns=3 * 10**18)
    assert ledger.add((other,), fine) == (other,)
    assert ledger.grants() == (other,)
    ledger.close()


def test_a_check_that_fails_leaves_no_row(state: str) -> None:
    def refuse(_new: Grant, _live: tuple[Grant, ...]) -> Grant:
        raise NodeError("no")

    ledger = open_ledger(state, "boot", nobody)
    with pytest.raises(NodeError, match="no"):
        ledger.add((GRANT,), refuse)
    assert ledger.grants() == ()
    assert ledger.add((GRANT,), fine) == (GRANT,), "and no transaction is left open"
    ledger.close()


def test_removing_a_grant_leaves_a_newer_one_of_the_same_job(state: str) -> None:
    ledger = open_ledger(state, "boot", nobody)
    ledger.add((GRANT,), fine)
    ledger.remove(GRANT._replace(created_unix_ns=1))
    assert ledger.grants() == (GRANT,)
    ledger.remove(GRANT)
    assert ledger.grants() == ()
    ledger.close()


def test_grants_and_gpus_of_another_boot_are_void(state: str) -> None:
    old = open_ledger(state, "old boot", nobody)
    old.add((GRANT,), fine)
    old.set_inventory([Gpu(0, 0, "GPU-1", "NVIDIA H200", "h200", GPU_MIB)])
    old.close()
    new = open_ledger(state, "new boot", nobody)
    assert new.grants() == ()
    assert new.inventory() == ()
    assert new.void_grants() == (GRANT,)
    seen: list[tuple[Grant, ...]] = []

    def look(new: Grant, live: tuple[Grant, ...]) -> Grant:
        seen.append(live)
        return new

    new.add((GRANT._replace(job_id=8),), look)
    assert seen == [()], "they hold nothing"
    assert new.void_grants() == ()
    new.close()


def test_an_upgrade_replaces_the_older_ledger_and_what_is_held_stays_held(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node.make(tmp_path / "node")
    assert node.prolog(7, mem_mib=100000) == 0
    before = node.grants()[7]
    connection = sqlite3.connect(node.root / "run" / "ledger.db")
    connection.executescript("ALTER TABLE grants DROP COLUMN floor_percent; PRAGMA user_version = 1")
    connection.close()
    node.enter_gpus()
    assert node.prolog(8, mem_mib=100000) == 1, "job 7 still holds its memory"
    assert "job 7: 100000 MiB" in capsys.readouterr().err
    assert node.grants()[7]._replace(model="h200") == before
    assert node.epilog(7) == 0
    assert node.prolog(8, mem_mib=100000) == 0
    assert not [name for name in names_in(node.root / "run") if ".damaged-" in name]


def test_a_ledger_of_a_newer_version_is_refused_and_left_as_it_is(state: str) -> None:
    open_ledger(state, "boot", nobody).close()
    connection = sqlite3.connect(f"{state}/ledger.db")
    connection.executescript("UPDATE version SET number = 99; PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(NodeError, match="has version 99"):
        open_ledger(state, "boot", nobody)
    assert names_in(Path(state)) == ["ledger.db", "ledger.lock"]


@pytest.mark.parametrize(
    "damaged", ["", "DROP TABLE version;", "DELETE FROM version;", "UPDATE version SET number = 98;"]
)
def test_a_damaged_version_is_no_newer_one(state: str, damaged: str) -> None:
    for bit in range(32):
        version = (ledgers.SCHEMA_VERSION ^ 1 << bit) - (1 << 32 if bit == 31 else 0)
        with closing(open_ledger(state, "boot", lambda: (GRANT,))):
            connection = sqlite3.connect(f"{state}/ledger.db")
            connection.executescript(f"{damaged} PRAGMA user_version = {version}")
            connection.close()
        with closing(open_ledger(state, "boot", lambda: (GRANT,))) as ledger:
            assert ledger.grants() == (GRANT,), f"version {version}"
            assert sqlite_version(state) == ledgers.SCHEMA_VERSION
    kept = [name for name in names_in(Path(state)) if ".damaged-" in name]
    assert len(kept) == 31 - ledgers.SCHEMA_VERSION.bit_count(), "all that seemed newer are kept"


def sqlite_version(state: str) -> int:
    with closing(sqlite3.connect(f"{state}/ledger.db")) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def test_a_ledger_held_by_another_process_is_waited_for_and_then_named(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "BUSY_TIMEOUT_S", 0.2)
    ledger = open_ledger(state, "boot", nobody)
    blocker = sqlite3.connect(f"{state}/ledger.db", isolation_level=None, check_same_thread=False)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(NodeError, match=r"another process has held it .* fuser"):
        ledger.add((GRANT,), fine)
    release = threading.Timer(0.05, lambda: blocker.execute("ROLLBACK"))
    release.start()
    assert ledger.add((GRANT,), fine) == (GRANT,)
    release.join()
    blocker.close()
    ledger.close()


def garbage(path: Path) -> None:
    path.write_bytes(os.urandom(20000))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zeroed_pages(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:4096] + bytes(len(data) - 4096))


def gone(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [garbage, empty, half, zeroed_pages, gone])
def test_a_damaged_ledger_is_replaced_and_what_is_held_stays_held(
    tmp_path: Path, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node.make(tmp_path / "node")
    assert node.prolog(7, mem_mib=100000) == 0
    before = node.grants()[7]
    path = node.root / "run" / "ledger.db"
    damage(path)
    node.enter_gpus()
    assert node.prolog(8, mem_mib=100000) == 1, "job 7 still holds its memory"
    assert "job 7: 100000 MiB" in capsys.readouterr().err
    assert node.grants()[7]._replace(model="h200") == before
    assert node.prolog(7, mem_mib=100000) == 0
    assert node.grants()[7].created_unix_ns == before.created_unix_ns
    assert node.epilog(7) == 0
    assert node.prolog(8, mem_mib=100000) == 0
    aside = [name for name in names_in(path.parent) if ".damaged-" in name]
    assert bool(aside) == (damage in (garbage, half, zeroed_pages))


def test_a_damaged_log_beside_the_ledger_stops_no_job(tmp_path: Path) -> None:
    node = Node.make(tmp_path / "node")
    (node.root / "run" / "ledger.db-wal").write_bytes(os.urandom(30000))
    assert node.prolog(7) == 0
    node.assert_job_is_ready(7)


def test_a_damaged_ledger_is_put_aside_once_however_many_find_it(tmp_path: Path) -> None:
    state = tmp_path / "run"
    state.mkdir()
    open_ledger(str(state), "boot", nobody).close()
    garbage(state / "ledger.db")
    opened: list[Ledger] = []
    errors: list[BaseException] = []

    def use() -> None:
        try:
            opened.append(open_ledger(str(state), "boot", lambda: (GRANT,)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(opened) == 8
    assert len([name for name in names_in(state) if ".damaged-" in name]) == 1
    final = open_ledger(str(state), "boot", nobody)
    assert final.grants() == (GRANT,)
    final.close()


def test_who_found_it_damaged_takes_the_one_that_another_has_made_and_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "run"
    state.mkdir()
    open_ledger(str(state), "boot", nobody).close()
    garbage(state / "ledger.db")
    holders: list[Ledger] = []
    make_sound = ledgers.make_sound

    def another_is_first(*arguments: Any) -> None:
        if not holders:
            make_sound(str(state), "boot", lambda: (GRANT,))
            holders.append(open_ledger(str(state), "boot", nobody))
        make_sound(*arguments)

    monkeypatch.setattr(ledgers, "make_sound", another_is_first)
    mine = open_ledger(str(state), "boot", nobody)
    assert mine.grants() == (GRANT,)
    for one in (mine, *holders):
        one.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_garbled_ledger_is_replaced_and_nothing_held_is_given_twice(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node.make(tmp_path / "node")
    assert node.prolog(7, mem_mib=100000) == 0
    path = node.root / "run" / "ledger.db"
    good = path.read_bytes()
    written = [at for at, byte in enumerate(good) if byte]
    chance = random.Random(seed)
    for _ in range(25):
        garbled = bytearray(good)
        garbled[chance.choice(written)] ^= 1 << chance.randrange(8)
        path.write_bytes(garbled)
        node.enter_gpus()
        assert node.prolog(8, mem_mib=100000) == 1
        assert "job 7: 100000 MiB" in capsys.readouterr().err
        assert node.grants()[7].mem_mib == 100000


def test_a_clock_that_jumped_forward_hides_no_grant_from_a_new_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's boot time moves with the clock: jobs of this boot seem to be older than it."""
    node = Node.make(tmp_path / "node")
    node.prolog(7)
    (node.root / "run" / "ledger.db").unlink()
    monkeypatch.setattr("hami_hpc.node.boot.booted_unix_ns", lambda: time.time_ns() + 3_600_000_000_000)
    opened = common.open_ledger(node.settings)
    found = [grant.job_id for grant in opened.grants()]
    opened.close()
    assert found == ([7] if can_mount() else [])
