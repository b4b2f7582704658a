# SPDX-License-Identifier: Apache-2.0
"""The site's hooks: programs in the directory `events_hooks` of [agent], each run with one event after the other.

A hook runs as root, so only what root alone can write is run: the file, and every folder above it. It gets the event's
line on standard input and its kind as argument, and has TIMEOUT_S before it is killed with its process group.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from hami_hpc.core.event_kinds import ABOUT_HOOKS
from hami_hpc.node.event_reader import Line

TIMEOUT_S = 10.0
NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
NAME_MAX = 64
HOOKS_MAX = 32
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}

# kind, text, count
Report = Callable[[str, str, int], None]


def fault_of(path: str) -> str:
    """Returns why root may not run this file, "" if it may. `path` must have no links in it (os.path.realpath)."""
    try:
        status = os.lstat(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    if not stat.S_ISREG(status.st_mode) or not status.st_mode & 0o100:
        return f"{path} is not a program that root can execute (chmod 0755)"
    while True:
        if status.st_uid != 0 or status.st_mode & 0o022:
            who = f"belongs to uid {status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}"
            return f"{path} {who}; root runs only what root alone can write, with every folder above it"
        if path == "/":
            return ""
        path = os.path.dirname(path)
        try:
            status = os.lstat(path)
        except OSError as error:
            return f"{path}: {error.strerror}"


def names(directory: str) -> tuple[str, ...]:
    """Returns the names of the hooks in a directory, sorted. Raises OSError. Names with other characters than those of
    run-parts, such as an editor's copies, are no hooks."""
    return tuple(
        sorted(
            name
            for name in os.listdir(directory)
            if len(name) <= NAME_MAX
            and NAME_CHARACTERS.issuperset(name)
            and not name.startswith(".")
            and not name.endswith((".bak", ".swp", ".dpkg-old", ".dpkg-new", ".rpmsave", ".rpmnew"))
        )
    )[:HOOKS_MAX]


@dataclass
class Hook:
    """One hook. `report` writes an event about it."""

    directory: str
    name: str
    report: Report
    timeout_s: float = TIMEOUT_S
    _refused: str = ""
    _failures: int = 0

    def take(self, line: Line) -> None:
        """Runs the hook with an event. Never raises."""
        if line.event is None or line.event["kind"] in ABOUT_HOOKS:
            return
        path = os.path.realpath(f"{self.directory}/{self.name}")
        fault = fault_of(path)
        if fault:
            if not self._refused:
                self.report("hook_refused", f"hook {self.name} is not run: {fault}", 0)
            self._refused = fault
            return
        self._refused = ""
        failure = self._run(path, line.event["kind"], line.text)
        # A hook that always fails says so when it begins to, and then at every thousandth time.
        if failure and self._failures % 1000 == 0:
            text = f"hook {self.name} {failure} with an event {line.event['kind']}"
            self.report("hook_failed", text, self._failures + 1)
        self._failures = self._failures + 1 if failure else 0

    def drop(self, count: int) -> None:
        """Reports events that the hook was not given."""
        self.report("hook_dropped", f"hook {self.name} is too slow: it was not given {count} event(s)", count)

    def _run(self, path: str, kind: str, text: str) -> str:
        """Returns what went wrong, "" for nothing."""
        try:
            process = subprocess.Popen(
                (path, kind),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                cwd="/",
                env=ENVIRONMENT,
                start_new_session=True,
            )
        except OSError as error:
            return f"cannot be started ({error.strerror})"
        try:
            process.communicate(f"{text}\n".encode(), timeout=self.timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its group is its own, and it was not waited for yet
            process.wait()
            return f"was killed after {self.timeout_s:g} s"
        return f"ended with status {process.returncode}" if process.returncode else ""
