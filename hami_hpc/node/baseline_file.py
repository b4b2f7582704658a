# SPDX-License-Identifier: Apache-2.0
"""<state_dir>/baseline.json: this node's own figures, replaced as a whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from hami_hpc.core.baseline import DamagedRecordsError, Record, format_records, parse_records
from hami_hpc.errors import NodeError
from hami_hpc.node import root_file
from hami_hpc.node.job_dirs import read_bounded

NAME = "baseline.json"
MOST_BYTES = 1 << 20


def path_of(state_dir: str) -> str:
    return f"{state_dir}/{NAME}"


def read_baseline(state_dir: str) -> dict[str, Record]:
    """Returns the records by GPU UUID; none where there is no file.

    Raises DamagedRecordsError, and NodeError for a file that cannot be read or is not root's.
    """
    path = path_of(state_dir)
    if not os.path.lexists(path):
        return {}
    data = read_bounded(path, MOST_BYTES, want_uid=os.geteuid())
    if data is None:
        raise NodeError(f"{path} cannot be read, or is no file of root: see ls -l {path}")
    try:
        return parse_records(data.decode())
    except UnicodeDecodeError as error:
        raise DamagedRecordsError("it is no text") from error


def write_baseline(state_dir: str, records: Mapping[str, Record]) -> None:
    """Writes the records, whole or not at all. Raises NodeError when the disk cannot be written."""
    path = path_of(state_dir)
    temporary = f"{path}.{os.getpid()}"
    try:
        root_file.make_folders(state_dir)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with open(fd, "w", encoding="utf-8") as file:
            file.write(format_records(records))
            file.flush()
            os.fsync(fd)
        os.rename(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise NodeError(f"{path} cannot be written ({error.strerror}); what was there is unchanged") from error
