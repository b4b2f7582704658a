# SPDX-License-Identifier: Apache-2.0
"""Starts, finds and stops the cluster's daemons.

Each runs in the foreground of its own session, so that it outlives the make that started it. A daemon is identified by
its pid and its start time in /proc, so that another process with a reused pid is never mistaken for it, or killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .layout import ClusterError, Layout

_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon's command and environment, and a function that returns whether it answers."""

    name: str
    command: tuple[str, ...]
    answers: Callable[[], bool]
    environment: Mapping[str, str]
    start_timeout_s: float = 60.0


def log_tail(path: Path, lines: int = 25) -> str:
    """Returns the last lines of a log, for an error message."""
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        return f"({path}: {error.strerror})"
    # Debian's Slurm logs many errors about MPI plugins whose libraries are not installed; nothing here uses them.
    kept = [line for line in text.splitlines() if "pmix" not in line]
    return f"--- {path}\n" + "\n".join(kept[-lines:])


def _start_ticks(pid: int) -> int | None:
    """Returns the clock ticks from boot to a process's start (proc(5), stat field 22); None if it does not exist."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Polls until the condition holds; returns False after the timeout."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_S)
    return True


def running_pid(layout: Layout, name: str) -> int | None:
    """Returns the pid of the cluster's daemon of this name, or None when it is not running."""
    try:
        pid, ticks, boot = (layout.pids / name).read_text().split()
    except (FileNotFoundError, ValueError):
        return None
    return int(pid) if boot == _boot_id() and _start_ticks(int(pid)) == int(ticks) else None


def start(layout: Layout, daemon: Daemon) -> None:
    """Starts the daemon and waits until it answers. Raises ClusterError with its log's tail."""
    output = layout.log / f"{daemon.name}.out"
    with output.open("ab") as log:
        process = subprocess.Popen(
            daemon.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(daemon.environment),
            cwd="/",
            start_new_session=True,
        )
    ticks = _start_ticks(process.pid)
    (layout.pids / daemon.name).write_text(f"{process.pid} {ticks} {_boot_id()}\n")
    end = time.monotonic() + daemon.start_timeout_s
    while time.monotonic() < end:
        if process.poll() is not None:
            raise ClusterError(f"{daemon.name} ended at once with status {process.returncode}\n{_logs(layout, daemon)}")
        if daemon.answers():
            process.returncode = 0  # it outlives this process: keeps Python from warning that it still runs
            return
        time.sleep(_POLL_S)
    raise ClusterError(f"{daemon.name} did not answer in {daemon.start_timeout_s:.0f} s\n{_logs(layout, daemon)}")


def _logs(layout: Layout, daemon: Daemon) -> str:
    paths = (layout.log / f"{daemon.name}.out", layout.log / f"{daemon.name}.log")
    return "\n".join(log_tail(path) for path in paths if path.exists() and path.stat().st_size)


def stop(layout: Layout, name: str, how: signal.Signals = signal.SIGTERM, timeout_s: float = 30.0) -> bool:
    """Stops the daemon if it runs; after timeout_s with SIGKILL. Returns whether it was running."""
    pid = running_pid(layout, name)
    if pid is not None:
        _end(layout, name, pid, how, timeout_s)
    with contextlib.suppress(FileNotFoundError):
        (layout.pids / name).unlink()
    return pid is not None


def _end(layout: Layout, name: str, pid: int, how: signal.Signals, timeout_s: float) -> None:
    for signal_number, wait_s in ((how, timeout_s), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal_number)
        end = time.monotonic() + wait_s
        while time.monotonic() < end:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)  # it is a child if this process started it
            if running_pid(layout, name) is None:
                return
            time.sleep(_POLL_S)
    raise ClusterError(f"{name} (pid {pid}) does not end, not even after SIGKILL; look at it with ps and end it")
