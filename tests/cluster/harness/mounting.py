# SPDX-License-Identifier: Apache-2.0
"""Mounting, without the code under test: whether this process may, and how a test's mounts are taken away."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import tempfile
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
        if point.startswith(f"{folder}/") and _libc.umount2(os.fsencode(point), MNT_DETACH) != 0:
            raise OSError(ctypes.get_errno(), "umount2", point)
