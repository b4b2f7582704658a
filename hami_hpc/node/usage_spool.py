# SPDX-License-Identifier: Apache-2.0
"""The usage spool: <state_dir>/usage/<job id>.json, one file per job, until accounting collects it.

A requeued job ends more than once under one id: its later records are <job id>-<start in ns>.json.

While the spool cannot be written (its disk is full, read-only or gone) records wait in <run_dir>/spool/, each as
<job id>-<start in ns>.json. The next epilog or reconcile that can write the spool moves them there.
"""

from __future__ import annotations

import os
import time

from hami_hpc.core.contexts import closing, suppress
from hami_hpc.errors import NodeError
from hami_hpc.node import acl
from hami_hpc.node.sqlite import sqlite3

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

DIRECTORY = "usage"
WAITING = "spool"
WAITING_AT_MOST = 10_000  # records in memory, 4 KiB each without `history`
WAITING_WITH_HISTORY = 1000  # of these, those that may have it: 20 KiB each at most
DELIVERED_AT_ONCE = 100  # records that one epilog moves; it waits for the disk at each


def _start_of(path: str) -> int | None:
    """Returns `start_unix_ns` of a spooled record; None when the file is missing or cannot be read."""
    if not os.path.exists(path):
        return None
    try:
        with open(path, encoding="utf-8") as file:
            return int(_ask_sqlite("SELECT json_extract(?, '$.start_unix_ns')", [file.read()]))
    except (OSError, ValueError, TypeError, sqlite3.Error):
        return None


def waiting_dir(run_dir: str) -> str:
    return f"{run_dir}/{WAITING}"


def is_spooled(state_dir: str, run_dir: str, job_id: int, start_unix_ns: int) -> bool:
    """Returns whether this run of the job has a record, in the spool or among those that wait."""
    base = f"{state_dir}/{DIRECTORY}/{job_id}"
    return (
        _start_of(f"{base}.json") == start_unix_ns
        or os.path.exists(f"{base}-{start_unix_ns}.json")
        or os.path.exists(f"{waiting_dir(run_dir)}/{job_id}-{start_unix_ns}.json")
    )


def leftovers(directory: str, older_than_s: float) -> tuple[str, ...]:
    """Returns the paths of half-written records that killed epilogs left in a directory."""
    paths = []
    with suppress(OSError):  # the directory does not exist yet, or is not hami_hpc's: it holds no leftovers
        for name in os.listdir(directory):
            path = f"{directory}/{name}"
            with suppress(FileNotFoundError):
                if name.startswith(".") and time.time() - os.lstat(path).st_mtime >= older_than_s:
                    paths.append(path)
    return tuple(sorted(paths))


def to_json(record: dict[str, int | str]) -> str:
    """Returns a flat record as JSON."""
    marks = ", ".join("?" * (2 * len(record)))
    return str(_ask_sqlite(f"SELECT json_object({marks})", [part for item in record.items() for part in item]))


def _ask_sqlite(query: str, values: Sequence[int | str]) -> Any:
    """Returns the one value of a query. SQLite is loaded already and handles JSON; importing json takes 4 ms."""
    with closing(sqlite3.connect(":memory:")) as connection:
        return connection.execute(query, values).fetchone()[0]


def write(state_dir: str, job_id: int, start_unix_ns: int, text: str) -> str:
    """Writes a record under its final name, whole or not at all; an existing record of the same run stays. Both the
    record and its name are on the disk then: a power cut loses neither.

    Returns the record's path. Raises NodeError when the disk cannot be written; no partial file is left then.
    """
    directory = f"{state_dir}/{DIRECTORY}"
    temporary, path = f"{directory}/.{job_id}-{os.getpid()}", f"{directory}/{job_id}.json"
    try:
        if not os.path.isdir(directory):
            from hami_hpc.node import root_file  # once in a node's life

            root_file.make_folders(directory)
        _write_file(temporary, text, with_sync=True)
        if not _publish(temporary, path, start_unix_ns):
            path = f"{directory}/{job_id}-{start_unix_ns}.json"
            os.rename(temporary, path)
        _sync_directory(directory)
        return path
    except OSError as error:
        with suppress(OSError):  # the temporary file was not created
            os.unlink(temporary)
        raise NodeError(f"usage of job {job_id} cannot be written to {directory} ({error.strerror})") from error


