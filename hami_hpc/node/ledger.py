# SPDX-License-Identifier: Apache-2.0
"""The node's ledger: SQLite in <run_dir>/ledger.db, the truth about which job holds what of which GPU.

Every write is one transaction that begins IMMEDIATE, so two prologs never decide on the same state. SQLite's rollback
journal: every way of waiting in it honours the busy timeout, and the journal of a killed process is rolled back by
whoever opens next. Rows of another boot are void: the first writer of a boot drops them.

A ledger that is missing, empty, of an older version or damaged is made anew from the run directory, whose limits
records only root writes: complete under another name, then renamed. So it stops no job, and nothing that is held is
given twice. A damaged one is kept as `ledger.db.damaged-<time>`.

SQLite's own check does not see a changed value. So the file's application_id, which is part of every transaction, holds
a checksum of all rows; where it does not fit them, or the check finds something, the file is damaged. So is one whose
user_version is a newer one's while the table `version` says otherwise; where both agree, a newer hami_hpc made it.

An open ledger holds <run_dir>/ledger.lock shared, whoever makes a new one holds it exclusively: so nobody writes into a
file that was put aside, and a prolog or epilog in the middle of its work is over when the run directory is read.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from hami_hpc.core.grant import Grant
from hami_hpc.core.inventory import Gpu
from hami_hpc.errors import NodeError
from hami_hpc.node import locks
from hami_hpc.node.sqlite import sqlite3

FILE_NAME = "ledger.db"
LOCK_NAME = "ledger.lock"
NEW = ".new"
SIDE_FILES = ("-journal", "-wal", "-shm")
SCHEMA_VERSION = 3  # 2: grants have phase_percent; 3: application_id is a checksum
LOOK_AGAIN_S = 0.2
BUSY_TIMEOUT_S = 30.0  # generous: a transaction takes a millisecond, and giving up drains the node
ATTEMPTS = 10
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# What this module's own statements meet only where names of the schema or texts are not as they were written.
GARBLED = (0, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH)
GRANT_COLUMNS = tuple(f'"{name}"' for name in Grant._fields)
GPU_COLUMNS = tuple(f'"{name}"' for name in Gpu._fields)
SCHEMA = (
    f"CREATE TABLE grants (boot_id, {', '.join(GRANT_COLUMNS)}, PRIMARY KEY (job_id))",
    f"CREATE TABLE gpus (boot_id, {', '.join(GPU_COLUMNS)}, PRIMARY KEY (minor))",
    # The version a second time, for whoever finds a higher one than its own: every later schema keeps this table.
    "CREATE TABLE version (number)",
    f"INSERT INTO version VALUES ({SCHEMA_VERSION})",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


class LedgerDamagedError(NodeError):
    """The file is no SQLite database any more, or its pages contradict each other."""


class LedgerMissingError(NodeError):
    """There is no ledger of this version: no file, an empty one, or one of an older hami_hpc."""


class Ledger:
    """An open ledger. Methods raise NodeError with the file, what failed, and what to do."""

    def __init__(self, connection: sqlite3.Connection, path: str, boot_id: str) -> None:
        self._connection = connection
        self._boot_id = boot_id
        self._lock: int | None = None
        self.path = path

    def keep_lock(self, lock: int) -> None:
        """Gives the ledger a lock's descriptor to close after itself."""
        self._lock = lock

    def close(self) -> None:
        """Closes the file, then gives the lock back."""
        self._connection.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with explained(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._connection.execute("DELETE FROM grants WHERE boot_id != ?", (self._boot_id,))
                yield self._connection
                _seal(self._connection)
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def grants(self) -> tuple[Grant, ...]:
        """The grants of this boot, by job id."""
        query = f"SELECT {', '.join(GRANT_COLUMNS)} FROM grants WHERE boot_id = ? ORDER BY job_id"
        with explained(self.path):
            return tuple(Grant(*row) for row in self._connection.execute(query, (self._boot_id,)))

    def grant_of(self, job_id: int) -> Grant | None:
        """The grant of one job, if it has one in this boot."""
        query = f"SELECT {', '.join(GRANT_COLUMNS)} FROM grants WHERE boot_id = ? AND job_id = ?"
        with explained(self.path):
            row = self._connection.execute(query, (self._boot_id, job_id)).fetchone()
        return Grant(*row) if row else None

    def void_grants(self) -> tuple[Grant, ...]:
        """Grants of other boots that no writer has dropped yet."""
        query = f"SELECT {', '.join(GRANT_COLUMNS)} FROM grants WHERE boot_id != ? ORDER BY job_id"
        with explained(self.path):
            return tuple(Grant(*row) for row in self._connection.execute(query, (self._boot_id,)))

    def drop_void(self) -> None:
        """Drops grants of other boots."""
        with self._write():
            pass

    def add(self, grant: Grant, decide: Callable[[Grant, tuple[Grant, ...]], Grant]) -> Grant:
        """Enters a grant and returns what the ledger now holds for its job.

        The same slice entered before is returned as it was (a prolog run twice); another slice of the same job id
        (a requeued job whose epilog never ran) is replaced. `decide` gets the grant and the other live ones, and
        returns the grant to enter, or raises.
        """
        with self._write() as connection:
            live = self.grants()
            old = next((held for held in live if held.job_id == grant.job_id), None)
            if old is not None and old.same_slice(grant):
                return old
            grant = decide(grant, tuple(held for held in live if held.job_id != grant.job_id))
            _insert(connection, self._boot_id, (grant,))
        return grant

    def restore(self, grant: Grant) -> None:
        """Enters a grant that the run directory shows and the ledger lost; a row of its job id stays as it is."""
        with self._write() as connection:
            if self.grant_of(grant.job_id) is None:
                _insert(connection, self._boot_id, (grant,))

    def remove(self, grant: Grant) -> None:
        """Closes a grant; a newer grant of the same job id stays."""
        with self._write() as connection:
            connection.execute(
                "DELETE FROM grants WHERE job_id = ? AND created_unix_ns = ?", (grant.job_id, grant.created_unix_ns)
            )

    def inventory(self) -> tuple[Gpu, ...]:
        """The GPUs as last seen in this boot; empty when none were entered since."""
        query = f"SELECT {', '.join(GPU_COLUMNS)} FROM gpus WHERE boot_id = ? ORDER BY minor"
        with explained(self.path):
            return tuple(Gpu(*row) for row in self._connection.execute(query, (self._boot_id,)))

    def set_inventory(self, gpus: Iterable[Gpu]) -> None:
        """Replaces the inventory."""
        marks = ", ".join("?" * (len(GPU_COLUMNS) + 1))
        rows = [(self._boot_id, *gpu) for gpu in gpus]
        with self._write() as connection:
            connection.execute("DELETE FROM gpus")
            connection.executemany(f"INSERT INTO gpus (boot_id, {', '.join(GPU_COLUMNS)}) VALUES ({marks})", rows)

    def damage(self) -> str | None:
        """What is wrong with the file, or None. Reads all of it, which is a few pages."""
        with explained(self.path):
            self._connection.execute("BEGIN")
            try:
                found = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
                if found != "ok":
                    return str(found)
                sealed = self._connection.execute("PRAGMA application_id").fetchone()[0]
                return None if sealed == _checksum(self._connection) else "its rows do not fit their checksum"
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")


def _checksum(connection: sqlite3.Connection) -> int:
    """CRC-32 of all rows, as the signed number that application_id holds."""
    crc = 0
    for table, columns, key in (("grants", GRANT_COLUMNS, "job_id"), ("gpus", GPU_COLUMNS, "minor")):
        for row in connection.execute(f"SELECT boot_id, {', '.join(columns)} FROM {table} ORDER BY {key}"):
            crc = zlib.crc32(repr(row).encode(), crc)
    return crc - (1 << 32) if crc >> 31 else crc


def _seal(connection: sqlite3.Connection) -> None:
    """Writes the checksum of the rows as they are now, in the transaction that changed them."""
    connection.execute(f"PRAGMA application_id = {_checksum(connection)}")


def _insert(connection: sqlite3.Connection, boot_id: str, grants: Iterable[Grant]) -> None:
    columns = ", ".join(GRANT_COLUMNS)
    marks = ", ".join("?" * (len(GRANT_COLUMNS) + 1))
    rows = [(boot_id, *grant) for grant in grants]
    connection.executemany(f"INSERT OR REPLACE INTO grants (boot_id, {columns}) VALUES ({marks})", rows)


def fill(connection: sqlite3.Connection, boot_id: str, grants: Iterable[Grant]) -> None:
    """Makes an empty database a ledger that holds the grants."""
    for statement in SCHEMA:
        connection.execute(statement)
    _insert(connection, boot_id, grants)
    _seal(connection)


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Turns SQLite's errors into NodeErrors (LedgerDamagedError for damage) that say what to do."""
    try:
        yield
    except UnicodeDecodeError as error:  # in SQLite's own message about the schema
        raise LedgerDamagedError(f"ledger {path} is damaged ({error}). Run: hami-hpc reconcile") from error
    except sqlite3.Error as error:
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        if code in DAMAGED or (code in GARBLED and not isinstance(error, sqlite3.ProgrammingError)):
            raise LedgerDamagedError(f"ledger {path} is damaged ({error}). Run: hami-hpc reconcile") from error
        advice = {
            sqlite3.SQLITE_BUSY: f"another process has held it for over {BUSY_TIMEOUT_S:g} s: see fuser {path}",
            sqlite3.SQLITE_FULL: "its file system is full: free some space (df)",
            sqlite3.SQLITE_READONLY: "its file system is read-only or its permissions changed (mount, ls -l)",
            sqlite3.SQLITE_IOERR: "its file system is full or failing: see df and dmesg",
            sqlite3.SQLITE_CANTOPEN: "its directory is missing, full or not writable (df, ls -ld)",
        }.get(code, "see slurmd.log, then: hami-hpc doctor")
        raise NodeError(f"ledger {path}: {error}; {advice}") from error


@contextmanager
def reachable(path: str) -> Iterator[None]:
    """Turns the system's errors about the file into NodeErrors."""
    try:
        yield
    except PermissionError as error:
        if os.geteuid() != 0:
            raise NodeError(f"ledger {path} is root's: run this as root") from error
        raise NodeError(f"ledger {path} cannot be opened ({error.strerror}): see mount and ls -ld") from error
    except OSError as error:
        raise NodeError(f"ledger {path} cannot be opened ({error.strerror}): see df, mount and ls -ld") from error


def _connect(path: str, boot_id: str) -> Ledger:
    """Opens what is there, and reads everything once, so that damage shows here and not in the middle of a decision.

    LedgerMissingError and LedgerDamagedError when a new one has to be made, NodeError for anything else.
    """
    try:
        is_empty = os.stat(path).st_size == 0
    except FileNotFoundError:
        is_empty = True
    if is_empty:
        raise LedgerMissingError(f"there is no ledger {path}")
    with explained(path):
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    return checked(connection, path, boot_id)


def checked(connection: sqlite3.Connection, path: str, boot_id: str) -> Ledger:
    """The ledger of a connection, which is closed when the ledger is old, damaged or too new: errors as _connect's."""
    ledger = Ledger(connection, path, boot_id)
    try:
        with explained(path):
            # A killed process loses nothing by this. A power loss may, but it ends the boot and with it every grant.
            # So no prolog waits for a disk.
            connection.execute("PRAGMA synchronous = OFF")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            journal = connection.execute("PRAGMA journal_mode").fetchone()[0]
            again = connection.execute("SELECT number FROM version").fetchone() if version > SCHEMA_VERSION else None
        if version > SCHEMA_VERSION:
            if again != (version,):
                raise LedgerDamagedError(f"ledger {path} is damaged (version {version}?). Run: hami-hpc reconcile")
            raise NodeError(
                f"ledger {path} is of version {version}, which a newer hami_hpc than this (it writes {SCHEMA_VERSION}) "
                "has left. Install that again, or drain the node, and when no vgpu job runs here move the file away",
            )
        if version < SCHEMA_VERSION or journal == "wal":
            raise LedgerMissingError(f"ledger {path} is an older hami_hpc's")
        damage = ledger.damage()
        if damage is not None:
            raise LedgerDamagedError(f"ledger {path} is damaged ({damage}). Run: hami-hpc reconcile")
    except BaseException:
        ledger.close()
        raise
    return ledger


def open_ledger(run_dir: str, boot_id: str, held: Callable[[], Iterable[Grant]]) -> Ledger:
    """Opens the ledger, making it if need be; `held()` gives the grants the run directory shows, which must be there.

    A damaged one is put aside and replaced. NodeError for anything else that stands in the way.
    """
    path = f"{run_dir}/{FILE_NAME}"
    with reachable(path):
        made = 0
        end = time.monotonic() + BUSY_TIMEOUT_S
        while made < ATTEMPTS:
            lock = locks.acquire(f"{run_dir}/{LOCK_NAME}", exclusive=False, timeout_s=BUSY_TIMEOUT_S)
            try:
                ledger = _connect(path, boot_id)
                ledger.keep_lock(lock)
                return ledger
            except (LedgerMissingError, LedgerDamagedError):
                os.close(lock)  # before the exclusive one is asked for: two who hold it shared would wait for ever
            except BaseException:
                os.close(lock)
                raise
            try:
                make_sound(run_dir, boot_id, held, LOOK_AGAIN_S)
                made += 1
            except locks.HeldError:  # most likely by those who use the sound one that another has made meanwhile
                if time.monotonic() >= end:
                    raise locks.HeldError(f"{run_dir}/{LOCK_NAME}", BUSY_TIMEOUT_S) from None
    raise NodeError(f"ledger {path} was made {ATTEMPTS} times and was damaged again each time: see df and dmesg")


def make_sound(
    run_dir: str, boot_id: str, held: Callable[[], Iterable[Grant]], timeout_s: float = BUSY_TIMEOUT_S
) -> None:
    """Makes a new ledger in place of one that is missing, old or damaged. A sound one, which another made, stays.

    locks.HeldError where others hold the ledger open for longer than `timeout_s`.
    """
    path = f"{run_dir}/{FILE_NAME}"
    with reachable(path):
        lock = locks.acquire(f"{run_dir}/{LOCK_NAME}", exclusive=True, timeout_s=timeout_s)
        try:
            aside = None
            try:
                _connect(path, boot_id).close()
                return
            except LedgerDamagedError:
                aside = f"{path}.damaged-{time.time_ns()}"
            except LedgerMissingError:
                pass
            _make(path, boot_id, held(), aside)
        finally:
            os.close(lock)


def _make(path: str, boot_id: str, grants: Iterable[Grant], aside: str | None) -> None:
    """A new ledger under `path`; what was there goes to `aside`, or away. For the holder of the exclusive lock.

    The old file goes before its journal, and there is none under `path` in between: so no journal is ever taken for
    that of another file.
    """
    for leftover in (path + NEW, *(path + NEW + suffix for suffix in SIDE_FILES)):
        with suppress(FileNotFoundError):
            os.unlink(leftover)
    os.close(os.open(path + NEW, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    with explained(path):
        connection = sqlite3.connect(path + NEW, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("BEGIN")
            fill(connection, boot_id, grants)
            connection.execute("COMMIT")
        finally:
            connection.close()
    with suppress(FileNotFoundError):
        if aside is None:
            os.unlink(path)
        else:
            os.rename(path, aside)
    for suffix in SIDE_FILES:
        with suppress(FileNotFoundError):
            os.unlink(path + suffix)
    os.rename(path + NEW, path)
