# SPDX-License-Identifier: Apache-2.0
"""Whether this process can mount a file system, found out by trying and not by asking the code under test."""

from __future__ import annotations

import functools
import subprocess
import tempfile


@functools.cache
def can_mount() -> bool:
    with tempfile.TemporaryDirectory() as directory:
        tried = subprocess.run(["mount", "-t", "tmpfs", "none", directory], capture_output=True, check=False)
        if tried.returncode == 0:
            subprocess.run(["umount", directory], check=True)
    return tried.returncode == 0
