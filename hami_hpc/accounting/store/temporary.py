# SPDX-License-Identifier: Apache-2.0
"""Temporary directories, which a later call removes if the process that made one was killed.

A directory belongs to whoever holds a lock on it. One without a lock is left over, or so new that its maker is about to
lock it: hence a minute's grace.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_GRACE_S = 60


@contextmanager
def temporary_directory(parent: Path, prefix: str) -> Iterator[Path]:
    """Makes a temporary directory in ``parent`` and removes it afterwards; first, what is left over of others.

    Only this user's directories with this prefix are removed. Raises OSError when it cannot be made.
    """
    _remove_left_over(parent, prefix)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as name:
        handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(handle)


def _remove_left_over(parent: Path, prefix: str) -> None:
    try:
        paths = [path for path in parent.iterdir() if path.name.startswith(prefix)]
    except OSError:
        return
    for path in paths:
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                _remove_unless_used(handle, path)
            finally:
                os.close(handle)


def _remove_unless_used(handle: int, path: Path) -> None:
    """Removes the directory that is open as ``handle``. Raises OSError when somebody holds its lock."""
    state = os.fstat(handle)
    is_own = state.st_uid == os.geteuid() and stat.S_ISDIR(state.st_mode)
    if is_own and state.st_mtime < time.time() - _GRACE_S:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path)
