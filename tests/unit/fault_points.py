# SPDX-License-Identifier: Apache-2.0
"""Fault points: one before each side effect of the code that runs, at which it is killed or meets an error.

Side effects are calls that change files, mounts, the ledger, processes or MIG instances. The point before the next one
is also the point after the last. What a call changes within itself (SQLite's commit, a C library) is not divided.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import pynvml
from forked import fork

from hami_hpc.node import ledger, mount_calls, mounts, nvml_mig
from hami_hpc.node.sqlite import sqlite3

OF_FILES = (
    *("open", "write", "pwrite", "rename", "unlink", "rmdir", "mkdir", "chmod", "fchmod", "chown", "fchown", "mknod"),
    *("link", "ftruncate", "posix_fallocate", "fsync", "utime", "setxattr"),
)
BY_DESCRIPTOR = ("write", "pwrite", "fchmod", "fchown", "ftruncate", "posix_fallocate", "fsync", "setxattr")
# What a full disk still allows: it takes no room.
WITHOUT_ROOM = ("unlink", "rmdir", "rename", "chmod", "fchmod", "chown", "fchown", "utime", "pwrite", "setxattr")
OF_INSTANCES = (
    *("nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"),
    *("nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"),
)
NVML = (pynvml, nvml_mig)  # what opens NVML: prolog and epilog by the second
LEDGER_ERRORS = {errno.ENOSPC: sqlite3.SQLITE_FULL, errno.EROFS: sqlite3.SQLITE_READONLY}
_libc = ctypes.CDLL(None, use_errno=True)

# Called with the name of a side effect and the path that it is on ("" where it is on none).
Reach = Callable[[str, str], None]


@contextmanager
def reaching(reach: Reach) -> Iterator[None]:
    """Calls `reach` before each side effect."""
    with ExitStack() as stack:
        for name in OF_FILES:
            stack.enter_context(patch.object(os, name, _of_file(name, getattr(os, name), reach)))
        for module in NVML:
            for name in OF_INSTANCES:
                stack.enter_context(patch.object(module, name, _before(name, getattr(module, name), reach)))
        popen, spawn, send_signal = subprocess.Popen, os.posix_spawn, signal.pidfd_send_signal
        stack.enter_context(patch.object(os, "posix_spawn", _before_and_after("spawn", spawn, reach)))
        stack.enter_context(patch.object(subprocess, "Popen", _before_and_after("Popen", popen, reach)))
        stack.enter_context(patch.object(signal, "pidfd_send_signal", _before("kill", send_signal, reach)))
        stack.enter_context(patch.object(mounts, "_run", _before("mount", mount_at_once, reach)))
        for name in ("mount_tmpfs", "detach"):
            stack.enter_context(patch.object(mount_calls, name, _before("mount", getattr(mount_calls, name), reach)))
        stack.enter_context(patch.object(ledger, "sqlite3", _ledgers_sqlite(reach)))
        yield


def _before(name: str, genuine: Callable[..., Any], reach: Reach) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        reach(name, "")
        return genuine(*arguments, **named)

    return call


def _before_and_after(name: str, genuine: Callable[..., Any], reach: Reach) -> Callable[..., Any]:
    """A program that was started goes on by itself, so that what follows at once is a moment of its own."""

    def call(*arguments: Any, **named: Any) -> Any:
        reach(name, "")
        result = genuine(*arguments, **named)
        reach(f"after {name}", "")
        return result

    return call


def _of_file(name: str, genuine: Callable[..., Any], reach: Reach) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        path = _path_of(name, arguments)
        if path and _is_change(name, path, arguments):
            reach(name, path)
        return genuine(*arguments, **named)

    return call


def _path_of(name: str, arguments: tuple[Any, ...]) -> str:
    """Returns the path that a call changes; "" for a pipe and the like, and for a file in memory."""
    if name in BY_DESCRIPTOR and isinstance(arguments[0], int):
        is_file = stat.S_ISREG(os.fstat(arguments[0]).st_mode)
        path = str(Path(f"/proc/self/fd/{arguments[0]}").readlink()) if is_file else ""
        return "" if path.startswith("/memfd:") else path
    return os.fsdecode(arguments[0])


def _is_change(name: str, path: str, arguments: tuple[Any, ...]) -> bool:
    """Returns whether a call can change something: a directory that is there is not made, on a full disk neither."""
    if name == "open":
        flags = arguments[1]
        return bool(flags & os.O_CREAT and not os.path.lexists(path)) or bool(flags & os.O_TRUNC)
    if name == "mkdir":
        return not os.path.lexists(path)
    return name not in ("unlink", "rmdir") or not path.startswith("/") or os.path.lexists(path)


def _ledgers_sqlite(reach: Reach) -> Any:
    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> Any:
            if sql in ("BEGIN IMMEDIATE", "COMMIT"):
                row = super().execute("PRAGMA database_list").fetchone()
                try:
                    reach(sql, row[2])
                except OSError as error:
                    text = sqlite3.OperationalError(error.strerror)
                    text.sqlite_errorcode = LEDGER_ERRORS.get(error.errno or 0, sqlite3.SQLITE_IOERR)
                    raise text from error
            return super().execute(sql, *values)

    names = {name: getattr(sqlite3, name) for name in dir(sqlite3) if not name.startswith("__")}
    return SimpleNamespace(**names | {"connect": lambda *a, **k: sqlite3.connect(*a, factory=Connection, **k)})


def mount_at_once(program: str, *words: str) -> None:
    """Does what mounts.py starts mount(8) and umount(8) for, by the system calls: 100 times as fast."""
    options = words[words.index("-o") + 1].split(",") if "-o" in words else []
    target = words[-1].encode()
    if program == mounts.UMOUNT:
        _libc.umount2(target, 2)  # MNT_DETACH
    elif "--bind" in words:
        _libc.mount(target, target, None, 0x1000, None)  # MS_BIND
        _libc.mount(None, target, None, 1 << 18, None)  # MS_PRIVATE
    else:
        data = ",".join(option for option in options if "=" in option).encode()
        _libc.mount(b"hami-hpc", target, b"tmpfs", 2 | 4 | 8, data)  # MS_NOSUID, MS_NODEV, MS_NOEXEC


def killed_at(body: Callable[[], object], point: int) -> bool:
    """Runs `body` in a child that is killed (SIGKILL) at its `point`-th fault point. Returns False where it has fewer.

    AssertionError when it failed otherwise.
    """
    child = fork()
    if child == 0:
        status = 1
        try:
            seen = 0

            def reach(_name: str, _path: str) -> None:
                nonlocal seen
                seen += 1
                if seen == point:
                    os.kill(os.getpid(), signal.SIGKILL)

            with reaching(reach):
                body()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), f"point {point}: status {status}"
    return status == signal.SIGKILL


def failing_from(body: Callable[[], object], code: int, below: str, point: int) -> bool:
    """Runs `body` while every change below a folder fails with this errno, from the `point`-th that can on. Returns
    False where it has fewer."""
    seen = 0

    def reach(name: str, path: str) -> None:
        nonlocal seen
        if not path.startswith(below) or (code == errno.ENOSPC and name in (*WITHOUT_ROOM, "BEGIN IMMEDIATE")):
            return
        seen += 1
        if seen >= point:
            raise OSError(code, os.strerror(code), path)

    with reaching(reach):
        body()
    return seen >= point


def nvml_failing_at(body: Callable[[], object], code: int, is_for_good: bool, point: int) -> bool:
    """Runs `body` while its `point`-th call of NVML fails, and with `is_for_good` all that follow. Returns False where
    it has fewer."""
    seen = 0

    def failing(module: ModuleType, genuine: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == point or (seen > point and is_for_good):
                raise module.NVMLError(code)
            return genuine(*arguments, **named)

        return call

    kinds = ("nvmlDevice", "nvmlGpu", "nvmlCompute", "nvmlInit")
    with ExitStack() as stack:
        for module in NVML:
            for name in dir(module):
                genuine = getattr(module, name)
                if isinstance(genuine, FunctionType) and name.startswith(kinds):
                    stack.enter_context(patch.object(module, name, failing(module, genuine)))
        stack.enter_context(patch.object(mounts, "_run", mount_at_once))
        body()
    return seen >= point
