# SPDX-License-Identifier: Apache-2.0
"""Tests whether preload = "ldso" can work on this node: makes the mounts of SPANK once, in a child process."""

from __future__ import annotations

import subprocess
from pathlib import Path

LIST = Path("/etc/ld.so.preload")  # glibc's path, whatever PREFIX and SYSCONFDIR are
_USE_ENV = 'or set preload = "env" in hami-hpc.toml for nodes where that is not possible, and render again'


def obstacle(path: Path = LIST) -> tuple[str, str]:
    """Returns why preload = "ldso" cannot work, and what to do about it; two empty texts if it can. Needs root.

    Changes nothing: the child has its own mount namespace, whose mounts end with it.
    """
    if not path.is_file():
        return f"{path} does not exist", f"touch {path}"
    # As SPANK does: make every mount below / a slave, then bind a file over /etc/ld.so.preload.
    command = ["unshare", "--mount", "--propagation", "slave", "mount", "--bind", str(path), str(path)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env={"LC_ALL": "C"})
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"a mount namespace could not be tried ({error})", "install util-linux"
    if result.returncode == 0:
        return "", ""
    message = " ".join(result.stderr.split())
    if "propagation" in message and "Invalid argument" in message:
        advice = "slurmd's root directory must be a mount point; for a chroot, mount --bind DIRECTORY DIRECTORY first"
    else:
        advice = "run slurmd as root with CAP_SYS_ADMIN"
    return f"tasks cannot have their own mounts here ({message})", f"{advice}, {_USE_ENV}"
