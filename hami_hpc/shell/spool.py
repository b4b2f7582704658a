# SPDX-License-Identifier: Apache-2.0
"""The usage spool: <state_dir>/usage/<job id>.json, one file a job, until accounting collects it.

A requeued job ends more than once under one id: later ends are <job id>-<start in ns>.json.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress

from hami_hpc.errors import NodeError

DIRECTORY = "usage"


def _start_of(path: str) -> int | None:
    """`start_unix_ns` of a spooled record; None when there is no readable one."""
    if not os.path.exists(path):
        return None
    import json

    try:
        with open(path, "rb") as file:
            record = json.load(file)
        return int(record["start_unix_ns"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_spooled(state_dir: str, job_id: int, start_unix_ns: int) -> bool:
    """Whether this run of the job has its record."""
    base = f"{state_dir}/{DIRECTORY}/{job_id}"
    return _start_of(f"{base}.json") == start_unix_ns or os.path.exists(f"{base}-{start_unix_ns}.json")


def leftovers(state_dir: str, older_than_s: float) -> tuple[str, ...]:
    """Paths of half-written records that a killed epilog left."""
    directory = f"{state_dir}/{DIRECTORY}"
    found = []
    with suppress(OSError):  # no spool yet, or nothing of ours: then nothing is left over
        for name in os.listdir(directory):
            path = f"{directory}/{name}"
            with suppress(FileNotFoundError):
                if name.startswith(".") and time.time() - os.lstat(path).st_mtime >= older_than_s:
                    found.append(path)
    return tuple(sorted(found))


def _json(record: dict[str, int | str]) -> str:
    """A flat record as JSON: SQLite's own encoder, since it is loaded already and importing json is a twentieth of an
    epilog."""
    marks = ", ".join("?" * (2 * len(record)))
    values = [part for item in record.items() for part in item]
    with closing(sqlite3.connect(":memory:")) as connection:
        return str(connection.execute(f"SELECT json_object({marks})", values).fetchone()[0])


def write(state_dir: str, record: dict[str, int | str]) -> str:
    """Writes a record under its final name, whole or not at all; a record of the same run that is there stays.

    Returns the path. NodeError when the disk does not take it; nothing is left behind then.
    """
    job_id, start = record["job_id"], record["start_unix_ns"]
    directory = f"{state_dir}/{DIRECTORY}"
    path = f"{directory}/{job_id}.json"
    temporary = f"{directory}/.{job_id}-{os.getpid()}"
    try:
        os.makedirs(directory, 0o755, exist_ok=True)
        found = _start_of(path)
        if found is not None:
            if found == start:
                return path
            path = f"{directory}/{job_id}-{start}.json"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        with open(fd, "w", encoding="utf-8") as file:
            file.write(_json(record) + "\n")
            file.flush()
            os.fsync(fd)
        os.rename(temporary, path)
    except OSError as error:
        with suppress(OSError):  # it was not made
            os.unlink(temporary)
        raise NodeError(
            f"usage of job {job_id} cannot be written to {directory} ({error.strerror}): free some space (df); "
            "hami-hpc reconcile writes it then",
        ) from error
    return path
