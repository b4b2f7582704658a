# SPDX-License-Identifier: Apache-2.0
"""Runs a program with a time limit, as prolog and epilog can: without the module subprocess, whose import takes longer
than a control program of MPS (docs/adr/021)."""

from __future__ import annotations

import fcntl
import os
import select
import time

from hami_hpc.core.contexts import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

OUTPUT_MAX, PRINTED_MAX = 1 << 16, 1 << 20  # bytes that are returned, and that a program can print
KILL_S = 3.0
LOOK_S = 0.005  # where the kernel has no pidfd_open (before 5.3)
IGNORED_BY_PYTHON = (13, 25)  # SIGPIPE, SIGXFSZ: a program gets their defaults. The module signal imports enum
SIGKILL = 9
F_ADD_SEALS, F_SEAL_GROW = 1033, 4  # linux/fcntl.h


def run(command: list[str], environment: Mapping[str, str], text: str, timeout_s: float) -> tuple[int | None, str]:
    """Runs a program in / with `text` as its input. Returns its status (None when it took too long and was killed), and
    what it printed. It inherits no other file. Raises OSError when it cannot be started.

    Input and output are files in memory: a daemon may keep a pipe open for as long as it lives. That of the output
    cannot grow beyond PRINTED_MAX: a program that prints without end is told EPERM.
    """
    given = os.memfd_create("given", os.MFD_CLOEXEC)
    printed = os.memfd_create("printed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(printed, PRINTED_MAX)
        fcntl.fcntl(printed, F_ADD_SEALS, F_SEAL_GROW)
        os.write(given, text.encode())
        os.lseek(given, 0, os.SEEK_SET)
        pid = _spawn(command, environment, given, printed)
        status = _wait(pid, timeout_s)
        count = os.lseek(printed, 0, os.SEEK_CUR)  # the program writes by this same position
        return status, os.pread(printed, min(count, OUTPUT_MAX), 0).decode(errors="replace")
    finally:
        os.close(given)
        os.close(printed)


def _spawn(command: list[str], environment: Mapping[str, str], given: int, printed: int) -> int:
    actions: list[tuple[int, ...]] = [(os.POSIX_SPAWN_DUP2, given, 0)]
    actions += [(os.POSIX_SPAWN_DUP2, printed, fd) for fd in (1, 2)]
    actions += [(os.POSIX_SPAWN_CLOSE, fd) for fd in _inherited()]
    here = -1
    with suppress(OSError):  # a directory that is gone
        here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    os.chdir("/")
    try:
        return os.posix_spawn(command[0], command, environment, file_actions=actions, setsigdef=IGNORED_BY_PYTHON)
    finally:
        if here >= 0:
            with suppress(OSError):
                os.fchdir(here)
            os.close(here)


def _inherited() -> Iterator[int]:
    """Yields the files beyond the first three that a program would inherit, such as those of slurmd."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one by which the directory was read
            if int(name) > 2 and os.get_inheritable(int(name)):
                yield int(name)


def _wait(pid: int, timeout_s: float) -> int | None:
    """Returns the status of a child, which has ended then; None for one that had to be killed."""
    in_time = _ends(pid, timeout_s)
    if not in_time:
        os.kill(pid, SIGKILL)
        if not _ends(pid, KILL_S):  # it waits in the driver
            return None
    try:
        _pid, status = os.waitpid(pid, 0)
    except ChildProcessError:  # SIGCHLD is ignored: the kernel keeps no status
        status = 0
    return os.waitstatus_to_exitcode(status) if in_time else None


def _ends(pid: int, within_s: float) -> bool:
    """Waits until a child has ended, and returns whether it has."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except OSError:
        return _ends_by_looking(pid, within_s)
    try:
        return wait_for((fd,), within_s)
    finally:
        os.close(fd)


def _ends_by_looking(pid: int, within_s: float) -> bool:
    end = time.monotonic() + within_s
    while True:
        try:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return True
        except ChildProcessError:
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(LOOK_S)


def wait_for(pidfds: Sequence[int], within_s: float) -> bool:
    """Waits until a process of these descriptors has ended. Returns whether one has."""
    poll = select.poll()
    for fd in pidfds:
        poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0, int(within_s * 1000 + 0.999))))
