# SPDX-License-Identifier: Apache-2.0
"""The checks of `hami-hpc doctor` for mode=share: the interposer, how steps preload it, how users can remove it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hami_hpc.core.finding import Finding, Level, finding
from hami_hpc.errors import NodeError
from hami_hpc.node import ldso
from hami_hpc.node.config import Settings

LD_SO_PRELOAD = Path("/etc/ld.so.preload")
USER_NAMESPACES = Path("/proc/sys/user/max_user_namespaces")
USER_NAMESPACES_OFF = Path("/proc/sys/kernel/unprivileged_userns_clone")  # Debian's kernels have it


def check(settings: Settings) -> Iterator[Finding]:
    """Yields the findings of all checks. Raises NodeError when a check cannot be made."""
    yield from _interposer(settings)
    yield from _preload(settings)
    yield from _user_namespaces()


def _interposer(settings: Settings) -> Iterator[Finding]:
    """Checks the library that every step preloads: it exists, root owns it, and everybody can read it."""
    path = Path(settings.interposer)
    try:
        status = path.stat()
    except OSError as error:
        advice = "install hami_hpc here (make install), or correct [paths]"
        yield Finding("interposer", Level.FAIL, f"{path}: {error.strerror}", advice)
        return
    is_safe = status.st_uid == 0 and not status.st_mode & 0o022 and bool(status.st_mode & 0o004)
    yield finding("interposer", is_safe, str(path), f"chown root {path}; chmod 0644 {path}")


def _preload(settings: Settings) -> Iterator[Finding]:
    """Checks that the mounts of preload = "ldso" can be made in a task."""
    if os.geteuid() != 0:
        raise NodeError("only root can try the mounts of preload: run this as root")
    if settings.preload == "ldso":
        problem, advice = ldso.obstacle(LD_SO_PRELOAD)
        yield finding("preload", not problem, f"ldso: {problem or LD_SO_PRELOAD}", advice)
    else:
        detail = "env: a program that clears its environment is not fenced"
        yield Finding("preload", Level.WARN, detail, 'set preload = "ldso" in [vgpu], render, restart slurmd')


def _user_namespaces() -> Iterator[Finding]:
    """Checks that users cannot make user namespaces, in which they can mount over the files of preload = "ldso"."""
    try:
        allowed_count = int(USER_NAMESPACES.read_text())
        if USER_NAMESPACES_OFF.exists() and int(USER_NAMESPACES_OFF.read_text()) == 0:
            allowed_count = 0
    except (OSError, ValueError) as error:
        raise NodeError(f"{USER_NAMESPACES} cannot be read ({error})") from error
    advice = "sysctl user.max_user_namespaces=0 on GPU nodes, unless containers of users need them"
    detail = f"{allowed_count} allowed" + (
        ": users can hide /etc/ld.so.preload from their own programs" if allowed_count else ""
    )
    yield finding("user namespaces", allowed_count == 0, detail, advice, Level.WARN)
