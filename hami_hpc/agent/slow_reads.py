# SPDX-License-Identifier: Apache-2.0
"""Reads that a process can delay for any time, done in a thread so that they delay no look.

The kernel shows a process's memory map only while nothing changes it: a process that hangs in a driver, or that has
tens of thousands of mappings, makes its reader wait.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

WAIT_S = 0.3  # how long a look waits for all of its reads
STUCK_S = 1.0  # a read that takes longer is left to its thread, and another thread goes on
THREADS_MAX = 64


class Identity(NamedTuple):
    """A process, as far as it stays the same: `started` in clock ticks; `image` changes when it executes a program."""

    pid: int
    started: int
    image: tuple[int, int]


@dataclass
class _Thread:
    """One reading thread. `reads` is what it reads now, since `since_s`."""

    reads: Identity | None = None
    since_s: float = 0.0
    is_left: bool = False


@dataclass
class SlowReads:
    """Calls `read` with each process's pid, one after the other."""

    read: Callable[[int], bool | None]
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _waiting: deque[Identity] = field(default_factory=deque)
    _done: dict[Identity, bool | None] = field(default_factory=dict)
    _thread: _Thread | None = None
    _left: list[_Thread] = field(default_factory=list)

    def look(self, wanted: Iterable[Identity]) -> dict[Identity, bool | None]:
        """Returns what was read of these processes until now; None for what takes longer, or for ever."""
        names = tuple(wanted)
        end = time.monotonic() + WAIT_S
        with self._changed:
            stuck = {thread.reads for thread in self._left}
            reading = {self._thread.reads} if self._thread else set()
            self._done = {one: value for one, value in self._done.items() if one in names}
            self._waiting = deque(one for one in names if one not in stuck | reading | self._done.keys())
            if names:
                self._start()
            self._changed.notify_all()
            self._changed.wait_for(lambda: names_are_read(names, stuck, self._done), end - time.monotonic())
            return {one: self._done.pop(one, None) for one in names}

    def _start(self) -> None:
        """Starts a thread where there is none, or where it hangs. Call with the lock held."""
        now = self._thread
        if now is not None and now.reads is not None and time.monotonic() - now.since_s > STUCK_S:
            if len(self._left) >= THREADS_MAX:
                return
            now.is_left = True
            self._left.append(now)
            self._thread = now = None
        if now is None:
            self._thread = _Thread()
            threading.Thread(target=self._work, args=(self._thread,), name="maps", daemon=True).start()

    def _work(self, own: _Thread) -> None:
        while True:
            with self._changed:
                if own.is_left:
                    self._left.remove(own)
                    return
                own.reads = None
                self._changed.wait_for(lambda: self._waiting)
                own.reads, own.since_s = self._waiting.popleft(), time.monotonic()
            value = self.read(own.reads.pid)
            with self._changed:
                if not own.is_left:
                    self._done[own.reads] = value
                    self._changed.notify_all()


def names_are_read(names: tuple[Identity, ...], stuck: set[Identity | None], done: dict[Identity, bool | None]) -> bool:
    """Returns whether nothing more can be waited for."""
    return all(one in done or one in stuck for one in names)
