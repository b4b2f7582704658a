# SPDX-License-Identifier: Apache-2.0
"""The node's ledger: an SQLite file, <run_dir>/ledger.db, that records which job holds how much of which GPU, in a row
for each slice. The rows of one job are written and deleted together, never some of them.

Every write is one transaction that begins IMMEDIATE, so two prologs never decide on the same state. The file uses
SQLite's rollback journal: every wait in it obeys the busy timeout, and the next process that opens the file rolls back
the journal of a killed one. Rows of another boot are void: the first writer of a boot drops them.

A ledger that is missing, empty, of an older version or damaged is made again from the run directory, whose limits
records only root writes. The new file is completed under another name, then renamed. So no job has to wait for a
repair, and no slice is granted twice. A damaged file is kept as `ledger.db.damaged-<time>`.

SQLite's own check does not detect a changed value. So the file's application_id, which is part of every transaction,
holds a checksum of all rows. The file is damaged if the checksum is wrong, if SQLite's check fails, or if user_version
is newer than this version and the table `version` differs from it; where both agree, a newer hami_hpc made the file.

A process with the ledger open holds <run_dir>/ledger.lock shared; a process that makes a new one holds it exclusively.
So nobody writes to a file that was put aside, and no prolog or epilog is at work while the run directory is read.
"""

from __future__ import annotations

import os
import time
import zlib

from hami_hpc.core.contexts import contextmanager, suppress
from hami_hpc.core.grant import Grant, same_slices
from hami_hpc.core.inventory import Gpu
from hami_hpc.errors import NodeError
from hami_hpc.node import locks
from hami_hpc.node.sqlite import sqlite3

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