def _sync_directory(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def note_done(path: str, unix_ns: int | None = None) -> None:
    """Notes as the record's time of change when its epilog was done (now), for `hami-hpc trace`; "": no record."""
    with suppress(OSError):  # it was collected meanwhile; utime("") fails so, too
        os.utime(path, ns=(unix_ns or time.time_ns(),) * 2)


def _write_file(path: str, text: str, with_sync: bool) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        _let_user_read(fd, text)
        if with_sync:
            os.fsync(fd)


def _let_user_read(fd: int, text: str) -> None:
    """Lets the job's user, besides root, read the record, where the file system has access control lists."""
    with suppress(OSError, ValueError, TypeError, OverflowError, sqlite3.Error):
        acl.let_read(fd, int(_ask_sqlite("SELECT json_extract(?, '$.uid')", [text])))


def _publish(temporary: str, path: str, start_unix_ns: int) -> bool:
    """Moves a record to `path`, unless that holds the record of another run; of two at a time only one succeeds.

    Returns False, with the record still at `temporary`, when the name is taken.
    """
    existing_start = _start_of(path)
    if existing_start == start_unix_ns:
        os.unlink(temporary)
        return True
    if existing_start is not None:
        return False
    if os.path.exists(path):  # replace a file that cannot be read
        os.rename(temporary, path)
        return True
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        os.rename(temporary, path)
        return True
    os.unlink(temporary)
    return True


def keep(run_dir: str, job_id: int, start_unix_ns: int, text: str) -> bool:
    """Writes a record where it waits for the spool. Returns False when too many wait. Raises NodeError when it cannot
    be written."""
    directory = waiting_dir(run_dir)
    temporary = f"{directory}/.{job_id}-{os.getpid()}"
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        if len(os.listdir(directory)) >= WAITING_AT_MOST:
            return False
        _write_file(temporary, text, with_sync=False)
        os.rename(temporary, f"{directory}/{job_id}-{start_unix_ns}.json")
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary)
        raise NodeError(f"usage of job {job_id} cannot be kept in {directory} ({error.strerror})") from error
    return True


def waiting_count(run_dir: str) -> int:
    """Returns how many files are among the records that wait."""
    try:
        return len(os.listdir(waiting_dir(run_dir)))
    except OSError:
        return 0


def waiting(run_dir: str) -> tuple[str, ...]:
    """Returns the names of the records that wait, sorted."""
    try:
        return tuple(sorted(name for name in os.listdir(waiting_dir(run_dir)) if not name.startswith(".")))
    except OSError:
        return ()


def deliver(run_dir: str, state_dir: str, at_most: int = DELIVERED_AT_ONCE) -> int:
    """Moves waiting records to the spool, until one cannot be written. Returns how many were moved. Never fails."""
    directory = waiting_dir(run_dir)
    delivered = 0
    for name in waiting(run_dir)[:at_most]:
        job_id, _, start = name.removesuffix(".json").partition("-")
        if not (job_id.isdigit() and start.isdigit()):
            continue
        try:
            with open(f"{directory}/{name}", encoding="utf-8") as file:
                text = file.read().rstrip("\n")
                written_ns = os.fstat(file.fileno()).st_mtime_ns
            note_done(write(state_dir, int(job_id), int(start), text), written_ns)
            os.unlink(f"{directory}/{name}")
        except FileNotFoundError:  # another epilog has moved it
            continue
        except (NodeError, OSError, ValueError):
            break
        delivered += 1
    if delivered:
        with suppress(OSError):  # some still wait
            os.rmdir(directory)
    return delivered
