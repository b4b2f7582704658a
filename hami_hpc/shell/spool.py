# SPDX-License-Identifier: Apache-2.0
"""The usage spool: <state_dir>/usage/<job id>.json, one file a job, until accounting collects it.

A requeued job ends more than once under one id: later ends are <job id>-<start in ns>.json.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

from hami_hpc.errors import NodeError

DIRECTORY = "usage"


def _start_of(path: str) -> int | None:
    """`start_unix_ns` of a spooled record; None when there is no readable one."""
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
        if os.path.exists(path):
            if _start_of(path) == start:
                return path
            path = f"{directory}/{job_id}-{start}.json"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        with open(fd, "w", encoding="ascii") as file:
            file.write(json.dumps(record) + "\n")
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
