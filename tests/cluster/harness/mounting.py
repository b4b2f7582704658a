# SPDX-License-Identifier: Apache-2.0
"""Mounting, without the code under test: whether this process may, how a test's mounts are taken away, and a folder in
memory that tests may mount below."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


@functools.cache
def can_mount() -> bool:
    with tempfile.TemporaryDirectory() as directory:
        mount = subprocess.run(["mount", "-t", "tmpfs", "none", directory], capture_output=True, check=False)
        if mount.returncode == 0:
            subprocess.run(["umount", directory], check=True)
    return mount.returncode == 0


def unmount_below(folder: Path) -> None:
    """Unmounts everything below a folder, the innermost first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    mount_points = [line.split()[4] for line in lines]
    for point in reversed(mount_points):
        if point.startswith(f"{folder}/"):
            unmount(Path(point))


def unmount(point: Path) -> None:
    if _libc.umount2(os.fsencode(point), MNT_DETACH) != 0:
        raise OSError(ctypes.get_errno(), "umount2", str(point))


def mount_memory(folder: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "none", folder], check=True)


@contextmanager
def folder_in_memory(prefix: str) -> Iterator[Path]:
    """Yields a new folder with a short name whose files are in memory, and unmounts and deletes everything below it.

    It is a tmpfs of its own, not a folder of /dev/shm: job_container/tmpfs of Slurm 22.05 unmounts /dev/shm for each
    job, and every job fails while something is mounted below it. In a container that may not mount, it is on disk.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    try:
        if can_mount():
            mount_memory(folder)
        yield folder
    finally:
        unmount_below(folder)
        if folder.is_mount():
            unmount(folder)
        shutil.rmtree(folder)


@contextmanager
def freezer(folder: Path) -> Iterator[Path]:
    """Yields where Slurm's proctrack/cgroup finds cgroups of version 1: the machine's, or one for this test below an
    empty folder."""
    machines = Path("/sys/fs/cgroup")
    if (machines / "freezer/tasks").exists():
        yield machines
        return
    (folder / "freezer").mkdir()
    subprocess.run(["mount", "-t", "cgroup", "-o", "freezer", "none", str(folder / "freezer")], check=True)
    try:
        yield folder
    finally:
        unmount(folder / "freezer")
