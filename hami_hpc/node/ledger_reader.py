# SPDX-License-Identifier: Apache-2.0
"""Opens the ledger read-only, for commands that change nothing: no file is created, changed or renamed.

Where no ledger of this version exists, the reader gets one in memory with the rows that a new one would have.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from urllib.parse import quote

from hami_hpc.core.grant import Grant
from hami_hpc.errors import NodeError
from hami_hpc.node import ledger as ledgers
from hami_hpc.node import locks

WAL_AT, WAL = 18, 2  # offset of the file's write version, and its value for WAL (sqlite.org/fileformat.html, 1.3.3)
HEADER_SIZE = 100


def read_ledger(run_dir: str, boot_id: str, held: Callable[[], Iterable[Grant]]) -> ledgers.Ledger:
    """Opens the ledger in `run_dir`; `held()` returns the grants of the run directory, for a ledger in memory.

    Raises LedgerDamagedError for a damaged ledger, NodeError for any other failure.
    """
    path = f"{run_dir}/{ledgers.FILE_NAME}"
    with ledgers.reachable(path):
        lock = _shared_lock(f"{run_dir}/{ledgers.LOCK_NAME}")
        try:
            ledger = _open(path, boot_id)
        except ledgers.LedgerMissingError:
            ledger = _in_memory(path, boot_id, held())
        except BaseException:
            _close(lock)
            raise
    if lock is not None:
        ledger.keep_lock(lock)
    return ledger


def _open(path: str, boot_id: str) -> ledgers.Ledger:
    try:
        with open(path, "rb") as file:
            header = file.read(HEADER_SIZE)
    except FileNotFoundError:
        header = b""
    if not header or header[WAL_AT : WAL_AT + 1] == bytes([WAL]):  # SQLite creates files even to read in WAL mode
        raise ledgers.LedgerMissingError(f"there is no ledger {path} of this version")
    with ledgers.explained(path):
        connection = sqlite3.connect(
            f"file:{quote(path)}?mode=ro", uri=True, timeout=ledgers.BUSY_TIMEOUT_S, isolation_level=None
        )
    try:
        return ledgers.checked(connection, path, boot_id)
    except ledgers.LedgerDamagedError:
        raise
    except NodeError as error:
        cause = error.__cause__
        if isinstance(cause, sqlite3.Error) and cause.sqlite_errorcode == sqlite3.SQLITE_READONLY_ROLLBACK:
            raise NodeError(
                f"ledger {path}: a process was killed in the middle of a write. The next vGPU job undoes that write, "
                "and so does hami-hpc reconcile"
            ) from error
        raise


def _in_memory(path: str, boot_id: str, grants: Iterable[Grant]) -> ledgers.Ledger:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    ledgers.fill(connection, boot_id, grants)
    return ledgers.Ledger(connection, path, boot_id)


def _shared_lock(path: str) -> int | None:
    """Takes the ledger's lock shared, as every reader and writer does, so that nobody makes a new ledger meanwhile.

    Returns None where the lock file does not exist, because then no other process uses the ledger. Raises
    locks.HeldError when another process takes longer than BUSY_TIMEOUT_S to make a ledger.
    """
    try:
        lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    end = time.monotonic() + ledgers.BUSY_TIMEOUT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() >= end:
                _close(lock)
                raise locks.HeldError(path, ledgers.BUSY_TIMEOUT_S) from None
        time.sleep(locks.LAST_PAUSE_S)


def _close(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)
