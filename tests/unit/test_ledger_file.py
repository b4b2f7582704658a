# SPDX-License-Identifier: Apache-2.0
"""The ledger's file: its version, its checksum, its lock, and what SQLite's errors are told as."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest
from node_testbed import GPU_MIB, names_in

from hami_hpc.core.grant import Grant
from hami_hpc.core.inventory import Gpu
from hami_hpc.errors import NodeError
from hami_hpc.node import ledger as ledgers
from hami_hpc.node import locks
from hami_hpc.node.ledger import LedgerDamagedError, explained, make_sound, open_ledger

GRANT = Grant(7, 65534, "GPU-1", 0, GPU_MIB, "h200", 8192, 50, "std", "cap", "share", 10**18, 30)
OTHER = GRANT._replace(job_id=3, gpu_uuid="GPU-2", created_unix_ns=5)
GPUS = (Gpu(0, 1, "GPU-1", "NVIDIA H200", "h200", GPU_MIB), Gpu(1, 4, "GPU-2", "NVIDIA H200", "h200", GPU_MIB))


def nobody() -> tuple[Grant, ...]:
    return ()


def held() -> tuple[Grant, ...]:
    """What the run directory shows, where a test has to see whether it was asked."""
    return (OTHER,)


@pytest.fixture
def state(tmp_path: Path) -> str:
    """A run directory with a ledger that holds GRANT."""
    ledger = open_ledger(str(tmp_path), "boot", nobody)
    ledger.add((GRANT,), lambda new, _live: new)
    ledger.close()
    return str(tmp_path)


def execute(state: str, statement: str) -> None:
    connection = sqlite3.connect(f"{state}/ledger.db", isolation_level=None)
    connection.execute(statement)
    connection.close()


def grants(state: str) -> tuple[Grant, ...]:
    ledger = open_ledger(state, "boot", held)
    try:
        return ledger.grants()
    finally:
        ledger.close()


@pytest.mark.parametrize("version", range(ledgers.SCHEMA_VERSION + 2))
def test_an_older_ledger_is_made_anew_this_one_is_used_and_a_newer_one_is_refused(state: str, version: int) -> None:
    execute(state, f"UPDATE version SET number = {version}")
    execute(state, f"PRAGMA user_version = {version}")
    if version > ledgers.SCHEMA_VERSION:
        this_one = f"this one writes {ledgers.SCHEMA_VERSION}"
        with pytest.raises(NodeError, match=f"has version {version}: a newer hami_hpc wrote it .{this_one}"):
            grants(state)
        execute(state, f"UPDATE version SET number = {ledgers.SCHEMA_VERSION}")
        execute(state, f"PRAGMA user_version = {ledgers.SCHEMA_VERSION}")
        assert grants(state) == (GRANT,), "it was left as it is"
    else:
        assert grants(state) == ((GRANT,) if version == ledgers.SCHEMA_VERSION else (OTHER,))
    assert names_in(Path(state)) == ["ledger.db", "ledger.lock"], "an older one is not damaged"


def test_a_ledger_with_a_write_ahead_log_is_an_older_one(state: str) -> None:
    execute(state, "PRAGMA journal_mode = WAL")
    assert grants(state) == (OTHER,)
    assert names_in(Path(state)) == ["ledger.db", "ledger.lock"]


@pytest.mark.parametrize("column", ["boot_id", *Grant._fields])
def test_a_value_of_a_grant_that_somebody_changed_is_damage(state: str, column: str) -> None:
    execute(state, f'UPDATE grants SET "{column}" = 2')
    assert grants(state) == (OTHER,)
    assert len(list(Path(state).glob("ledger.db.damaged-*"))) == 1


def test_the_checksum_covers_the_gpus_and_every_row(state: str) -> None:
    ledger = open_ledger(state, "boot", nobody)
    ledger.set_inventory(GPUS)
    ledger.restore((OTHER,))
    assert ledger.damage() is None
    for statement in (
        "UPDATE gpus SET model = 'x' WHERE minor = 4",
        "DELETE FROM gpus WHERE minor = 1",
        "DELETE FROM grants WHERE job_id = 3",
        "DELETE FROM grants WHERE job_id = 7",
    ):
        execute(state, statement)
        assert ledger.damage() == "the checksum of its rows is wrong"
        ledger.drop_void()  # any transaction seals what is there
        assert ledger.damage() is None
    ledger.close()


def test_checksums_of_either_sign_fit_the_files_field(state: str) -> None:
    ledger = open_ledger(state, "boot", nobody)
    signs = set()
    for job_id in range(100, 120):
        ledger.restore((GRANT._replace(job_id=job_id),))
        assert ledger.damage() is None
        connection = sqlite3.connect(ledger.path)
        signs.add(connection.execute("PRAGMA application_id").fetchone()[0] > 0)
        connection.close()
    assert signs == {True, False}
    ledger.close()


def test_rows_come_in_order_and_an_inventory_is_replaced_whole(state: str) -> None:
    ledger = open_ledger(state, "boot", nobody)
    ledger.restore((OTHER,))
    assert ledger.grants() == (OTHER, GRANT)
    ledger.set_inventory(reversed(GPUS))
    assert ledger.inventory() == GPUS
    ledger.set_inventory(GPUS[1:])
    assert ledger.inventory() == GPUS[1:]
    ledger.close()
    later = open_ledger(state, "later", nobody)
    assert later.void_grants() == (OTHER, GRANT)
    assert later.inventory() == ()
    assert later.grants() == ()
    assert later.grants_of(7) == ()
    later.drop_void()
    assert later.void_grants() == ()
    later.close()


def test_a_decision_sees_the_other_live_grants_only_and_its_answer_is_entered(state: str) -> None:
    ledger = open_ledger(state, "boot", nobody)
    ledger.restore((OTHER,))
    ledger.restore((OTHER._replace(mem_mib=1),))
    assert ledger.grants_of(3) == (OTHER,), "a row that is there stays"
    seen: list[tuple[Grant, ...]] = []

    def decide(new: Grant, live: tuple[Grant, ...]) -> Grant:
        seen.append(live)
        return new._replace(cores_percent=77)

    wanted = GRANT._replace(mem_mib=1)
    assert ledger.add((wanted,), decide) == (wanted._replace(cores_percent=77),) == ledger.grants_of(7)
    assert seen == [(OTHER,)]
    assert ledger.add((OTHER._replace(created_unix_ns=9),), decide) == (OTHER,)
    assert len(seen) == 1, "the same slice needs no decision"
    ledger.close()


def test_an_open_ledger_holds_its_lock_shared_and_gives_it_back(state: str) -> None:
    def exclusive() -> None:
        os.close(locks.acquire(f"{state}/ledger.lock", exclusive=True, timeout_s=0.01))

    first, second = (open_ledger(state, "boot", nobody) for _ in range(2))
    for ledger in (first, second):
        with pytest.raises(locks.HeldError):
            exclusive()
        with pytest.raises(locks.HeldError):
            make_sound(state, "boot", nobody, timeout_s=0.01)
        ledger.close()
        ledger.close()
    exclusive()
    make_sound(state, "boot", held)
    assert grants(state) == (GRANT,), "a sound one stays"
    exclusive()


def test_what_lies_in_the_way_of_a_new_ledger_goes_and_the_damaged_one_is_kept(state: str) -> None:
    path = Path(state, "ledger.db")
    for name in ("ledger.db.new", "ledger.db.new-journal", "ledger.db-journal", "ledger.db-shm"):
        Path(state, name).write_text("left over")
    path.write_text("damaged" * 1000)
    assert grants(state) == (OTHER,)
    (aside,) = Path(state).glob("ledger.db.damaged-*")
    assert aside.read_text() == "damaged" * 1000
    assert names_in(Path(state)) == ["ledger.db", aside.name, "ledger.lock"]


def test_a_ledger_that_is_damaged_each_time_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def makes_garbage(run_dir: str, *_arguments: object) -> None:
        made.append(run_dir)
        Path(run_dir, "ledger.db").write_text("x")

    monkeypatch.setattr(ledgers, "make_sound", makes_garbage)
    with pytest.raises(NodeError, match=f"ledger {tmp_path}/ledger.db was made 10 times and was damaged again"):
        open_ledger(str(tmp_path), "boot", nobody)
    assert made == [str(tmp_path)] * 10
    os.close(locks.acquire(f"{tmp_path}/ledger.lock", exclusive=True, timeout_s=0.01))  # no lock is left


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (sqlite3.SQLITE_BUSY, "no; another process has held it for over 30 s: see fuser /l"),
        (sqlite3.SQLITE_BUSY | 1 << 8, "no; another process has held it"),
        (sqlite3.SQLITE_FULL, "its file system is full: free some space"),
        (sqlite3.SQLITE_READONLY, "its file system is read-only"),
        (sqlite3.SQLITE_IOERR, "full or failing: see df and dmesg"),
        (sqlite3.SQLITE_CANTOPEN, "its directory is missing, full or not writable"),
        (sqlite3.SQLITE_PERM, "see slurmd.log, then: hami-hpc doctor"),
    ],
)
def test_an_error_of_sqlite_is_told_with_what_to_do(code: int, text: str) -> None:
    error = sqlite3.OperationalError("no")
    error.sqlite_errorcode = code
    with pytest.raises(NodeError, match=text) as caught, explained("/l"):
        raise error
    assert not isinstance(caught.value, LedgerDamagedError)


@pytest.mark.parametrize("code", [*ledgers.DAMAGED, *ledgers.GARBLED, sqlite3.SQLITE_CORRUPT | 2 << 8, None])
def test_what_only_a_damaged_file_gives_is_told_as_damage(code: int | None) -> None:
    error = sqlite3.DatabaseError("no")
    if code is not None:
        error.sqlite_errorcode = code
    with pytest.raises(LedgerDamagedError, match=r"ledger /l is damaged \(no\)"), explained("/l"):
        raise error


def test_a_misuse_of_sqlite_is_no_damage() -> None:
    with pytest.raises(NodeError) as caught, explained("/l"):
        raise sqlite3.ProgrammingError("closed")
    assert not isinstance(caught.value, LedgerDamagedError)


def test_every_method_names_the_file_that_it_could_not_use(state: str) -> None:
    ledger = open_ledger(state, "boot", nobody)
    ledger.close()
    uses = (
        ledger.grants,
        lambda: ledger.grants_of(7),
        ledger.void_grants,
        ledger.inventory,
        ledger.damage,
        ledger.drop_void,
        lambda: ledger.set_inventory(GPUS),
        lambda: ledger.remove(GRANT),
    )
    for use in uses:
        with pytest.raises(NodeError, match=f"ledger {state}/ledger.db: Cannot operate on a closed database"):
            use()


def test_a_new_ledger_that_cannot_be_made_is_told_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "SCHEMA", ("nonsense",))
    with pytest.raises(NodeError, match=f"ledger {tmp_path}/ledger.db is damaged .*nonsense"):
        open_ledger(str(tmp_path), "boot", nobody)


def test_a_ledger_that_sqlite_cannot_open_is_told_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.mkdir()
    (path / "x").touch()  # so that no file system gives it no size
    with pytest.raises(NodeError, match=f"ledger {path}: unable to open database file; its directory is missing"):
        open_ledger(str(tmp_path), "boot", nobody)


def test_who_waits_too_long_to_make_a_ledger_is_told_which_lock_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[float] = []

    def is_held(_run_dir: str, _boot_id: str, _held: object, timeout_s: float) -> None:
        tried.append(timeout_s)
        raise locks.HeldError("x", 1)

    monkeypatch.setattr(ledgers, "BUSY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(ledgers, "make_sound", is_held)
    with pytest.raises(locks.HeldError, match=f"lock {tmp_path}/ledger.lock: .* for over 0.05 s"):
        open_ledger(str(tmp_path), "boot", nobody)
    assert len(tried) > 1
    assert set(tried) == {ledgers.LOOK_AGAIN_S}
