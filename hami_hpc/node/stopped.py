# SPDX-License-Identifier: Apache-2.0
"""Programs of users that SIGTSTP or SIGSTOP has stopped."""

from __future__ import annotations

import os
from signal import SIGCONT

from hami_hpc.core.contexts import suppress

STATUS_MAX = 4096


def let_go_on(pid: int, uid: int) -> bool:
    """Lets a stopped process of the user go on, and returns whether it did. `pid` may be the user's own word: whatever
    it is, this does no more than the user could. A process in a PID namespace of its own is left alone."""
    with suppress(OSError, OverflowError):
        fd = _pidfd(pid)
        try:
            if not _is_stopped(pid, uid):
                return False
            if fd < 0:
                os.kill(pid, SIGCONT)
            else:
                from signal import pidfd_send_signal

                pidfd_send_signal(fd, SIGCONT)
            return True
        finally:
            if fd >= 0:
                os.close(fd)
    return False


def _pidfd(pid: int) -> int:
    """Returns a descriptor that stays that process's; -1 where the kernel has none (before 5.3)."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return -1


def _is_stopped(pid: int, uid: int) -> bool:
    with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
        text = file.read(STATUS_MAX).decode("ascii", "replace")
    lines = dict(line.partition(":")[::2] for line in text.splitlines())
    users = {int(word) for word in lines["Uid"].split()}
    return lines["State"].split()[:1] == ["T"] and users == {uid} and lines["NSpid"].split() == [str(pid)]
