# SPDX-License-Identifier: Apache-2.0
"""The empty file <run_dir>/no-room: a stage failed and drained this node while its run directory was full.

By it the agent and reconcile know, without asking slurmctld, that the node may have to return to service.
"""

from __future__ import annotations

import os

from hami_hpc.core.contexts import suppress

FILE_NAME = "no-room"
ROOM_BYTES = 4 << 20  # a job's directory and the ledger's journal take a tenth of that
ROOM_FILES = 64
RETURNS = "The node returns to service when there is room"  # ends the reason of such a drain


def path_of(run_dir: str) -> str:
    return f"{run_dir}/{FILE_NAME}"


def is_full(run_dir: str) -> bool:
    """Returns whether the run directory's file system has too little room for a job. No, where that is not known."""
    with suppress(OSError):
        status = os.statvfs(run_dir)
        has_files = status.f_files == 0 or status.f_ffree >= ROOM_FILES  # 0: as many as there is room for
        return status.f_bfree * status.f_frsize < ROOM_BYTES or not has_files
    return False


def note(run_dir: str) -> bool:
    """Notes that a stage fails by a full run directory. Returns whether that is so and was noted: an empty file needs
    no room on most file systems."""
    return is_full(run_dir) and write(run_dir)


def write(run_dir: str) -> bool:
    """Makes the file. Returns whether it is there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with suppress(OSError):
        os.close(os.open(path_of(run_dir), flags, 0o600))
        return True
    return False
