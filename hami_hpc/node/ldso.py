# SPDX-License-Identifier: Apache-2.0
"""Whether preload = "ldso" can work on this node: what SPANK does for each task, tried once in a child process."""

from __future__ import annotations

import subprocess
from pathlib import Path

LIST = Path("/etc/ld.so.preload")  # where glibc looks, whatever PREFIX and SYSCONFDIR are
_USE_ENV = 'or set preload = "env" in hami-hpc.toml for nodes where that cannot be, and render again'


def obstacle(path: Path = LIST) -> tuple[str, str]:
    """What stands in the way, and what to do about it; two empty texts where nothing does. Needs root; changes nothing.

    The child has a mount namespace of its own, whose mounts end with it.
    """
    if not path.is_file():
        return f"{path} is not there", f"touch {path}"
    # As SPANK: everything below / is made a slave, then a file is bound over the list.
    command = ["unshare", "--mount", "--propagation", "slave", "mount", "--bind", str(path), str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env={"LC_ALL": "C"})
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"a mount namespace could not be tried ({error})", "install util-linux"
    if done.returncode == 0:
        return "", ""
    said = " ".join(done.stderr.split())
    if "propagation" in said and "Invalid argument" in said:
        advice = "slurmd's root directory must be a mount point; for a chroot, mount --bind DIRECTORY DIRECTORY first"
    else:
        advice = "run slurmd as root with CAP_SYS_ADMIN"
    return f"tasks cannot have mounts of their own here ({said})", f"{advice}, {_USE_ENV}"
