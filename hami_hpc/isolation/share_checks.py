# SPDX-License-Identifier: Apache-2.0
"""What `hami-hpc doctor` looks at for mode=share: the interposer, how steps get it, and how they can get rid of it."""

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
    """All of it. NodeError when something cannot be found out."""
    yield from _interposer(settings)
    yield from _preload(settings)
    yield from _user_namespaces()


def _interposer(settings: Settings) -> Iterator[Finding]:
    """The library that every step preloads: there, root's, and for everybody to read."""
    path = Path(settings.interposer)
    try:
        status = path.stat()
    except OSError as error:
        advice = "install hami_hpc here (make install), or correct [paths]"
        yield Finding("interposer", Level.FAIL, f"{path}: {error.strerror}", advice)
        return
    good = status.st_uid == 0 and not status.st_mode & 0o022 and bool(status.st_mode & 0o004)
    yield finding("interposer", good, str(path), f"chown root {path}; chmod 0644 {path}")


def _preload(settings: Settings) -> Iterator[Finding]:
    """Whether what preload = "ldso" mounts in a task can be mounted."""
    if os.geteuid() != 0:
        raise NodeError("mounts can be tried by root alone: run this as root")
    if settings.preload == "ldso":
        trouble, advice = ldso.obstacle(LD_SO_PRELOAD)
        yield finding("preload", not trouble, f"ldso: {trouble or LD_SO_PRELOAD}", advice)
    else:
        detail = "env: a program that clears its environment is not fenced"
        yield Finding("preload", Level.WARN, detail, 'set preload = "ldso" in [vgpu], render, restart slurmd')


def _user_namespaces() -> Iterator[Finding]:
    """In a namespace of their own, users can bind another file over what preload = "ldso" put there."""
    try:
        allowed = int(USER_NAMESPACES.read_text())
        if USER_NAMESPACES_OFF.exists() and int(USER_NAMESPACES_OFF.read_text()) == 0:
            allowed = 0
    except (OSError, ValueError) as error:
        raise NodeError(f"{USER_NAMESPACES} cannot be read ({error})") from error
    advice = "sysctl user.max_user_namespaces=0 on GPU nodes, unless containers of users need them"
    detail = f"{allowed} allowed" + (
        ": a user can hide /etc/ld.so.preload from programs of their own" if allowed else ""
    )
    yield finding("user namespaces", allowed == 0, detail, advice, Level.WARN)
