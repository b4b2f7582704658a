# SPDX-License-Identifier: Apache-2.0
"""Mounts of the run directory: `jobs` is a private mount, and below it each job has one small tmpfs.

A job's tmpfs is mounted and detached by the system calls (mount_calls.py). Where these cannot be called, and once a
boot for `jobs`, mount(8) and umount(8) are started, with an empty environment.

Why `jobs` is private: on a host with shared mounts (systemd's default) a new mount also appears in every slave mount
namespace, and mount(2) fails with ENOSPC when one of these namespaces is full (fs.mount-max). Any user can make such a
namespace and fill it. Nothing propagates from a private mount.
"""

from __future__ import annotations

import os

from hami_hpc.core.contexts import suppress
from hami_hpc.errors import NodeError
from hami_hpc.node import locks

MOUNT, UMOUNT = "/bin/mount", "/bin/umount"
QUICK = ("-i", "-n", "-c")  # no helper program, no mtab, the path is canonical
LOCK_TIMEOUT_S = 10.0
CAP_SYS_ADMIN = 21
STACKED_AT_MOST = 8


def _run(*command: str) -> None:
    """Runs a command to its end. The caller reads from the mounts whether it worked."""
    file_actions = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in (0, 1, 2)]
    with suppress(OSError):  # the program does not exist, or the caller's SIGCHLD is ignored
        os.waitpid(os.posix_spawn(command[0], command, {}, file_actions=file_actions), 0)


def _mount_id(path: str) -> str | None:
    """Returns the kernel's number of the mount that a directory is on; None when the directory does not exist."""
    try:
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        info = os.open(f"/proc/self/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(info, 4096).decode("ascii").partition("mnt_id:")[2].split()[0]
        finally:
            os.close(info)
    except (OSError, IndexError):
        return None
    finally:
        os.close(fd)


def is_mount_point(path: str) -> bool:
    """Returns whether something is mounted on a directory, including a bind mount of the same file system."""
    mount_id = _mount_id(path)
    return mount_id is not None and mount_id != _mount_id(os.path.dirname(path))


def has_file_system(path: str) -> bool:
    """Returns whether another file system is mounted on a directory. Cheaper, but does not detect bind mounts."""
    try:
        return os.lstat(path).st_dev != os.lstat(os.path.dirname(path)).st_dev
    except OSError:
        return False


def make_private(path: str, lock_path: str) -> bool:
    """Makes a directory a private mount, once even if several processes do so at a time. Returns whether it is one."""
    if is_mount_point(path):
        return True
    if obstacle() is not None:
        return False
    try:
        lock = locks.acquire(lock_path, exclusive=True, timeout_s=LOCK_TIMEOUT_S)
    except (NodeError, OSError):
        return False
    try:
        if not is_mount_point(path):  # a second one would hide what is mounted below the first
            _run(MOUNT, *QUICK, "--bind", "--make-private", path, path)
        return is_mount_point(path)
    finally:
        os.close(lock)


def mount_bounded(path: str, size_bytes: int, inodes: int) -> bool:
    """Mounts a tmpfs of that size on a directory. Returns whether it is mounted."""
    from hami_hpc.node import mount_calls

    options = f"size={size_bytes},nr_inodes={inodes},mode=0755"
    if mount_calls.are_usable:
        mount_calls.mount_tmpfs(path, options)
    else:
        _run(MOUNT, *QUICK, "-t", "tmpfs", "-o", f"{options},nosuid,nodev,noexec", "hami-hpc", path)
    return has_file_system(path)


def detach(path: str) -> bool:
    """Unmounts everything from a directory, also while processes use it: they keep their open files.

    Returns whether nothing is mounted there any more, so that the directory shows its own files. A bind mount can show
    another directory of the same file system, which only the mount's number reveals.
    """
    for _ in range(STACKED_AT_MOST):
        if not is_mount_point(path):
            return True
        from hami_hpc.node import mount_calls

        if mount_calls.are_usable:
            mount_calls.detach(path)
        else:
            _run(UMOUNT, *QUICK, "-l", path)
    return not is_mount_point(path)


def obstacle() -> str | None:
    """Returns why this process cannot mount anything; None when no reason is known."""
    if not os.access(MOUNT, os.X_OK):
        return f"there is no {MOUNT}"
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            capabilities = next((line.split()[1] for line in file if line.startswith("CapEff:")), "0")
    except OSError:
        return "/proc is not mounted"
    return None if int(capabilities, 16) >> CAP_SYS_ADMIN & 1 else "CAP_SYS_ADMIN is missing (a container?)"


def propagates(path: str) -> bool:
    """Returns whether the mount that a directory is on is shared with other mount namespaces."""
    number = _mount_id(path)
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            fields = next((line.split() for line in file if line.split(" ", 1)[0] == number), [])
    except OSError:
        return False
    return any(field.startswith("shared:") for field in fields[6 : fields.index("-")] if fields)
