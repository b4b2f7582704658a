# SPDX-License-Identifier: Apache-2.0
"""Tests whether this process can mount a file system: mounts one, without the code under test."""

from __future__ import annotations

import functools
import subprocess
import tempfile


@functools.cache
def can_mount() -> bool:
    with tempfile.TemporaryDirectory() as directory:
        mount = subprocess.run(["mount", "-t", "tmpfs", "none", directory], capture_output=True, check=False)
        if mount.returncode == 0:
            subprocess.run(["umount", directory], check=True)
    return mount.returncode == 0
