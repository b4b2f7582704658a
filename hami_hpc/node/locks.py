# SPDX-License-Identifier: Apache-2.0
"""Locks between root's processes: flock on a file that only root can open, with a bounded wait."""

from __future__ import annotations

import fcntl
import os
import time

from hami_hpc.errors import NodeError

FIRST_PAUSE_S, LAST_PAUSE_S = 0.001, 0.02


class HeldError(NodeError):
    """Another process has held the lock for the whole time that the caller waits."""

    def __init__(self, path: str, waited_s: float) -> None:
        super().__init__(f"lock {path}: another process has held it for over {waited_s:g} s: see fuser {path}")


def acquire(path: str, exclusive: bool, timeout_s: float) -> int:
    """Returns a descriptor that holds the lock until it is closed; the kernel closes that of a killed process.

    Raises HeldError after `timeout_s`, because a stopped process may hold a lock for ever, and OSError when the file
    cannot be opened.
    """
    operation = (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB
    end = time.monotonic() + timeout_s
    pause_s = FIRST_PAUSE_S
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, operation)
            if _is_still(path, fd):
                return fd
        except BlockingIOError:
            if time.monotonic() >= end:
                os.close(fd)
                raise HeldError(path, timeout_s) from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LAST_PAUSE_S)


def _is_still(path: str, fd: int) -> bool:
    """Returns whether `path` still names the locked file: another process may have removed the directory."""
    try:
        at_path = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (at_path.st_dev, at_path.st_ino) == (os.fstat(fd).st_dev, os.fstat(fd).st_ino)