FILE_NAME = "ledger.db"
LOCK_NAME = "ledger.lock"
NEW = ".new"
SIDE_FILES = ("-journal", "-wal", "-shm")
# 3: application_id is a checksum; 4: latency, floor_percent, and no phase; 5: class_priority, slice_us, slo_us;
# 6: a row for each slice; 7: max_processes; 8: what a resized job asked for
SCHEMA_VERSION = 8
LOOK_AGAIN_S = 0.2
BUSY_TIMEOUT_S = 30.0  # generous: a transaction takes a millisecond, and giving up drains the node
ATTEMPTS = 10
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# Errors that this module's statements can get only when names of the schema, or texts, are damaged.
GARBLED = (0, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH)
GRANT_COLUMNS = tuple(f'"{name}"' for name in Grant._fields)
GPU_COLUMNS = tuple(f'"{name}"' for name in Gpu._fields)
SCHEMA = (
    f"CREATE TABLE grants (boot_id, {', '.join(GRANT_COLUMNS)}, PRIMARY KEY (job_id, slice_index))",
    f"CREATE TABLE gpus (boot_id, {', '.join(GPU_COLUMNS)}, PRIMARY KEY (minor))",
    # The version again, for a reader that finds a newer user_version than its own: every later schema keeps this table.
    "CREATE TABLE version (number)",
    f"INSERT INTO version VALUES ({SCHEMA_VERSION})",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


class LedgerDamagedError(NodeError):
    """The file is not an SQLite database any more, or its content contradicts itself."""


class LedgerMissingError(NodeError):
    """No ledger of this version exists: the file is missing, empty, or of an older hami_hpc."""


class Ledger:
    """An open ledger. Methods raise NodeError, which names the file, what failed, and what to do."""

    def __init__(self, connection: sqlite3.Connection, path: str, boot_id: str) -> None:
        self._connection = connection
        self._boot_id = boot_id
        self._lock: int | None = None
        self.path = path

    def keep_lock(self, lock: int) -> None:
        """Passes the ledger the descriptor of its lock, which close() closes."""
        self._lock = lock

    def close(self) -> None:
        """Closes the file, then releases the lock."""
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
        """Returns the grants of this boot, by job id and slice."""
        return self._rows("boot_id = ?", self._boot_id)

    def grants_of(self, job_id: int) -> tuple[Grant, ...]:
        """Returns the slices of one job in their order; none when it has none in this boot."""
        return self._rows("boot_id = ? AND job_id = ?", self._boot_id, job_id)

    def _rows(self, condition: str, *values: str | int) -> tuple[Grant, ...]:
        query = f"SELECT {', '.join(GRANT_COLUMNS)} FROM grants WHERE {condition} ORDER BY job_id, slice_index"
        with explained(self.path):
            return tuple(Grant(*row) for row in self._connection.execute(query, values))

    @contextmanager
    def held_still(self) -> Iterator[tuple[Grant, ...]]:
        """Keeps all other writers out, and gives the grants of this boot. Changes nothing in the file."""
        with explained(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.grants()
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def void_grants(self) -> tuple[Grant, ...]:
        """Returns the grants of other boots that no writer has dropped yet."""
        return self._rows("boot_id != ?", self._boot_id)

    def drop_void(self) -> None:
        """Drops grants of other boots."""
        with self._write():
            pass

    def add(self, grants: Sequence[Grant], decide: Callable[[Grant, tuple[Grant, ...]], Grant]) -> tuple[Grant, ...]:
        """Enters all slices of one job, or none, and returns those that the ledger now has for it.

        If the job already has the same slices, they are returned unchanged (a prolog that ran twice). Other slices of
        the same job id (a requeued job whose epilog never ran) are replaced. `decide` takes each grant and the live
        ones of other jobs, and returns the grant to enter, or raises.
        """
        job_id = grants[0].job_id
        with self._write() as connection:
            live = self.grants()
            old = tuple(other for other in live if other.job_id == job_id)
            if same_slices(old, grants):
                return old
            others = tuple(other for other in live if other.job_id != job_id)
            entered = tuple(decide(grant, others) for grant in grants)
            if old:  # of a run with more slices some would stay
                connection.execute("DELETE FROM grants WHERE job_id = ?", (job_id,))
            _insert(connection, self._boot_id, entered)
        return entered

    def resize(
        self,
        grants: Sequence[Grant],
        decide: Callable[[Grant, tuple[Grant, ...]], Grant],
        first_do: Callable[[tuple[Grant, ...], tuple[Grant, ...]], None] | None = None,
    ) -> tuple[Grant, ...]:
        """Enters all slices of a job with another size, or none, and returns them. `decide` is as in add. What else a
        grant says is that of the row now: another resize may have been first. `first_do` takes the old and the new
        slices, while no other process can write; nothing is entered when it raises.

        Raises NodeError when the job has other slices by now, because that run has ended.
        """
        first = grants[0]
        with self._write() as connection:
            live = self.grants()
            old = tuple(other for other in live if other.job_id == first.job_id)
            if not same_slices(old, grants) or old[0].created_unix_ns != first.created_unix_ns:
                raise NodeError(f"job {first.job_id} ended meanwhile: nothing was changed")
            others = tuple(other for other in live if other.job_id != first.job_id)
            new = [now.resized(one.mem_mib, one.cores_percent) for now, one in zip(old, grants, strict=True)]
            entered = tuple(decide(grant, others) for grant in new)
            if first_do is not None:
                first_do(old, entered)
            _insert(connection, self._boot_id, entered)
        return entered

    def restore(self, grants: Sequence[Grant]) -> None:
        """Enters the slices that the run directory has of one job and the ledger lost. Keeps existing rows of it."""
        with self._write() as connection:
            if grants and not self.grants_of(grants[0].job_id):
                _insert(connection, self._boot_id, grants)

    def remove(self, grant: Grant) -> None:
        """Deletes the rows of all slices of a grant's job. Keeps those of a newer run of the same job id."""
        with self._write() as connection:
            connection.execute(
                "DELETE FROM grants WHERE job_id = ? AND created_unix_ns = ?", (grant.job_id, grant.created_unix_ns)
            )

    def inventory(self) -> tuple[Gpu, ...]:
        """Returns the GPUs as last entered in this boot; empty when none were."""
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
        """Returns what is wrong with the file, or None. Reads the whole file, which has a few pages."""
        with explained(self.path):
            self._connection.execute("BEGIN")
            try:
                problem = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
                if problem != "ok":
                    return str(problem)
                checksum = self._connection.execute("PRAGMA application_id").fetchone()[0]
                return None if checksum == _checksum(self._connection) else "the checksum of its rows is wrong"
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")


def _checksum(connection: sqlite3.Connection) -> int:
    """Returns the CRC-32 of all rows, as a signed number, which is the type of application_id."""
    crc = 0
    for table, columns, key in (("grants", GRANT_COLUMNS, "job_id, slice_index"), ("gpus", GPU_COLUMNS, "minor")):
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
    """Turns an empty database into a ledger with these grants."""
    for statement in SCHEMA:
        connection.execute(statement)
    _insert(connection, boot_id, grants)
    _seal(connection)


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Turns SQLite's errors into NodeErrors (LedgerDamagedError for damage) that say what to do."""
    try:
        yield
    except UnicodeDecodeError as error:  # raised for SQLite's own message about a damaged schema
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
    """Turns OSErrors about the file into NodeErrors."""
    try:
        yield
    except PermissionError as error:
        if os.geteuid() != 0:
            raise NodeError(f"ledger {path} belongs to root: run this as root") from error
        raise NodeError(f"ledger {path} cannot be opened ({error.strerror}): see mount and ls -ld") from error
    except OSError as error:
        raise NodeError(f"ledger {path} cannot be opened ({error.strerror}): see df, mount and ls -ld") from error


def _connect(path: str, boot_id: str) -> Ledger:
    """Opens the existing file and reads all of it once, so that damage is found here and not during a decision.

    Raises LedgerMissingError or LedgerDamagedError when a new ledger has to be made, NodeError for any other failure.
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
    """Returns the ledger of a connection. Closes it and raises as _connect does when it is old, damaged or too new."""
    ledger = Ledger(connection, path, boot_id)
    try:
        with explained(path):
            # No prolog waits for a disk. A killed process loses nothing by this. A power loss may lose rows, but it
            # also ends the boot and so every grant.
            connection.execute("PRAGMA synchronous = OFF")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            journal = connection.execute("PRAGMA journal_mode").fetchone()[0]
            second = connection.execute("SELECT number FROM version").fetchone() if version > SCHEMA_VERSION else None
        if version > SCHEMA_VERSION:
            if second != (version,):
                raise LedgerDamagedError(f"ledger {path} is damaged (version {version}?). Run: hami-hpc reconcile")
            raise NodeError(
                f"ledger {path} has version {version}: a newer hami_hpc wrote it (this one writes {SCHEMA_VERSION}). "
                "Install that again, or drain the node, and move the file away when no vgpu job runs here",
            )
        if version < SCHEMA_VERSION or journal == "wal":
            raise LedgerMissingError(f"an older hami_hpc wrote ledger {path}")
        damage = ledger.damage()
        if damage is not None:
            raise LedgerDamagedError(f"ledger {path} is damaged ({damage}). Run: hami-hpc reconcile")
    except BaseException:
        ledger.close()
        raise
    return ledger


def open_ledger(run_dir: str, boot_id: str, held: Callable[[], Iterable[Grant]]) -> Ledger:
    """Opens the ledger, or makes it; `held()` returns the grants of the run directory, which must exist.

    A damaged ledger is put aside and replaced. Raises NodeError for any other failure.
    """
    path = f"{run_dir}/{FILE_NAME}"
    with reachable(path):
        attempts = 0
        end = time.monotonic() + BUSY_TIMEOUT_S
        while attempts < ATTEMPTS:
            lock = locks.acquire(f"{run_dir}/{LOCK_NAME}", exclusive=False, timeout_s=BUSY_TIMEOUT_S)
            try:
                ledger = _connect(path, boot_id)
                ledger.keep_lock(lock)
                return ledger
            except (LedgerMissingError, LedgerDamagedError):
                os.close(lock)  # before the exclusive one is requested: two shared holders would wait for ever
            except BaseException:
                os.close(lock)
                raise
            try:
                make_sound(run_dir, boot_id, held, LOOK_AGAIN_S)
                attempts += 1
            except locks.HeldError:  # most likely held by users of a sound ledger that another process has made
                if time.monotonic() >= end:
                    raise locks.HeldError(f"{run_dir}/{LOCK_NAME}", BUSY_TIMEOUT_S) from None
    raise NodeError(f"ledger {path} was made {ATTEMPTS} times and was damaged again each time: see df and dmesg")


def make_sound(
    run_dir: str, boot_id: str, held: Callable[[], Iterable[Grant]], timeout_s: float = BUSY_TIMEOUT_S
) -> None:
    """Makes a new ledger in place of one that is missing, old or damaged. Keeps a sound one that another process made.

    Raises locks.HeldError when others keep the ledger open for longer than `timeout_s`.
    """
    path = f"{run_dir}/{FILE_NAME}"
    with reachable(path):
        lock = locks.acquire(f"{run_dir}/{LOCK_NAME}", exclusive=True, timeout_s=timeout_s)
        try:
            damaged_path = None
            try:
                _connect(path, boot_id).close()
                return
            except LedgerDamagedError:
                damaged_path = f"{path}.damaged-{time.time_ns()}"
            except LedgerMissingError:
                pass
            _make(path, boot_id, held(), damaged_path)
        finally:
            os.close(lock)


def _make(path: str, boot_id: str, grants: Iterable[Grant], damaged_path: str | None) -> None:
    """Makes a new ledger at `path`; renames the old file to `damaged_path`, or removes it. The caller has the lock.

    The old file is removed before its journal, and no file exists at `path` meanwhile, so SQLite never applies a
    journal to another file.
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
        if damaged_path is None:
            os.unlink(path)
        else:
            os.rename(path, damaged_path)
    for suffix in SIDE_FILES:
        with suppress(FileNotFoundError):
            os.unlink(path + suffix)
    os.rename(path + NEW, path)
