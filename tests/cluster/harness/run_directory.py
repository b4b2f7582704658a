# SPDX-License-Identifier: Apache-2.0
"""pytest hooks that give each run of the tests a temporary directory of its own.

pytest's own are shared by all runs of a user: a run that was killed leaves mounts there, and every later run fails on
them. This one is removed at the end, after a run that failed or was killed by the next run. With IN_MEMORY in the
environment it is a tmpfs of its own where that can be mounted and has room: not a folder of /dev/shm, which jobs with a
/dev/shm of their own (job_container/tmpfs of Slurm 22.05) unmount, and cannot while a test has something mounted below.

A run locks its directory as long as it lasts. A new directory has no lock yet, and memory that is mounted there needs
another: a lock of the directory above is held while one is made or removed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .mounting import can_mount, mount_memory, unmount, unmount_below

PREFIX = "hami-tests-"
VARIABLE = "PYTEST_DEBUG_TEMPROOT"  # where pytest makes tmp_path; the workers of pytest-xdist inherit it
IN_MEMORY = "HAMI_HPC_TESTS_IN_MEMORY"
ROOM = 6 << 30  # bytes

_root: Path | None = None
_lock = -1
_passed = False


def pytest_configure(config: pytest.Config) -> None:
    global _root, _lock
    if not hasattr(config, "workerinput"):
        parent = Path(tempfile.gettempdir()).resolve()
        _root, _lock = begin(parent, IN_MEMORY in os.environ)
        os.environ[VARIABLE] = str(_root)
    tempfile.tempdir = os.environ[VARIABLE]


def pytest_sessionfinish(exitstatus: int) -> None:
    global _passed
    _passed = exitstatus == pytest.ExitCode.OK


def pytest_unconfigure() -> None:
    tempfile.tempdir = None  # `make mutate` runs pytest several times in one process
    if _root is not None:
        if _passed:
            with one_at_a_time(_root.parent):
                remove(_root)
        os.close(_lock)


def begin(parent: Path, in_memory: bool = False) -> tuple[Path, int]:
    """Removes the directories of runs that have ended, and makes one as make_locked does."""
    with one_at_a_time(parent):
        remove_abandoned(parent)
        return make_locked(parent, in_memory)


@contextmanager
def one_at_a_time(parent: Path) -> Iterator[None]:
    """Waits until no other run makes or removes a directory in `parent`, and lets none do so meanwhile."""
    lock = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def make_locked(parent: Path, in_memory: bool = False) -> tuple[Path, int]:
    """Makes a run's directory, which others may enter; returns it with the file descriptor that holds its lock."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    if in_memory and can_mount():
        mount_with_room(folder)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    folder.chmod(0o755)
    return folder, lock


def mount_with_room(folder: Path) -> None:
    """Mounts memory there, if it has room for a run."""
    mount_memory(folder)
    room = os.statvfs(folder)
    if room.f_bavail * room.f_frsize < ROOM:
        unmount(folder)


def remove_abandoned(parent: Path) -> None:
    """Removes the directories of runs that have ended."""
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # removed meanwhile, or another user's
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(folder)
        except BlockingIOError:
            pass  # in use
        finally:
            os.close(lock)


def remove(folder: Path) -> None:
    unmount_below(folder)
    if folder.is_mount():
        unmount(folder)
    shutil.rmtree(folder, ignore_errors=True)
