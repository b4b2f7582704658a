# SPDX-License-Identifier: Apache-2.0
"""Mounting, without the code under test: whether this process may, and how a test's mounts are taken away."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from pathlib import Path


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
    below = [point for point in reversed(mount_points) if point.startswith(f"{folder}/")]
    if below:
        subprocess.run(["umount", "--lazy", *below], check=True)
